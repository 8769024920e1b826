"""Block tables, and the slots that follow from them."""

import torch

from fast._checks import (
    check_batch_size,
    check_int,
    check_ints,
    check_num_tokens,
    check_starts,
    check_tensor,
)
from fast._native.memory import plain, to_host
from fast.checked_mode import is_checked
from fast.kernel_blocks import map_to_kernel_blocks
from fast.kernels import block_table as kernels
from fast.launch import launch_blocks, launch_threads, uses_kernels
from fast.rows import RequestRows
from fast.sentinels import NULL_BLOCK_ID, PAD_SLOT_ID
from fast.slots import (
    Layout,
    check_batch,
    check_slots,
    compute_slot_mapping,
    flat,
)

__all__ = [
    "NULL_BLOCK_ID",
    "PAD_SLOT_ID",
    "BlockTables",
    "compute_slot_mapping",
    "map_to_kernel_blocks",
]


class BlockTables(RequestRows):
    """The persistent block tables of a runner, for all KV cache groups.

    Rows are request slots, which outlive the batch order. What is handed out are views of
    persistent buffers, which keep their addresses, so that a CUDA graph can be captured over them.
    On a GPU no call waits for the device, but in checked mode. The host counts the blocks of rows
    for itself: a replay that moves, swaps or clears rows is not counted, only the captured call.

    A caller may write into the views with torch's operations: the next call notices it and writes
    the whole buffer anew. Not allowed are writes that torch does not notice: through NumPy arrays
    of the memory, through `tensor.data`, by foreign kernels, or by replays of a graph that captured
    a write of the caller's. What is written so may stay; checked mode finds it and raises.

    An object can be copied (`copy.deepcopy`, `pickle`, to another process): the copy has buffers of
    its own. An exception out of a signal handler leaves each call done or not done.

    Args:
        block_sizes: positions in a block, for each of the G groups; a list, may be empty.
        max_num_reqs: request slots, and the most requests of a batch.
        max_num_batched_tokens: the most tokens of a batch.
        max_model_len: the longest sequence, in tokens: a row of group `g` has
            `ceil(max_model_len / block_sizes[g])` blocks.
        device: where the tables are.
        pin_memory: whether what travels to a GPU is put into pinned memory.

    Raises:
        TypeError: an argument of another type.
        ValueError: a size below 1 or above 2**31 - 1, sizes whose tables no memory can hold, a
            device that is not there.

    Example:
        >>> import torch
        >>> tables = BlockTables([2], 4, 8, 8, torch.device("cpu"), pin_memory=False)
        >>> tables.append_block_ids([1, 3], [[0, 2, 3]], [[5, 9, 7]], [True, True])
        >>> tables.gather_block_tables(torch.tensor([3, 1], dtype=torch.int32))[0].tolist()
        [[7, 0, 0, 0], [5, 9, 0, 0]]
        >>> starts = torch.tensor([0, 1, 3], dtype=torch.int32)
        >>> tables.compute_slot_mappings(starts, torch.tensor([1, 2, 3])).tolist()
        [[15, 18, 19]]

    Source: the definition is kvtwin's own; the names are vLLM's block tables.
    """

    def gather_block_tables(self, idx_mapping: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Gather the rows of a batch's requests, in batch order.

        Past a row's blocks, and in the rows past `num_reqs`, the persistent buffers hold nulls.

        Args:
            idx_mapping: int32[num_reqs], the request slot of each request, or -1 for a padded one,
                which gets a row of nulls; at most `max_num_reqs`, entries may repeat.

        Returns:
            For each group int32[num_reqs, max_blocks], a view of its persistent buffer.

        Raises:
            TypeError: not an int32 tensor.
            ValueError: not one-dimensional, too long, or on another device; in checked mode,
                entries that were written without torch noticing: the call after that is right.
            IndexError: in checked mode, a request slot that is not there (otherwise a row of
                nulls).

        Example:
            >>> import torch
            >>> tables = BlockTables([2], 2, 8, 4, "cpu", pin_memory=False)
            >>> tables.append_block_ids([1], [[0, 2]], [[7, 9]], [False])
            >>> tables.gather_block_tables(torch.tensor([1, -1], dtype=torch.int32))[0].tolist()
            [[7, 9], [0, 0]]

        Source: the definition is kvtwin's own; the name is vLLM's.
        """
        check_tensor("idx_mapping", idx_mapping, torch.int32, 1, self._tables.device)
        num_reqs = idx_mapping.shape[0]
        if num_reqs > self.max_num_reqs:
            raise ValueError(
                f"idx_mapping has {num_reqs} entries, expected at most {self.max_num_reqs}"
            )
        if is_checked():
            rows = to_host("idx_mapping", idx_mapping).tolist()
            check_ints("idx_mapping", rows, -1, self.max_num_reqs - 1, IndexError)
        self._notice_table_writes()
        if not uses_kernels(self._tables):
            self._on_host.gather(idx_mapping)
        else:
            if self._host is not None:  # a simulator runs the kernel
                self._host.forget_rows()
            indices = plain("idx_mapping", idx_mapping)
            launch_blocks(
                kernels.gather_block_tables,
                self.max_num_reqs,
                len(self.block_sizes),
                *self._state,
                self._gathered,
                self._num_gathered,
                flat(indices),
                indices.stride(0),
                num_reqs,
            )
        return tuple([view[:num_reqs] for view in self._gathered_views])

    def compute_slot_mappings(
        self, query_start_loc: torch.Tensor, positions: torch.Tensor
    ) -> torch.Tensor:
        """Compute the slot of every token in every group, over the gathered tables.

        Args:
            query_start_loc: int32[num_reqs + 1], each request's first token, then their number.
            positions: int64[num_tokens], position of each token in its request's sequence.

        Returns:
            int64[G, num_tokens], in slots: a view of the persistent buffer, which is -1 from
            `num_tokens` on.

        Raises:
            TypeError: an argument of another type or dtype.
            ValueError: more requests or tokens than the tables are for, and what
                `compute_slot_mapping` refuses. The buffer stays as it was.

        Example:
            >>> import torch
            >>> tables = BlockTables([2, 4], 1, 8, 8, "cpu", pin_memory=False)
            >>> tables.append_block_ids([0], [[0, 2], [0, 1]], [[7, 9], [3]], [False])
            >>> _ = tables.gather_block_tables(torch.tensor([0], dtype=torch.int32))
            >>> starts = torch.tensor([0, 2], dtype=torch.int32)
            >>> tables.compute_slot_mappings(starts, torch.tensor([1, 2])).tolist()
            [[15, 18], [13, 14]]

        Source: the definition is kvtwin's own; the name is vLLM's.
        """
        if self._host is not None and not uses_kernels(self._tables) and not is_checked():
            self._notice_slot_writes()
            self._host.fill_slots(query_start_loc, positions)  # which checks both
            return self._slots[:, : positions.shape[0]]
        check_batch(query_start_loc, positions, self._tables.device)
        num_reqs, num_tokens = query_start_loc.shape[0] - 1, positions.shape[0]
        check_batch_size(num_reqs, num_tokens, self.max_num_reqs, self.max_num_batched_tokens)
        if is_checked():
            starts = to_host("query_start_loc", query_start_loc)
            where = to_host("positions", positions)
            check_starts("query_start_loc", starts)  # without groups too
            check_num_tokens(starts, len(where))
            for view, size in zip(self._gathered_views, self.block_sizes, strict=True):
                check_slots(to_host("gathered", view), starts, where, Layout(size, size))
        self._notice_slot_writes()
        if uses_kernels(self._tables):
            begins = plain("query_start_loc", query_start_loc)
            places = plain("positions", positions)
            launch_threads(
                kernels.compute_slot_mappings,
                max(num_tokens, 1),
                len(self.block_sizes),
                self._gathered,
                self._groups,
                flat(begins),
                begins.stride(0),
                num_reqs,
                flat(places),
                places.stride(0),
                num_tokens,
                self._slots,
            )
            if self._host is not None:
                self._host.rewrite_slots()
        else:
            self._on_host.fill_slots(query_start_loc, positions)
        return self._slots[:, :num_tokens]

    def get_dummy_block_tables(self, num_reqs: int) -> tuple[torch.Tensor, ...]:
        """Clear the gathered tables and return their first rows, for a dummy run.

        Args:
            num_reqs: rows, 0 to `max_num_reqs`.

        Returns:
            For each group int32[num_reqs, max_blocks] of nulls, a view of its persistent buffer.

        Raises:
            TypeError: not an int.
            ValueError: out of range.

        Example:
            >>> tables = BlockTables([2], 4, 8, 4, "cpu", pin_memory=False)
            >>> tables.get_dummy_block_tables(1)[0].tolist()
            [[0, 0]]

        Source: the definition is kvtwin's own; the name is vLLM's.
        """
        num_reqs = check_int("num_reqs", num_reqs, 0, self.max_num_reqs)
        self._gathered.fill_(NULL_BLOCK_ID)
        self._num_gathered.zero_()
        self._gathered_version = self._gathered._version  # noqa: SLF001  (torch names it so)
        return tuple(view[:num_reqs] for view in self._gathered_views)

    def get_dummy_slot_mappings(self, num_tokens: int) -> torch.Tensor:
        """Clear the slots and return the first, for a dummy run.

        Args:
            num_tokens: tokens, 0 to `max_num_batched_tokens`.

        Returns:
            int64[G, num_tokens] of -1, a view of the persistent buffer.

        Raises:
            TypeError: not an int.
            ValueError: out of range.

        Example:
            >>> tables = BlockTables([2], 4, 8, 4, "cpu", pin_memory=False)
            >>> tables.get_dummy_slot_mappings(3).tolist()
            [[-1, -1, -1]]

        Source: the definition is kvtwin's own; the name is vLLM's.
        """
        num_tokens = check_int("num_tokens", num_tokens, 0, self.max_num_batched_tokens)
        self._slots.fill_(PAD_SLOT_ID)
        self._slots_version = self._slots._version  # noqa: SLF001  (torch names it so)
        return self._slots[:, :num_tokens]

    def _notice_table_writes(self) -> None:
        """Have all tables written anew if a caller has written into them.

        Raises:
            ValueError: in checked mode, torch did not notice a write.
        """
        version = self._gathered._version  # noqa: SLF001  (torch names it so)
        found = None
        if version == self._gathered_version:
            if not is_checked():
                return
            found = self._find_foreign_table_entry()
            if found is None:
                return
        if self._host is not None:
            self._host.rewrite_tables()
        else:
            self._num_gathered.copy_(self._groups[:, 1:2].expand_as(self._num_gathered))
        self._gathered_version = version
        if found is not None:
            raise ValueError(f"{found}: it was written without torch noticing")

    def _find_foreign_table_entry(self) -> str | None:
        """Describe an entry of the gathered tables that no gather wrote; None if there is none."""
        if self._host is not None:
            return self._host.find_foreign_table_entry()
        for group, table in enumerate(self._gathered_views):
            columns = torch.arange(table.shape[1], device=table.device)
            is_padding = columns >= self._num_gathered[group].unsqueeze(1)
            wrong = ((table != NULL_BLOCK_ID) & is_padding).nonzero()
            if len(wrong):
                row, column = wrong[0].tolist()
                return (
                    f"gathered block table {group} has {int(table[row, column])} at"
                    f" [{row}, {column}], expected {NULL_BLOCK_ID}"
                )
        return None

    def _notice_slot_writes(self) -> None:
        """Have all slots written anew if a caller has written into them.

        Raises:
            ValueError: in checked mode, torch did not notice a write.
        """
        if self._host is None:
            return  # the kernel always writes all
        version = self._slots._version  # noqa: SLF001  (torch names it so)
        found = None
        if version == self._slots_version:
            found = self._host.find_foreign_slot() if is_checked() else None
            if found is None:
                return
        self._host.rewrite_slots()
        self._slots_version = version
        if found is not None:
            raise ValueError(f"{found}: it was written without torch noticing")
