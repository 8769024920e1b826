"""The rows of block tables: which request has which row, and the blocks in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from conformance.engine.scheduler_output import SchedulerOutput


class TableRows:
    """Gives each running request a row of the block tables.

    A request keeps its row from step to step, wherever it is in the batch.

    Args:
        call_tables: Calls a method of the block tables, given its name and arguments.
        num_rows: Rows of the tables.
        num_groups: KV cache groups.

    Attributes:
        req_ids: The request in each row, None in a free one.
        last_req_ids: The request that each row has or had last, None in one never used.
        moved: The moves of rows in the last `remove`, as pairs (from, to).
        swapped: The pairs of rows that were swapped since then.

    Example:
        >>> rows = TableRows(lambda method, *args: print(method, *args), 4, num_groups=0)
        >>> [rows.add(req_id) for req_id in "abc"]
        [0, 1, 2]
        >>> rows.remove(["a"], compacts=True)
        clear_row 0
        move_row 2 0
        >>> rows.req_ids, rows.row_of("b")
        (['c', 'b', None, None], 1)
    """

    def __init__(self, call_tables: Callable[..., Any], num_rows: int, num_groups: int) -> None:
        self.req_ids: list[str | None] = [None] * num_rows
        self.last_req_ids = list(self.req_ids)
        self.moved: list[tuple[int, int]] = []
        self.swapped: list[tuple[int, int]] = []
        self._call_tables = call_tables
        self._num_groups = num_groups

    def row_of(self, req_id: str) -> int:
        """Return the row of a request."""
        return self.req_ids.index(req_id)

    def add(self, req_id: str) -> int:
        """Give a request the first free row, and return it."""
        row = self.req_ids.index(None)
        self.req_ids[row] = self.last_req_ids[row] = req_id
        return row

    def remove(self, req_ids: Iterable[str], *, compacts: bool) -> None:
        """Free the rows of requests.

        Args:
            req_ids: The requests.
            compacts: Whether the rows are cleared, and the last ones moved into the holes.
                Otherwise holes stay, with the blocks in them, until a request overwrites them.
        """
        self.moved, self.swapped = [], []
        for req_id in req_ids:
            row = self.row_of(req_id)
            self.req_ids[row] = None
            if compacts:
                self._call_tables("clear_row", row)
        if compacts:
            self._compact()

    def append(self, step: SchedulerOutput) -> None:
        """Give the step's requests their new blocks, and rows to those that have none."""
        for req_id in step.admitted_req_ids:
            self.add(req_id)
        cu_num_new_blocks = [[0] for _ in range(self._num_groups)]
        new_block_ids: list[list[int]] = [[] for _ in range(self._num_groups)]
        for ids_by_group in step.new_block_ids.values():
            for group, ids in enumerate(ids_by_group):
                new_block_ids[group].extend(ids)
                cu_num_new_blocks[group].append(len(new_block_ids[group]))
        self._call_tables(
            "append_block_ids",
            [self.row_of(req_id) for req_id in step.new_block_ids],
            cu_num_new_blocks,
            new_block_ids,
            [req_id in step.admitted_req_ids for req_id in step.new_block_ids],  # overwrite
        )

    def swap(self, req_id: str, other_id: str) -> None:
        """Swap the rows of two requests."""
        a, b = self.row_of(req_id), self.row_of(other_id)
        for values in (self.req_ids, self.last_req_ids):
            values[a], values[b] = values[b], values[a]
        self.swapped.append((a, b))
        self._call_tables("swap_rows", a, b)

    def _compact(self) -> None:
        """Move the last rows in use to free ones before them."""
        num_used = sum(req_id is not None for req_id in self.req_ids)
        for src in range(len(self.req_ids) - 1, num_used - 1, -1):
            if self.req_ids[src] is not None:
                dst = self.req_ids.index(None)
                self.req_ids[dst], self.req_ids[src] = self.req_ids[src], None
                self.last_req_ids[dst] = self.last_req_ids[src]
                self.moved.append((src, dst))
                self._call_tables("move_row", src, dst)
