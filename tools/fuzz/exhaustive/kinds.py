"""Scopes of batches by kind of request: split into two and three kinds, and reordered."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from conformance.calls import Call
from conformance.strategies.batch_order import InputBatch, SchedulerOutput
from tools.fuzz.exhaustive.batches import Requests, all_requests, ints, metadata_of
from tools.fuzz.exhaustive.scope import Scope
from tools.fuzz.exhaustive.spaces import Chain, Product, Sequences, Values


def _two(case: tuple[Requests, int, int, bool]) -> Call:
    requests, num_padding, threshold, is_uniform = case
    arguments = {
        "common_attn_metadata": metadata_of(requests, num_padding_tokens=num_padding),
        "decode_threshold": threshold,
        "require_uniform": is_uniform,
    }
    return Call("split_decodes_and_prefills", arguments)


def two_kinds(scale: int) -> Scope:
    """Return the scope of splits into decodes and prefills."""
    requests, query, many = [(2, 2, 2), (4, 4, 6), (5, 4, 7)][scale]
    few = all_requests(requests, query, (0, 2))
    cases = Chain(
        Product(few, ints(0, 1), ints(0, query + 1), Values((False, True))),
        Product(
            all_requests(many, 3, 0, requests + 1),
            ints(0, 1),
            ints(1, 4),
            Values((False, True)),
        ),
    )
    return Scope(
        "splits into two kinds",
        ("split_decodes_and_prefills",),
        f"batch with at most {requests} requests of at most {query} new and 0 or 2 computed "
        f"tokens, and with at most {many} requests of at most 3 new and no computed tokens, 1 "
        f"padded token, at all thresholds from 0 to {query + 1} (with more requests 1 to 4), "
        "uniform or not",
        cases.map(_two),
        150,
    )


def _three(case: tuple[Requests, int, int]) -> Call:
    requests, num_padding, threshold = case
    arguments = {
        "common_attn_metadata": metadata_of(requests, num_padding_tokens=num_padding),
        "decode_threshold": threshold,
    }
    return Call("split_decodes_prefills_and_extends", arguments)


def three_kinds(scale: int) -> Scope:
    """Return the scope of splits into decodes, extends and prefills."""
    requests, query, computed = [(2, 2, 1), (5, 3, 1), (5, 3, 2)][scale]
    cases = Product(all_requests(requests, query, computed), ints(0, 1), ints(0, query + 1))
    return Scope(
        "splits into three kinds",
        ("split_decodes_prefills_and_extends",),
        f"batch with at most {requests} requests of at most {query} new and {computed} computed "
        f"tokens, 1 padded token, at all thresholds from 0 to {query + 1}",
        cases.map(_three),
        160,
    )


Kind = tuple[int, int, int]
"""New tokens, computed tokens and prompt tokens of a request."""


def _reordered(case: tuple[int, tuple[Kind, ...], int]) -> Call:
    regions, kinds, threshold = case
    arguments: dict[str, Any] = {
        "input_batch": _input_batch(kinds),
        "scheduler_output": _scheduled(tuple(tokens for tokens, _, _ in kinds)),
        "decode_threshold": threshold,
        "regions": regions,
    }
    return Call("reorder_batch_to_split_decodes_and_prefills", arguments)


@functools.lru_cache(maxsize=64)
def _scheduled(tokens: tuple[int, ...]) -> SchedulerOutput:
    return SchedulerOutput({f"r{i}": count for i, count in enumerate(tokens)})


def _input_batch(kinds: tuple[Kind, ...]) -> InputBatch:
    ids = [f"r{i}" for i in range(len(kinds))]
    computed, prompts = (np.array([kind[i] for kind in kinds], np.int32) for i in (1, 2))
    return InputBatch(ids, computed, prompts)


def reordered_kinds(scale: int) -> Scope:
    """Return the scope of short batches whose requests are of any size, to be reordered."""
    three, four, query = [(2, 2, 2), (6, 3, 3), (6, 4, 3)][scale]
    requests_of_three = Product(ints(0, query), ints(0, 1), Values((0,)))
    requests_of_four = Product(ints(0, query), ints(0, 2), ints(0, 2))
    thresholds = ints(0, query)
    cases = Chain(
        Product(Values((3,)), Sequences(requests_of_three, three), thresholds),
        Product(Values((4,)), Sequences(requests_of_four, four), thresholds),
    )
    return Scope(
        "reordered requests",
        ("reorder_batch_to_split_decodes_and_prefills",),
        f"batch with at most {three} requests (with four regions {four}) of at most {query} new "
        "tokens and 1 computed token (with four regions 2, and prompts of at most 2), at all "
        f"thresholds from 0 to {query}",
        cases.map(_reordered),
        160,
    )


def reordered_regions(scale: int) -> Scope:
    """Return the scope of long batches with one request of each region, in all orders."""
    maximum = (3, 8, 9)[scale]
    three = Values([(1, 1, 1), (2, 1, 1), (2, 0, 1)])
    four = Values([(1, 2, 2), (1, 1, 2), (2, 1, 2), (2, 0, 2)])
    cases = Chain(
        Product(Values((3,)), Sequences(three, maximum), Values((1,))),
        Product(Values((4,)), Sequences(four, maximum), Values((1,))),
    )
    return Scope(
        "reordered regions",
        ("reorder_batch_to_split_decodes_and_prefills",),
        f"order of the regions of at most {maximum} requests, three regions and four",
        cases.map(_reordered),
        180,
    )


SCOPES = (two_kinds, three_kinds, reordered_kinds, reordered_regions)
"""What makes each scope of this module, at a scale."""
