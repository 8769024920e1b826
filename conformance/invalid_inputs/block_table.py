"""Invalid operations on `BlockTables`, each of which must be refused and change nothing."""

from __future__ import annotations

import dataclasses
from collections import UserList
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from conformance.contracts.contract import Change, InvalidInput
from conformance.invalid_inputs.arrays import Array, Starts
from conformance.invalid_inputs.changes import (
    Refusals,
    chained,
    change_maker,
    changed,
    changed_with_source,
    refusals,
    replaced,
    set_arguments,
)
from conformance.invalid_inputs.kinds import MAX_INT32, Bool, Int, List, invalid_by_kind, size
from conformance.strategies.block_table import Operation, OperationMaker, TableModel
from conformance.targets.factories import Factory, FactoryContext
from conformance.values.call import Arguments, Call


def _too_many_bytes(width: int, max_num_batched_tokens: int) -> Change:
    """Return the change to tables with `width` columns, of 4 bytes each, and slots of 8 bytes."""
    return set_arguments(
        block_sizes=[1],
        max_num_reqs=MAX_INT32,
        max_model_len=width,
        max_num_batched_tokens=max_num_batched_tokens,
    )


CONSTRUCTOR_INVALID_INPUTS = [
    *invalid_by_kind(
        block_sizes=List(size()),
        max_num_reqs=size(),
        max_num_batched_tokens=size(),
        max_model_len=size(),
        pin_memory=Bool(),
    ),
    *refusals(
        {
            (ValueError, "max_num_reqs"): {
                # The sizes are just past 2**63 bytes.
                "the tables have too many bytes": _too_many_bytes(2**30 + 1, 1),
                "the tables and slots have too many bytes": _too_many_bytes(2**30, 2**29 + 1),
            }
        }
    ),
]
"""Invalid arguments of the constructor."""


def _vector(*values: int, dtype: type[np.generic] = np.int32) -> Any:
    return np.array(values, dtype)


def _operations(
    method: str, valid: Callable[[TableModel], Arguments], invalid_inputs: Iterable[InvalidInput]
) -> list[OperationMaker]:
    """Return makers of calls of a method, one for each invalid input; the source is the model."""

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
    """Return the arguments that append one block to the last slot in every group."""
    return {
        "req_indices": [model.max_num_reqs - 1],
        "cu_num_new_blocks": [[0, 1] for _ in model.block_sizes],
        "new_block_ids": [[5] for _ in model.block_sizes],
        "overwrite": [True],
    }


IDS, COUNTS = "new_block_ids", "cu_num_new_blocks"


@change_maker
def _of_slots(call: Call, counts: list[int], ids: list[int]) -> Call | None:
    """Append to the first slots, with these counts and ids in every group."""
    num_slots, groups = len(counts) - 1, call.source.block_sizes
    if not groups or call.source.max_num_reqs < num_slots:
        return None
    return call.replacing(
        req_indices=list(range(num_slots)),
        overwrite=[True] * num_slots,
        cu_num_new_blocks=[counts for _ in groups],
        new_block_ids=[ids for _ in groups],
    )


def _listed_twice(call: Call) -> Call:
    return call.replacing(
        req_indices=[0, 0],
        overwrite=[True, True],
        cu_num_new_blocks=[[0, 0, 0] for _ in call.source.block_sizes],
        new_block_ids=[[] for _ in call.source.block_sizes],
    )


@change_maker
def _outgrown(call: Call, *, overwrite: bool) -> Call | None:
    """Write or append one block too many to a row of the last group."""
    model = call.source
    if not model.block_sizes:
        return None
    count = model.widths[-1] + 1 - (0 if overwrite else model.lengths[-1][-1])
    others = [[5] if overwrite else []] * (len(model.block_sizes) - 1)
    new_block_ids = [*others, [5] * count]
    counts = [[0, len(ids)] for ids in new_block_ids]
    return call.replacing(
        overwrite=[overwrite], cu_num_new_blocks=counts, new_block_ids=new_block_ids
    )


def _appending_nothing(call: Call, counts: list[Any], *, slots: Sequence[int] = ()) -> Call:
    """Return the call that appends no blocks to slots, with the counts of each group."""
    return call.replacing(
        req_indices=[*slots],
        overwrite=[False] * len(slots),
        cu_num_new_blocks=counts,
        new_block_ids=[[] for _ in call.source.block_sizes],
    )


def _of_no_slot_and_no_list(call: Call) -> Call:
    """Append nothing, with a group too many whose counts are None."""
    return _appending_nothing(call, [*([0] for _ in call.source.block_sizes), None])


@change_maker
def _of_one_slot_short(call: Call, counts: list[int]) -> Call | None:
    """Append nothing to one slot, with too few counts in every group."""
    groups = call.source.block_sizes
    return _appending_nothing(call, [counts for _ in groups], slots=[0]) if groups else None


def _of_no_slot_and_an_array(call: Call) -> Call | None:
    """Append nothing; the first group's count is an array, and the second has two counts."""
    groups = call.source.block_sizes
    if len(groups) < 2:
        return None
    return _appending_nothing(call, [[_vector(1, 1)], [0, 0], *([] for _ in groups[2:])])


@dataclasses.dataclass(frozen=True)
class _Equal(Factory):
    """A factory of an object that equals a list, but is not one.

    Attributes:
        items: The items of the list.
    """

    items: tuple[int, ...]

    def make(self, converter: FactoryContext) -> UserList[int]:
        """Return the object."""
        del converter
        return UserList(self.items)


