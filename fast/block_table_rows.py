"""Change the rows of request slots, for all KV cache groups: the base of `BlockTables`.

`fast.kernels.block_table` describes the memory layout: all groups in one array, and `groups[g]` is
the offset of a group's first row, the width of its rows and its block size.
"""

import numpy as np
import numpy.typing as npt

from fast._checks import check_index
from fast.append_plan import (
    NOTHING,
    check_lengths,
    check_listed,
    check_new_blocks,
    pack_lists,
    pack_plan,
)
from fast.kernels import block_table as kernels
from fast.launch import launch_blocks, uses_kernels
from fast.pinned import upload
from fast.table_memory import TableMemory

MAX_TRIES = 100
"""How often an append is planned again because another thread changed the rows meanwhile."""


class RequestRows(TableMemory):
    """The block IDs of request slots.

    On the CPU each method that changes rows does so in one call of a loop, so an exception from a
    signal handler, or a call of another thread, comes before or after it.
    """

    def append_block_ids(
        self,
        req_indices: list[int],
        cu_num_new_blocks: list[list[int]],
        new_block_ids: list[list[int]],
        overwrite: list[bool],
    ) -> None:
        """Append block IDs to the rows of request slots, or replace whole rows.

        Definition: `reference.BlockTables.append_block_ids`.
        """
        lists = (req_indices, cu_num_new_blocks, new_block_ids, overwrite)
        plan = pack_lists(*lists, len(self.block_sizes))
        if plan is NOTHING:
            return
        for _ in range(MAX_TRIES):
            if plan is not None and self._execute_plan(plan, len(req_indices)):
                return
            # Raises, unless only the types were unusual, or another thread changes the rows.
            plan = self._check_appended(*lists)
        raise RuntimeError(f"other threads changed the rows in each of {MAX_TRIES} tries")

    def _execute_plan(self, plan: npt.NDArray[np.int64], num_listed: int) -> bool:
        """Execute an append plan; return False, with nothing written, if its values are invalid."""
        if not uses_kernels(self._tables):
            return self._on_host.append(plan, num_listed)
        self._read_counts()
        if not self._counts.complete(plan, num_listed):
            return False
        on_device = upload(plan, self._tables.device, pin_memory=self.pin_memory)
        self._begin_launch()
        launch_blocks(
            kernels.append_block_ids,
            num_listed,
            len(self.block_sizes),
            *self._state,
            on_device,
            num_listed,
        )
        self._counts.append(plan, num_listed)
        self._is_counted = True
        return True

    def _check_appended(
        self,
        req_indices: list[int],
        cu_num_new_blocks: list[list[int]],
        new_block_ids: list[list[int]],
        overwrite: list[bool],
    ) -> npt.NDArray[np.int64]:
        """Check the arguments of an append and return the plan, or raise."""
        rows, replaced = check_listed(req_indices, overwrite, self.max_num_reqs)
        ends, ids = check_new_blocks(
            cu_num_new_blocks, new_block_ids, len(self.block_sizes), len(rows)
        )
        self._read_counts()
        known = self._counts.blocks[:, rows]
        lengths = np.where(replaced, 0, known) + np.diff(ends, axis=1)
        check_lengths(lengths, rows, self._widths)
        return pack_plan(rows, replaced, ends, ids)

    def move_row(self, src: int, dst: int) -> None:
        """Move the blocks of a request slot to another slot; the source is empty afterwards.

        Definition: `reference.BlockTables.move_row`.
        """
        src = check_index("src", src, self.max_num_reqs)
        dst = check_index("dst", dst, self.max_num_reqs)
        if src == dst:
            return
        if not uses_kernels(self._tables):
            self._on_host.move(src, dst)
            return
        self._read_counts()
        self._begin_launch()
        launch_blocks(kernels.move_row, len(self.block_sizes), 1, *self._state, src, dst)
        self._counts.move(src, dst)
        self._is_counted = True

    def swap_rows(self, a: int, b: int) -> None:
        """Swap the blocks of two request slots, in every group.

        Definition: `reference.BlockTables.swap_rows`.
        """
        a = check_index("a", a, self.max_num_reqs)
        b = check_index("b", b, self.max_num_reqs)
        if a == b:
            return
        if not uses_kernels(self._tables):
            self._on_host.swap(a, b)
            return
        self._read_counts()
        self._begin_launch()
        launch_blocks(kernels.swap_rows, len(self.block_sizes), 1, *self._state, a, b)
        self._counts.swap(a, b)
        self._is_counted = True

    def clear_row(self, r: int) -> None:
        """Remove all blocks of a request slot, in every group.

        Definition: `reference.BlockTables.clear_row`.
        """
        r = check_index("r", r, self.max_num_reqs)
        if not uses_kernels(self._tables):
            self._on_host.clear(r)
            return
        self._read_counts()
        self._begin_launch()
        self._num_blocks[:, r].zero_()
        self._counts.clear(r)
        self._is_counted = True
