"""Stateful sessions of `BlockTables`: a constructor call and a sequence of operations.

A session is drawn along with a model of the row lengths, so that every operation is valid, except
those that must be refused. The operations after these show that nothing has changed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np

from conformance.arrays.guard_bands import guarded
from conformance.arrays.overwrites import WAYS, Overwrite
from conformance.coverage.presets import Preset
from conformance.strategies import cached as st
from conformance.strategies.large_batches import BLOCK_IDS, BLOCK_SIZE
from conformance.strategies.repeated import long_lists
from conformance.values.call import Arguments, Call
from reference import PAD_SLOT_ID

LAST_BLOCK_ID = 2**31 - 1


@dataclasses.dataclass(frozen=True)
class Operation:
    """One call of a method.

    Attributes:
        method: Its name.
        arguments: Its arguments by name, in the order of the method's parameters.
        refused: What is wrong with it; None if it is valid.
        error: The class of the exception that it must raise.
        argument: The name that the exception's message must mention.
        is_value: Whether tensor values are wrong, which are checked in checked mode only.
        overwrites: The caller's writes into earlier results, just before the operation.
    """

    method: str
    arguments: Arguments
    refused: str | None = None
    error: type[Exception] | None = None
    argument: str = ""
    is_value: bool = False
    overwrites: tuple[Overwrite, ...] = ()

    @staticmethod
    def appending(
        slots: list[int], rows: Sequence[Sequence[Sequence[int]]], overwrite: list[bool]
    ) -> Operation:
        """Return the operation that writes or appends the blocks of rows, given for each group."""
        arguments = {
            "req_indices": slots,
            "cu_num_new_blocks": [[0, *accumulate(map(len, group))] for group in rows],
            "new_block_ids": [[block for row in group for block in row] for group in rows],
            "overwrite": overwrite,
        }
        return Operation("append_block_ids", arguments)

    @staticmethod
    def gathering(slots: list[int]) -> Operation:
        """Return the operation that gathers some rows."""
        return Operation("gather_block_tables", {"idx_mapping": np.array(slots, np.int32)})


@dataclasses.dataclass(frozen=True)
class Session:
    """A stateful test case: an object and the operations on it.

    Attributes:
        constructor: The call that makes the object.
        operations: The operations, in order.
        events: The events that its strategy recorded, for coverage goals.
    """

    constructor: Call
    operations: tuple[Operation, ...]
    events: frozenset[str] = frozenset()

    def _repr_pretty_(self, printer: Any, _: bool) -> None:
        """Leave the session to the report, which prints it better than Hypothesis does."""
        printer.text(f"the session above, of {len(self.operations)} operations")


TABLE_EVENTS = (
    "a row is overwritten by fewer blocks",
    "a row with blocks is moved",
    "a full row is moved",
    "a row with blocks is moved onto itself",
    "a shorter row is swapped with a longer one",
    "a row with blocks is cleared",
    "blocks are gathered in a second group",
    "a gathered row is shorter than the one before it",
    "rows with blocks are no longer gathered",
    "a strided mapping is gathered",
    "slots in gathered blocks",
    "fewer slots than the last time",
    "dummy tables after blocks were gathered",
    "dummy slots after more slots",
    "gathered rows are overwritten before they are gathered again",
    "padded rows are overwritten before the next gather",
    "slots are overwritten before the next ones",
)
"""Events of block tables; a run must reach each."""


@dataclasses.dataclass
class TableModel:
    """The model of a session's block tables: the lengths of their rows.

    Attributes:
        block_sizes: The groups' block sizes.
        max_num_reqs: The number of request slots.
        max_num_tokens: The size of the slot mapping's buffer.
        max_model_len: The longest sequence.
        widths: The most blocks of a row, by group.
        lengths: The blocks of each row, by group.
        gathered: The blocks of each gathered row, by group.
        num_gathered: The requests of the last gather.
        num_slots: The tokens of the last slot mapping.
        next_id: A block id not used yet.
        events: The events of `TABLE_EVENTS` so far.
    """

    block_sizes: list[int]
    max_num_reqs: int
    max_num_tokens: int
    max_model_len: int
    widths: list[int] = dataclasses.field(init=False)
    lengths: list[list[int]] = dataclasses.field(init=False)
    gathered: list[list[int]] = dataclasses.field(init=False)
    num_gathered: int = 0
    num_slots: int = 0
    next_id: int = 1
    events: set[str] = dataclasses.field(default_factory=set)

    def __post_init__(self) -> None:
        self.widths = [-(-self.max_model_len // size) for size in self.block_sizes]
        self.lengths = [[0] * self.max_num_reqs for _ in self.block_sizes]
        self.gathered = [[0] * self.max_num_reqs for _ in self.block_sizes]

    def note(self, event: str, *, happens: bool) -> None:
        """Record an event of `TABLE_EVENTS`, if it happens."""
        if happens:
            self.events.add(event)

    def new_ids(self, count: int) -> list[int]:
        """Return block ids that no row has yet; 1 follows the largest int32.

        >>> TableModel([2], 1, 4, 8, next_id=2**31 - 1).new_ids(2)
        [2147483647, 1]
        """
        first = self.next_id
        self.next_id = (first - 1 + count) % LAST_BLOCK_ID + 1
        return [(first - 1 + i) % LAST_BLOCK_ID + 1 for i in range(count)]


GROUPS = "groups"
SLOTS = "request slots"
TOKENS = "tokens of a slot mapping"
LENGTH = "longest sequence"

MOST_DRAWN = 64
"""The most requests whose entries are drawn one by one."""

OperationMaker: TypeAlias = Callable[[TableModel], Operation | None]
"""Makes an operation that must be refused; None if it does not apply."""


@st.composite
def block_tables_sessions(
    draw: st.DrawFn,
    preset: Preset,
    *,
    invalid_operations: Sequence[OperationMaker] = (),
    counts: Sequence[int] = (1, 16, 30, 8, 30),
) -> Session:
    """Draw sessions of `BlockTables`, with operations that must be refused in the middle.

    `invalid_operations` makes these; `counts` are the possible numbers of valid ones before and
    after them.
    """
    is_minimal = preset.name == "minimal"
    sizes = st.sampled_from((1, 2, 3) if is_minimal else (16, 32, 64))
    if preset.axis:
        num_groups = draw(preset.sizes(GROUPS, st.just(2)))
        block_sizes = [draw(preset.sizes(BLOCK_SIZE, st.just(4)))] * num_groups
        usual_length = st.just(5 * max(block_sizes, default=1))
    else:
        num_groups = draw(st.sampled_from((1, 2, 3, 2, 3, 0)))
        block_sizes = draw(st.lists(sizes, min_size=num_groups, max_size=num_groups))
        usual_length = st.integers(1, 9 if is_minimal else 300)
    model = TableModel(
        block_sizes,
        draw(preset.sizes(SLOTS, st.integers(1, 4 if is_minimal else 8))),
        draw(preset.sizes(TOKENS, st.integers(1, 8 if is_minimal else 48))),
        draw(preset.sizes(LENGTH, usual_length)),
        next_id=draw(
            preset.sizes(
                BLOCK_IDS, st.sampled_from((1, 2**31 - 1000, LAST_BLOCK_ID, LAST_BLOCK_ID - 2))
            )
        ),
    )
    arguments = {
        "block_sizes": model.block_sizes,
        "max_num_reqs": model.max_num_reqs,
        "max_num_batched_tokens": model.max_num_tokens,
        "max_model_len": model.max_model_len,
        "device": "cpu",
        "pin_memory": draw(st.booleans()),
    }

    def valid() -> list[Operation]:
        count = draw(st.sampled_from((8,) if preset.axis else counts))
        return [_operation(model, draw) for _ in range(count)]

    operations = valid()
    if invalid_operations:
        if draw(st.booleans()):  # the last slot is empty, as after a request has ended
            operations.append(_cleared(model, model.max_num_reqs - 1))
        operations += filter(None, (make(model) for make in invalid_operations))
        operations += valid()
    return Session(Call("BlockTables", arguments), tuple(operations), frozenset(model.events))


def long_sessions(preset: Preset) -> st.SearchStrategy[Session]:
    """Return sessions of more than a thousand operations: a short session, repeated.

    All rows are cleared before the operations begin again, so that each is valid every time.
    """
    return block_tables_sessions(preset, counts=(30, 60)).map(_repeated)


NUM_OPERATIONS = 3000
"""Operations of a long session: counters of a byte wrap for each method."""


def _repeated(session: Session) -> Session:
    rows = range(session.constructor["max_num_reqs"])
    round_ = (*session.operations, *(Operation("clear_row", {"r": row}) for row in rows))
    operations = round_ * -(-NUM_OPERATIONS // len(round_))
    return dataclasses.replace(session, operations=operations)


def _operation(model: TableModel, draw: st.DrawFn) -> Operation:
    """Draw an operation, sometimes after a caller has written into earlier results."""
    make = draw(_OPERATIONS)
    overwrites = _overwrites(model, draw, make) if draw(st.sampled_from((0, 1, 0, 0))) else ()
    operation: Operation = make(model, draw)
    return dataclasses.replace(operation, overwrites=overwrites)


def _overwrites(model: TableModel, draw: st.DrawFn, make: object) -> tuple[Overwrite, ...]:
    """Draw a caller's writes into the gathered tables or the slots."""
    way = draw(st.sampled_from(tuple(WAYS)))
    num_groups, gathers = len(model.block_sizes), make in {_gather, _dummy_tables}
    if num_groups and (gathers or (make is not _slots and draw(st.booleans()))):
        # Tables that are not gathered again are read by the next slots: no negative block ids.
        value = draw(st.sampled_from((-1, 7, -(2**31)) if gathers else (7, 0, 2**31 - 1)))
        first = draw(st.sampled_from((0, model.num_gathered % model.max_num_reqs)))
        has_blocks = any(map(any, model.gathered))
        model.note(TABLE_EVENTS[-3], happens=make is _gather and has_blocks and not first)
        model.note(TABLE_EVENTS[-2], happens=make is _gather and has_blocks and first > 0)
        return tuple(Overwrite(g, 0, first, value, way) for g in range(num_groups))
    first = draw(st.sampled_from((0, model.num_slots % model.max_num_tokens)))
    model.note(TABLE_EVENTS[-1], happens=make is _slots and model.num_slots > 0)
    value = draw(st.sampled_from((7, PAD_SLOT_ID, 2**40)))
    return (Overwrite(num_groups, 1, first, value, way),)


