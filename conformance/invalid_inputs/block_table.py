"""Bad operations on `BlockTables`, each of which must be refused and change nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from conformance.contracts import Arguments, InvalidInput, replaced
from conformance.invalid_inputs.arrays import int_faults
from conformance.strategies.block_table import Operation, OperationMaker, TableModel


def _bad_append(
    name: str, error: type[Exception], argument: str, change: Callable[[TableModel, Arguments], Any]
) -> OperationMaker:
    """Return a maker of an append of one block to the last slot of every group, made bad."""

    def make(model: TableModel) -> Operation | None:
        groups = len(model.block_sizes)
        arguments: Arguments = {
            "req_indices": [model.max_num_reqs - 1],
            "cu_num_new_blocks": [[0, 1] for _ in range(groups)],
            "new_block_ids": [[5] for _ in range(groups)],
            "overwrite": [True],
        }
        changes = change(model, arguments)
        if changes is None:
            return None
        return Operation("append_block_ids", arguments | changes, name, error, argument)

    return make


def _last_group(model: TableModel, arguments: Arguments, name: str, value: Any) -> Any:
    """Return an argument with another value for the last group, None where there is no group."""
    return {name: [*arguments[name][:-1], value]} if model.block_sizes else None


def _outgrown(model: TableModel, arguments: Arguments) -> Any:
    if not model.block_sizes:
        return None
    count = model.widths[-1] + 1
    return {
        "cu_num_new_blocks": [*arguments["cu_num_new_blocks"][:-1], [0, count]],
        "new_block_ids": [*arguments["new_block_ids"][:-1], [5] * count],
    }


def _outgrown_by_appending(model: TableModel, _: Arguments) -> Any:
    """Append to what is there: a block more than there is room for."""
    if not model.block_sizes:
        return None
    others = len(model.block_sizes) - 1
    count = model.widths[-1] - model.lengths[-1][-1] + 1
    return {
        "overwrite": [False],
        "cu_num_new_blocks": [*([0, 0] for _ in range(others)), [0, count]],
        "new_block_ids": [*([] for _ in range(others)), [5] * count],
    }


def _bad_index(method: str, *names: str) -> list[OperationMaker]:
    """Return makers of row operations with an index outside, or none at all, for each argument."""

    def make(name: str, what: str, error: type[Exception], value: Any) -> OperationMaker:
        def operation(model: TableModel) -> Operation:
            bad = model.max_num_reqs if value is None else value
            arguments = dict.fromkeys(names, 0) | {name: bad}
            return Operation(method, arguments, f"{method}: {name} {what}", error, name)

        return operation

    kinds: tuple[tuple[str, type[Exception], Any], ...] = (
        ("is outside", IndexError, None),
        ("is negative", IndexError, -1),
        ("is a bool", TypeError, True),
        ("is a float", TypeError, 0.0),
    )
    return [make(name, *kind) for name in names for kind in kinds]


def _bad_call(
    method: str,
    name: str,
    error: type[Exception],
    argument: str,
    make: Callable[[TableModel], Arguments],
    *,
    is_value: bool = False,
) -> OperationMaker:
    what = f"{method}: {name}"
    return lambda model: Operation(method, make(model), what, error, argument, is_value)


def _bad_starts(name: str, *starts: int) -> OperationMaker:
    """Return a maker of slots for one token of the wrong starts."""

    def arguments(_: TableModel) -> Arguments:
        return {"query_start_loc": _vector(*starts), "positions": _vector(0, dtype=np.int64)}

    method = "compute_slot_mappings"
    return _bad_call(method, name, ValueError, "query_start_loc", arguments, is_value=True)


def _counts_decrease(model: TableModel, _: Arguments) -> Any:
    if not model.block_sizes or model.max_num_reqs < 2:
        return None
    return {
        "req_indices": [0, 1],
        "overwrite": [True, True],
        "cu_num_new_blocks": [[0, 1, 0] for _ in model.block_sizes],
        "new_block_ids": [[] for _ in model.block_sizes],
    }


def _counts_fall_by_one(model: TableModel, _: Arguments) -> Any:
    """Give the second of three slots a block less than none, as many as there are at the end."""
    if not model.block_sizes or model.max_num_reqs < 3:
        return None
    return {
        "req_indices": [0, 1, 2],
        "overwrite": [True, True, True],
        "cu_num_new_blocks": [[0, 1, 0, 1] for _ in model.block_sizes],
        "new_block_ids": [[5] for _ in model.block_sizes],
    }


def _vector(*values: int, dtype: type[np.generic] = np.int32) -> Any:
    return np.array(values, dtype)


def _slots(starts: Any = None, positions: Any = None) -> Arguments:
    """Return the arguments of slots for no tokens, some of them given."""
    return {
        "query_start_loc": _vector(0) if starts is None else starts,
        "positions": _vector(dtype=np.int64) if positions is None else positions,
    }


BAD_OPERATIONS = (
    _bad_append(
        "slot outside", IndexError, "req_indices", lambda m, _: {"req_indices": [m.max_num_reqs]}
    ),
    _bad_append("negative slot", IndexError, "req_indices", lambda *_: {"req_indices": [-1]}),
    _bad_append("slot is a float", TypeError, "req_indices", lambda *_: {"req_indices": [0.0]}),
    _bad_append(
        "slots are an array", TypeError, "req_indices", lambda *_: {"req_indices": _vector(0)}
    ),
    _bad_append("slots are a tuple", TypeError, "req_indices", lambda *_: {"req_indices": (0,)}),
    _bad_append(
        "slot listed twice",
        ValueError,
        "req_indices",
        lambda m, _: {
            "req_indices": [0, 0],
            "overwrite": [True, True],
            "cu_num_new_blocks": [[0, 0, 0] for _ in m.block_sizes],
            "new_block_ids": [[] for _ in m.block_sizes],
        },
    ),
    _bad_append("overwrite is an int", TypeError, "overwrite", lambda *_: {"overwrite": [1]}),
    _bad_append("overwrite is short", ValueError, "overwrite", lambda *_: {"overwrite": []}),
    _bad_append(
        "a group too many",
        ValueError,
        "new_block_ids",
        lambda _, a: {"new_block_ids": [*a["new_block_ids"], []]},
    ),
    _bad_append(
        "counts not from 0",
        ValueError,
        "cu_num_new_blocks",
        lambda m, a: _last_group(m, a, "cu_num_new_blocks", [1, 1]),
    ),
    _bad_append(
        "counts not to the end",
        ValueError,
        "cu_num_new_blocks",
        lambda m, a: _last_group(m, a, "cu_num_new_blocks", [0, 0]),
    ),
    _bad_append(
        "counts too long",
        ValueError,
        "cu_num_new_blocks",
        lambda m, a: _last_group(m, a, "cu_num_new_blocks", [0, 1, 1]),
    ),
    _bad_append(
        "negative block id",
        ValueError,
        "new_block_ids",
        lambda m, a: _last_group(m, a, "new_block_ids", [-1]),
    ),
    _bad_append(
        "block id past int32",
        ValueError,
        "new_block_ids",
        lambda m, a: _last_group(m, a, "new_block_ids", [2**31]),
    ),
    _bad_append(
        "block id is a bool",
        TypeError,
        "new_block_ids",
        lambda m, a: _last_group(m, a, "new_block_ids", [True]),
    ),
    _bad_append("counts decrease", ValueError, "cu_num_new_blocks", _counts_decrease),
    _bad_append("counts fall by one", ValueError, "cu_num_new_blocks", _counts_fall_by_one),
    _bad_append(
        "a group's counts are missing",
        ValueError,
        "cu_num_new_blocks",
        lambda m, a: {"cu_num_new_blocks": a["cu_num_new_blocks"][1:]} if m.block_sizes else None,
    ),
    _bad_append(
        "groups' counts are a tuple",
        TypeError,
        "cu_num_new_blocks",
        lambda _, a: {"cu_num_new_blocks": tuple(a["cu_num_new_blocks"])},
    ),
    _bad_append(
        "block ids are a tuple",
        TypeError,
        "new_block_ids",
        lambda m, a: _last_group(m, a, "new_block_ids", (5,)),
    ),
    _bad_append("row outgrown", ValueError, "new_block_ids", _outgrown),
    _bad_append("row outgrown by appending", ValueError, "new_block_ids", _outgrown_by_appending),
    *_bad_index("move_row", "src", "dst"),
    *_bad_index("swap_rows", "a", "b"),
    *_bad_index("clear_row", "r"),
    _bad_call(
        "gather_block_tables",
        "slot outside",
        IndexError,
        "idx_mapping",
        lambda m: {"idx_mapping": _vector(m.max_num_reqs)},
        is_value=True,
    ),
    _bad_call(
        "gather_block_tables",
        "slot below -1",
        IndexError,
        "idx_mapping",
        lambda _: {"idx_mapping": _vector(-2)},
        is_value=True,
    ),
    _bad_call(
        "gather_block_tables",
        "too many rows",
        ValueError,
        "idx_mapping",
        lambda m: {"idx_mapping": _vector(*[-1] * (m.max_num_reqs + 1))},
    ),
    _bad_call(
        "gather_block_tables",
        "int64",
        TypeError,
        "idx_mapping",
        lambda _: {"idx_mapping": _vector(0, dtype=np.int64)},
    ),
    _bad_call(
        "gather_block_tables",
        "two axes",
        ValueError,
        "idx_mapping",
        lambda _: {"idx_mapping": _vector(-1)[None]},
    ),
    _bad_call(
        "compute_slot_mappings",
        "too many requests",
        ValueError,
        "query_start_loc",
        lambda m: {
            "query_start_loc": _vector(*[0] * (m.max_num_reqs + 2)),
            "positions": _vector(dtype=np.int64),
        },
    ),
    _bad_call(
        "compute_slot_mappings",
        "too many tokens",
        ValueError,
        "positions",
        lambda m: {
            "query_start_loc": _vector(0),
            "positions": _vector(*[0] * (m.max_num_tokens + 1), dtype=np.int64),
        },
    ),
    *(
        _bad_call("compute_slot_mappings", name, error, argument, lambda _, bad=bad: bad)  # type: ignore[misc]  # which of them
        for name, error, argument, bad in (
            ("int64 starts", TypeError, "query_start_loc", _slots(np.zeros(2, np.int64))),
            ("int32 positions", TypeError, "positions", _slots(positions=np.zeros(1, np.int32))),
            ("starts of two axes", ValueError, "query_start_loc", _slots(_vector(0, 0)[None])),
            ("no starts", ValueError, "query_start_loc", _slots(_vector())),
        )
    ),
    _bad_starts("starts do not start at 0", 1, 1),
    _bad_starts("starts decrease", 0, -1),
    _bad_starts("more tokens than positions", 0, 2),
    lambda model: (
        Operation(
            "compute_slot_mappings",
            {
                "query_start_loc": _vector(0, 1),
                "positions": _vector(
                    max(s * w for s, w in zip(model.block_sizes, model.widths, strict=True)),
                    dtype=np.int64,
                ),
            },
            "compute_slot_mappings: position outside",
            ValueError,
            "positions",
            is_value=True,
        )
        if model.block_sizes
        else None
    ),
    _bad_call(
        "get_dummy_block_tables",
        "too many",
        ValueError,
        "num_reqs",
        lambda m: {"num_reqs": m.max_num_reqs + 1},
    ),
    *(
        _bad_call(
            "get_dummy_block_tables",
            name,
            error,
            "num_reqs",
            lambda _, bad=bad: {"num_reqs": bad},  # type: ignore[misc]  # which of them
        )
        for name, error, bad in (("negative", ValueError, -1), ("a float", TypeError, 1.0))
    ),
    _bad_call(
        "get_dummy_slot_mappings", "a bool", TypeError, "num_tokens", lambda _: {"num_tokens": True}
    ),
    _bad_call(
        "get_dummy_slot_mappings",
        "too many",
        ValueError,
        "num_tokens",
        lambda m: {"num_tokens": m.max_num_tokens + 1},
    ),
    _bad_call(
        "get_dummy_slot_mappings",
        "negative",
        ValueError,
        "num_tokens",
        lambda _: {"num_tokens": -1},
    ),
)
"""Makers of operations that must be refused."""

CONSTRUCTOR_INVALID_INPUTS = [
    InvalidInput("block_sizes is a tuple", TypeError, "block_sizes", replaced("block_sizes", (2,))),
    InvalidInput("a block size is 0", ValueError, "block_sizes", replaced("block_sizes", [2, 0])),
    InvalidInput(
        "a block size is a float", TypeError, "block_sizes", replaced("block_sizes", [2.0])
    ),
    *int_faults("max_num_reqs"),
    *int_faults("max_num_batched_tokens"),
    *int_faults("max_model_len"),
    InvalidInput("pin_memory is an int", TypeError, "pin_memory", replaced("pin_memory", 1)),
]
"""Bad ways to make the tables."""

REFUSALS = [
    operation.refused
    for make in BAD_OPERATIONS
    if (operation := make(TableModel([2], 3, 2, 2))) and operation.refused
]
"""What is wrong with them, by name."""
