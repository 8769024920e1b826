"""Bad metadata, as every function that takes one must refuse it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from conformance.contracts import Call, Change, InvalidInput, replaced
from conformance.strategies.batches import Batch


def _fields(argument: str, change: Callable[[Any, Batch], dict[str, Any] | None]) -> Change:
    """Return a fault that replaces fields of the metadata."""

    def breaks(call: Call) -> Call | None:
        metadata = call.arguments[argument]
        fields = change(metadata, call.facts)
        if fields is None:
            return None
        return call.replacing(**{argument: dataclasses.replace(metadata, **fields)})

    return breaks


def _both(name: str, array: Any) -> dict[str, Any]:
    """Return a field and its CPU twin."""
    return {name: array, f"{name}_cpu": array}


def _with(array: Any, index: int, value: int) -> Any:
    changed = array.copy()
    changed[index] = value
    return changed


def _busy(batch: Batch) -> int | None:
    """Return the first request with query tokens."""
    return next((i for i, q in enumerate(batch.query_lens) if q), None)


def _seq_len_too_small(metadata: Any, batch: Batch) -> dict[str, Any] | None:
    i = _busy(batch)
    if i is None:
        return None
    needed = int(metadata.num_computed_tokens_cpu[i]) + batch.query_lens[i]
    return _both("seq_lens", _with(metadata.seq_lens, i, needed - 1))


def _computed_negative(metadata: Any, batch: Batch) -> dict[str, Any] | None:
    i = _busy(batch)
    if i is None:
        return None
    return {"num_computed_tokens_cpu": _with(metadata.num_computed_tokens_cpu, i, -1)}


def _starts_decrease(metadata: Any, batch: Batch) -> dict[str, Any] | None:
    i = _busy(batch)
    if i is None or i == batch.num_reqs - 1:
        return None
    return _both("query_start_loc", _with(metadata.query_start_loc, i + 2, batch.starts[i]))


METADATA_INVALID_INPUTS: list[
    tuple[str, type[Exception], str, Callable[[Any, Batch], dict[str, Any] | None]]
]
METADATA_INVALID_INPUTS = [
    (
        "starts do not start at 0",
        ValueError,
        "query_start_loc",
        lambda m, _: _both("query_start_loc", _with(m.query_start_loc, 0, -1)),
    ),
    ("starts decrease", ValueError, "query_start_loc", _starts_decrease),
    (
        "starts are int64",
        TypeError,
        "query_start_loc",
        lambda m, _: _both("query_start_loc", m.query_start_loc.astype(np.int64)),
    ),
    (
        "starts are one short",
        ValueError,
        "query_start_loc",
        lambda m, _: _both("query_start_loc", m.query_start_loc[:-1]),
    ),
    (
        "starts differ from their copy on the CPU",
        ValueError,
        "query_start_loc_cpu",
        lambda m, b: {"query_start_loc_cpu": m.query_start_loc_cpu * 0} if b.num_tokens else None,
    ),
    (
        "tokens belong to requests beyond num_actual_tokens",
        ValueError,
        "num_actual_tokens",
        lambda _, b: {"num_actual_tokens": b.num_tokens - 1} if b.num_tokens else None,
    ),
    (
        "seq_lens is one short",
        ValueError,
        "seq_lens",
        lambda m, b: _both("seq_lens", m.seq_lens[:-1]) if b.num_reqs else None,
    ),
    (
        "seq_lens are int64",
        TypeError,
        "seq_lens",
        lambda m, _: _both("seq_lens", m.seq_lens.astype(np.int64)),
    ),
    (
        "seq_lens differ from their copy on the CPU",
        ValueError,
        "seq_lens_cpu",
        lambda m, b: {"seq_lens_cpu": m.seq_lens_cpu + 1} if b.num_reqs else None,
    ),
    (
        "a sequence length is negative",
        ValueError,
        "seq_lens",
        lambda m, b: (
            _both("seq_lens", _with(m.seq_lens, b.num_reqs - 1, -1)) if b.num_reqs else None
        ),
    ),
    (
        "a sequence is shorter than its query and computed tokens",
        ValueError,
        "seq_lens",
        _seq_len_too_small,
    ),
    ("computed tokens are negative", ValueError, "num_computed_tokens_cpu", _computed_negative),
    (
        "num_computed_tokens_cpu is one short",
        ValueError,
        "num_computed_tokens_cpu",
        lambda m, b: (
            {"num_computed_tokens_cpu": m.num_computed_tokens_cpu[:-1]} if b.num_reqs else None
        ),
    ),
    (
        "max_query_len is too small",
        ValueError,
        "max_query_len",
        lambda _, b: {"max_query_len": max(b.query_lens) - 1} if b.num_tokens else None,
    ),
    (
        "max_seq_len is too small",
        ValueError,
        "max_seq_len",
        lambda _, b: {"max_seq_len": max(b.seq_lens) - 1} if any(b.seq_lens) else None,
    ),
    (
        "max_seq_len is a float",
        TypeError,
        "max_seq_len",
        lambda m, _: {"max_seq_len": float(m.max_seq_len)},
    ),
    (
        "the table has fewer rows than requests",
        ValueError,
        "block_table_tensor",
        lambda m, b: (
            {"block_table_tensor": m.block_table_tensor[: b.num_reqs - 1]} if b.num_reqs else None
        ),
    ),
    (
        "the table is int64",
        TypeError,
        "block_table_tensor",
        lambda m, _: {"block_table_tensor": m.block_table_tensor.astype(np.int64)},
    ),
    (
        "there are fewer slots than tokens",
        ValueError,
        "slot_mapping",
        lambda m, b: (
            {"slot_mapping": m.slot_mapping[: b.num_actual_tokens - 1]}
            if b.num_actual_tokens
            else None
        ),
    ),
    (
        "slots are int32",
        TypeError,
        "slot_mapping",
        lambda m, _: {"slot_mapping": m.slot_mapping.astype(np.int32)},
    ),
]


def _row_too_short(metadata: Any, batch: Batch) -> dict[str, Any] | None:
    needed = max((batch.layout.num_blocks(s) for s in batch.seq_lens), default=0)
    if not needed:
        return None
    return {"block_table_tensor": metadata.block_table_tensor[:, : needed - 1]}


def metadata_faults(
    argument: str = "common_attn_metadata",
    *,
    has_block_size: bool = False,
    is_value: bool = True,
) -> list[InvalidInput]:
    """Return the faults of a metadata argument.

    Args:
        argument: The argument's name.
        has_block_size: Whether the function knows the block size, so that a row of the table that
            is too short for its sequence is refused.
        is_value: Whether the metadata is looked at in checked mode only.

    Returns:
        One fault for each invariant.
    """
    faults = [
        InvalidInput(f"metadata: {name}", error, field, _fields(argument, change), is_value)
        for name, error, field, change in METADATA_INVALID_INPUTS
    ]
    if has_block_size:
        faults.append(
            InvalidInput(
                "metadata: a row of the table is too short for its sequence",
                ValueError,
                "block_table_tensor",
                _fields(argument, _row_too_short),
                is_value,
            )
        )
    return faults


def _count(argument: str, value: Callable[[Batch, Call], int]) -> Change:
    return lambda call: call.replacing(**{argument: value(call.facts, call)})


UNPADDED_INVALID_INPUTS = [
    InvalidInput(
        "more requests than there are",
        ValueError,
        "num_actual_reqs",
        _count("num_actual_reqs", lambda batch, _: batch.num_reqs + 1),
    ),
    InvalidInput(
        "requests are negative", ValueError, "num_actual_reqs", replaced("num_actual_reqs", -1)
    ),
    InvalidInput(
        "more tokens than there are",
        ValueError,
        "num_actual_tokens",
        _count("num_actual_tokens", lambda batch, _: batch.num_actual_tokens + 1),
    ),
    InvalidInput(
        "fewer tokens than the requests have",
        ValueError,
        "num_actual_tokens",
        lambda call: call.replacing(
            num_actual_tokens=call.facts.starts[call.arguments["num_actual_reqs"]] - 1
        ),
    ),
    InvalidInput(
        "num_actual_tokens is a float",
        TypeError,
        "num_actual_tokens",
        replaced("num_actual_tokens", 1.0),
    ),
    InvalidInput(
        "num_actual_reqs is a bool",
        TypeError,
        "num_actual_reqs",
        replaced("num_actual_reqs", False),
    ),
]


def _given(name: str, value: object) -> Callable[[Any, Batch], dict[str, Any]]:
    return lambda *_: {name: value}


def _row_too_short_for(call: Call) -> Call | None:
    bad = _fields("self", _row_too_short)(call)
    return None if bad is None else bad.replacing(block_size=call.facts.layout.block_size)


VALIDATE_INVALID_INPUTS = [
    *(
        InvalidInput(f"{name} is {value!r}", error, name, _fields("self", _given(name, value)))
        for error, name, value in (
            (ValueError, "num_logits_indices", -1),
            (TypeError, "num_logits_indices", 1.0),
            (TypeError, "causal", 1),
        )
    ),
    *(
        InvalidInput(
            f"logits_indices_padded is {what}",
            error,
            "logits_indices_padded",
            _fields("self", _given("logits_indices_padded", value)),
        )
        for what, error, value in (
            ("a list", TypeError, [0]),
            ("of floats", TypeError, np.zeros(1, np.float32)),
            ("of two axes", ValueError, np.zeros((1, 1), np.int64)),
        )
    ),
    InvalidInput(
        "a row of the table is too short for its sequence",
        ValueError,
        "block_table_tensor",
        _row_too_short_for,
    ),
    InvalidInput("block_size is 0", ValueError, "block_size", replaced("block_size", 0)),
    InvalidInput("block_size is a float", TypeError, "block_size", replaced("block_size", 2.0)),
]
