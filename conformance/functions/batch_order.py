"""The order of a batch: its decodes, extends and prefills are counted, and put in order."""

from __future__ import annotations

import dataclasses
import random
from typing import Any, Final

import numpy as np
from hypothesis import strategies as st

from conformance.harness.contract import Arguments, Contract
from conformance.laws import batch_laws as laws
from conformance.laws.batch_laws import Description, Part
from conformance.laws.batches import (
    MAX_INT32,
    Batch,
    IntArray,
    batches,
    choices,
    deferred,
    metadata_specials,
)

# split_decodes_and_prefills, split_decodes_prefills_and_extends


@st.composite
def _split(draw: st.DrawFn, *, has_uniform: bool) -> st.SearchStrategy[Arguments]:
    """Draw batches in any order, and a threshold next to a request's length, or far from all."""
    batch_of_sizes = draw(batches(most=(1100, 8193, 20), has_optional=True))
    kind, near, uniform, order = choices(
        *(draw, ("none", "near", "near", "longest", "far"), (0, 0, 1, -1)),
        *((None, False, True, True), ("any", "any", "idle first", "by length")),
    )

    def contents(draw: st.DrawFn) -> Arguments:
        batch = draw(batch_of_sizes)
        if order != "any":
            keys = batch.query_lens > 0 if order == "idle first" else batch.query_lens
            batch, _ = laws.in_order(batch, np.argsort(keys).tolist())
        arguments: Arguments = {"common_attn_metadata": batch.metadata()}
        lens = batch.query_lens
        threshold = {"longest": int(lens.max(initial=1)), "far": MAX_INT32}.get(kind, 1)
        if kind == "near" and len(lens):
            threshold = int(lens[draw(st.integers(0, len(lens) - 1))])
        if kind != "none":
            arguments["decode_threshold"] = min(max(threshold + near, 1), MAX_INT32)
        if has_uniform and uniform is not None:
            arguments["require_uniform"] = uniform
        return arguments

    return deferred(contents)


def wrong_count(arguments: Arguments, rng: random.Random) -> Arguments:
    """Let a count be none, or too large: both modes of `fast` see it."""
    name = rng.choice(("num_reqs", "num_actual_tokens"))
    change = {name: rng.choice((-1, 2**63, 2**64, True, 1.0))}
    metadata = dataclasses.replace(arguments["common_attn_metadata"], **change)
    return {**arguments, "common_attn_metadata": metadata}


def _lens(arguments: Arguments) -> IntArray:
    return np.diff(arguments["common_attn_metadata"].query_start_loc)


def _is_long(arguments: Arguments) -> IntArray:
    found: IntArray = _lens(arguments) > arguments.get("decode_threshold", 1)
    return found


def _num_kinds(arguments: Arguments) -> int:
    """Return how many kinds of requests the batch has: decodes, extends, prefills."""
    is_long = _is_long(arguments)
    is_new = arguments["common_attn_metadata"].num_computed_tokens_cpu == 0
    return sum(map(np.any, (~is_long, is_long & ~is_new, is_long & is_new)))


def _thresholds(_: Batch) -> st.SearchStrategy[int]:
    return st.integers(1, 4)


def _of_batch(batch: Batch, threshold: int) -> Arguments:
    return {"common_attn_metadata": batch.metadata(), "decode_threshold": threshold}


def _kinds(batch: Batch, _: Arguments, result: Any) -> list[Part]:
    """Return the requests of each kind: the batch, cut at the counts."""
    slots, middle = batch.slot_mapping(), len(result) // 2
    request = token = 0
    found = []
    for num_reqs, num_tokens in zip(result[:middle], result[middle:], strict=True):
        requests = slice(request, request + num_reqs)
        kind = dataclasses.replace(
            batch,
            query_lens=batch.query_lens[requests],
            num_computed_tokens=batch.num_computed_tokens[requests],
            block_table=batch.block_table[requests],
            num_padding_tokens=0,
            optional={},
        ).metadata()
        own = slots[token : token + num_tokens]  # a wrong token count shows as wrong slots
        made = dataclasses.replace(kind, num_actual_tokens=num_tokens, slot_mapping=own)
        found.append(Part(made, token))
        request, token = requests.stop, token + num_tokens
    return found


def _split_contract(function: str, read: str, **about: Any) -> Contract:
    """Return a contract; with checks off, `fast` refuses only what it reads."""
    lengths = rf"(query_start_loc|{read}) has \d+ entries, expected"
    return Contract(
        function=function,
        calls=_split(has_uniform=function == "split_decodes_and_prefills"),
        specials=(wrong_count, *metadata_specials("common_attn_metadata")),
        checked_only=(
            rf"^(?!.*attribute '({read})'|decode_threshold|require_uniform|({read}) must|{lengths}"
            r"|num_reqs is|num_actual_tokens is)"
        ),
        unread=frozenset({"query_start_loc", "query_start_loc_cpu"}),
        laws=(laws.split_partitions, laws.padding_adds_nothing),
        description=Description(_of_batch, _kinds, _thresholds),
        takes_own_objects=True,
        examples=0.7,
        **about,
    )


READ: Final = "num_reqs|num_actual_tokens|query_start_loc_cpu"
"""The fields that `fast` reads for both."""

CONTRACTS = [
    _split_contract(
        "split_decodes_and_prefills",
        READ,
        hard_cases={
            "short lengths differ, none is long, and uniform is required": lambda args: (
                args.get("require_uniform")
                and args["common_attn_metadata"].max_query_len <= args.get("decode_threshold", 1)
                and len({*_lens(args).tolist()} - {0}) > 1
            ),
            "decodes after a first request of no tokens": lambda args: (
                args.get("require_uniform")
                and _lens(args)[:1].tolist() == [0]
                and _lens(args).any()
                and not _is_long(args).any()
            ),
            "more than 256 decodes before a prefill": lambda args: (
                _is_long(args).any() and _is_long(args).argmax() > 256
            ),
        },
    ),
    _split_contract(
        "split_decodes_prefills_and_extends",
        f"{READ}|num_computed_tokens_cpu",
        hard_cases={"all kinds": lambda args: _num_kinds(args) == 3},
    ),
]
