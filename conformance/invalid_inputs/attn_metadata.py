"""Bad calls of `build_attn_metadata`: counts that do not agree, batches that make no sense."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from conformance.contracts import Call, Change, InvalidInput, replaced
from conformance.invalid_inputs.arrays import changed
from conformance.strategies.attn_metadata import BOUNDS, Buffer
from conformance.strategies.engines import Own, OwnClass


def _one_more(argument: str) -> Change:
    """Return a fault that gives the last entry twice, for a group that there is not."""

    def breaks(call: Call) -> Call | None:
        given = call.arguments[argument]
        if not isinstance(given, list) or not given:
            return None
        return call.replacing(**{argument: [*given, given[-1]]})

    return breaks


def _one_fewer(argument: str) -> Change:
    """Return a fault that leaves out the last group's."""

    def breaks(call: Call) -> Call | None:
        given = call.arguments[argument]
        return call.replacing(**{argument: given[:-1]}) if len(given) else None

    return breaks


def _last(argument: str, change: Callable[[Any, Call], Any]) -> Change:
    """Return a fault of the last group's entry; None where there is nothing to break."""

    def breaks(call: Call) -> Call | None:
        given = call.arguments[argument]
        if isinstance(given, np.ndarray) or not given:
            return None
        bad = change(given[-1], call)
        return None if bad is None else call.replacing(**{argument: [*given[:-1], bad]})

    return breaks


def _halves(argument: str, half: str, change: Callable[[Any, Call], Any]) -> Change:
    """Return a fault of one half of a buffer, or of "both"."""

    def breaks(call: Call) -> Call | None:
        buffer: Buffer = call.arguments[argument]
        names = ("cpu", "gpu") if half == "both" else (half,)
        bad = {name: change(getattr(buffer, name), call) for name in names}
        if any(array is None for array in bad.values()):
            return None
        halves = {"cpu": buffer.cpu, "gpu": buffer.gpu, **bad}
        return call.replacing(**{argument: Buffer(argument, **halves)})

    return breaks


def _buffer_faults(argument: str, more: int) -> list[InvalidInput]:
    """Return the faults of a buffer that needs `num_reqs + more` entries."""

    def cut(array: Any, call: Call) -> Any:
        length = call.facts.batch.num_reqs + more - 1
        return array[:length] if length >= 0 else None

    ways: Sequence[tuple[str, str, type[Exception], Callable[[Any, Call], Any]]] = (
        ("cpu", "has an entry too few", ValueError, cut),
        ("gpu", "has an entry too few", ValueError, cut),
        ("cpu", "has two axes", ValueError, lambda array, _: array[None].copy()),
        ("gpu", "is a column", ValueError, lambda array, _: array[:, None].copy()),
        ("gpu", "has no axis", ValueError, lambda *_: np.array(3, np.int32)),
        ("gpu", "is int64", TypeError, lambda array, _: array.astype(np.int64)),
    )
    lacking = Own(OwnClass("Buffer"), "buffer", {"cpu": np.zeros(99, np.int32)})
    return [
        *(
            InvalidInput(
                f"{argument}.{half} {what}", error, argument, _halves(argument, half, change)
            )
            for half, what, error, change in ways
        ),
        InvalidInput(
            f"{argument} has no half on the device",
            AttributeError,
            "gpu",
            replaced(argument, lacking),
        ),
    ]


def _int_faults(argument: str) -> list[InvalidInput]:
    return [
        InvalidInput(f"{argument} is {bad!r}", error, argument, replaced(argument, bad))
        for error, bad in ((ValueError, -1), (TypeError, True), (TypeError, 1.0))
    ]


def _with(array: Any, index: int, value: int) -> Any:
    bad = array.copy()
    bad[index] = value
    return bad


def _busy(call: Call) -> int | None:
    """Return the first request with tokens; None where there is no such, or no group."""
    lens = call.facts.batch.query_lens if call.facts.batches else ()
    return next((i for i, q in enumerate(lens) if q), None)


