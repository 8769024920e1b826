"""The rows of request slots, for all KV cache groups: what `BlockTables` is made of.

The rows lie as `fast.kernels.block_table` says: all groups in one array, `groups[g]` the offset of
a group's first row, the width of its rows and its block size.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from fast._checks import (
    MAX_SIZE,
    check_bool,
    check_device,
    check_index,
    check_int,
    check_ints,
    check_list,
)
from fast._compiled import Int32s, Int64s, compiled
from fast.appending import (
    NOTHING,
    append_on_host,
    check_lengths,
    check_listed,
    check_new_blocks,
    complete_plan,
    count_appended,
    pack_lists,
    pack_plan,
)
from fast.kernels import block_table as kernels
from fast.launch import launch_blocks, uses_kernels
from fast.pinned import upload

ALIGNMENT: Final = 32
"""Each group's tables begin at a multiple of so many int32, 128 bytes: a cache line of a GPU."""


class RequestRows:
    """The block ids of request slots: rows that outlive the batch order.

    Args:
        block_sizes: positions in a block, for each of the G groups; a list, may be empty.
        max_num_reqs: request slots.
        max_model_len: the longest sequence, in tokens.
        device: where the tables are.
        pin_memory: whether what travels to a GPU is put into pinned memory.

    Raises:
        TypeError: an argument of another type.
        ValueError: a size below 1 or above 2**31 - 1.
    """

    def __init__(
        self,
        block_sizes: list[int],
        max_num_reqs: int,
        max_model_len: int,
        device: torch.device | str,
        pin_memory: bool,
    ) -> None:
        check_list("block_sizes", block_sizes)
        sizes = check_ints("block_sizes", block_sizes, 1, MAX_SIZE)
        self.block_sizes: list[int] = sizes.tolist()
        self.max_num_reqs = check_int("max_num_reqs", max_num_reqs)
        self.max_model_len = check_int("max_model_len", max_model_len)
        check_bool("pin_memory", pin_memory)
        self.device = check_device("device", device)
        self.pin_memory = bool(pin_memory)

        # All groups lie in one array, so that one launch serves them all.
        self._widths = -(-self.max_model_len // sizes)
        lengths = -(-self.max_num_reqs * self._widths // ALIGNMENT) * ALIGNMENT
        self._offsets = np.cumsum(lengths) - lengths
        groups = np.stack([self._offsets, self._widths, sizes], axis=1)
        shape = (len(sizes), self.max_num_reqs)
        self._groups = torch.from_numpy(groups).to(device)
        self._tables = make_zeros(int(lengths.sum()), self.device)
        self._num_blocks = torch.zeros(shape, dtype=torch.int32, device=device)
        # What every kernel begins with, and the same for the host's loops.
        self._state = (self._tables, self._num_blocks, self._groups)
        self._arrays: tuple[Any, Any, Any] = (None, None, None)
        if self._tables.device.type == "cpu":
            self._arrays = (self._tables.numpy(), self._num_blocks.numpy(), groups)
        # Which rows have changed since rows were gathered, but for new blocks behind the old ones,
        # and the lengths of the rows, as the host knows them: all changes come from here.
        self._is_changed = np.zeros(self.max_num_reqs, dtype=np.bool_)
        self._num_blocks_host = np.zeros(shape, dtype=np.int32)

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
        """Append what a plan says; False where its values are refused, and nothing is written."""
        known = self._num_blocks_host
        if not uses_kernels(self._tables):
            return bool(
                append_on_host.run(
                    *self._arrays, plan, num_listed, self._widths, known, self._is_changed
                )
            )
        if not complete_plan.run(plan, num_listed, self._widths, known):
            return False
        self._is_changed[:] = True  # whichever are replaced
        launch_blocks(
            kernels.append_block_ids,
            num_listed,
            len(self.block_sizes),
            *self._state,
            upload(plan, self._tables.device, pin_memory=self.pin_memory),
            num_listed,
        )
        count_appended.run(plan, num_listed, known)
        return True

    def _check_appended(
        self,
        req_indices: list[int],
        cu_num_new_blocks: list[list[int]],
        new_block_ids: list[list[int]],
        overwrite: list[bool],
    ) -> npt.NDArray[np.int64]:
        """Refuse what may not be appended, in words; return the plan where it may."""
        rows, replaced = check_listed(req_indices, overwrite, self.max_num_reqs)
        ends, ids = check_new_blocks(
            cu_num_new_blocks, new_block_ids, len(self.block_sizes), len(rows)
        )
        lengths = np.where(replaced, 0, self._num_blocks_host[:, rows]) + np.diff(ends, axis=1)
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
        if uses_kernels(self._tables):
            launch_blocks(kernels.move_row, len(self.block_sizes), 1, *self._state, src, dst)
        else:
            move_on_host.run(*self._arrays, src, dst)
        self._is_changed[[src, dst]] = True
        self._num_blocks_host[:, dst] = self._num_blocks_host[:, src]
        self._num_blocks_host[:, src] = 0

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
        if uses_kernels(self._tables):
            launch_blocks(kernels.swap_rows, len(self.block_sizes), 1, *self._state, a, b)
        else:
            swap_on_host.run(*self._arrays, a, b)
        self._is_changed[[a, b]] = True
        self._num_blocks_host[:, [a, b]] = self._num_blocks_host[:, [b, a]]

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
        self._num_blocks[:, r].zero_()
        self._is_changed[r] = True
        self._num_blocks_host[:, r] = 0


def make_zeros(length: int, device: torch.device) -> torch.Tensor:
    """Return int32[length] zeros, on the CPU where the system is asked for huge pages.

    A step reads a few entries of each row: with pages of 4 KiB, 4096 requests take 1.3 times as
    long to be given their slots. NumPy asks from 4 MiB on, torch does not. All is written here, so
    that no step waits for a page.
    """
    if device.type != "cpu":
        return torch.zeros(length, dtype=torch.int32, device=device)
    zeros = np.empty(length, dtype=np.int32)
    zeros.fill(0)
    return torch.from_numpy(zeros)


@compiled("void(int32[::1], int32[:, ::1], int64[:, ::1], int64, int64)")
def move_on_host(tables: Int32s, num_blocks: Int32s, groups: Int64s, src: int, dst: int) -> None:
    """Move a row to another."""
    for group in range(len(groups)):
        offset = groups[group, 0]
        width = groups[group, 1]
        for k in range(num_blocks[group, src]):
            tables[offset + dst * width + k] = tables[offset + src * width + k]
        num_blocks[group, dst] = num_blocks[group, src]
        num_blocks[group, src] = 0


@compiled("void(int32[::1], int32[:, ::1], int64[:, ::1], int64, int64)")
def swap_on_host(tables: Int32s, num_blocks: Int32s, groups: Int64s, a: int, b: int) -> None:
    """Swap two rows."""
    for group in range(len(groups)):
        row_a = groups[group, 0] + a * groups[group, 1]
        row_b = groups[group, 0] + b * groups[group, 1]
        for k in range(max(num_blocks[group, a], num_blocks[group, b])):
            block_id = tables[row_a + k]
            tables[row_a + k] = tables[row_b + k]
            tables[row_b + k] = block_id
        count = num_blocks[group, a]
        num_blocks[group, a] = num_blocks[group, b]
        num_blocks[group, b] = count
