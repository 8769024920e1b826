"""Block tables and slots: which blocks each request has, and where its tokens are in them."""

from __future__ import annotations

import numpy as np

from reference._checks import (
    MAX_INT32,
    MAX_INT64,
    Array,
    Int32Array,
    Int64Array,
    IntArray,
    check_array,
    check_bool,
    check_divisor,
    check_index,
    check_int,
    check_ints,
    check_list,
    check_product,
    check_request_slots,
    check_row_starts,
    check_size,
    check_states,
)
from reference.slots import (
    NULL_BLOCK_ID,
    PAD_SLOT_ID,
    compute_slot_mapping,
    map_to_kernel_blocks,
)

__all__ = [
    "NULL_BLOCK_ID",
    "PAD_SLOT_ID",
    "BlockTables",
    "compute_slot_mapping",
    "map_to_kernel_blocks",
]


class BlockTables:
    """Keep the block tables of a runner, for all KV cache groups.

    Rows are *request slots*: a request keeps its row from its first step to its last, whatever the
    order of the batch. New block IDs are *staged*, and reach the rows together. A step gathers the
    rows of its requests, in batch order, into a second set of tables, the *gathered tables*, and
    computes slots from the rows themselves. Methods return views of two persistent buffers, the
    gathered tables and the slots, which the next call writes again; it may return the same objects.
    A caller may write into a view: the next call still returns the values that are defined here.

    Args:
        block_sizes: Positions in a block of each group; may be empty.
        max_num_reqs: Number of request slots, and the most requests of a step.
        max_num_batched_tokens: The most tokens of a step.
        max_num_blocks_per_group: The most blocks in a row of each group.
        device: Ignored, since `reference` has no devices.
        cp_size: Number of context-parallel ranks; times the block size of a group that they share
            at most 2**31 - 1.
        cp_rank: The rank whose slots are computed.
        cp_interleave: Consecutive positions that stay on one rank; with several ranks, a divisor of
            the block size of each group that they share.
        slot_mapping_enabled: Whether each group's slots are computed. None: all are.
        dcp_sharded: Whether the ranks share each group, instead of each holding all of it. None:
            they share all.
        sliding_window_reach: For each group, how many computed tokens before the new ones are read;
            0: all. None: 0 for all. Ignored if there are several ranks.

    Attributes:
        max_num_reqs: As given.
        max_num_batched_tokens: As given.

    Raises:
        TypeError: An argument of the wrong type.
        ValueError: A size outside 1 .. 2**31 - 1, a list without an entry for each group, a rank
            that does not exist, a negative reach, sizes that do not divide or whose product is too
            large as stated, tables too large for any memory.

    Example:
        >>> import numpy as np
        >>> tables = BlockTables([2], 4, 8, [3], device=None, sliding_window_reach=[2])
        >>> tables.append_block_ids(3, [[5, 9]], overwrite=True)
        >>> tables.append_block_ids(1, [[7]], overwrite=True)
        >>> tables.apply_staged_writes()
        >>> idx_mapping = np.array([1, 3], np.int32)
        >>> tables.gather_block_tables(idx_mapping, num_reqs_padded=3)[0].tolist()
        [[7, 0, 0], [5, 9, 0], [0, 0, 0]]
        >>> num_computed_tokens = np.array([0, 0, 0, 4], np.int32)
        >>> tables.gather_block_tables(idx_mapping, 3, num_computed_tokens)[0].tolist()
        [[7, 0, 0], [0, 9, 0], [0, 0, 0]]
        >>> tables.compute_slot_mappings(
        ...     idx_mapping, np.array([0, 1, 3], np.int32), np.array([0, 1, 2]), num_tokens_padded=4
        ... ).tolist()
        [[14, 11, 18, -1]]

    Source: the definition is kvtwin's own; the names are those of vLLM's second runner.
    """

    def __init__(
        self,
        block_sizes: list[int],
        max_num_reqs: int,
        max_num_batched_tokens: int,
        max_num_blocks_per_group: list[int],
        device: object,  # noqa: ARG002  # the twins have the same parameters
        cp_size: int = 1,
        cp_rank: int = 0,
        cp_interleave: int = 1,
        slot_mapping_enabled: list[bool] | None = None,
        dcp_sharded: list[bool] | None = None,
        sliding_window_reach: list[int] | None = None,
    ) -> None:
        self._block_sizes = check_ints("block_sizes", block_sizes, 1, MAX_INT32)
        self._num_groups = len(self._block_sizes)
        self.max_num_reqs = check_size("max_num_reqs", max_num_reqs)
        self.max_num_batched_tokens = check_size("max_num_batched_tokens", max_num_batched_tokens)
        check_list("max_num_blocks_per_group", max_num_blocks_per_group, self._num_groups)
        self._max_blocks = check_ints(
            "max_num_blocks_per_group", max_num_blocks_per_group, 1, MAX_INT32
        )
        self._cp_size = check_size("cp_size", cp_size)
        self._cp_rank = check_int("cp_rank", cp_rank, 0, self._cp_size - 1)
        self._cp_interleave = check_size("cp_interleave", cp_interleave)
        self._has_slots = self._check_bools("slot_mapping_enabled", slot_mapping_enabled)
        self._is_sharded = self._check_bools("dcp_sharded", dcp_sharded)
        self._reaches = [0] * self._num_groups
        if sliding_window_reach is not None:
            check_list("sliding_window_reach", sliding_window_reach, self._num_groups)
            self._reaches = check_ints("sliding_window_reach", sliding_window_reach, 0, MAX_INT32)
        if self._cp_size > 1:
            self._reaches = [0] * self._num_groups
        for group, size in enumerate(self._block_sizes):
            if self._cp_size > 1 and self._is_sharded[group]:
                name = f"block_sizes[{group}]"
                check_divisor("cp_interleave", self._cp_interleave, name, size)
                check_product(name, size, "cp_size", self._cp_size)
        num_bytes = 4 * self.max_num_reqs * sum(self._max_blocks)
        num_bytes += 8 * self._num_groups * self.max_num_batched_tokens
        if num_bytes > MAX_INT64:
            raise ValueError(
                f"max_num_reqs {self.max_num_reqs}, max_num_batched_tokens "
                f"{self.max_num_batched_tokens} and max_num_blocks_per_group of "
                f"{sum(self._max_blocks)} in all make tables of more than {MAX_INT64} bytes"
            )
        self._rows: list[list[list[int]]] = [  # by group and request slot
            [[] for _ in range(self.max_num_reqs)] for _ in self._block_sizes
        ]
        # The rows as they will be when the staged writes are applied.
        self._staged_rows = [list(rows) for rows in self._rows]
        self._gathered = [
            np.full((self.max_num_reqs, width), NULL_BLOCK_ID, np.int32)
            for width in self._max_blocks
        ]
        self._slots = np.full(
            (self._num_groups, self.max_num_batched_tokens), PAD_SLOT_ID, np.int64
        )

    def _check_bools(self, name: str, values: list[bool] | None) -> list[bool]:
        """Return a bool for each group; all are true for None."""
        if values is None:
            return [True] * self._num_groups
        check_list(name, values, self._num_groups)
        return [check_bool(f"{name}[{group}]", value) for group, value in enumerate(values)]

    def append_block_ids(
        self, req_index: int, new_block_ids: list[list[int]], overwrite: bool
    ) -> None:
        """Append block IDs to the row of a request slot in each group, or replace the row.

        The write is staged: it shows after `apply_staged_writes`.

        Args:
            req_index: The request slot.
            new_block_ids: For each group, the IDs.
            overwrite: Whether the IDs become the whole row. Without IDs it is then empty.

        Raises:
            TypeError: A value that is not a list, or an entry of the wrong type.
            IndexError: A request slot that does not exist.
            ValueError: Not one list for each group, an ID outside 0 .. 2**31 - 1, a row that would,
                after the writes staged before, have more blocks than its group's row holds. Nothing
                is staged.

        Example:
            >>> import numpy as np
            >>> tables = BlockTables([2], 2, 8, [3], device=None)
            >>> tables.append_block_ids(0, [[5, 9]], overwrite=True)
            >>> tables.append_block_ids(1, [[7]], overwrite=True)
            >>> tables.append_block_ids(0, [[4]], overwrite=False)
            >>> tables.append_block_ids(1, [[8]], overwrite=True)
            >>> tables.apply_staged_writes()
            >>> tables.gather_block_tables(np.array([0, 1], np.int32), 2)[0].tolist()
            [[5, 9, 4], [8, 0, 0]]
        """
        slot = check_index("req_index", req_index, self.max_num_reqs)
        check_bool("overwrite", overwrite)
        check_list("new_block_ids", new_block_ids, self._num_groups)
        new_rows: list[list[int]] = []
        for group in range(self._num_groups):
            name = f"new_block_ids[{group}]"
            ids = check_ints(name, new_block_ids[group], 0, MAX_INT32)
            row = ids if overwrite else self._staged_rows[group][slot] + ids
            if len(row) > self._max_blocks[group]:
                raise ValueError(
                    f"{name} brings row {slot} to {len(row)} blocks, expected at most "
                    f"{self._max_blocks[group]}"
                )
            new_rows.append(row)

        for group, row in enumerate(new_rows):
            self._staged_rows[group][slot] = row

    def apply_staged_writes(self) -> None:
        """Write everything that is staged to the rows of the request slots, in order."""
        self._rows = [list(rows) for rows in self._staged_rows]

    def gather_block_tables(
        self,
        idx_mapping: IntArray,
        num_reqs_padded: int,
        num_computed_tokens: Int32Array | None = None,
    ) -> tuple[Int32Array, ...]:
        """Gather the rows of a step's requests, in batch order, and return them.

        Blocks before a sliding window may have been freed, and used again. So with
        `num_computed_tokens`, the first `max(n - w, 0) // block_size` entries of a row are
        `NULL_BLOCK_ID` in a group with a `sliding_window_reach` of `w > 0`, if the row's request
        slot has `n` computed tokens.

        Args:
            idx_mapping: int32 or int64[num_reqs], the request slot of each row, -1 for a dummy. Two
                rows never have one slot.
            num_reqs_padded: Number of rows to return, from `num_reqs` to `max_num_reqs`.
            num_computed_tokens: int32[max_num_reqs], by request slot, before the step; those of
                slots that no row has are not read. None: no row is cut.

        Returns:
            For each group, a view int32[num_reqs_padded, max_blocks] of the persistent buffer,
            which is `NULL_BLOCK_ID` past each row's blocks, in dummy rows, and past `num_reqs`. It
            has the rows as they are now: a later write does not change it; the next gather does.

        Raises:
            TypeError: An argument of the wrong type or dtype.
            IndexError: A request slot that does not exist.
            ValueError: More rows than `num_reqs_padded`, a number out of range, another number of
                dimensions or of computed tokens, a slot that two rows have, a negative number of
                computed tokens. Nothing is written.
        """
        slots = check_request_slots(idx_mapping, self.max_num_reqs)
        num_padded = check_int("num_reqs_padded", num_reqs_padded, 0, self.max_num_reqs)
        if len(slots) > num_padded:
            raise ValueError(
                f"idx_mapping has {len(slots)} entries, but num_reqs_padded is {num_padded}"
            )
        computed = [0] * len(slots)
        if num_computed_tokens is not None:
            name = "num_computed_tokens"
            array = check_states(name, num_computed_tokens, np.int32, 1, self.max_num_reqs)
            for row, slot in enumerate(slots):
                if slot >= 0:
                    computed[row] = check_int(f"{name}[{slot}]", array[slot], 0, MAX_INT32)

        for group, gathered in enumerate(self._gathered):
            gathered[:] = NULL_BLOCK_ID
            for row, slot in enumerate(slots):
                if slot >= 0:
                    blocks = self._rows[group][slot]
                    num_freed = self._count_freed(group, computed[row])
                    gathered[row, num_freed : len(blocks)] = blocks[num_freed:]
        return tuple(gathered[:num_padded] for gathered in self._gathered)

    def _count_freed(self, group: int, num_computed: int) -> int:
        """Count the blocks that are wholly before the window of a group."""
        reach = self._reaches[group]
        if reach == 0:
            return 0
        return max(num_computed - reach, 0) // self._block_sizes[group]

    def get_dummy_block_tables(self, num_reqs: int) -> tuple[Int32Array, ...]:
        """Clear the gathered tables and return the rows of a dummy run.

        Args:
            num_reqs: Number of rows, in 0 .. `max_num_reqs`.

        Returns:
            For each group, a view int32[num_reqs, max_blocks] of nulls.

        Raises:
            TypeError: A number that is not an int.
            ValueError: A number out of range.
        """
        num_reqs = check_int("num_reqs", num_reqs, 0, self.max_num_reqs)
        for gathered in self._gathered:
            gathered[:] = NULL_BLOCK_ID
        return tuple(gathered[:num_reqs] for gathered in self._gathered)

    def compute_slot_mappings(
        self,
        idx_mapping: IntArray,
        query_start_loc: Int32Array,
        positions: Int64Array,
        num_tokens_padded: int,
    ) -> Int64Array:
        """Compute the slot of each token in each group, from the rows of the request slots.

        They are those of `compute_slot_mapping` for a table of the rows as they are now, which is
        `NULL_BLOCK_ID` past a row's blocks. Windows do not matter.

        Args:
            idx_mapping: int32 or int64[num_reqs], the request slot of each row, -1 for a dummy. Two
                rows never have one slot.
            query_start_loc: int32[at least num_reqs + 1], where each row's tokens start; later
                entries are not read.
            positions: int64[at least query_start_loc[num_reqs]]; those past the last token, and
                those of dummy rows, are not read.
            num_tokens_padded: Number of slots to return for each group, from
                `query_start_loc[num_reqs]` to `max_num_batched_tokens`.

        Returns:
            A view int64[num_groups, num_tokens_padded] of the persistent buffer, in slots. It is
            `PAD_SLOT_ID` past the last token, for dummy rows, for groups whose slots are not
            computed, and for positions that another rank holds.

        Raises:
            TypeError: An argument of the wrong type or dtype.
            IndexError: A request slot that does not exist.
            ValueError: More rows than `max_num_reqs`, a slot that two rows have, starts that do not
                begin at 0 or that decrease, more tokens than `positions` or `num_tokens_padded`, a
                number out of range; in a group whose slots are computed, a negative position, or
                one that is in no column of the row. Nothing is written.
        """
        slots = check_request_slots(idx_mapping, self.max_num_reqs)
        if len(slots) > self.max_num_reqs:
            raise ValueError(
                f"idx_mapping has {len(slots)} entries, expected at most {self.max_num_reqs}"
            )
        starts = check_row_starts("query_start_loc", query_start_loc, len(slots))
        check_array("positions", positions, np.int64, 1)
        num_padded = check_int(
            "num_tokens_padded", num_tokens_padded, 0, self.max_num_batched_tokens
        )
        last = f"query_start_loc[{len(slots)}] is {starts[-1]}"
        if starts[-1] > len(positions):
            raise ValueError(f"{last}, but positions has {len(positions)} entries")
        if starts[-1] > num_padded:
            raise ValueError(f"{last}, but num_tokens_padded is {num_padded}")

        where = positions[: starts[-1]].copy()
        is_dummy = np.zeros(len(where), np.bool_)
        for row, slot in enumerate(slots):
            is_dummy[starts[row] : starts[row + 1]] = slot < 0
        where[is_dummy] = 0
        new_slots = np.full((self._num_groups, len(where)), PAD_SLOT_ID, np.int64)
        for group in range(self._num_groups):
            if self._has_slots[group]:
                is_shared = self._cp_size > 1 and self._is_sharded[group]
                new_slots[group] = compute_slot_mapping(
                    self._make_table(group, slots),
                    query_start_loc[: len(starts)],
                    where,
                    self._block_sizes[group],
                    cp_world_size=self._cp_size if is_shared else 1,
                    cp_rank=self._cp_rank if is_shared else 0,
                    cp_kv_cache_interleave_size=self._cp_interleave if is_shared else 1,
                )
                new_slots[group, is_dummy] = PAD_SLOT_ID
        self._slots[:] = PAD_SLOT_ID
        self._slots[:, : len(where)] = new_slots
        return self._slots[:, :num_padded]

    def _make_table(self, group: int, slots: list[int]) -> Array:
        """Return a table of the rows of some request slots, nulls for a dummy."""
        table = np.full((len(slots), self._max_blocks[group]), NULL_BLOCK_ID, np.int32)
        for row, slot in enumerate(slots):
            if slot >= 0:
                blocks = self._rows[group][slot]
                table[row, : len(blocks)] = blocks
        return table

    def get_dummy_slot_mappings(self, num_tokens: int) -> Int64Array:
        """Clear the slots and return those of a dummy run.

        Args:
            num_tokens: Number of tokens, in 0 .. `max_num_batched_tokens`.

        Returns:
            A view int64[num_groups, num_tokens] of `PAD_SLOT_ID`.

        Raises:
            TypeError: A number that is not an int.
            ValueError: A number out of range.
        """
        num_tokens = check_int("num_tokens", num_tokens, 0, self.max_num_batched_tokens)
        self._slots[:] = PAD_SLOT_ID
        return self._slots[:, :num_tokens]