def _start_decreases(array: Any, call: Call) -> Any:
    i = _busy(call)
    if i is None or i == call.facts.batch.num_reqs - 1:
        return None
    return _with(array, i + 2, int(array[i]))


def _shorter_than_query(array: Any, call: Call) -> Any:
    i = _busy(call)
    return None if i is None else _with(array, i, call.facts.batch.query_lens[i] - 1)


def _unlike_half(array: Any, call: Call) -> Any:
    is_there = call.facts.batches and call.facts.batch.num_reqs
    return _with(array, 0, int(array[0]) + 1) if is_there else None


def _computed(value: Callable[[Call, int], int]) -> Change:
    def breaks(call: Call) -> Call | None:
        i = _busy(call)
        if i is None:
            return None
        bad = _with(call.arguments["num_computed_tokens_cpu"], i, value(call, i))
        return call.replacing(num_computed_tokens_cpu=bad)

    return breaks


def _below_maximum(name: str) -> Change:
    def breaks(call: Call) -> Call | None:
        maximum = call.facts.maximum(name)
        return call.replacing(**{name: maximum - 1}) if maximum and call.facts.batches else None

    return breaks


def _fewer_tokens(call: Call) -> Call | None:
    tokens = call.facts.batch.num_tokens
    return call.replacing(num_tokens=tokens - 1) if tokens and call.facts.batches else None


def _computed_too_few(call: Call) -> Call | None:
    num_reqs = call.facts.batch.num_reqs
    array = call.arguments["num_computed_tokens_cpu"]
    return call.replacing(num_computed_tokens_cpu=array[: num_reqs - 1]) if num_reqs else None


def _rows_too_few(table: Any, call: Call) -> Any:
    num_reqs = call.facts.batch.num_reqs
    return table[: num_reqs - 1] if num_reqs else None


def _slots_too_few(slots: Any, call: Call) -> Any:
    tokens = call.facts.batch.num_actual_tokens
    return slots[: tokens - 1] if tokens else None


def _slots_of_one_array(call: Call) -> Call | None:
    slots = call.arguments["slot_mappings"]
    tokens = call.facts.batch.num_actual_tokens
    if not isinstance(slots, np.ndarray) or not tokens or not len(slots):
        return None
    return call.replacing(slot_mappings=slots[:, : tokens - 1])


def _config_fault(change: Callable[[Any], Any]) -> Change:
    return changed("kv_cache_config", lambda c: dataclasses.replace(c, kv_cache_groups=change(c)))


COUNTS = [
    InvalidInput(f"one entry too {what} in {name}", ValueError, name, breaks(name))
    for name in ("attn_metadata_builders", "block_tables", "slot_mappings")
    for what, breaks in (("many", _one_more), ("few", _one_fewer))
]

