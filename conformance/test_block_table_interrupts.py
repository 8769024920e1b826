"""Block tables after an exception from a signal handler: an operation happens or it does not."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from itertools import count, islice
from typing import Any

import numpy as np

from conformance.contracts.check import property_check
from conformance.contracts.sessions import construct, perform
from conformance.coverage.presets import MINIMAL, Preset
from conformance.execution.interrupts import Interrupter
from conformance.strategies import cached as st
from conformance.strategies.block_table import Operation, Session
from conformance.targets.target import REFERENCE, Target
from conformance.values.call import Call
from conformance.values.comparison import first_difference

LONGEST, NUM_TOKENS = 6, 4


@dataclasses.dataclass(frozen=True)
class Interrupted:
    """Block tables, and an operation on them to interrupt.

    Attributes:
        session: The constructor call, and the operations before the interrupted one.
        operation: The operation to interrupt.
        parts: The instructions of the operation to interrupt it before, one in each run, in percent
            of their number.
        later: The operations after it.
    """

    session: Session
    operation: Operation
    parts: tuple[int, ...]
    later: tuple[Operation, ...]


def _appending(
    rows: list[int],
    counts: list[list[int]],
    first: int,
    *,
    new: bool,
    integer: Callable[[int], Any] = int,
) -> Operation:
    """Return an append of so many blocks to rows in each group; `new` overwrites the rows."""
    ids = map(integer, count(first))
    blocks = [[list(islice(ids, number)) for number in of_group] for of_group in counts]
    return Operation.appending(rows, blocks, [new] * len(rows))


@st.composite
def interrupted_operations(draw: st.DrawFn, _: Preset) -> Interrupted:
    """Draw rows of some lengths, gather them, and draw an operation on one or two of them."""
    sizes = draw(st.sampled_from(([2], [2, 3])))
    rows = list(range(draw(st.integers(2, 4))))
    a, b = draw(st.permutations(rows))[:2]
    one_each = [[1] * len(rows) for _ in sizes]
    operation = draw(
        st.sampled_from(
            (
                Operation("swap_rows", {"a": a, "b": b}),
                Operation("move_row", {"src": a, "dst": b}),
                Operation("clear_row", {"r": a}),
                _appending(rows, one_each, 30, new=False),
                _appending(rows, one_each, 30, new=True),
                Operation.gathering([b, -1]),
            )
        )
    )
    # Rows are full, so that a wrong length changes what is refused later; an append needs space.
    room = 1 if operation.method == "append_block_ids" else 0
    counts = [
        [draw(st.sampled_from((-(-LONGEST // size) - room, 1, 0))) for _ in rows] for size in sizes
    ]
    arguments = {
        "block_sizes": sizes,
        "max_num_reqs": len(rows),
        "max_num_batched_tokens": NUM_TOKENS,
        "max_model_len": LONGEST,
        "device": "cpu",
        "pin_memory": False,
    }
    earlier = _appending(rows, counts, 10, new=False), Operation.gathering(rows)
    # The next operation must read the row lengths again; half of the time it is an append.
    last = next(row for row in reversed(rows) if row != b)
    following = draw(
        st.sampled_from(
            (
                *[Operation.gathering(rows)] * 3,
                Operation("swap_rows", {"a": b, "b": last}),
                Operation("move_row", {"src": b, "dst": a}),
                Operation("clear_row", {"r": b}),
            )
        )
    )
    # Append to each of the two rows until it is full.
    integer = draw(st.sampled_from((int, np.int64)))
    more = [
        _appending([row], [[1]] * len(sizes), 50 + row, new=False, integer=integer)
        for row in [a, b] * 3
    ]
    gathers = Operation.gathering(rows), Operation.gathering([a])
    later = (following, gathers[0], *more, *gathers)
    session = Session(Call("BlockTables", arguments), earlier)
    # Checks come before writes. After a launch, an eighth of the instructions count the blocks.
    parts = draw(st.integers(0, 59)), *range(60 + draw(st.integers(0, 13)), 101, 14)
    return Interrupted(session, operation, parts, later)


class _Tables:
    """A twin's block tables, with views of all buffers that they write to."""

    def __init__(self, twin: Target, session: Session) -> None:
        self.twin, self.tables = twin, construct(twin, session)
        arguments = session.constructor.arguments
        self.held = (
            self.tables.get_dummy_block_tables(arguments["max_num_reqs"]),
            self.tables.get_dummy_slot_mappings(arguments["max_num_batched_tokens"]),
        )
        for operation in session.operations:
            refusal = self.perform(operation)
            assert not refusal, f"{operation.method} raised {refusal}"

    def perform(self, operation: Operation) -> str:
        """Call the method and return the name of the exception's class, if it is refused."""
        result = perform(self.twin, self.tables, operation)
        return type(result).__name__ if isinstance(result, Exception) else ""

    def is_like(self, other: _Tables) -> bool:
        """Return whether its tables and slots equal another's."""
        return first_difference(self.held, other.held, "held", other.twin.device or "cpu") is None


@property_check(
    "BlockTables",
    interrupted_operations,
    goals={
        "a swap of rows is interrupted": lambda e: e.operation.method == "swap_rows",
        "a move of a row is interrupted": lambda e: e.operation.method == "move_row",
        "an append is interrupted": lambda e: e.operation.method == "append_block_ids",
    },
    has_kernel=True,
    presets=[MINIMAL],
)
def test_interrupted_operations_happen_or_not(target: Target, example: Interrupted) -> None:
    """An exception from a signal handler leaves the tables as before or after the operation."""
    with target.running(checked=True):
        counted = Interrupter(target.implementation.module, 0)
        uninterrupted = _Tables(target, example.session)
        counted.run(lambda: uninterrupted.perform(example.operation))
    for part in example.parts:
        _interrupt(target, example, 1 + part * counted.seen // 100)


def _interrupt(target: Target, example: Interrupted, at: int) -> None:
    """Assert that the operation, interrupted before one instruction, has happened or not."""
    unbegun, done = (_Tables(REFERENCE, example.session) for _ in range(2))
    done.perform(example.operation)
    with target.running(checked=True):
        interrupter = Interrupter(target.implementation.module, at)
        interrupted = _Tables(target, example.session)
        is_interrupted = interrupter.run(lambda: interrupted.perform(example.operation))
        possible = [unbegun, done] if is_interrupted else [done]
        possible = [one for one in possible if one.is_like(interrupted)]
        for each in example.later:
            refusal = interrupted.perform(each)
            possible = [one for one in possible if one.perform(each) == refusal]
            possible = [one for one in possible if one.is_like(interrupted)]
    where = f"{example.operation.method}, interrupted at {interrupter.place}"
    assert possible, f"{where}, has neither happened nor not"
