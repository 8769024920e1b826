"""Sessions: an object that keeps state, and what is done to it in order.

A session of `BlockTables` is drawn with a model of the rows' lengths at hand, so that every
operation is valid, but for those that are meant to be refused, after which the rest of the session
shows that nothing had changed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TypeAlias

import numpy as np
from hypothesis import strategies as st

from conformance.contracts import Arguments, Call, Draw
from conformance.strategies.arrays import guarded
from conformance.strategies.presets import Preset


@dataclasses.dataclass(frozen=True)
class Operation:
    """One call of a method.

    Attributes:
        method: Its name.
        arguments: Its arguments by name.
        refused: What is wrong with it, None where it is valid.
        error: The class of the exception that it gets then.
        argument: The name that the exception's message must mention.
    """

    method: str
    arguments: Arguments
    refused: str | None = None
    error: type[Exception] | None = None
    argument: str = ""


@dataclasses.dataclass(frozen=True)
class Session:
    """An object's life: how it is made and what is done to it."""

    constructor: Call
    operations: tuple[Operation, ...]

    def __repr__(self) -> str:
        methods = ", ".join(operation.method for operation in self.operations)
        return f"{self.constructor!r} and then {methods}"


@dataclasses.dataclass
class TableModel:
    """What a session's strategy knows of the block tables: the lengths of their rows.

    Attributes:
        block_sizes: The groups' block sizes.
        max_num_reqs: The number of request slots.
        max_num_tokens: The size of the slot mapping's buffer.
        widths: The most blocks of a row, by group.
        lengths: The blocks of each row, by group.
        next_id: A block id not used yet.
    """

    block_sizes: list[int]
    max_num_reqs: int
    max_num_tokens: int
    max_model_len: int
    widths: list[int] = dataclasses.field(init=False)
    lengths: list[list[int]] = dataclasses.field(init=False)
    next_id: int = 1

    def __post_init__(self) -> None:
        self.widths = [-(-self.max_model_len // size) for size in self.block_sizes]
        self.lengths = [[0] * self.max_num_reqs for _ in self.block_sizes]

    def new_ids(self, count: int) -> list[int]:
        """Return block ids that no row has yet."""
        first, self.next_id = self.next_id, self.next_id + count
        return list(range(first, first + count))


OperationMaker: TypeAlias = Callable[[TableModel], Operation | None]
"""Makes an operation that must be refused; None where the tables offer nothing to break."""


@st.composite
def block_tables_sessions(
    draw: Draw, preset: Preset, *, tried: Sequence[OperationMaker] = ()
) -> Session:
    """Draw sessions of `BlockTables`.

    Args:
        draw: Hypothesis' `draw`.
        preset: The sizes.
        tried: Makers of operations that must be refused; all are tried in the session's middle.
    """
    is_minimal = preset.name == "minimal"
    sizes = st.sampled_from((1, 2, 3) if is_minimal else (16, 32, 64))
    model = TableModel(
        draw(st.lists(sizes, max_size=3)),
        draw(st.integers(1, 4 if is_minimal else 8)),
        draw(st.integers(1, 8 if is_minimal else 48)),
        draw(st.integers(1, 9 if is_minimal else 300)),
        next_id=draw(st.sampled_from((1, 2**31 - 1000))),
    )
    arguments = {
        "block_sizes": model.block_sizes,
        "max_num_reqs": model.max_num_reqs,
        "max_num_batched_tokens": model.max_num_tokens,
        "max_model_len": model.max_model_len,
        "device": "cpu",
        "pin_memory": False,
    }

    def valid() -> list[Operation]:
        count = draw(st.sampled_from((1, 4, 6, 8, 10)))
        return [draw(st.sampled_from(OPERATIONS))(model, draw) for _ in range(count)]

    operations = valid()
    if tried:
        operations += filter(None, (make(model) for make in tried))
        operations += valid()
    return Session(Call("BlockTables", arguments), tuple(operations))


def _append(model: TableModel, draw: Draw) -> Operation:
    slots = st.integers(0, model.max_num_reqs - 1)
    listed = draw(st.lists(slots, unique=True, max_size=model.max_num_reqs))
    overwrite = [draw(st.booleans()) for _ in listed]
    cu_num_new_blocks, new_block_ids = [], []
    for lengths, width in zip(model.lengths, model.widths, strict=True):
        counts = []
        for slot, is_new in zip(listed, overwrite, strict=True):
            kept = 0 if is_new else lengths[slot]
            counts.append(draw(st.integers(0, min(width - kept, 6))))
            lengths[slot] = kept + counts[-1]
        cu_num_new_blocks.append([0, *accumulate(counts)])
        new_block_ids.append(model.new_ids(sum(counts)))
    arguments = {
        "req_indices": listed,
        "cu_num_new_blocks": cu_num_new_blocks,
        "new_block_ids": new_block_ids,
        "overwrite": overwrite,
    }
    return Operation("append_block_ids", arguments)


def _move(model: TableModel, draw: Draw) -> Operation:
    src, dst = (draw(st.integers(0, model.max_num_reqs - 1)) for _ in range(2))
    if src != dst:
        for lengths in model.lengths:
            lengths[dst], lengths[src] = lengths[src], 0
    return Operation("move_row", {"src": src, "dst": dst})


def _swap(model: TableModel, draw: Draw) -> Operation:
    a, b = (draw(st.integers(0, model.max_num_reqs - 1)) for _ in range(2))
    for lengths in model.lengths:
        lengths[a], lengths[b] = lengths[b], lengths[a]
    return Operation("swap_rows", {"a": a, "b": b})


def _clear(model: TableModel, draw: Draw) -> Operation:
    row = draw(st.integers(0, model.max_num_reqs - 1))
    for lengths in model.lengths:
        lengths[row] = 0
    return Operation("clear_row", {"r": row})


def _gather(model: TableModel, draw: Draw) -> Operation:
    entries = st.integers(-1, model.max_num_reqs - 1)
    mapping = draw(st.lists(entries, max_size=model.max_num_reqs))
    return Operation("gather_block_tables", {"idx_mapping": guarded(mapping, np.int32)})


def _slots(model: TableModel, draw: Draw) -> Operation:
    num_reqs = draw(st.integers(0, model.max_num_reqs))
    num_positions = draw(st.integers(0, model.max_num_tokens))
    cuts = draw(st.lists(st.integers(0, num_positions), min_size=num_reqs, max_size=num_reqs))
    # Every column of the buffer may be read: what was not gathered there is nulls.
    last = min((w * s for w, s in zip(model.widths, model.block_sizes, strict=True)), default=1) - 1
    known = draw(st.lists(st.integers(0, last), min_size=1, max_size=4))
    positions = [known[i % len(known)] for i in range(num_positions)]
    arguments = {
        "query_start_loc": guarded([0, *sorted(cuts)], np.int32),
        "positions": guarded(positions, np.int64, draw(st.sampled_from((1, 2)))),
    }
    return Operation("compute_slot_mappings", arguments)


def _dummy_tables(model: TableModel, draw: Draw) -> Operation:
    count = draw(st.integers(0, model.max_num_reqs))
    return Operation("get_dummy_block_tables", {"num_reqs": count})


def _dummy_slots(model: TableModel, draw: Draw) -> Operation:
    count = draw(st.integers(0, model.max_num_tokens))
    return Operation("get_dummy_slot_mappings", {"num_tokens": count})


OPERATIONS = (
    _append,
    _gather,
    _slots,
    _append,
    _gather,
    _move,
    _swap,
    _clear,
    _dummy_tables,
    _dummy_slots,
)
