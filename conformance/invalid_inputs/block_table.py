"""Invalid operations on `BlockTables`, each of which must be refused and change nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from conformance.calls import Arguments, Call
from conformance.contracts import Change, InvalidInput
from conformance.invalid_inputs.arrays import Array, Starts
from conformance.invalid_inputs.changes import (
    changed,
    changed_with_facts,
    checked_refusals,
    refusals,
    replaced,
    set_arguments,
)
from conformance.invalid_inputs.kinds import MAX_INT32, Bool, Int, List, invalid_by_kind, size
from conformance.strategies.block_table import Operation, OperationMaker, TableModel

CONSTRUCTOR_INVALID_INPUTS = invalid_by_kind(
    block_sizes=List(size()),
    max_num_reqs=size(),
    max_num_batched_tokens=size(),
    max_model_len=size(),
    pin_memory=Bool(),
)
"""Invalid ways to make the tables."""


def _vector(*values: int, dtype: type[np.generic] = np.int32) -> Any:
    return np.array(values, dtype)


def _operations(
    method: str, valid: Callable[[TableModel], Arguments], invalid_inputs: Iterable[InvalidInput]
) -> list[OperationMaker]:
    """Return makers of calls of a method, one for each invalid input; the facts are the model."""

    def maker(invalid: InvalidInput) -> OperationMaker:
        name = f"{method}: {invalid.name}"

        def make(model: TableModel) -> Operation | None:
            bad = invalid.change(Call(method, valid(model), model))
            if bad is None:
                return None
            refused = (name, invalid.error, invalid.argument, invalid.is_value)
            return Operation(method, bad.arguments, *refused)

        return make

    return [maker(invalid) for invalid in invalid_inputs]


def _append(model: TableModel) -> Arguments:
    """Return an append of one block to the last slot of every group."""
    return {
        "req_indices": [model.max_num_reqs - 1],
        "cu_num_new_blocks": [[0, 1] for _ in model.block_sizes],
        "new_block_ids": [[5] for _ in model.block_sizes],
        "overwrite": [True],
    }


IDS, COUNTS = "new_block_ids", "cu_num_new_blocks"


def _of_slots(counts: list[int], ids: list[int]) -> Change:
    """Return the change to an append to the first slots, of these counts and ids in every group."""
    num_slots = len(counts) - 1

    def invalidate(call: Call) -> Call | None:
        groups = call.facts.block_sizes
        if not groups or call.facts.max_num_reqs < num_slots:
            return None
        return call.replacing(
            req_indices=list(range(num_slots)),
            overwrite=[True] * num_slots,
            cu_num_new_blocks=[counts for _ in groups],
            new_block_ids=[ids for _ in groups],
        )

    return invalidate


def _listed_twice(call: Call) -> Call:
    return call.replacing(
        req_indices=[0, 0],
        overwrite=[True, True],
        cu_num_new_blocks=[[0, 0, 0] for _ in call.facts.block_sizes],
        new_block_ids=[[] for _ in call.facts.block_sizes],
    )


def _outgrown(call: Call) -> Call | None:
    """Write a block more into the last group's row than there is room for."""
    if not call.facts.block_sizes:
        return None
    count = call.facts.widths[-1] + 1
    return call.replacing(
        cu_num_new_blocks=[*call.arguments[COUNTS][:-1], [0, count]],
        new_block_ids=[*call.arguments[IDS][:-1], [5] * count],
    )


def _outgrown_by_appending(call: Call) -> Call | None:
    """Append to what is there: a block more than there is room for."""
    model = call.facts
    if not model.block_sizes:
        return None
    others = len(model.block_sizes) - 1
    count = model.widths[-1] - model.lengths[-1][-1] + 1
    return call.replacing(
        overwrite=[False],
        cu_num_new_blocks=[*([0, 0] for _ in range(others)), [0, count]],
        new_block_ids=[*([] for _ in range(others)), [5] * count],
    )


APPEND = [
    *invalid_by_kind(
        req_indices=List(Int(0, range_error=IndexError)),
        overwrite=List(Bool()),
        cu_num_new_blocks=List(List()),
        new_block_ids=List(List(Int(0, MAX_INT32))),
    ),
    *refusals(
        IndexError,
        req_indices={
            "slot outside": changed_with_facts("req_indices", lambda _, model: [model.max_num_reqs])
        },
    ),
    *refusals(TypeError, req_indices={"slots are an array": replaced("req_indices", _vector(0))}),
    *refusals(
        ValueError,
        req_indices={"slot listed twice": _listed_twice},
        overwrite={"overwrite is short": replaced("overwrite", [])},
        new_block_ids={
            "a group too many": changed(IDS, lambda ids: [*ids, []]),
            "row outgrown": _outgrown,
            "row outgrown by appending": _outgrown_by_appending,
        },
        cu_num_new_blocks={
            "counts not from 0": replaced(f"{COUNTS}[-1]", [1, 1]),
            "counts not to the end": replaced(f"{COUNTS}[-1]", [0, 0]),
            "counts too long": replaced(f"{COUNTS}[-1]", [0, 1, 1]),
            "counts decrease": _of_slots([0, 1, 0], []),
            # The second of three slots has a block less than none; the end is that of the ids.
            "counts fall by one": _of_slots([0, 1, 0, 1], [5]),
            "a group's counts are missing": changed(COUNTS, lambda c: c[1:] if c else None),
        },
    ),
]


