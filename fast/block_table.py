"""Block tables, and the slots that follow from them."""

from typing import Any

import numpy as np
import torch

from fast._checks import (
    address_of,
    check_int,
    check_ints,
    check_starts,
    check_tensor,
    is_checked,
    to_host,
)
from fast._compiled import Int32s, Int64s, compiled
from fast.kernel_blocks import map_to_kernel_blocks
from fast.kernels import block_table as kernels
from fast.launch import launch_blocks, launch_threads, uses_kernels
from fast.rows import RequestRows, make_zeros
from fast.sentinels import NULL_BLOCK_ID, PAD_SLOT_ID
from fast.slot_loops import fill_slots_of_groups
from fast.slots import (
    Layout,
    check_batch,
    check_num_tokens,
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
    They are for reading: on the CPU a row that holds what it should is not written again, so what
    a caller writes there stays.
    On a GPU no call waits for the device, but in checked mode. The host counts the blocks of rows
    for itself: a replay that moves, swaps or clears rows is not counted, only the captured call.

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
        ValueError: a size below 1 or above 2**31 - 1.

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

    @torch.inference_mode(mode=False)  # the tables outlive the mode in which they are made
    def __init__(
        self,
        block_sizes: list[int],
        max_num_reqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        device: torch.device | str,
        pin_memory: bool,
    ) -> None:
        super().__init__(block_sizes, max_num_reqs, max_model_len, device, pin_memory)
        self.max_num_batched_tokens = check_int("max_num_batched_tokens", max_num_batched_tokens)
        self._gathered = make_zeros(len(self._tables), self.device)
        self._num_gathered = torch.zeros_like(self._num_blocks)
        self._slots = torch.full(
            (len(self.block_sizes), self.max_num_batched_tokens),
            PAD_SLOT_ID,
            dtype=torch.int64,
            device=device,
        )
        self._gathered_views = [
            self._gathered[offset : offset + self.max_num_reqs * width].view(-1, width)
            for offset, width in zip(self._offsets.tolist(), self._widths.tolist(), strict=True)
        ]
        # How much of the buffers the last step may have written, so that no more is cleared.
        self._num_rows_used = 0
        self._num_slots_used = 0
        self._gathered_arrays: tuple[Any, Any, Any] = (None, None, None)
        self._flat_slots: Any = None
        if self._tables.device.type == "cpu":  # views made once: 0.8 us each
            sources = np.full(self.max_num_reqs, -1, dtype=np.int32)
            self._gathered_arrays = (self._gathered.numpy(), self._num_gathered.numpy(), sources)
            self._flat_slots = self._slots.numpy().reshape(-1)

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
            ValueError: not one-dimensional, too long, or on another device.
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
            check_ints("idx_mapping", idx_mapping.tolist(), -1, self.max_num_reqs - 1, IndexError)
        if uses_kernels(self._tables):
            self._is_changed[:] = True  # what the host gathered is not there now
            launch_blocks(
                kernels.gather_block_tables,
                self.max_num_reqs,
                len(self.block_sizes),
                *self._state,
                self._gathered,
                self._num_gathered,
                flat(idx_mapping),
                idx_mapping.stride(0),
                num_reqs,
            )
        else:
            num_rows = max(num_reqs, self._num_rows_used)
            gather_rows.run(
                *self._arrays,
                self._is_changed,
                *self._gathered_arrays,
                idx_mapping.numpy(),
                num_rows,
            )
        self._num_rows_used = num_reqs
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
        check_batch(query_start_loc, positions, self._tables.device)
        num_reqs, num_tokens = query_start_loc.shape[0] - 1, positions.shape[0]
        if num_reqs > self.max_num_reqs:
            raise ValueError(
                f"query_start_loc has {num_reqs} requests, expected at most {self.max_num_reqs}"
            )
        if num_tokens > self.max_num_batched_tokens:
            raise ValueError(
                f"positions has {num_tokens} entries, expected at most"
                f" {self.max_num_batched_tokens}"
            )
        if is_checked():
            starts, where = to_host(query_start_loc), to_host(positions)
            check_starts("query_start_loc", starts)  # without groups too
            check_num_tokens(starts, where)
            for view, size in zip(self._gathered_views, self.block_sizes, strict=True):
                check_slots(to_host(view), starts, where, Layout(size, size))
        if uses_kernels(self._tables):
            launch_threads(
                kernels.compute_slot_mappings,
                max(num_tokens, 1),
                len(self.block_sizes),
                self._gathered,
                self._groups,
                flat(query_start_loc),
                query_start_loc.stride(0),
                num_reqs,
                flat(positions),
                positions.stride(0),
                num_tokens,
                self._slots,
            )
        else:
            begins, places = query_start_loc.contiguous(), positions.contiguous()
            starts_at = address_of("query_start_loc", begins)
            batch = (starts_at, num_reqs, address_of("positions", places), num_tokens)
            tables = (self._gathered_arrays[0], self._arrays[2])
            slots = (self._flat_slots, self.max_num_batched_tokens)
            last = max(num_tokens, self._num_slots_used)
            if not fill_slots_of_groups.run(*tables, *batch, *slots, last):
                check_num_tokens(begins.numpy(), places.numpy())
        self._num_slots_used = num_tokens
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
        self._num_rows_used = 0
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
        self._num_slots_used = 0
        return self._slots[:, :num_tokens]


@compiled(
    "void(int32[::1], int32[:, ::1], int64[:, ::1], boolean[::1], int32[::1], int32[:, ::1],"
    " int32[::1], int32[:], int64)"
)
def gather_rows(
    tables: Int32s,
    num_blocks: Int32s,
    groups: Int64s,
    is_changed: Any,  # noqa: ANN401  (an array)
    gathered: Int32s,
    num_gathered: Int32s,
    sources: Int32s,
    idx_mapping: Int32s,
    num_rows: int,
) -> None:
    """Gather rows in batch order, and clear what an earlier step left in the first `num_rows`.

    A row that holds the blocks of the same request slot as after the last call keeps those, and
    takes the ones behind them. Reads and writes whose they are, `sources`, and which slots'
    blocks have changed since then, but for new ones behind them, `is_changed`.
    """
    for row in range(num_rows):
        source = np.int64(idx_mapping[row]) if row < len(idx_mapping) else np.int64(-1)
        if source < 0 or source >= num_blocks.shape[1]:
            source = np.int64(-1)
        is_kept = source >= 0 and source == sources[row] and not is_changed[source]
        sources[row] = source
        for group in range(len(groups)):
            # Unsigned: other indices are tested for being negative, half of the time.
            here = np.uint64(groups[group, 0] + row * groups[group, 1])
            there = np.uint64(groups[group, 0] + max(source, np.int64(0)) * groups[group, 1])
            left = np.uint64(num_gathered[group, row])
            count = np.uint64(num_blocks[group, source]) if source >= 0 else np.uint64(0)
            for k in range(left if is_kept else np.uint64(0), count):
                gathered[here + k] = tables[there + k]
            for k in range(count, left):
                gathered[here + k] = NULL_BLOCK_ID
            num_gathered[group, row] = count
    is_changed[:] = False