APPEND_REFUSALS: Refusals = {
    (IndexError, "req_indices"): {
        "slot outside": changed_with_source("req_indices", lambda _, model: [model.max_num_reqs])
    },
    (TypeError, "req_indices"): {"slots are an array": _vector(0)},
    (ValueError, "req_indices"): {"slot listed twice": _listed_twice},
    (ValueError, "overwrite"): {
        "overwrite is short": [],
        "overwrite of no slot": chained(_of_slots([0], []), replaced("overwrite", [True])),
    },
    (ValueError, "new_block_ids"): {
        "a group too many": changed(IDS, lambda ids: [*ids, []]),
        "row outgrown": _outgrown(overwrite=True),
        "row outgrown by appending": _outgrown(overwrite=False),
    },
    (ValueError, "cu_num_new_blocks"): {
        "counts not from 0": replaced(f"{COUNTS}[-1]", [1, 1]),
        "counts not to the end": replaced(f"{COUNTS}[-1]", [0, 0]),
        "counts too long": replaced(f"{COUNTS}[-1]", [0, 1, 1]),
        "counts decrease": _of_slots([0, 1, 0], []),
        "counts to past the end": _of_slots([0, 1], []),
        "counts too short": changed(COUNTS, lambda counts: [[0] for _ in counts] or None),
        "no counts of a slot": _of_one_slot_short([]),
        "one count of a slot": _of_one_slot_short([0]),
        "ids of no slot": _of_slots([0], [5]),
        "counts of no slot": _of_slots([1], []),
        # The second of three slots has -1 blocks; the last count is the number of ids.
        "counts fall by one": _of_slots([0, 1, 0, 1], [5]),
        "a group's counts are missing": changed(COUNTS, lambda c: c[1:] if c else None),
        "a count of no slot is -1": _of_slots([-1], []),
        "a group too many that has no counts": _of_no_slot_and_no_list,
    },
    (TypeError, "cu_num_new_blocks"): {
        "a count of no slot is a bool": _of_slots([False], []),
        "a count is an array": _of_slots([0, _vector(1, 1)], [5]),
        "a count of no slot is an array": _of_no_slot_and_an_array,
        "counts of no slot are no lists": chained(
            _of_slots([0], []), changed(COUNTS, lambda counts: [_Equal(tuple(c)) for c in counts])
        ),
    },
}

APPEND = [
    *invalid_by_kind(
        req_indices=List(Int(0, range_error=IndexError)),
        overwrite=List(Bool()),
        cu_num_new_blocks=List(List()),
        new_block_ids=List(List(Int(0, MAX_INT32))),
    ),
    *refusals(APPEND_REFUSALS),
]


def _row_operations(method: str, *names: str) -> list[OperationMaker]:
    """Return makers of operations on rows, with an index that is not an int or out of range."""
    invalid_inputs = invalid_by_kind(**{name: Int(0, range_error=IndexError) for name in names})
    for name in names:
        outside = changed_with_source(name, lambda _, model: model.max_num_reqs)
        invalid_inputs += refusals({(IndexError, name): {f"{name} is outside": outside}})
    return _operations(method, lambda _: dict.fromkeys(names, 0), invalid_inputs)


def _mapping(make: Callable[[TableModel], list[int]]) -> Change:
    """Return the change of the mapping to slots that are derived from the model."""
    return changed_with_source("idx_mapping", lambda _, model: _vector(*make(model)))


TOO_MANY_ROWS = _mapping(lambda model: [-1] * (model.max_num_reqs + 1))

GATHERED_SLOTS: Refusals = {
    (IndexError, "idx_mapping"): {
        "slot outside": _mapping(lambda model: [model.max_num_reqs]),
        "slot below -1": _vector(-2),
    }
}

GATHER = [
    *invalid_by_kind(idx_mapping=Array([np.int64])),
    *refusals({(ValueError, "idx_mapping"): {"too many rows": TOO_MANY_ROWS}}),
    *refusals(GATHERED_SLOTS, is_value=True),
]

NO_POSITIONS = _vector(dtype=np.int64)


def _one_token(*starts: int) -> Change:
    """Return the change to slots for one token, with these starts."""
    return set_arguments(query_start_loc=_vector(*starts), positions=_vector(0, dtype=np.int64))


def _position_outside(call: Call) -> Call | None:
    model = call.source
    if not model.block_sizes:
        return None
    maximum = max(size * width for size, width in zip(model.block_sizes, model.widths, strict=True))
    return call.replacing(query_start_loc=_vector(0, 1), positions=_vector(maximum, dtype=np.int64))


SLOTS_VALUES: Refusals = {
    (ValueError, "query_start_loc"): {
        "starts do not start at 0": _one_token(1, 1),
        "starts decrease": _one_token(0, -1),
        "more tokens than positions": _one_token(0, 2),
    },
    (ValueError, "positions"): {"position outside": _position_outside},
}

SLOTS_REFUSALS: Refusals = {
    (ValueError, "query_start_loc"): {
        "too many requests": changed_with_source(
            "query_start_loc", lambda _, model: _vector(*[0] * (model.max_num_reqs + 2))
        )
    },
    (ValueError, "positions"): {
        "too many tokens": changed_with_source(
            "positions",
            lambda _, model: _vector(*[0] * (model.max_num_tokens + 1), dtype=np.int64),
        )
    },
}

SLOTS = [
    *invalid_by_kind(positions=Array([np.int32]), query_start_loc=Starts()),
    *refusals(SLOTS_REFUSALS),
    *refusals(SLOTS_VALUES, is_value=True),
]


def _counted(name: str, maximum: Callable[[TableModel], int]) -> list[InvalidInput]:
    """Return the invalid inputs of a count that has a maximum in the model."""
    too_many = changed_with_source(name, lambda _, model: maximum(model) + 1)
    return [
        *invalid_by_kind(**{name: Int(0)}),
        *refusals({(ValueError, name): {"too many": too_many}}),
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
"""The names of the invalid operations."""
