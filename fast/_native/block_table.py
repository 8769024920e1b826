"""Keep block tables on the host, and count their blocks.

Each method of `HostTables` that changes something is one call of a loop, so an exception from a
signal handler comes before or after it, never in the middle. These loops keep the GIL, so the same
holds for calls of other threads: a row never grows past its width, whatever threads do at once.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fast._checks import INT32, check_batch_size, check_num_tokens
from fast._native.append_plan import append_on_host, complete_plan, count_appended
from fast._native.compiler import Int32s, Int64s, compiled, int32s_at
from fast._native.memory import check_written, locate
from fast._native.slots import write_slots_of_groups
from fast.sentinels import NULL_BLOCK_ID, PAD_SLOT_ID


class RowCounts:
    """The number of blocks in each row, counted on the host, for tables on a GPU.

    Args:
        groups: int64[G, 3]: for each group the offset of its first row, the width of its rows, and
            its block size.
        max_num_reqs: Rows of each group.
    """

    def __init__(self, groups: npt.NDArray[np.int64], max_num_reqs: int) -> None:
        check_written("groups", groups, np.int64, 2)
        self._widths = np.ascontiguousarray(groups[:, 1])
        self.blocks = np.zeros((len(groups), max_num_reqs), dtype=np.int32)

    def complete(self, plan: npt.NDArray[np.int64], num_listed: int) -> bool:
        """Complete a plan (see `fast.append_plan`) for a kernel; return whether it is valid."""
        check_written("plan", plan, np.int64, 1)
        return bool(complete_plan(plan, num_listed, self._widths, self.blocks))

    def append(self, plan: npt.NDArray[np.int64], num_listed: int) -> None:
        """Count the blocks that a completed plan appends."""
        check_written("plan", plan, np.int64, 1)
        count_appended(plan, num_listed, self._widths, self.blocks)

    def move(self, src: int, dst: int) -> None:
        """Move the count of a row to another row, whose own is dropped."""
        self.blocks[:, dst] = self.blocks[:, src]
        self.blocks[:, src] = 0

    def swap(self, a: int, b: int) -> None:
        self.blocks[:, [a, b]] = self.blocks[:, [b, a]]

    def clear(self, r: int) -> None:
        self.blocks[:, r] = 0


class HostTables:
    """The rows of request slots on the CPU, with the gathered tables and the slots.

    Args:
        groups: As for `RowCounts`.
        tables: int32[num_entries], the rows of all groups.
        num_blocks: int32[G, max_num_reqs], blocks in each row.
        gathered: int32[num_entries], laid out like the tables. Callers get views of it.
        num_gathered: int32[G, max_num_reqs], blocks in each of its rows.
        slots: int64[G, max_num_batched_tokens]. Callers get views of it.
        counts: The counts of the same rows; kept equal to `num_blocks`.
    """

    def __init__(
        self,
        groups: npt.NDArray[np.int64],
        tables: npt.NDArray[np.int32],
        num_blocks: npt.NDArray[np.int32],
        gathered: torch.Tensor,
        num_gathered: npt.NDArray[np.int32],
        slots: torch.Tensor,
        counts: RowCounts,
    ) -> None:
        check_written("groups", groups, np.int64, 2)
        for name, array, ndim in (
            ("tables", tables, 1),
            ("num_blocks", num_blocks, 2),
            ("num_gathered", num_gathered, 2),
            ("counts", counts.blocks, 2),
        ):
            check_written(name, array, np.int32, ndim)
        locate("gathered", gathered, INT32, len(tables))
        locate("slots", slots.view(-1), torch.int64)
        self._rows = (tables, num_blocks, groups)
        self._widths = np.ascontiguousarray(groups[:, 1])
        # Made by NumPy, so that no caller can resize their storages.
        self._gathered, self._num_gathered = gathered, num_gathered
        self._slots = slots
        self._counts = counts
        max_num_reqs = num_blocks.shape[1]
        # The request slot of each gathered row, and whether a slot's blocks have changed since,
        # other than by appending.
        self._sources = np.full(max_num_reqs, -1, dtype=np.int32)
        self._is_changed = np.zeros(max_num_reqs, dtype=np.bool_)
        # How many gathered rows and slots the last step may have written: only those are cleared.
        self._used = np.zeros(2, dtype=np.int64)

    def append(self, plan: npt.NDArray[np.int64], num_listed: int) -> bool:
        """Execute an append plan (see `fast.append_plan`); return whether it is valid."""
        check_written("plan", plan, np.int64, 1)
        known, is_changed = self._counts.blocks, self._is_changed
        return bool(append_on_host(*self._rows, plan, num_listed, self._widths, known, is_changed))

    def move(self, src: int, dst: int) -> None:
        move_on_host(*self._rows, src, dst, self._counts.blocks, self._is_changed)

    def swap(self, a: int, b: int) -> None:
        swap_on_host(*self._rows, a, b, self._counts.blocks, self._is_changed)

    def clear(self, r: int) -> None:
        clear_on_host(self._rows[1], r, self._counts.blocks, self._is_changed)

    def gather(self, idx_mapping: torch.Tensor) -> None:
        """Gather rows in batch order; `idx_mapping` is int32[at most max_num_reqs] on the CPU."""
        at, rows = locate("idx_mapping", idx_mapping, INT32)
        if rows.nelement() > len(self._sources):
            raise ValueError(
                f"idx_mapping has {rows.nelement()} entries, expected at most {len(self._sources)}"
            )
        gather_on_host(
            *self._rows,
            self._is_changed,
            self._gathered.data_ptr(),
            self._num_gathered,
            self._sources,
            self._used,
            at,
            rows.nelement(),
        )

    def fill_slots(self, query_start_loc: torch.Tensor, positions: torch.Tensor) -> None:
        """Write the slots of a batch for every group.

        `query_start_loc` is int32[num_reqs + 1] and `positions` int64[num_tokens], both on the CPU.
        If they do not fit the tables or each other, raises ValueError and writes nothing.
        """
        at, starts = locate("query_start_loc", query_start_loc, INT32)
        positions_at, places = locate("positions", positions, torch.int64)
        num_reqs, num_positions = starts.nelement() - 1, places.nelement()
        max_num_reqs, slots_of_group = self._num_gathered.shape[1], self._slots.shape[1]
        check_batch_size(num_reqs, num_positions, max_num_reqs, slots_of_group)
        tables, _, groups = self._rows
        batch = (at, num_reqs, positions_at, num_positions)
        gathered, slots = self._gathered.data_ptr(), self._slots.data_ptr()
        if not write_slots_of_groups(
            gathered, len(tables), groups, *batch, slots, slots_of_group, self._used
        ):
            check_num_tokens(starts.numpy(), num_positions)

    def forget_rows(self) -> None:
        """Have the next gather reuse no row: a kernel has changed rows or gathered them."""
        self._is_changed[:] = True
        self._used[0] = len(self._sources)

    def rewrite_tables(self) -> None:
        """Have the next gather write all rows to their ends, whatever they contain."""
        self._num_gathered[:] = self._widths[:, None]
        self.forget_rows()

    def rewrite_slots(self) -> None:
        """Have the next call write all slots, whatever they contain."""
        self._used[1] = self._slots.shape[1]

    def find_foreign_table_entry(self) -> str | None:
        """Describe an entry of the gathered tables that no gather wrote; None if there is none.

        It checks the entries that the next gather would not write again.
        """
        tables, _, groups = self._rows
        is_unchanged = (self._sources >= 0) & ~self._is_changed[self._sources]
        for group, (offset, width, _) in enumerate(groups.tolist()):
            rows = slice(offset, offset + len(self._sources) * width)
            found = self._gathered[rows].numpy().reshape(-1, width)
            is_block = np.arange(width) < self._num_gathered[group][:, None]
            blocks = tables[rows].reshape(-1, width)[self._sources]
            expected = np.where(is_block, blocks, NULL_BLOCK_ID)
            wrong = np.argwhere((found != expected) & (~is_block | is_unchanged[:, None]))
            if len(wrong):
                row, column = wrong[0].tolist()
                return (
                    f"gathered block table {group} has {found[row, column]} at [{row}, {column}],"
                    f" expected {expected[row, column]}"
                )
        return None

    def find_foreign_slot(self) -> str | None:
        """Describe an entry past the last slots that is not padding; None if there is none."""
        padding = self._slots.numpy()[:, self._used[1] :]
        wrong = np.argwhere(padding != PAD_SLOT_ID)
        if not len(wrong):
            return None
        group, at = wrong[0].tolist()
        return (
            f"slot mapping {group} has {padding[group, at]} at [{at + self._used[1]}],"
            f" expected {PAD_SLOT_ID}"
        )


@compiled(
    "void(int32[::1], int32[:, ::1], int64[:, ::1], boolean[::1], int64, int32[:, ::1],"
    " int32[::1], int64[::1], int64, int64)",
    nogil=False,
)
def gather_on_host(
    tables: Int32s,
    num_blocks: Int32s,
    groups: Int64s,
    is_changed: Any,
    gathered_address: int,
    num_gathered: Int32s,
    sources: Int32s,
    used: Int64s,
    idx_mapping_address: int,
    num_reqs: int,
) -> None:
    """Gather rows in batch order, and clear the rows past them that the last step wrote.

    A row that has the same request slot as after the last call keeps its blocks and gets only the
    new ones. Reads and writes `sources`, the request slot of each row, and `is_changed`, whether
    the blocks of a request slot have changed since then other than by appending. `used[0]` is how
    many rows the last step wrote.
    """
    gathered = int32s_at(gathered_address, len(tables))
    idx_mapping = int32s_at(idx_mapping_address, num_reqs)
    num_rows = max(np.int64(num_reqs), used[0])
    for row in range(num_rows):
        source = np.int64(idx_mapping[row]) if row < num_reqs else np.int64(-1)
        if source < 0 or source >= num_blocks.shape[1]:
            source = np.int64(-1)
        is_unchanged = source >= 0 and source == sources[row] and not is_changed[source]
        sources[row] = source
        for group in range(len(groups)):
            # Unsigned: the test for negative indices takes half of the time.
            here = np.uint64(groups[group, 0] + row * groups[group, 1])
            there = np.uint64(groups[group, 0] + max(source, np.int64(0)) * groups[group, 1])
            left = np.uint64(num_gathered[group, row])
            count = np.uint64(num_blocks[group, source]) if source >= 0 else np.uint64(0)
            for k in range(left if is_unchanged else np.uint64(0), count):
                gathered[here + k] = tables[there + k]
            for k in range(count, left):
                gathered[here + k] = NULL_BLOCK_ID
            num_gathered[group, row] = count
    is_changed[:] = False
    used[0] = num_reqs


@compiled(
    "void(int32[::1], int32[:, ::1], int64[:, ::1], int64, int64, int32[:, ::1], boolean[::1])",
    nogil=False,
)
def move_on_host(
    tables: Int32s,
    num_blocks: Int32s,
    groups: Int64s,
    src: int,
    dst: int,
    known: Int32s,
    is_changed: Any,
) -> None:
    is_changed[src] = True
    is_changed[dst] = True
    for group in range(len(groups)):
        offset = groups[group, 0]
        width = groups[group, 1]
        for k in range(num_blocks[group, src]):
            tables[offset + dst * width + k] = tables[offset + src * width + k]
        num_blocks[group, dst] = num_blocks[group, src]
        num_blocks[group, src] = 0
        known[group, dst] = num_blocks[group, dst]
        known[group, src] = 0


@compiled(
    "void(int32[::1], int32[:, ::1], int64[:, ::1], int64, int64, int32[:, ::1], boolean[::1])",
    nogil=False,
)
def swap_on_host(
    tables: Int32s,
    num_blocks: Int32s,
    groups: Int64s,
    a: int,
    b: int,
    known: Int32s,
    is_changed: Any,
) -> None:
    is_changed[a] = True
    is_changed[b] = True
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
        known[group, a] = num_blocks[group, a]
        known[group, b] = count


@compiled("void(int32[:, ::1], int64, int32[:, ::1], boolean[::1])", nogil=False)
def clear_on_host(num_blocks: Int32s, r: int, known: Int32s, is_changed: Any) -> None:
    is_changed[r] = True
    for group in range(len(num_blocks)):
        num_blocks[group, r] = 0
        known[group, r] = 0
