"""The rows of request slots, for all KV cache groups: what `BlockTables` is made of.

The rows lie as `fast.kernels.block_table` says: all groups in one array, `groups[g]` the offset of
a group's first row, the width of its rows and its block size.
"""

import numpy as np
import numpy.typing as npt

from fast._checks import check_index
from fast.appending import (
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


class RequestRows(TableMemory):
    """The block ids of request slots: rows that outlive the batch order.

    On the CPU each method that changes rows does so in one call of a loop, so that an exception out
    of a signal handler comes before or after it.
    """

    def append_block_ids(
        self,
        req_indices: list[int],
        cu_num_new_blocks: list[list[int]],
        new_block_ids: list[list[int]],
        overwrite: list[bool],
    ) -> None:
        """Append blocks to the rows of some request slots, or replace these rows.

        In group `g` the `j`-th listed request slot gets the ids `new_block_ids[g]` from
        `cu_num_new_blocks[g][j]` up to `cu_num_new_blocks[g][j + 1]`.

        Args:
            req_indices: request slots, R different ones.
            cu_num_new_blocks: for each group, R + 1 ends, from 0 to the number of its new ids.
            new_block_ids: for each group, the new block ids, 0 to 2**31 - 1.
            overwrite: for each listed request slot, whether the ids become its whole row.

        Raises:
            TypeError: an argument is no list, or has entries of another type.
            IndexError: a request slot that is not there.
            ValueError: a slot listed twice, lengths that disagree, ends that do not rise from 0 to
                the number of ids, a block id out of range, a row that would outgrow its width.
                Nothing is written.

        Example:
            >>> from fast import BlockTables
            >>> tables = BlockTables([2], 4, 8, 8, "cpu", pin_memory=False)
            >>> tables.append_block_ids([0], [[0, 5]], [[1, 2, 3, 4, 5]], [False])
            Traceback (most recent call last):
            ValueError: new_block_ids[0] brings row 0 to 5 blocks, expected at most 4

        Source: the definition is kvtwin's own; the name is vLLM's.
        """
        lists = (req_indices, cu_num_new_blocks, new_block_ids, overwrite)
        plan = pack_lists(*lists, len(self.block_sizes))
        if plan is NOTHING:
            return
        if plan is None or not self._carry_out(plan, len(req_indices)):
            self._carry_out(self._check_appended(*lists), len(req_indices))

    def _carry_out(self, plan: npt.NDArray[np.int64], num_listed: int) -> bool:
        """Append what a plan says; False if its values are invalid, and nothing is written."""
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
        """Say what may not be appended; return the plan if all may be."""
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
        """Move the blocks of one request slot to another; the first is empty then.

        Args:
            src: the request slot that is emptied.
            dst: the request slot that takes its blocks; the same one: nothing happens.

        Raises:
            TypeError: not an int.
            IndexError: a request slot that is not there.

        Example:
            >>> import torch
            >>> from fast import BlockTables
            >>> tables = BlockTables([2], 2, 8, 4, "cpu", pin_memory=False)
            >>> tables.append_block_ids([0], [[0, 1]], [[7]], [False])
            >>> tables.move_row(0, 1)
            >>> tables.gather_block_tables(torch.tensor([0, 1], dtype=torch.int32))[0].tolist()
            [[0, 0], [7, 0]]

        Source: the definition is kvtwin's own; the name is vLLM's.
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
        """Swap the blocks of two request slots.

        Args:
            a: a request slot.
            b: another; the same one: nothing happens.

        Raises:
            TypeError: not an int.
            IndexError: a request slot that is not there.

        Example:
            >>> import torch
            >>> from fast import BlockTables
            >>> tables = BlockTables([2], 2, 8, 4, "cpu", pin_memory=False)
            >>> tables.append_block_ids([0, 1], [[0, 1, 3]], [[7, 8, 9]], [False, False])
            >>> tables.swap_rows(0, 1)
            >>> tables.gather_block_tables(torch.tensor([0, 1], dtype=torch.int32))[0].tolist()
            [[8, 9], [7, 0]]

        Source: the definition is kvtwin's own; the name is vLLM's.
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
        """Take all blocks from a request slot.

        Args:
            r: the request slot.

        Raises:
            TypeError: not an int.
            IndexError: a request slot that is not there.

        Example:
            >>> import torch
            >>> from fast import BlockTables
            >>> tables = BlockTables([2], 1, 8, 4, "cpu", pin_memory=False)
            >>> tables.append_block_ids([0], [[0, 1]], [[7]], [False])
            >>> tables.clear_row(0)
            >>> tables.gather_block_tables(torch.tensor([0], dtype=torch.int32))[0].tolist()
            [[0, 0]]

        Source: the definition is kvtwin's own; the name is vLLM's.
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
