"""Scopes of block tables: all short sequences of operations, up to renaming of blocks.

Each append uses new blocks, numbered by its place in the sequence, except for one block that
appends may share. Every sequence ends with two operations that show the contents of the tables:
slots at all positions of the gathered tables, and a gather of all rows.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np

from conformance.strategies.block_table import Operation, Session
from conformance.targets.target import RAISED, REFERENCE
from conformance.values.call import Call
from kvtwin.fuzz.exhaustive import spaces as sp
from kvtwin.fuzz.exhaustive.batches import block_id

SHARED_BLOCK = 100
"""The label of the block that several operations may append."""


@dataclasses.dataclass(frozen=True)
class Tables:
    """The sizes of block tables, and the call that constructs them.

    Attributes:
        block_sizes: Positions in a block, by group.
        num_rows: The number of request slots.
        max_model_len: The most positions of a request.
    """

    block_sizes: tuple[int, ...]
    num_rows: int
    max_model_len: int

    @property
    def widths(self) -> list[int]:
        """The most blocks of a row, by group."""
        return [-(-self.max_model_len // size) for size in self.block_sizes]

    @property
    def constructor(self) -> Call:
        """The call of their constructor."""
        arguments = {
            "block_sizes": list(self.block_sizes),
            "max_num_reqs": self.num_rows,
            "max_num_batched_tokens": self.num_rows * self.max_model_len,
            "max_model_len": self.max_model_len,
            "device": "cpu",
            "pin_memory": False,
        }
        return Call("BlockTables", arguments)

    @property
    def holding(self) -> tuple[Operation, Operation]:
        """Operations that return all buffers, which stay referenced as in a captured CUDA graph."""
        num_tokens = self.num_rows * self.max_model_len
        return dummy_tables(self.num_rows), dummy_slots(num_tokens)

    @property
    def observing(self) -> tuple[Operation, Operation]:
        """Operations that show the contents of the gathered tables and of the rows."""
        starts = [row * self.max_model_len for row in range(self.num_rows + 1)]
        positions = list(range(self.max_model_len)) * self.num_rows
        return slots(starts, positions), gather(range(self.num_rows))


Operations: TypeAlias = Callable[[int], Sequence[Operation]]
"""Returns the operations that may be at a place of a sequence."""


def append(
    place: int, rows: Sequence[int], counts: Sequence[Sequence[int]], overwrite: Sequence[bool]
) -> Operation:
    """Return an append of new blocks.

    Args:
        place: The operation's place in its sequence, which numbers the blocks.
        rows: The request slots.
        counts: For each group, how many blocks each row gets.
        overwrite: For each row, whether the new blocks replace its old ones.
    """
    labels = [itertools.count(1 + 12 * place + 6 * group) for group in range(len(counts))]
    return _append(
        rows,
        [[0, *accumulate(group)] for group in counts],
        [
            [block_id(next(label)) for _ in range(sum(n))]
            for n, label in zip(counts, labels, strict=True)
        ],
        overwrite,
    )


def append_shared(row: int, num_groups: int) -> Operation:
    """Return an append of the block that several rows may share."""
    return _append([row], [[0, 1]] * num_groups, [[block_id(SHARED_BLOCK)]] * num_groups, [False])


def _append(rows: Any, starts: Any, ids: Any, overwrite: Any) -> Operation:  # lists
    arguments = {
        "req_indices": list(rows),
        "cu_num_new_blocks": [list(group) for group in starts],
        "new_block_ids": [list(group) for group in ids],
        "overwrite": list(overwrite),
    }
    return Operation("append_block_ids", arguments)


def gather(rows: Sequence[int]) -> Operation:
    """Return a gather of rows; -1 is a padded request."""
    return Operation("gather_block_tables", {"idx_mapping": np.array(rows, np.int32)})


def slots(starts: Sequence[int], positions: Sequence[int]) -> Operation:
    """Return a computation of slots."""
    arguments = {
        "query_start_loc": np.array(starts, np.int32),
        "positions": np.array(positions, np.int64),
    }
    return Operation("compute_slot_mappings", arguments)


def dummy_tables(num_reqs: int) -> Operation:
    """Return a request for the tables of a dummy run."""
    return Operation("get_dummy_block_tables", {"num_reqs": num_reqs})


def dummy_slots(num_tokens: int) -> Operation:
    """Return a request for the slots of a dummy run."""
    return Operation("get_dummy_slot_mappings", {"num_tokens": num_tokens})


def _sequences(
    tables: Tables, operations: Operations, maximum: int, *, holds: bool
) -> sp.Space[Session]:
    """Return all sequences of at most `maximum` operations, the shortest first."""
    at_place = [sp.values(operations(place)) for place in range(maximum)]
    constructor, observing = tables.constructor, tables.observing
    before = tables.holding if holds else ()
    return sp.chain(
        *(
            sp.product(*at_place[:length]).map(
                lambda found: Session(constructor, (*before, *found, *observing))
            )
            for length in range(maximum + 1)
        )
    )


def _every_operation(tables: Tables, place: int) -> Iterator[Operation]:
    """Yield every operation of tables with one group."""
    rows = range(tables.num_rows)
    yield from _every_append(tables, place)
    for number in range(tables.num_rows + 1):
        yield from (gather(mapping) for mapping in itertools.product((-1, *rows), repeat=number))
    for a, b in itertools.product(rows, repeat=2):
        yield Operation("move_row", {"src": a, "dst": b})
        yield Operation("swap_rows", {"a": a, "b": b})
    yield from (Operation("clear_row", {"r": row}) for row in rows)
    last = tables.widths[0] * tables.block_sizes[0] - 1
    for starts in ([0], [0, 1], [0, 0, 1], [0, 1, 2]):
        for positions in itertools.product((0, last), repeat=starts[-1]):
            yield slots(starts, positions)
    yield slots([0, 1], [last, -3])  # a padded token
    for number in range(tables.num_rows + 1):
        yield dummy_tables(number)
        yield dummy_slots(number)


def _every_append(tables: Tables, place: int) -> Iterator[Operation]:
    """Yield every append to any rows of tables with one group, in any order."""
    [width] = tables.widths
    for number in range(tables.num_rows + 1):
        flags = list(itertools.product((False, True), repeat=number))
        for listed in itertools.permutations(range(tables.num_rows), number):
            for counts in itertools.product(range(width + 1), repeat=number):
                yield from (append(place, listed, [counts], overwrite) for overwrite in flags)


def every_operation(scale: int) -> sp.Scope:
    """Return the scope of sequences of every operation."""
    tables = Tables((2,), 2, 3)
    maximum = (1, 3, 4)[scale]
    return sp.Scope(
        "block tables, every operation",
        ("BlockTables",),
        f"sequence of at most {maximum} operations on block tables of 1 group with 2 rows of 2 "
        "blocks of 2 tokens: appends of 0 to 2 new blocks to any rows in any order, overwriting or "
        "not, that do not fit included; gathers of any rows and padded requests; slots of at most "
        "2 tokens in the first and the last place, and of a padded one; moves, swaps, clears and "
        "dummy runs",
        _sequences(
            tables, lambda place: list(_every_operation(tables, place)), maximum, holds=False
        ),
    )


def _of_two_groups(place: int) -> list[Operation]:
    return [
        append(place, [0], [[1], [1]], [False]),
        append(place, [1], [[1], [1]], [False]),
        append(place, [0], [[1], [0]], [True]),
        append(place, [1, 0], [[0, 1], [1, 0]], [True, False]),
        Operation("move_row", {"src": 0, "dst": 1}),
        Operation("move_row", {"src": 1, "dst": 0}),
        Operation("swap_rows", {"a": 0, "b": 1}),
        Operation("clear_row", {"r": 0}),
        gather([0, 1]),
        gather([1]),
        gather([-1, 0]),
        slots([0, 1, 2], [1, 0]),
        slots([0, 1], [0]),
        dummy_tables(1),
    ]


def two_groups(scale: int) -> sp.Scope:
    """Return the scope of longer sequences on two groups."""
    tables = Tables((1, 2), 2, 3)
    maximum = (2, 5, 6)[scale]
    return sp.Scope(
        "block tables, two groups",
        ("BlockTables",),
        f"sequence of at most {maximum} of 14 operations on block tables of 2 groups with 2 rows "
        "for 3 tokens, in blocks of 1 and of 2: appends of 1 block to one row or the other, "
        "overwriting or not, that do not fit included; gathers of both rows, of one and of a "
        "padded request; slots of 1 and 2 tokens; both moves, the swap, a clear and a dummy run",
        _sequences(tables, _of_two_groups, maximum, holds=True),
    )


def _of_three_rows(place: int) -> list[Operation]:
    rows = range(3)
    return [
        *(append(place, [row], [[1]], [False]) for row in rows),
        append(place, [2, 0], [[1, 2]], [True, False]),
        *(append_shared(row, 1) for row in rows),
        *(Operation("move_row", {"src": a, "dst": b}) for a, b in itertools.permutations(rows, 2)),
        *(Operation("swap_rows", {"a": a, "b": b}) for a, b in itertools.combinations(rows, 2)),
        *(Operation("clear_row", {"r": row}) for row in rows),
        gather([2, 0, 1]),
        gather([1, 1]),
        slots([0, 1, 1, 2], [1, 1]),
    ]


def three_rows(scale: int) -> sp.Scope:
    """Return the scope of sequences on three rows, which may share a block."""
    tables = Tables((1,), 3, 2)
    maximum = (2, 4, 5)[scale]
    return sp.Scope(
        "block tables, three rows",
        ("BlockTables",),
        f"sequence of at most {maximum} of 22 operations on block tables of 1 group with 3 rows "
        "of 2 blocks of 1 token: appends of a new block or of a shared one to each row and of "
        "several blocks to two rows, that do not fit included; all moves, swaps and clears; "
        "gathers of all rows and of one twice; slots of 2 tokens",
        _sequences(tables, _of_three_rows, maximum, holds=True),
    )


def with_refusals(session: Session) -> Session:
    """Return a session whose operations record whether and how `reference` refuses them.

    The harness' own check of sessions requires these fields.
    """
    tables = REFERENCE.lookup(session.constructor.function)(**session.constructor.arguments)
    operations = []
    for operation in session.operations:
        try:
            getattr(tables, operation.method)(**operation.arguments)
        except RAISED as error:
            refused = f"{type(error).__name__} in a sequence of operations"
            name = next((name for name in operation.arguments if name in str(error)), "")
            operation = dataclasses.replace(  # noqa: PLW2901
                operation,
                refused=refused,
                error=type(error),  # type: ignore[arg-type]  # no SystemExit
                argument=name,
            )
        operations.append(operation)
    return dataclasses.replace(session, operations=tuple(operations))


SCOPES = (every_operation, two_groups, three_rows)
"""The functions that build the scopes of this module, at a scale."""
