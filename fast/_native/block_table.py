"""Keep block tables on the host: the rows with their staged writes, and the tables of a step.

Each method that changes something is one call of a loop, so an exception from a signal handler
comes before or after it, never in the middle. These loops keep the GIL, so the same holds for calls
of other threads: a row never grows past its width, whatever threads do at once.

All groups are in one array, group after group; a group's tables are rows of one width. `groups` is
int64[G, 8], one row of constants for each group, whose columns are named here.
"""

from array import array
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from fast._checks import INT32, INT64, MAX_SIZE, check_at_least
from fast._native.compiler import (
    Int,
    Int32s,
    Int64s,
    compiled,
    inlined,
    int32s_at,
    int64s_at,
    prefetch,
)
from fast._native.memory import check_written, locate
from fast._native.slots import are_consecutive, fill_consecutive, slot_of, slot_on_rank
from fast.sentinels import NULL_BLOCK_ID, PAD_SLOT_ID

OFFSET: Final = 0
"""The first entry of the group's first row."""

WIDTH: Final = 1
"""The entries of its rows."""

SIZE: Final = 2
"""Positions in a block of one rank."""

RANKS: Final = 3
"""Context-parallel ranks that share the group, 1 if each holds all of it."""

RANK: Final = 4
INTERLEAVE: Final = 5
"""Consecutive positions that stay on one rank."""

HAS_SLOTS: Final = 6
"""Whether its slots are computed."""

REACH: Final = 7
"""How many computed tokens before the new ones its sliding window reads, 0: all."""

NUM_CONSTANTS: Final = 8

UNCHANGED: Final = MAX_SIZE
"""The first changed entry of a row without staged writes."""

HEADER: Final = 5
"""The words that describe a changed row in packed writes."""

AHEAD: Final = 16
"""How many rows ahead entries of the tables are prefetched."""


class StagedRows:
    """The rows of request slots as they will be when all staged writes are applied.

    Attributes:
        groups: The constants of the groups.
        blocks: int32[num_entries], the rows of all groups; past a row's blocks anything.
        counts: int32[G, max_num_reqs], blocks in each row.
        first_changed: int32[G, max_num_reqs], the first entry of each row that staged writes
            change, or `UNCHANGED`.
        changed: int64[G * max_num_reqs], the changed rows, `group * max_num_reqs + slot`.
        state: int64[2]: how many rows are changed, and the words of the writes staged so far.
    """

    def __init__(self, groups: npt.NDArray[np.int64], max_num_reqs: int, num_entries: int) -> None:
        check_written("groups", groups, np.int64, 2)
        shape = len(groups), max_num_reqs
        self.groups = groups
        self.blocks = np.zeros(num_entries, np.int32)
        self.counts = np.zeros(shape, np.int32)
        self.first_changed = np.full(shape, UNCHANGED, np.int32)
        self.changed = np.zeros(len(groups) * max_num_reqs, np.int64)
        self.state = np.zeros(2, np.int64)
        self.arrays: Any = (
            *(self.groups, self.blocks, self.counts, self.first_changed, self.changed),
            self.state,
        )
        self._at = [array.ctypes.data for array in self.arrays]

    def stage_block(self, slot: int, block: int, overwrites: bool) -> bool:
        """Stage the write of one block, if there is one group; `slot` is one of the slots.

        Returns False, with nothing staged, if the row is full.
        """
        return stage_block(slot, block, overwrites, *self._at)  # type: ignore[no-any-return]

    def stage(self, values: "array[int]") -> bool:
        """Stage a write: a request slot, whether it overwrites, the numbers of IDs, and the IDs.

        They are C ints. Returns False, with nothing staged, if they are not valid.
        """
        return stage(*values.buffer_info(), *self.arrays)  # type: ignore[no-any-return]  # a bool

    def pack(self) -> tuple[npt.NDArray[np.int32], int, int]:
        """Return the staged writes for a kernel, the number of changed rows, and of staged words.

        With the latter, `forget` forgets the writes, unless there are others since.
        """
        num_changed, num_words = self.state.tolist()
        packed = np.empty(HEADER * num_changed + num_words, np.int32)
        return packed[: pack(packed, *self.arrays)], num_changed, num_words

    def forget(self, num_words: int) -> None:
        forget(self.first_changed, self.changed, self.state, num_words)


