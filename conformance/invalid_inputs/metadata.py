"""Invalid metadata, as every function that takes one must refuse it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from conformance.calls import Call
from conformance.contracts import Change, InvalidInput
from conformance.invalid_inputs.arrays import Array
from conformance.invalid_inputs.changes import in_turn, refusals, with_element
from conformance.invalid_inputs.kinds import Bool, Int, invalid_by_kind
from conformance.strategies.batches import Batch

Fields: TypeAlias = "Callable[[Any, Batch], dict[str, Any] | None]"
"""Returns fields that make a metadata of a batch invalid; None where there is nothing to break."""


def _in(argument: str, fields: Fields) -> Change:
    """Return the change that replaces fields of a metadata."""

    def invalidate(call: Call) -> Call | None:
        metadata = call.arguments[argument]
        bad = fields(metadata, call.facts)
        if bad is None:
            return None
        return call.replacing(**{argument: dataclasses.replace(metadata, **bad)})

    return invalidate


def _one(name: str, change: Callable[[Any, Batch], Any]) -> Fields:
    """Return the change of one field, by its value and the batch."""

    def fields(metadata: Any, batch: Batch) -> dict[str, Any] | None:
        bad = change(getattr(metadata, name), batch)
        return None if bad is None else {name: bad}

    return fields


def _both(name: str, change: Callable[[Any, Batch], Any]) -> Fields:
    """Return the same change of a field and of its copy on the CPU."""

    def fields(metadata: Any, batch: Batch) -> dict[str, Any] | None:
        bad = change(getattr(metadata, name), batch)
        return None if bad is None else {name: bad, f"{name}_cpu": bad}

    return fields


def _first_with_tokens(batch: Batch) -> int | None:
    return next((i for i, q in enumerate(batch.query_lens) if q), None)


def _seq_len_too_small(metadata: Any, batch: Batch) -> dict[str, Any] | None:
    i = _first_with_tokens(batch)
    if i is None:
        return None
    needed = int(metadata.num_computed_tokens_cpu[i]) + batch.query_lens[i]
    return _both("seq_lens", lambda lens, _: with_element(lens, i, needed - 1))(metadata, batch)


def _computed_negative(computed: Any, batch: Batch) -> Any:
    i = _first_with_tokens(batch)
    return None if i is None else with_element(computed, i, -1)


def _starts_decrease(starts: Any, batch: Batch) -> Any:
    i = _first_with_tokens(batch)
    if i is None or i == batch.num_reqs - 1:
        return None
    return with_element(starts, i + 2, batch.starts[i])


def _row_too_short(table: Any, batch: Batch) -> Any:
    needed = max((batch.layout.num_blocks(s) for s in batch.seq_lens), default=0)
    return table[:, : needed - 1] if needed else None


def _one_short(array: Any, batch: Batch) -> Any:
    return array[:-1] if batch.num_reqs else None


def _int64(array: Any, _: Batch) -> Any:
    return array.astype(np.int64)


def _int32(array: Any, _: Batch) -> Any:
    return array.astype(np.int32)


INVARIANTS: dict[tuple[type[Exception], str], dict[str, Fields]] = {
    (ValueError, "query_start_loc"): {
        "starts do not start at 0": _both("query_start_loc", lambda s, _: with_element(s, 0, -1)),
        "starts decrease": _both("query_start_loc", _starts_decrease),
        "starts are one short": _both("query_start_loc", lambda starts, _: starts[:-1]),
        "starts alone are one short": _one("query_start_loc", lambda starts, _: starts[:-1]),
    },
    (TypeError, "query_start_loc"): {"starts are int64": _both("query_start_loc", _int64)},
    (ValueError, "query_start_loc_cpu"): {
        "starts differ from their copy on the CPU": _one(
            "query_start_loc_cpu", lambda starts, b: starts * 0 if b.num_tokens else None
        ),
        "starts on the CPU are one short": _one(
            "query_start_loc_cpu", lambda starts, _: starts[:-1]
        ),
    },
    (ValueError, "num_actual_tokens"): {
        "tokens belong to requests beyond num_actual_tokens": _one(
            "num_actual_tokens", lambda _, b: b.num_tokens - 1 if b.num_tokens else None
        )
    },
    (ValueError, "seq_lens"): {
        "seq_lens is one short": _both("seq_lens", _one_short),
        "a sequence length is negative": _both(
            "seq_lens", lambda s, b: with_element(s, b.num_reqs - 1, -1) if b.num_reqs else None
        ),
        "a sequence is shorter than its query and computed tokens": _seq_len_too_small,
    },
    (TypeError, "seq_lens"): {"seq_lens are int64": _both("seq_lens", _int64)},
    (ValueError, "seq_lens_cpu"): {
        "seq_lens differ from their copy on the CPU": _one(
            "seq_lens_cpu", lambda lens, b: lens + 1 if b.num_reqs else None
        )
    },
    (ValueError, "num_computed_tokens_cpu"): {
        "computed tokens are negative": _one("num_computed_tokens_cpu", _computed_negative),
        "num_computed_tokens_cpu is one short": _one("num_computed_tokens_cpu", _one_short),
    },
    (ValueError, "max_query_len"): {
        "max_query_len is too small": _one(
            "max_query_len", lambda _, b: max(b.query_lens) - 1 if b.num_tokens else None
        )
    },
    (ValueError, "max_seq_len"): {
        "max_seq_len is too small": _one(
            "max_seq_len", lambda _, b: max(b.seq_lens) - 1 if any(b.seq_lens) else None
        )
    },
    (TypeError, "max_seq_len"): {
        "max_seq_len is a float": _one("max_seq_len", lambda length, _: float(length))
    },
    (ValueError, "block_table_tensor"): {
        "the table has fewer rows than requests": _one(
            "block_table_tensor", lambda t, b: t[: b.num_reqs - 1] if b.num_reqs else None
        )
    },
    (TypeError, "block_table_tensor"): {"the table is int64": _one("block_table_tensor", _int64)},
    (ValueError, "slot_mapping"): {
        "there are fewer slots than tokens": _one(
            "slot_mapping",
            lambda s, b: s[: b.num_actual_tokens - 1] if b.num_actual_tokens else None,
        )
    },
    (TypeError, "slot_mapping"): {"slots are int32": _one("slot_mapping", _int32)},
}
"""What contradicts a metadata's definition, by the exception and the field that it names."""

