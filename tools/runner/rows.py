"""The rows of the block tables: which request has which row, and the blocks in it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

import fast
from tools.runner.scheduler import Step


class Rows:
    """Gives each running request a row of the block tables, and keeps the rows without holes.

    A request keeps its row from step to step, wherever it stands in their batches.

    Args:
        tables: The block tables, whose rows are filled and moved along.
        blocks_per_kv_block: For each KV cache group, how many of its kernels' blocks make one of
            the scheduler's.

    Example:
        >>> tables = fast.BlockTables([8], 4, 8, 8, "cpu", pin_memory=False)
        >>> rows = Rows(tables, [2])
        >>> rows.add("a"), rows.add("b"), rows.add("c")
        (0, 1, 2)
        >>> rows.remove("a")
        >>> rows.row_of("c"), rows.row_of("b")
        (0, 1)
    """

    def __init__(self, tables: fast.BlockTables, blocks_per_kv_block: Sequence[int]) -> None:
        self._tables = tables
        self._blocks_per_kv_block = blocks_per_kv_block
        self._req_ids: list[str] = []

    def row_of(self, req_id: str) -> int:
        """Return a request's row.

        Args:
            req_id: The request.
        """
        return self._req_ids.index(req_id)

    def update(self, step: Step) -> None:
        """Free the rows of requests that are gone, and give the others their new blocks.

        Args:
            step: The scheduler's next one.
        """
        for req_id in step.gone_ids:
            self.remove(req_id)
        entries = step.scheduled.values()
        for entry in entries:
            if entry.is_admitted:
                self.add(entry.request.request_id)
        cu_num_new_blocks, new_block_ids = [], []
        for group, count in enumerate(self._blocks_per_kv_block):
            ends, ids = [0], []
            for entry in entries:
                # The scheduler's blocks are made of smaller ones, which the kernels work on.
                block_ids = torch.tensor(entry.new_block_ids[group], dtype=torch.int32)
                ids += fast.map_to_kernel_blocks(block_ids, count).tolist()
                ends.append(len(ids))
            cu_num_new_blocks.append(ends)
            new_block_ids.append(ids)
        self._tables.append_block_ids(
            [self.row_of(req_id) for req_id in step.scheduled],
            cu_num_new_blocks,
            new_block_ids,
            [entry.is_admitted for entry in entries],
        )

    def add(self, req_id: str) -> int:
        """Give a request a row, the first that is free.

        Args:
            req_id: The request.
        """
        self._req_ids.append(req_id)
        return len(self._req_ids) - 1

    def remove(self, req_id: str) -> None:
        """Clear a request's row, and move the last one into the hole.

        Args:
            req_id: The request.
        """
        hole, last = self.row_of(req_id), len(self._req_ids) - 1
        self._tables.clear_row(hole)  # it may be the last one, which then is not moved
        self._tables.move_row(last, hole)
        self._req_ids[hole] = self._req_ids[last]
        self._req_ids.pop()
