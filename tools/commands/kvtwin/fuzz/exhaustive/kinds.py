"""Scopes of batches by kind of request: split into two and three kinds, and reordered."""

from __future__ import annotations

import functools

import numpy as np

from conformance.strategies.batch_order import InputBatch, SchedulerOutput
from conformance.values.call import Call
from kvtwin.fuzz.exhaustive import spaces as sp
from kvtwin.fuzz.exhaustive.batches import all_requests, metadata_with_padding


def two_kinds(scale: int) -> sp.Scope:
    """Return the scope of splits into decodes and prefills."""
    requests, query, many = [(2, 2, 2), (4, 4, 6), (5, 4, 7)][scale]
    function = "split_decodes_and_prefills"
    cases = sp.chain(
        sp.calls(
            function,
            common_attn_metadata=metadata_with_padding(all_requests(requests, query, (0, 2))),
            decode_threshold=sp.ints(0, query + 1),
            require_uniform=sp.BOOLS,
        ),
        sp.calls(
            function,
            common_attn_metadata=metadata_with_padding(all_requests(many, 3, 0, requests + 1)),
            decode_threshold=sp.ints(1, 4),
            require_uniform=sp.BOOLS,
        ),
    )
    return sp.Scope(
        "splits into two kinds",
        (function,),
        f"batch with at most {requests} requests of at most {query} new and 0 or 2 computed "
        f"tokens, and with at most {many} requests of at most 3 new and no computed tokens, 1 "
        f"padded token, at all thresholds from 0 to {query + 1} (with more requests 1 to 4), "
        "uniform or not",
        cases,
    )


def three_kinds(scale: int) -> sp.Scope:
    """Return the scope of splits into decodes, extends and prefills."""
    requests, query, computed = [(2, 2, 1), (5, 3, 1), (5, 3, 2)][scale]
    function = "split_decodes_prefills_and_extends"
    return sp.Scope(
        "splits into three kinds",
        (function,),
        f"batch with at most {requests} requests of at most {query} new and {computed} computed "
        f"tokens, 1 padded token, at all thresholds from 0 to {query + 1}",
        sp.calls(
            function,
            common_attn_metadata=metadata_with_padding(all_requests(requests, query, computed)),
            decode_threshold=sp.ints(0, query + 1),
        ),
    )


Kind = tuple[int, int, int]
"""New tokens, computed tokens and prompt tokens of a request."""


def _reorders(
    regions: int, kinds: sp.Space[Kind], maximum: int, thresholds: sp.Space[int]
) -> sp.Space[Call]:
    """Return all reorders of at most `maximum` requests of some kinds, into `regions` regions."""

    def call_of(found: tuple[Kind, ...], threshold: int) -> Call:
        ids = [f"r{i}" for i in range(len(found))]
        computed, prompts = (np.array([kind[i] for kind in found], np.int32) for i in (1, 2))
        arguments = {
            "input_batch": InputBatch(ids, computed, prompts),
            "scheduler_output": _scheduled(tuple(tokens for tokens, _, _ in found)),
            "decode_threshold": threshold,
            "regions": regions,
        }
        return Call("reorder_batch_to_split_decodes_and_prefills", arguments)

    return sp.product(sp.sequences(kinds, maximum), thresholds).starmap(call_of)


@functools.lru_cache(maxsize=64)
def _scheduled(tokens: tuple[int, ...]) -> SchedulerOutput:
    return SchedulerOutput({f"r{i}": count for i, count in enumerate(tokens)})


def reordered_kinds(scale: int) -> sp.Scope:
    """Return the scope of short batches whose requests are of any size, to be reordered."""
    three, four, query = [(2, 2, 2), (6, 3, 3), (6, 4, 3)][scale]
    requests_of_three = sp.product(sp.ints(0, query), sp.ints(0, 1), sp.values((0,)))
    requests_of_four = sp.product(sp.ints(0, query), sp.ints(0, 2), sp.ints(0, 2))
    cases = sp.chain(
        _reorders(3, requests_of_three, three, sp.ints(0, query)),
        _reorders(4, requests_of_four, four, sp.ints(0, query)),
    )
    return sp.Scope(
        "reordered requests",
        ("reorder_batch_to_split_decodes_and_prefills",),
        f"batch with at most {three} requests (with four regions {four}) of at most {query} new "
        "tokens and 1 computed token (with four regions 2, and prompts of at most 2), at all "
        f"thresholds from 0 to {query}",
        cases,
    )


def reordered_regions(scale: int) -> sp.Scope:
    """Return the scope of long batches with one request of each region, in all orders."""
    maximum = (3, 8, 9)[scale]
    three = sp.values([(1, 1, 1), (2, 1, 1), (2, 0, 1)])
    four = sp.values([(1, 2, 2), (1, 1, 2), (2, 1, 2), (2, 0, 2)])
    cases = sp.chain(
        _reorders(3, three, maximum, sp.values((1,))), _reorders(4, four, maximum, sp.values((1,)))
    )
    return sp.Scope(
        "reordered regions",
        ("reorder_batch_to_split_decodes_and_prefills",),
        f"order of the regions of at most {maximum} requests, three regions and four",
        cases,
    )


SCOPES = (two_kinds, three_kinds, reordered_kinds, reordered_regions)
"""The functions that build the scopes of this module, at a scale."""
