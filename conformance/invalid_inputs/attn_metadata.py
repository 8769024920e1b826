"""Invalid inputs of `build_attn_metadata`: wrong counts, and batches that contradict themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from conformance.calls import Call
from conformance.contracts import Change, InvalidInput
from conformance.invalid_inputs.arrays import Array
from conformance.invalid_inputs.changes import (
    changed,
    changed_with_facts,
    checked_refusals,
    refusals,
    replaced,
    with_element,
)
from conformance.invalid_inputs.kinds import MAX_INT32, Int, List, Object, invalid_by_kind
from conformance.strategies.attn_metadata import BOUNDS, Buffer, Step
from conformance.strategies.engines import Own, OwnClass

COMPUTED, STARTS, LENS = "num_computed_tokens_cpu", "query_start_loc", "seq_lens"
BUILDERS, TABLES, SLOTS = "attn_metadata_builders", "block_tables", "slot_mappings"
GROUPS = "kv_cache_config.kv_cache_groups"


def _one_more(argument: str) -> Change:
    """Return the change that gives the last entry twice, for a group that there is not."""

    def change(entries: Any) -> list[Any] | None:
        is_one_array = isinstance(entries, np.ndarray)
        return None if is_one_array or not entries else [*entries, entries[-1]]

    return changed(argument, change)


def _one_fewer(argument: str) -> Change:
    """Return the change that leaves out the last group's."""
    return changed(argument, lambda entries: entries[:-1] if len(entries) else None)


def _both_halves(argument: str, change: Callable[[Any, Step], Any]) -> Change:
    """Return the same change of both halves of a buffer."""

    def changed_buffer(buffer: Buffer, step: Step) -> Buffer | None:
        halves = {half: change(getattr(buffer, half), step) for half in ("cpu", "gpu")}
        if any(array is None for array in halves.values()):
            return None
        return Buffer(argument, **halves)

    return changed_with_facts(argument, changed_buffer)


def _invalid_buffer(argument: str, more: int) -> list[InvalidInput]:
    """Return the invalid inputs of a buffer that needs `num_reqs + more` entries."""
    half = Array([np.int64], length=lambda call: _num_reqs(call) + more, names=argument)
    without_gpu = Own(OwnClass("Buffer"), "buffer", {"cpu": np.zeros(99, np.int32)})
    return [
        *invalid_by_kind(**{f"{argument}.cpu": half, f"{argument}.gpu": half}),
        *refusals(
            AttributeError,
            gpu={f"{argument} has no half on the device": replaced(argument, without_gpu)},
        ),
    ]


def _first_with_tokens(step: Step) -> int | None:
    lens = step.batch.query_lens if step.batches else ()
    return next((i for i, q in enumerate(lens) if q), None)


def _start_decreases(starts: Any, step: Step) -> Any:
    i = _first_with_tokens(step)
    if i is None or i == step.batch.num_reqs - 1:
        return None
    return with_element(starts, i + 2, int(starts[i]))


def _shorter_than_query(lens: Any, step: Step) -> Any:
    i = _first_with_tokens(step)
    return None if i is None else with_element(lens, i, step.batch.query_lens[i] - 1)


def _unlike_half(array: Any, step: Step) -> Any:
    is_there = step.batches and step.batch.num_reqs
    return with_element(array, 0, int(array[0]) + 1) if is_there else None


def _computed(value: Callable[[Step, int], int]) -> Change:
    """Return the change of the computed tokens of a request with a query."""

    def change(computed: Any, step: Step) -> Any:
        i = _first_with_tokens(step)
        return None if i is None else with_element(computed, i, value(step, i))

    return changed_with_facts(COMPUTED, change)


def _below_maximum(name: str) -> Change:
    def invalidate(call: Call) -> Call | None:
        maximum = call.facts.maximum(name)
        return call.replacing(**{name: maximum - 1}) if maximum and call.facts.batches else None

    return invalidate


def _fewer_tokens(call: Call) -> Call | None:
    tokens = call.facts.batch.num_tokens
    return call.replacing(num_tokens=tokens - 1) if tokens and call.facts.batches else None


def _num_reqs(call: Call) -> int:
    return int(call.facts.batch.num_reqs)


def _num_tokens(call: Call) -> int:
    return int(call.facts.batch.num_actual_tokens)


def _one_array_too_short(slots: Any, step: Step) -> Any:
    tokens = step.batch.num_actual_tokens
    is_array = isinstance(slots, np.ndarray) and tokens and len(slots)
    return slots[:, : tokens - 1] if is_array else None


def _counts(argument: str) -> dict[str, Change]:
    """Return the changes of how many entries an argument has, which needs one for each group."""
    return {
        f"{argument} has an entry too many": _one_more(argument),
        f"{argument} has an entry too few": _one_fewer(argument),
    }


BUILD_ATTN_METADATA_INVALID_INPUTS = [
    *invalid_by_kind(
        num_reqs=Int(0),
        num_tokens=Int(0),
        max_query_len=Int(0, MAX_INT32, is_optional=True),
        max_seq_len=Int(0, MAX_INT32, is_optional=True),
        num_computed_tokens_cpu=Array([np.int64], length=_num_reqs),
        kv_cache_config=Object(reads="kv_cache_groups"),
        attn_metadata_builders=List(Object(reads="build")),
        block_tables=List(Array([np.int64], ndim=2, length=_num_reqs), takes_tuple=True),
        slot_mappings=List(Array([np.int32], length=_num_tokens), takes_tuple=True),
        **{GROUPS: List()},
    ),
    *_invalid_buffer(STARTS, 1),
    *_invalid_buffer(LENS, 0),
    *refusals(ValueError, **{name: _counts(name) for name in (BUILDERS, TABLES, SLOTS)}),
    *refusals(
        ValueError,
        slot_mappings={
            "slots of one array are too few": changed_with_facts(SLOTS, _one_array_too_short),
            "one array of slots has one axis": replaced(SLOTS, np.zeros(999, np.int64)),
        },
        attn_metadata_builders={
            "a group more than there are builders": changed(
                GROUPS, lambda groups: [*groups, groups[-1]] if groups else None
            )
        },
    ),
    *refusals(
        TypeError,
        slot_mappings={
            "one array of slots is int32": replaced(SLOTS, np.zeros((3, 9999), np.int32))
        },
    ),
    *checked_refusals(
        ValueError,
        query_start_loc={
            "the first start is not 0": _both_halves(
                STARTS, lambda a, step: with_element(a, 0, -1) if step.batches else None
            ),
            "starts decrease": _both_halves(STARTS, _start_decreases),
        },
        seq_lens={"a sequence is shorter than its query": _both_halves(LENS, _shorter_than_query)},
        num_computed_tokens_cpu={
            "computed counts are negative": _computed(lambda *_: -1),
            "more is computed than is before the query": _computed(
                lambda step, i: step.batch.num_computed_tokens[i] + 1
            ),
        },
        num_actual_tokens={"tokens are fewer than the requests have": _fewer_tokens},
        **{
            f"{buffer}_cpu|{buffer}": {
                f"the halves of {buffer} differ": changed_with_facts(f"{buffer}.gpu", _unlike_half)
            }
            for buffer in (STARTS, LENS)
        },
        **{name: {f"{name} is below the maximum": _below_maximum(name)} for name in BOUNDS},
    ),
]