ROW_TOO_SHORT = {
    "a row of the table is too short for its sequence": _one("block_table_tensor", _row_too_short)
}
"""The same where the block size is known."""


def invalid_metadata(
    argument: str = "common_attn_metadata", *, has_block_size: bool = False, is_value: bool = True
) -> list[InvalidInput]:
    """Return the invalid inputs of a metadata argument.

    Args:
        argument: The argument's name.
        has_block_size: Whether the function knows the block size, so that a row of the table that
            is too short for its sequence is refused.
        is_value: Whether the metadata is looked at in checked mode only.

    Returns:
        One for each way to contradict an invariant.
    """
    tables = [*INVARIANTS.items()]
    if has_block_size:
        tables.append(((ValueError, "block_table_tensor"), ROW_TOO_SHORT))
    return [
        InvalidInput(f"metadata: {name}", error, field, _in(argument, fields), is_value)
        for (error, field), ways in tables
        for name, fields in ways.items()
    ]


LENGTHS = {
    "metadata: starts are one short",
    "metadata: starts alone are one short",
    "metadata: starts on the CPU are one short",
    "metadata: seq_lens is one short",
    "metadata: num_computed_tokens_cpu is one short",
    "metadata: the table has fewer rows than requests",
    "metadata: there are fewer slots than tokens",
}
"""What contradicts the definition by lengths alone, which `unpadded` checks."""

UNPADDED_INVALID_INPUTS = [
    *(one for one in invalid_metadata("self", is_value=False) if one.name in LENGTHS),
    *invalid_by_kind(num_actual_reqs=Int(0), num_actual_tokens=Int(0)),
    *refusals(
        ValueError,
        num_actual_reqs={
            "more requests than there are": lambda call: call.replacing(
                num_actual_reqs=call.facts.num_reqs + 1
            )
        },
        num_actual_tokens={
            "more tokens than there are": lambda call: call.replacing(
                num_actual_tokens=call.facts.num_actual_tokens + 1
            ),
            "fewer tokens than the requests have": lambda call: call.replacing(
                num_actual_tokens=call.facts.starts[call.arguments["num_actual_reqs"]] - 1
            ),
        },
    ),
]


def _with_its_block_size(call: Call) -> Call:
    return call.replacing(block_size=call.facts.layout.block_size)


VALIDATE_INVALID_INPUTS = [
    *invalid_by_kind(
        block_size=Int(is_optional=True),
        **{
            "self.num_logits_indices": Int(0, is_optional=True),
            "self.causal": Bool(),
            "self.logits_indices_padded": Array([np.float32], is_optional=True),
        },
    ),
    *refusals(
        ValueError,
        block_table_tensor={
            name: in_turn(_in("self", fields), _with_its_block_size)
            for name, fields in ROW_TOO_SHORT.items()
        },
    ),
]