class HostTables:
    """The rows of request slots on the CPU, with the gathered tables and the slots.

    Args:
        staged: The rows with the staged writes.
        tables: int32[num_entries], the rows of all groups, nulls past each row's blocks.
        num_blocks: int32[G, max_num_reqs], blocks in each row.
        gathered: int32[num_entries], laid out like the tables. Callers get views of it.
        num_gathered: int32[G, max_num_reqs], blocks in each of its rows.
        slots: int64[G, max_num_batched_tokens]. Callers get views of it.
    """

    def __init__(
        self,
        staged: StagedRows,
        tables: npt.NDArray[np.int32],
        num_blocks: npt.NDArray[np.int32],
        gathered: torch.Tensor,
        num_gathered: npt.NDArray[np.int32],
        slots: torch.Tensor,
    ) -> None:
        check_written("tables", tables, np.int32, 1)
        check_written("num_blocks", num_blocks, np.int32, 2)
        check_written("num_gathered", num_gathered, np.int32, 2)
        locate("gathered", gathered, INT32, len(tables))
        locate("slots", slots.view(-1), INT64)
        self._staged = staged
        max_num_reqs = num_blocks.shape[1]
        self.rows = (staged.groups, tables, num_blocks)
        # Made by NumPy, so that no caller can resize their storages.
        self._gathered, self._slots = gathered, slots
        # Of each gathered row: its blocks, how many of them are nulls before the window, and its
        # request slot. And whether a slot's blocks have changed since, other than by appending.
        num_nulled = np.zeros_like(num_gathered)
        sources = np.full(max_num_reqs, -1, np.int32)
        self._is_changed = np.zeros(max_num_reqs, np.bool_)
        self._of_gathered = (num_gathered, num_nulled, sources, self._is_changed)
        # How many gathered rows and slots the last step may have written: only those are cleared.
        self._used = np.zeros(2, dtype=np.int64)

    def apply(self) -> None:
        """Apply the staged writes."""
        apply_on_host(*self.rows[1:], self._is_changed, *self._staged.arrays)

    def gather(self, idx_mapping: torch.Tensor, num_computed_tokens: torch.Tensor | None) -> None:
        """Gather rows in batch order.

        `idx_mapping` is int32 or int64[at most max_num_reqs], `num_computed_tokens`
        int32[max_num_reqs], both on the CPU.
        """
        rows_at, rows = locate("idx_mapping", idx_mapping, idx_mapping.dtype)
        computed_at = 0
        if num_computed_tokens is not None:
            computed_at, _computed = locate("num_computed_tokens", num_computed_tokens, INT32)
        self.gather_at(rows_at, rows.element_size() // 4, rows.nelement(), computed_at)

    def gather_at(self, *batch: Any) -> None:
        """Gather the rows of a batch that is at these addresses; see `gather_on_host`."""
        of_gathered = (self._gathered.data_ptr(), *self._of_gathered, self._used)
        arguments: Any = (*batch, *self.rows, *of_gathered)
        gather_on_host(*arguments)

    def fill_slots(
        self,
        idx_mapping: torch.Tensor,
        query_start_loc: torch.Tensor,
        positions: torch.Tensor,
        num_tokens_padded: int,
    ) -> None:
        """Write the slots of a batch for every group, of at most `num_tokens_padded` tokens.

        `idx_mapping` is int32 or int64[num_reqs] on the CPU, `query_start_loc` must be
        int32[at least num_reqs + 1] and `positions` int64 there; if not, nothing is written.
        """
        rows_at, rows = locate("idx_mapping", idx_mapping, idx_mapping.dtype)
        num_reqs = rows.nelement()
        starts_at, starts = locate("query_start_loc", query_start_loc, INT32)
        positions_at, places = locate("positions", positions, INT64)
        check_at_least("query_start_loc", starts.nelement(), num_reqs + 1)
        batch = rows_at, rows.element_size() // 4, num_reqs, starts_at, positions_at
        self.fill_slots_at(*batch, min(places.nelement(), num_tokens_padded))

    def fill_slots_at(self, *batch: Any) -> None:
        """Write the slots of a batch that is at these addresses; see `write_slots_of_groups`."""
        of_slots = (self._slots.data_ptr(), self._slots.shape[1], self._used)
        arguments: Any = (*batch, *self.rows, *of_slots)
        write_slots_of_groups(*arguments)

    def rewrite_tables(self) -> None:
        """Have the next gather write all rows to their ends, whatever they contain."""
        num_gathered, *_ = self._of_gathered
        num_gathered[:] = self._staged.groups[:, WIDTH, None]
        self._is_changed[:] = True
        self._used[0] = num_gathered.shape[1]

    def rewrite_slots(self) -> None:
        """Have the next call write all slots, whatever they contain."""
        self._used[1] = self._slots.shape[1]


STAGED: Final = "int64[:, ::1], int32[::1], int32[:, ::1], int32[:, ::1], int64[::1], int64[::1]"
"""The signature of `StagedRows.arrays`."""

ROWS: Final = "int64[:, ::1], int32[::1], int32[:, ::1]"
"""The signature of `HostTables.rows`."""


@inlined
def int32s_of(array: Int32s) -> Any:
    """Return an array without its reference count.

    A loop that passes an array to its parts updates the count each time: 40 ns for a row.
    """
    return int32s_at(array.ctypes.data, array.shape)


@inlined
def int64s_of(array: Int64s) -> Any:
    return int64s_at(array.ctypes.data, array.shape)


@inlined
def is_valid(values: Int32s, groups: Int64s, counts: Int32s) -> Any:
    """Return whether a write can be staged, see `StagedRows.stage`.

    The lengths are compared too: another thread may change a list while it is packed.
    """
    num_groups, num_slots = counts.shape
    slot, end = values[0], np.int64(2 + num_groups)
    if slot < 0 or slot >= num_slots:
        return False
    for group in range(num_groups):
        number = np.int64(values[2 + group])
        count = number if values[1] else number + counts[group, slot]
        if number < 0 or count > groups[group, WIDTH]:
            return False
        end += number
    if end != len(values):
        return False
    signs = np.int32(0)
    for k in range(2 + num_groups, end):
        signs |= values[k]
    return signs >= 0


@compiled(f"boolean(int64, int64, {STAGED})", nogil=False)
def stage(
    address: int,
    num_values: int,
    groups: Int64s,
    blocks: Int32s,
    counts: Int32s,
    first_changed: Int32s,
    changed: Int64s,
    state: Int64s,
) -> Any:
    """Stage the write of `num_values` words at an address, see `StagedRows.stage`."""
    values = int32s_at(address, num_values)
    if not is_valid(values, groups, counts):
        return False
    num_groups, num_slots = counts.shape
    slot, overwrites = np.int64(values[0]), values[1]
    at = np.int64(2 + num_groups)
    for group in range(num_groups):
        number = np.int64(values[2 + group])
        start = np.int64(0) if overwrites else np.int64(counts[group, slot])
        if start < first_changed[group, slot] and (number > 0 or overwrites):
            if first_changed[group, slot] == UNCHANGED:
                changed[state[0]] = group * num_slots + slot
                state[0] += 1
            first_changed[group, slot] = start
        here = groups[group, OFFSET] + slot * groups[group, WIDTH] + start
        for k in range(number):
            blocks[here + k] = values[at + k]
        counts[group, slot] = start + number
        at += number
    state[1] += num_values
    return True


@compiled("boolean(int64, int64, boolean, int64, int64, int64, int64, int64, int64)", nogil=False)
def stage_block(
    slot: int,
    block: int,
    overwrites: bool,
    groups_at: int,
    blocks_at: int,
    counts_at: int,
    first_changed_at: int,
    changed_at: int,
    state_at: int,
) -> Any:
    """Stage a block of the only group, see `StagedRows.stage_block`.

    It takes addresses of the arrays, since converting each array takes 50 ns.
    """
    groups, state = int64s_at(groups_at, NUM_CONSTANTS), int64s_at(state_at, 2)
    counts, first_changed = int32s_at(counts_at, slot + 1), int32s_at(first_changed_at, slot + 1)
    start = np.int64(0) if overwrites else np.int64(counts[slot])
    width = groups[WIDTH]
    if start >= width:
        return False
    if start < first_changed[slot]:
        if first_changed[slot] == UNCHANGED:
            changed = int64s_at(changed_at, state[0] + 1)
            changed[state[0]] = slot
            state[0] += 1
        first_changed[slot] = start
    here = groups[OFFSET] + slot * width + start
    int32s_at(blocks_at, here + 1)[here] = block
    counts[slot] = start + 1
    state[1] += 4
    return True


@compiled(f"int64(int32[::1], {STAGED})", nogil=False)
def pack(
    packed: Int32s,
    groups: Int64s,
    blocks: Int32s,
    counts: Int32s,
    first_changed: Int32s,
    changed: Int64s,
    state: Int64s,
) -> Any:
    """Pack the staged writes for a kernel; return the number of words.

    For each changed row there are `HEADER` words: the group, the request slot, the first changed
    entry, the blocks of the row, and where in `packed` the new entries begin. They follow.
    """
    num_slots = counts.shape[1]
    at = HEADER * state[0]
    for k in range(state[0]):
        group, slot = changed[k] // num_slots, changed[k] % num_slots
        first, count = np.int64(first_changed[group, slot]), np.int64(counts[group, slot])
        packed[HEADER * k] = group
        packed[HEADER * k + 1] = slot
        packed[HEADER * k + 2] = first
        packed[HEADER * k + 3] = count
        packed[HEADER * k + 4] = at
        here = groups[group, OFFSET] + slot * groups[group, WIDTH]
        for entry in range(first, count):
            packed[at] = blocks[here + entry]
            at += 1
    return at


@compiled("void(int32[:, ::1], int64[::1], int64[::1], int64)", nogil=False)
def forget(first_changed: Int32s, changed: Int64s, state: Int64s, num_words: int) -> None:
    """Forget the staged writes, unless they have not `num_words` words any more."""
    if state[1] != num_words:
        return
    num_slots = first_changed.shape[1]
    for k in range(state[0]):
        first_changed[changed[k] // num_slots, changed[k] % num_slots] = UNCHANGED
    state[:] = 0


@inlined
def apply_staged(
    tables: Int32s,
    num_blocks: Int32s,
    is_changed: Any,
    groups: Int64s,
    blocks: Int32s,
    counts: Int32s,
    first_changed: Int32s,
    changed: Int64s,
    state: Int64s,
) -> None:
    """Copy what is staged to the tables, with nulls past the new end of a row.

    Marks the request slots whose blocks change other than by appending.
    """
    num_slots = counts.shape[1]
    for k in range(state[0]):
        group, slot = changed[k] // num_slots, changed[k] % num_slots
        first, count = np.int64(first_changed[group, slot]), np.int64(counts[group, slot])
        before = np.int64(num_blocks[group, slot])
        here = np.uint64(groups[group, OFFSET] + slot * groups[group, WIDTH])
        for entry in range(np.uint64(first), np.uint64(count)):
            tables[here + entry] = blocks[here + entry]
        for entry in range(np.uint64(count), np.uint64(max(before, count))):
            tables[here + entry] = NULL_BLOCK_ID
        if first < before:
            is_changed[slot] = True
        num_blocks[group, slot] = count
        first_changed[group, slot] = UNCHANGED
    state[:] = 0


@compiled(f"void(int32[::1], int32[:, ::1], boolean[::1], {STAGED})", nogil=False)
def apply_on_host(
    tables: Int32s,
    num_blocks: Int32s,
    is_changed: Any,
    groups: Int64s,
    blocks: Int32s,
    counts: Int32s,
    first_changed: Int32s,
    changed: Int64s,
    state: Int64s,
) -> None:
    staged = (groups, blocks, counts, first_changed, changed, state)
    apply_staged(tables, num_blocks, is_changed, *staged)


@inlined
def gather_row(
    groups: Int64s,
    tables: Int32s,
    num_blocks: Int32s,
    gathered: Int32s,
    num_gathered: Int32s,
    num_nulled: Int32s,
    group: Int,
    row: Int,
    source: Int,
    num_computed: Int,
    is_unchanged: Any,
) -> None:
    """Gather a row of one group: the blocks of a request slot `source`, none if that is -1.

    Those before the window of a request with `num_computed` tokens are nulls. If `is_unchanged`,
    the row has the blocks of the same slot already, but for new ones.
    """
    width, reach = groups[group, WIDTH], groups[group, REACH]
    count, num_freed = np.int64(0), np.int64(0)
    if source >= 0:
        count = np.int64(num_blocks[group, source])
        if reach > 0 and num_computed > reach:
            num_freed = min((num_computed - reach) // groups[group, SIZE], count)
    left, nulled = np.int64(num_gathered[group, row]), np.int64(num_nulled[group, row])
    is_kept = is_unchanged and nulled <= num_freed
    # Unsigned: the test for negative indices takes half of the time.
    here = np.uint64(groups[group, OFFSET] + row * width)
    there = np.uint64(groups[group, OFFSET] + max(source, np.int64(0)) * width)
    for k in range(np.uint64(nulled if is_kept else 0), np.uint64(num_freed)):
        gathered[here + k] = NULL_BLOCK_ID
    for k in range(np.uint64(max(left if is_kept else 0, num_freed)), np.uint64(count)):
        gathered[here + k] = tables[there + k]
    for k in range(np.uint64(count), np.uint64(left)):
        gathered[here + k] = NULL_BLOCK_ID
    num_gathered[group, row] = count
    num_nulled[group, row] = num_freed


@compiled(
    f"void(int64, int64, int64, int64, {ROWS}, int64, int32[:, ::1], int32[:, ::1], int32[::1],"
    " boolean[::1], int64[::1])",
    nogil=False,
)
def gather_on_host(
    rows_at: int,
    rows_step: int,
    num_reqs: int,
    computed_at: int,
    groups: Int64s,
    tables: Int32s,
    num_blocks: Int32s,
    gathered_at: int,
    num_gathered: Int32s,
    num_nulled: Int32s,
    sources: Int32s,
    is_changed: Any,
    used: Int64s,
) -> None:
    """Gather rows in batch order, and clear the rows past them that the last step wrote.

    A row that has the same request slot as after the last call keeps its blocks and gets only the
    new ones. Reads and writes `sources`, the request slot of each row, and `is_changed`, whether
    the blocks of a request slot have changed since then other than by appending. `used[0]` is how
    many rows the last step wrote.
    """
    groups, tables, num_blocks = int64s_of(groups), int32s_of(tables), int32s_of(num_blocks)
    num_gathered, num_nulled = int32s_of(num_gathered), int32s_of(num_nulled)
    num_slots = num_blocks.shape[1]
    gathered = int32s_at(gathered_at, len(tables))
    rows = int32s_at(rows_at, num_reqs * rows_step + 1)
    computed = int32s_at(computed_at, num_slots)
    for row in range(max(np.int64(num_reqs), used[0])):
        source, num_computed = np.int64(-1), np.int64(0)
        if row < num_reqs:
            source = np.int64(rows[row * rows_step])
        if source < 0 or source >= num_slots:
            source = np.int64(-1)
        elif computed_at != 0:
            num_computed = np.int64(computed[source])
        is_unchanged = source >= 0 and source == sources[row] and not is_changed[source]
        sources[row] = source
        for group in range(len(groups)):
            of_gathered = (gathered, num_gathered, num_nulled, group, row)
            gather_row(
                *(groups, tables, num_blocks, *of_gathered, source, num_computed, is_unchanged)
            )
    is_changed[:] = False
    used[0] = num_reqs


@inlined
def fill_slots_of_row(
    groups: Int64s,
    tables: Int32s,
    group: Int,
    slot: Int,
    positions: Int64s,
    begin: Int,
    end: Int,
    is_run: Any,
    slots: Int64s,
    here: Int,
) -> None:
    """Write the slots of one row's tokens `begin .. end - 1` in one group, from `slots[here]` on.

    The row has the request slot `slot`, or none if that is -1. `is_run` says whether the tokens'
    positions are consecutive.
    """
    size, width = groups[group, SIZE], groups[group, WIDTH]
    row = (groups[group, OFFSET] + slot * width, 1, width, size)
    ranks = (groups[group, RANKS], groups[group, RANK], groups[group, INTERLEAVE])
    if slot < 0 or not groups[group, HAS_SLOTS]:
        for at in range(np.uint64(begin), np.uint64(end)):
            slots[np.uint64(here) + at] = PAD_SLOT_ID
    elif groups[group, RANKS] > 1:
        for at in range(np.uint64(begin), np.uint64(end)):
            slots[np.uint64(here) + at] = slot_on_rank(tables, *row, size, *ranks, positions[at])
    elif is_run:
        fill_consecutive(tables, *row, positions[begin], slots, here + begin, here + end)
    else:
        for at in range(np.uint64(begin), np.uint64(end)):
            slots[np.uint64(here) + at] = slot_of(tables, *row, positions[at])


@inlined
def prefetch_row(groups: Int64s, tables: Int32s, slot: Int, position: Int) -> None:
    """Prefetch the entry of a position, in every group; needless ones do no harm."""
    for group in range(len(groups)):
        size = np.uint64(groups[group, SIZE] * groups[group, RANKS])
        column = np.int64(np.uint64(position) // size)
        prefetch(tables, groups[group, OFFSET] + slot * groups[group, WIDTH] + column)


@compiled(
    f"void(int64, int64, int64, int64, int64, int64, {ROWS}, int64, int64, int64[::1])",
    nogil=False,
)
def write_slots_of_groups(
    rows_at: int,
    rows_step: int,
    num_reqs: int,
    starts_at: int,
    positions_at: int,
    num_tokens: int,
    groups: Int64s,
    tables: Int32s,
    num_blocks: Int32s,
    slots_at: int,
    slots_of_group: int,
    used: Int64s,
) -> None:
    """Write the slots of a batch for every group, and -1 past them where the last step wrote.

    A group's slots begin `slots_of_group` after those of the group before. `used[1]` is how many
    slots of each group the last step wrote. The tables of a step are not in a fast cache, so
    entries are prefetched.
    """
    groups, tables = int64s_of(groups), int32s_of(tables)
    num_slots = num_blocks.shape[1]
    rows = int32s_at(rows_at, num_reqs * rows_step + 1)
    starts = int32s_at(starts_at, num_reqs + 1)
    positions = int64s_at(positions_at, num_tokens)
    slots = int64s_at(slots_at, slots_of_group * len(groups))
    token = np.int64(0)
    for row in range(num_reqs):
        then = min(row + AHEAD, num_reqs - 1)
        start = np.uint64(starts[then])  # of a negative one the last token is read
        if num_tokens > 0:
            position = positions[min(start, np.uint64(num_tokens - 1))]
            prefetch_row(groups, tables, np.int64(rows[then * rows_step]), position)
        end = min(np.int64(starts[row + 1]), np.int64(num_tokens))
        if end <= token:
            continue
        slot = np.int64(rows[row * rows_step])
        if slot >= num_slots:
            slot = np.int64(-1)
        is_run = end > token + 1 and are_consecutive(positions, token, end)
        for group in range(len(groups)):
            place = (slots, group * slots_of_group)
            fill_slots_of_row(groups, tables, group, slot, positions, token, end, is_run, *place)
        token = end
    for group in range(len(groups)):
        here = np.uint64(group * slots_of_group)
        for at in range(np.uint64(token), np.uint64(max(token, used[1]))):
            slots[here + at] = PAD_SLOT_ID
    used[1] = token