def _append(model: TableModel, draw: st.DrawFn) -> Operation:
    slots = st.integers(0, model.max_num_reqs - 1)
    listed = draw(st.lists(slots, unique=True, max_size=model.max_num_reqs))
    if not listed and draw(st.integers(0, 3)):
        listed = [model.max_num_reqs - 1]
    overwrite = [draw(st.booleans()) for _ in listed]
    rows = []
    for lengths, width in zip(model.lengths, model.widths, strict=True):
        counts = []
        for slot, is_new in zip(listed, overwrite, strict=True):
            length = 0 if is_new else lengths[slot]
            room = width - length
            count = draw(st.sampled_from((1, 2, 0, 3, 6, room)))
            counts.append(min(count, room))
            model.note("a row is overwritten by fewer blocks", happens=counts[-1] < lengths[slot])
            lengths[slot] = length + counts[-1]
        rows.append([model.new_ids(count) for count in counts])
    return Operation.appending(listed, rows, overwrite)


def _move(model: TableModel, draw: st.DrawFn) -> Operation:
    src, dst = (draw(st.integers(0, model.max_num_reqs - 1)) for _ in range(2))
    for lengths, width in zip(model.lengths, model.widths, strict=True):
        is_same = src == dst and lengths[src] > 0
        model.note("a row with blocks is moved onto itself", happens=is_same)
        if src != dst:
            model.note("a row with blocks is moved", happens=lengths[src] > 0)
            model.note("a full row is moved", happens=lengths[src] == width)
            lengths[dst], lengths[src] = lengths[src], 0
    return Operation("move_row", {"src": src, "dst": dst})


