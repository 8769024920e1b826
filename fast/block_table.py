"""Keep block tables, gather them in batch order, and compute slots from them."""

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
from fast.block_table_rows import RequestRows
from fast.checked_mode import is_checked
from fast.kernel_blocks import map_to_kernel_blocks
from fast.kernels import block_table as kernels
from fast.launch import launch_blocks, launch_threads, uses_kernels
from fast.operators import check_not_traced
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
    """Keep the block tables of a runner, for all KV cache groups.

    Methods return views of persistent buffers whose addresses never change, so a CUDA graph can be
    captured over them. On a GPU no method synchronises, except in checked mode. The host counts the
    blocks of each row itself. It counts a captured call only once: replays that move, swap or clear
    rows are not counted.

    A caller may write into the views with torch operations: the next call detects it and rewrites
    the whole buffer. Writes that torch does not see are not allowed: through NumPy arrays of the
    memory, `tensor.data`, foreign kernels, or replays of a graph that captured such a write. They
    may persist; checked mode finds them and raises ValueError.

    An object can be copied (`copy.deepcopy`, `pickle`, to another process); the copy has its own
    buffers. If a signal handler raises, the interrupted call is either complete or had no effect.

    On the CPU, threads may share an object: each call that changes rows takes effect before or
    after those of other threads. But all results are views of the same buffers, so one thread at a
    time makes a step (gathers, computes slots, and uses both), copies the object, or uses checked
    mode. On a GPU one thread at a time calls any method, and its stream waits for that of the last.
    Whatever threads do at once, a row never grows past its width.

    `device` is where the tables are; a device that does not exist is a ValueError. With
    `pin_memory`, uploads to a GPU go through pinned memory.

    Definition: `reference.BlockTables`.
    """

    def gather_block_tables(self, idx_mapping: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Gather the rows of a step's requests, in batch order, and return them.

        Outside checked mode a request slot that does not exist gives a row of nulls. In checked
        mode the call raises ValueError if a caller wrote into the views and torch did not see it;
        the next call is correct.

        Definition: `reference.BlockTables.gather_block_tables`.
        """
        check_not_traced("gather_block_tables")
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
            if self._host is not None:  # the kernel runs on the CPU
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
        """Compute the slot of each token in each group, from the gathered tables.

        Values are checked as in `compute_slot_mapping`.

        Definition: `reference.BlockTables.compute_slot_mappings`.
        """
        check_not_traced("compute_slot_mappings")
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
        """Clear the gathered tables and return the rows of a dummy run.

        Definition: `reference.BlockTables.get_dummy_block_tables`.
        """
        num_reqs = check_int("num_reqs", num_reqs, 0, self.max_num_reqs)
        self._gathered.fill_(NULL_BLOCK_ID)
        self._num_gathered.zero_()
        self._gathered_version = self._gathered._version  # noqa: SLF001  (torch names it so)
        return tuple(view[:num_reqs] for view in self._gathered_views)

    def get_dummy_slot_mappings(self, num_tokens: int) -> torch.Tensor:
        """Clear the slots and return those of a dummy run.

        Definition: `reference.BlockTables.get_dummy_slot_mappings`.
        """
        num_tokens = check_int("num_tokens", num_tokens, 0, self.max_num_batched_tokens)
        self._slots.fill_(PAD_SLOT_ID)
        self._slots_version = self._slots._version  # noqa: SLF001  (torch names it so)
        return self._slots[:, :num_tokens]

    def _notice_table_writes(self) -> None:
        """Have all tables rewritten if a caller wrote into them.

        In checked mode raise ValueError if torch did not see the write.
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
        """Have all slots rewritten if a caller wrote into them.

        In checked mode raise ValueError if torch did not see the write.
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
