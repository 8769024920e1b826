"""The rows of a runner's block tables: which request has which, and what is done to them."""

from __future__ import annotations

from collections.abc import Callable

from conformance.traffic.input_batch import RequestSlots
from conformance.traffic.scheduler import Step
from conformance.zoo.calls import Answer


class TableRows:
    """Keeps the rows of block tables in step with the requests that have them.

    Args:
        on_tables: Calls a method of the block tables, by name.
        num_rows: Rows of the tables.
        num_groups: KV cache groups.

    Attributes:
        slots: Which request has which row.
        moved: From which row to which the last compaction moved requests.
        swapped: Which rows were swapped since then.
    """

    def __init__(self, on_tables: Callable[..., Answer], num_rows: int, num_groups: int) -> None:
        self.slots = RequestSlots(num_rows)
        self.moved: list[tuple[int, int]] = []
        self.swapped: list[tuple[int, int]] = []
        self._on_tables = on_tables
        self._num_groups = num_groups

    def free(self, step: Step, *, compacts: bool) -> None:
        """Free the rows of requests that left, and close the holes when rows are compacted.

        Args:
            step: What the runner is told.
            compacts: Whether rows are cleared and moved; otherwise holes stay, with what is in
                them.
        """
        self.moved, self.swapped = [], []
        for req_id in (*step.finished_ids, *step.preempted_ids):
            row = self.slots.remove(req_id)
            if compacts:
                self._on_tables("clear_row", row)
        while compacts and (move := self.slots.next_move()) is not None:
            self.slots.move(*move)
            self.moved.append(move)
            self._on_tables("move_row", *move)

    def append(self, step: Step) -> None:
        """Give the step's requests their new blocks, newcomers a row as well.

        Args:
            step: What the runner is told.
        """
        for req_id in (*step.new_ids, *step.resumed_ids):
            self.slots.add(req_id)
        cu_num_new_blocks = [[0] for _ in range(self._num_groups)]
        new_block_ids: list[list[int]] = [[] for _ in range(self._num_groups)]
        for ids_by_group in step.new_block_ids.values():
            for group, ids in enumerate(ids_by_group):
                new_block_ids[group].extend(ids)
                cu_num_new_blocks[group].append(len(new_block_ids[group]))
        self._on_tables(
            "append_block_ids",
            [self.slots.slot_of(req_id) for req_id in step.new_block_ids],
            cu_num_new_blocks,
            new_block_ids,
            [step.overwrite[req_id] for req_id in step.new_block_ids],
        )

    def swap(self, req_id: str, other_id: str) -> None:
        """Swap the rows of two requests.

        Args:
            req_id: A request.
            other_id: Another.
        """
        a, b = self.slots.slot_of(req_id), self.slots.slot_of(other_id)
        self.slots.swap(a, b)
        self.swapped.append((a, b))
        self._on_tables("swap_rows", a, b)
