"""Invalid metadata, which every function that takes metadata must refuse."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from conformance.contracts.contract import Change, InvalidInput
from conformance.invalid_inputs.arrays import Array
from conformance.invalid_inputs.changes import (
    Refusals,
    chained,
    changed,
    changed_with_source,
    refusals,
    replaced,
    with_element,
)
from conformance.invalid_inputs.kinds import MAX_INT64, Bool, Int, Kind, invalid_by_kind
from conformance.strategies.batch import Batch
from conformance.values.call import Call

Ways: TypeAlias = Mapping[tuple[type[Exception], str], Mapping[str, Callable[[Any, Batch], object]]]
"""Changes of a field, by the exception and the field, and by description.

A change takes the field's value and the batch; it returns None if it does not apply.
"""


def first_with_tokens(batch: Batch) -> int | None:
    """Return the first request that has tokens."""
    return next((i for i, q in enumerate(batch.query_lens) if q), None)


def with_decrease(starts: Any, batch: Batch) -> Any:
    """Return starts that decrease after the first request that has tokens."""
    i = first_with_tokens(batch)
    if i is None or i == batch.num_reqs - 1:
        return None
    return with_element(starts, i + 2, batch.starts[i])


def _too_short_sequence(lens: Any, batch: Batch) -> Any:
    i = first_with_tokens(batch)
    if i is None:
        return None
    return with_element(lens, i, batch.reported_computed_tokens()[i] + batch.query_lens[i] - 1)


def _negative_computed(computed: Any, batch: Batch) -> Any:
    i = first_with_tokens(batch)
    return None if i is None else with_element(computed, i, -1)


def _one_short(array: Any, batch: Batch) -> Any:
    return array[:-1] if batch.num_reqs else None


def _short_rows(table: Any, batch: Batch) -> Any:
    needed = max((batch.layout.num_blocks(s) for s in batch.seq_lens), default=0)
    return table[:, : needed - 1] if needed else None


INVALID_WITH_COPIES: Ways = {
    (ValueError, "query_start_loc"): {
        "starts do not start at 0": lambda starts, _: with_element(starts, 0, -1),
        "starts decrease": with_decrease,
        "starts are one short": lambda starts, _: starts[:-1],
    },
    (TypeError, "query_start_loc"): {"starts are int64": lambda a, _: a.astype(np.int64)},
    (ValueError, "seq_lens"): {
        "seq_lens is one short": _one_short,
        "a sequence length is negative": lambda s, b: with_element(s, b.num_reqs - 1, -1),
        "a sequence is shorter than its query and computed tokens": _too_short_sequence,
    },
    (TypeError, "seq_lens"): {"seq_lens are int64": lambda a, _: a.astype(np.int64)},
}
"""Changes of a field and of its copy on the CPU."""

INVALID_ALONE: Ways = {
    (ValueError, "query_start_loc"): {"starts alone are one short": lambda starts, _: starts[:-1]},
    (ValueError, "query_start_loc_cpu"): {
        "starts differ from their copy on the CPU": lambda a, b: a * 0 if b.num_tokens else None,
        "starts on the CPU are one short": lambda starts, _: starts[:-1],
    },
    (ValueError, "num_actual_tokens"): {
        "tokens belong to requests beyond num_actual_tokens": lambda _, b: (
            b.num_tokens - 1 if b.num_tokens else None
        )
    },
    (ValueError, "seq_lens_cpu"): {
        "seq_lens differ from their copy on the CPU": lambda a, b: a + 1 if b.num_reqs else None
    },
    (ValueError, "num_computed_tokens_cpu"): {
        "computed tokens are negative": _negative_computed,
        "num_computed_tokens_cpu is one short": _one_short,
    },
    (ValueError, "max_query_len"): {
        "max_query_len is too small": lambda _, b: max(b.query_lens) - 1 if b.num_tokens else None
    },
    (ValueError, "max_seq_len"): {
        "max_seq_len is too small": lambda _, b: max(b.seq_lens) - 1 if any(b.seq_lens) else None
    },
    (TypeError, "max_seq_len"): {"max_seq_len is a float": lambda length, _: float(length)},
    (ValueError, "block_table_tensor"): {
        "the table has fewer rows than requests": lambda table, b: (
            table[: b.num_reqs - 1] if b.num_reqs else None
        )
    },
    (TypeError, "block_table_tensor"): {"the table is int64": lambda a, _: a.astype(np.int64)},
    (ValueError, "slot_mapping"): {
        "there are fewer slots than tokens": lambda slots, b: (
            slots[: b.num_actual_tokens - 1] if b.num_actual_tokens else None
        )
    },
    (TypeError, "slot_mapping"): {"slots are int32": lambda slots, _: slots.astype(np.int32)},
}
"""Changes of only one field."""

ROW_TOO_SHORT = "a row of the table is too short for its sequence"
"""The violation that is checked only if the block size is known."""


def invalid_metadata(
    argument: str = "common_attn_metadata", *, has_block_size: bool = False, is_value: bool = True
) -> list[InvalidInput]:
    """Return the invalid inputs of a metadata argument, one for each inconsistency.

    Args:
        argument: The argument's name.
        has_block_size: Whether the function has the block size, so that a row of the table that
            is too short for its sequence is refused.
        is_value: Whether the metadata is checked in checked mode only.
    """
    rows: Ways = {(ValueError, "block_table_tensor"): {ROW_TOO_SHORT: _short_rows}}
    tables = [(INVALID_WITH_COPIES, ("", "_cpu")), (INVALID_ALONE, ("",))]
    tables += [(rows, ("",))] * has_block_size
    found = []
    for table, copies in tables:
        for (error, field), ways in table.items():
            paths = [f"{argument}.{field}{copy}" for copy in copies]
            for name, way in ways.items():
                change = chained(*(changed_with_source(path, way) for path in paths))
                found.append(InvalidInput(f"metadata: {name}", error, field, change, is_value))
    return found


def _vector(
    other_dtypes: Sequence[type[np.generic]] = (np.int64,), more: int = 0, **options: Any
) -> Kind:
    """Return the kind of a vector with an entry for each request and `more` entries."""
    return Array(
        other_dtypes,
        length=lambda call: call.source.num_reqs + more,
        is_exact=True,
        **options,
    )


KINDS: Mapping[str, Kind] = {
    "num_reqs": Int(0, MAX_INT64),
    "num_actual_tokens": Int(0, MAX_INT64),
    "max_query_len": Int(0, MAX_INT64),
    "max_seq_len": Int(0, MAX_INT64),
    "causal": Bool(),
    "query_start_loc": _vector(more=1),
    "query_start_loc_cpu": _vector(more=1),
    "seq_lens": _vector(),
    "seq_lens_cpu": _vector(),
    "num_computed_tokens_cpu": _vector(),
    "block_table_tensor": Array([np.int64], ndim=2, length=lambda call: call.source.num_reqs),
    "slot_mapping": Array([np.int32], length=lambda call: call.source.num_actual_tokens),
    "encoder_seq_lens": Array(
        [np.float32], length=lambda call: call.source.num_reqs, is_optional=True
    ),
}
"""The kind of each field."""


def invalid_fields(argument: str, *fields: str) -> list[InvalidInput]:
    """Return the invalid inputs of fields that a function always reads.

    Wrong types, dtypes and shapes are refused outside of checked mode too: a loop that does not
    check them reads out of bounds.
    """
    vectors = [field for field in fields if field not in NO_VECTORS]
    by_request = [field for field in vectors if not field.startswith("query_start_loc")]
    found = invalid_by_kind(**{f"{argument}.{field}": KINDS[field] for field in fields})
    lengths = [field for field in by_request if field.startswith("seq_lens")]
    groups = {"vectors": vectors, "vectors by request": by_request, "sequence lengths": lengths}
    for what, names in groups.items():
        if len(names) > 1:
            found += _invalid_together(f"all {what}", argument, names)
    return found


def _invalid_together(what: str, argument: str, fields: Sequence[str]) -> list[InvalidInput]:
    """Return the invalid inputs of several vectors that are invalid in the same way."""

    def of_all(change: Callable[[Any], Any]) -> Change:
        return chained(*(changed(f"{argument}.{field}", change) for field in fields))

    one_of = "|".join(fields)
    table: Refusals = {
        (ValueError, one_of): {
            f"{what} have one axis too many": of_all(lambda a: a[None].copy()),
            f"{what} are too short": of_all(lambda a: a[:-1] if len(a) > 1 else None),
        },
        (TypeError, one_of): {
            f"{what} are int64": of_all(lambda a: a.astype(np.int64)),
            f"{what} are lists": of_all(lambda a: a.tolist()),
        },
    }
    found = refusals(table)
    if not any(field.startswith("query_start_loc") for field in fields):  # never of length 1
        no_axis = of_all(lambda a: a.reshape(()) if len(a) == 1 else None)
        found += refusals({(ValueError, one_of): {f"{what} have no axis": no_axis}})
    return found


NO_VECTORS = {
    *("num_reqs", "num_actual_tokens", "max_query_len", "max_seq_len", "causal"),
    *("block_table_tensor", "slot_mapping", "encoder_seq_lens"),
}
"""The fields that are not int32 vectors with an entry for each request."""

LENGTHS = {
    "metadata: starts are one short",
    "metadata: starts alone are one short",
    "metadata: starts on the CPU are one short",
    "metadata: seq_lens is one short",
    "metadata: num_computed_tokens_cpu is one short",
    "metadata: the table has fewer rows than requests",
    "metadata: there are fewer slots than tokens",
}
"""The names of invalid inputs with wrong lengths, which `unpadded` checks."""

REQS, TOKENS = "num_actual_reqs", "num_actual_tokens"

WRONG_COUNTS: Refusals = {
    (ValueError, REQS): {
        "more requests than there are": changed_with_source(REQS, lambda _, b: b.num_reqs + 1)
    },
    (ValueError, TOKENS): {
        "more tokens than there are": changed_with_source(
            TOKENS, lambda _, b: b.num_actual_tokens + 1
        ),
        "fewer tokens than the requests have": lambda call: call.replacing(
            num_actual_tokens=call.source.starts[call.arguments[REQS]] - 1
        ),
    },
}

TOO_LATE: Refusals = {
    (ValueError, TOKENS): {
        "the requests have more tokens than their copy on the CPU says": lambda call: changed(
            "self.query_start_loc",
            lambda starts: with_element(starts, call.arguments[REQS], call.arguments[TOKENS] + 1),
        )(call)
    }
}

UNPADDED_INVALID_INPUTS = [
    *(one for one in invalid_metadata("self", is_value=False) if one.name in LENGTHS),
    *invalid_by_kind(num_actual_reqs=Int(0), num_actual_tokens=Int(0)),
    *refusals(WRONG_COUNTS),
    *refusals(TOO_LATE, is_value=True),
]


def _with_its_block_size(call: Call) -> Call:
    return call.replacing(block_size=call.source.layout.block_size)


SHORT_ROWS = chained(
    changed_with_source("self.block_table_tensor", _short_rows), _with_its_block_size
)

LONG = chained(
    changed_with_source("self.encoder_seq_lens", lambda _, b: np.ones(b.num_reqs + 1, np.int32)),
    replaced("self.dcp_local_seq_lens", None),
)

VALIDATE_INVALID_INPUTS = [
    *invalid_by_kind(
        block_size=Int(is_optional=True),
        **{
            "self.num_logits_indices": Int(0, is_optional=True),
            "self.causal": Bool(),
            "self.logits_indices_padded": Array([np.float32], is_optional=True),
            "self.encoder_seq_lens": _vector([np.float32], is_optional=True),
            "self.dcp_local_seq_lens": _vector([np.int64], is_optional=True),
        },
    ),
    *refusals({(ValueError, "block_table_tensor"): {ROW_TOO_SHORT: SHORT_ROWS}}),
    *refusals({(ValueError, "encoder_seq_lens"): {"encoder_seq_lens alone is too long": LONG}}),
]