def _swap(model: TableModel, draw: st.DrawFn) -> Operation:
    a, b = (draw(st.integers(0, model.max_num_reqs - 1)) for _ in range(2))
    for lengths in model.lengths:
        model.note("a shorter row is swapped with a longer one", happens=lengths[a] < lengths[b])
        lengths[a], lengths[b] = lengths[b], lengths[a]
    return Operation("swap_rows", {"a": a, "b": b})


def _clear(model: TableModel, draw: st.DrawFn) -> Operation:
    return _cleared(model, draw(st.integers(0, model.max_num_reqs - 1)))


def _cleared(model: TableModel, row: int) -> Operation:
    for lengths in model.lengths:
        model.note("a row with blocks is cleared", happens=lengths[row] > 0)
        lengths[row] = 0
    return Operation("clear_row", {"r": row})


def _gather(model: TableModel, draw: st.DrawFn) -> Operation:
    entries = st.integers(-1, model.max_num_reqs - 1)
    if model.max_num_reqs <= MOST_DRAWN and draw(st.booleans()):
        mapping = draw(st.permutations(range(model.max_num_reqs)))
        mapping = mapping[draw(st.sampled_from((0, 1))) :]
    elif model.max_num_reqs > MOST_DRAWN:
        number = draw(st.sampled_from((model.max_num_reqs, model.max_num_reqs // 2)))
        mapping = draw(long_lists(entries, number))
    else:
        mapping = draw(st.lists(entries, max_size=model.max_num_reqs))
    for group, lengths in enumerate(model.lengths):
        new = [lengths[slot] if slot >= 0 else 0 for slot in mapping]
        old = model.gathered[group]
        model.note("blocks are gathered in a second group", happens=bool(group) and any(new))
        model.note(
            "a gathered row is shorter than the one before it",
            happens=any(0 < n < o for n, o in zip(new, old, strict=False)),
        )
        model.note("rows with blocks are no longer gathered", happens=any(old[len(new) :]))
        model.gathered[group] = new + [0] * (model.max_num_reqs - len(new))
    model.num_gathered = len(mapping)
    stride = draw(st.sampled_from((1, 2)))
    model.note("a strided mapping is gathered", happens=stride > 1 and len(mapping) > 1)
    return Operation("gather_block_tables", {"idx_mapping": guarded(mapping, np.int32, stride)})


def _slots(model: TableModel, draw: st.DrawFn) -> Operation:
    num_reqs = draw(st.integers(0, model.max_num_reqs))
    num_positions = draw(st.integers(0, model.max_num_tokens))
    cut = st.integers(0, num_positions)
    if num_reqs > MOST_DRAWN:
        cuts = draw(long_lists(cut, num_reqs))
    else:
        cuts = draw(st.lists(cut, min_size=num_reqs, max_size=num_reqs))
    # Every column of the buffer may be read: those not gathered contain null blocks.
    last = min((w * s for w, s in zip(model.widths, model.block_sizes, strict=True)), default=1) - 1
    held = [max(row) * size for row, size in zip(model.gathered, model.block_sizes, strict=True)]
    inside = min(max(held, default=1) - 1, last)
    known = draw(st.lists(st.integers(0, last), max_size=2))
    if inside > 0:
        known += draw(st.lists(st.integers(0, inside), min_size=1, max_size=4))
    positions = [(known or [0])[i % max(len(known), 1)] for i in range(num_positions)]
    stride = draw(st.sampled_from((1, 2)))
    model.note("slots in gathered blocks", happens=inside > 0 and any(cuts))
    model.note("fewer slots than the last time", happens=0 < num_positions < model.num_slots)
    model.num_slots = num_positions
    arguments = {
        "query_start_loc": guarded([0, *sorted(cuts)], np.int32, stride),
        "positions": guarded(positions, np.int64, draw(st.sampled_from((1, 2)))),
    }
    return Operation("compute_slot_mappings", arguments)


def _dummy_tables(model: TableModel, draw: st.DrawFn) -> Operation:
    count = draw(st.integers(0, model.max_num_reqs))
    for row in model.gathered:
        model.note("dummy tables after blocks were gathered", happens=any(row))
        row[:] = [0] * len(row)
    return Operation("get_dummy_block_tables", {"num_reqs": count})


def _dummy_slots(model: TableModel, draw: st.DrawFn) -> Operation:
    count = draw(st.integers(0, model.max_num_tokens))
    model.note("dummy slots after more slots", happens=count < model.num_slots)
    model.num_slots = 0
    return Operation("get_dummy_slot_mappings", {"num_tokens": count})


_OPERATIONS = st.sampled_from(
    (*(_append, _gather, _slots) * 2, _move, _swap, _clear, _dummy_tables, _dummy_slots)
)