BUILD_ATTN_METADATA_INVALID_INPUTS = [
    *COUNTS,
    *_int_faults("num_reqs"),
    *_int_faults("num_tokens"),
    *_int_faults("max_query_len"),
    *_int_faults("max_seq_len"),
    *(
        InvalidInput(f"{name} is above int32", ValueError, name, replaced(name, 2**31))
        for name in BOUNDS
    ),
    *_buffer_faults("query_start_loc", 1),
    *_buffer_faults("seq_lens", 0),
    InvalidInput(
        "computed counts are too few", ValueError, "num_computed_tokens_cpu", _computed_too_few
    ),
    InvalidInput(
        "computed counts are a column",
        ValueError,
        "num_computed_tokens_cpu",
        changed("num_computed_tokens_cpu", lambda array: array[:, None].copy()),
    ),
    InvalidInput(
        "computed counts have no axis",
        ValueError,
        "num_computed_tokens_cpu",
        replaced("num_computed_tokens_cpu", np.array(3, np.int32)),
    ),
    InvalidInput(
        "computed counts are int64",
        TypeError,
        "num_computed_tokens_cpu",
        changed("num_computed_tokens_cpu", lambda a: a.astype(np.int64)),
    ),
    InvalidInput(
        "rows are too few", ValueError, "block_tables", _last("block_tables", _rows_too_few)
    ),
    InvalidInput(
        "a table is int64",
        TypeError,
        "block_tables",
        _last("block_tables", lambda t, _: t.astype(np.int64)),
    ),
    InvalidInput(
        "a table has one axis",
        ValueError,
        "block_tables",
        _last("block_tables", lambda t, _: t[:, 0].copy() if t.shape[1] else None),
    ),
    InvalidInput("tables are no list", TypeError, "block_tables", replaced("block_tables", {})),
    InvalidInput(
        "slots are too few", ValueError, "slot_mappings", _last("slot_mappings", _slots_too_few)
    ),
    InvalidInput(
        "slots of one array are too few", ValueError, "slot_mappings", _slots_of_one_array
    ),
    InvalidInput(
        "slots are int32",
        TypeError,
        "slot_mappings",
        _last("slot_mappings", lambda s, _: s.astype(np.int32)),
    ),
    InvalidInput(
        "one array of slots has one axis",
        ValueError,
        "slot_mappings",
        replaced("slot_mappings", np.zeros(999, np.int64)),
    ),
    InvalidInput(
        "one array of slots is int32",
        TypeError,
        "slot_mappings",
        replaced("slot_mappings", np.zeros((3, 9999), np.int32)),
    ),
    InvalidInput("slots are no list", TypeError, "slot_mappings", replaced("slot_mappings", {})),
    InvalidInput(
        "builders are a tuple",
        TypeError,
        "attn_metadata_builders",
        changed("attn_metadata_builders", tuple),
    ),
    InvalidInput(
        "groups are a tuple",
        TypeError,
        "kv_cache_groups",
        _config_fault(lambda c: tuple(c.kv_cache_groups)),
    ),
    InvalidInput(
        "a group more than there are builders",
        ValueError,
        "attn_metadata_builders",
        lambda call: (
            _config_fault(lambda c: [*c.kv_cache_groups, c.kv_cache_groups[-1]])(call)
            if call.facts.batches
            else None
        ),
    ),
    InvalidInput(
        "kv_cache_config is None",
        AttributeError,
        "kv_cache_groups",
        replaced("kv_cache_config", None),
    ),
    InvalidInput(
        "a builder cannot build",
        AttributeError,
        "build",
        _last("attn_metadata_builders", lambda *_: Own(OwnClass("Builder"), "none")),
    ),
    *(
        InvalidInput(what, ValueError, argument, breaks, is_value=True)
        for what, argument, breaks in (
            (
                "the first start is not 0",
                "query_start_loc",
                _halves(
                    "query_start_loc",
                    "both",
                    lambda a, c: _with(a, 0, -1) if c.facts.batches else None,
                ),
            ),
            (
                "starts decrease",
                "query_start_loc",
                _halves("query_start_loc", "both", _start_decreases),
            ),
            (
                "the halves of the starts are unlike",
                "query_start_loc_cpu|query_start_loc",
                _halves("query_start_loc", "gpu", _unlike_half),
            ),
            (
                "the halves of the lengths are unlike",
                "seq_lens_cpu|seq_lens",
                _halves("seq_lens", "gpu", _unlike_half),
            ),
            (
                "a sequence is shorter than its query",
                "seq_lens",
                _halves("seq_lens", "both", _shorter_than_query),
            ),
            ("computed counts are negative", "num_computed_tokens_cpu", _computed(lambda *_: -1)),
            (
                "more is computed than stands before the query",
                "num_computed_tokens_cpu",
                _computed(lambda c, i: c.facts.batch.num_computed_tokens[i] + 1),
            ),
            *((f"{name} is below the maximum", name, _below_maximum(name)) for name in BOUNDS),
            ("tokens are fewer than the requests have", "num_actual_tokens", _fewer_tokens),
        )
    ),
]