def _row_operations(method: str, *names: str) -> list[OperationMaker]:
    """Return makers of operations on rows, with an index that is none, or outside."""
    invalid_inputs = invalid_by_kind(**{name: Int(0, range_error=IndexError) for name in names})
    for name in names:
        outside = changed_with_facts(name, lambda _, model: model.max_num_reqs)
        invalid_inputs += refusals(IndexError, **{name: {f"{name} is outside": outside}})
    return _operations(method, lambda _: dict.fromkeys(names, 0), invalid_inputs)


def _too_many_rows(model: TableModel) -> Any:
    return _vector(*[-1] * (model.max_num_reqs + 1))


GATHER = [
    *invalid_by_kind(idx_mapping=Array([np.int64])),
    *refusals(
        ValueError,
        idx_mapping={
            "too many rows": changed_with_facts("idx_mapping", lambda _, m: _too_many_rows(m))
        },
    ),
    *checked_refusals(
        IndexError,
        idx_mapping={
            "slot outside": changed_with_facts("idx_mapping", lambda _, m: _vector(m.max_num_reqs)),
            "slot below -1": replaced("idx_mapping", _vector(-2)),
        },
    ),
]

NO_POSITIONS = _vector(dtype=np.int64)


def _one_token(*starts: int) -> Change:
    """Return the change to slots for one token, of these starts."""
    return set_arguments(query_start_loc=_vector(*starts), positions=_vector(0, dtype=np.int64))


def _position_outside(call: Call) -> Call | None:
    model = call.facts
    if not model.block_sizes:
        return None
    maximum = max(size * width for size, width in zip(model.block_sizes, model.widths, strict=True))
    return call.replacing(query_start_loc=_vector(0, 1), positions=_vector(maximum, dtype=np.int64))


SLOTS = [
    *invalid_by_kind(positions=Array([np.int32]), query_start_loc=Starts()),
    *refusals(
        ValueError,
        query_start_loc={
            "too many requests": changed_with_facts(
                "query_start_loc", lambda _, model: _vector(*[0] * (model.max_num_reqs + 2))
            )
        },
        positions={
            "too many tokens": changed_with_facts(
                "positions",
                lambda _, model: _vector(*[0] * (model.max_num_tokens + 1), dtype=np.int64),
            )
        },
    ),
    *checked_refusals(
        ValueError,
        query_start_loc={
            "starts do not start at 0": _one_token(1, 1),
            "starts decrease": _one_token(0, -1),
            "more tokens than positions": _one_token(0, 2),
        },
        positions={"position outside": _position_outside},
    ),
]


def _counted(name: str, maximum: Callable[[TableModel], int]) -> list[InvalidInput]:
    """Return the invalid inputs of a number, which the model bounds."""
    too_many = changed_with_facts(name, lambda _, model: maximum(model) + 1)
    return [
        *invalid_by_kind(**{name: Int(0)}),
        *refusals(ValueError, **{name: {"too many": too_many}}),
    ]


INVALID_OPERATIONS = (
    *_operations("append_block_ids", _append, APPEND),
    *_row_operations("move_row", "src", "dst"),
    *_row_operations("swap_rows", "a", "b"),
    *_row_operations("clear_row", "r"),
    *_operations("gather_block_tables", lambda _: {"idx_mapping": _vector(-1)}, GATHER),
    *_operations(
        "compute_slot_mappings",
        lambda _: {"query_start_loc": _vector(0, 0), "positions": NO_POSITIONS},
        SLOTS,
    ),
    *_operations(
        "get_dummy_block_tables",
        lambda _: {"num_reqs": 1},
        _counted("num_reqs", lambda model: model.max_num_reqs),
    ),
    *_operations(
        "get_dummy_slot_mappings",
        lambda _: {"num_tokens": 1},
        _counted("num_tokens", lambda model: model.max_num_tokens),
    ),
)
"""Makers of operations that must be refused."""

REFUSALS = [
    operation.refused
    for make in INVALID_OPERATIONS
    if (operation := make(TableModel([2], 3, 2, 2))) and operation.refused
]
"""What is wrong with them, by name."""
