"""Block tables and slots: which blocks each request has, and where its tokens are in them."""

from __future__ import annotations

import numpy as np

from reference._checks import (
    MAX_INT32,
    MAX_INT64,
    Int32Array,
    Int64Array,
    check_array,
    check_bool,
    check_index,
    check_int,
    check_ints,
    check_list,
    check_size,
    check_starts,
    check_tokens,
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

PADDED_REQUEST = -1
"""The entry of an `idx_mapping` for a request that is padding."""


class BlockTables:
    """Keep the block tables of a runner, for all KV cache groups.

    Rows are *request slots*: a request keeps its row from its first step to its last, whatever the
    order of the batch. A step gathers the rows of its requests, in batch order, into a second set
    of tables, the *gathered tables*, and computes slots from these. Methods return views of two
    persistent buffers, the gathered tables and the slots. A caller may write into a view: the next
    call still returns the values that are defined here.

    Args:
        block_sizes: Positions in a block of each group; may be empty.
        max_num_reqs: Number of request slots, and the most requests of a step.
        max_num_batched_tokens: The most tokens of a step.
        max_model_len: The most positions of a request; a row of group `g` holds at most
            `ceil(max_model_len / block_sizes[g])` blocks.
        device: Ignored, since `reference` has no devices.
        pin_memory: Ignored, except for its type.

    Raises:
        TypeError: An argument of the wrong type.
        ValueError: A size outside 1 .. 2**31 - 1, sizes whose tables are too large for any memory.

    Example:
        >>> import numpy as np
        >>> tables = BlockTables([2], 4, 8, 6, device=None, pin_memory=False)
        >>> tables.append_block_ids([3, 1], [[0, 2, 3]], [[5, 9, 7]], [False, False])
        >>> tables.gather_block_tables(np.array([1, 3], np.int32))[0].tolist()
        [[7, 0, 0], [5, 9, 0]]
        >>> tables.compute_slot_mappings(
        ...     np.array([0, 1, 3], np.int32), np.array([0, 1, 2])
        ... ).tolist()
        [[14, 11, 18]]

    Source: the definition is kvtwin's own; the names are vLLM's.
    """

    def __init__(  # the field's signature
        self,
        block_sizes: list[int],
        max_num_reqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        device: object,  # noqa: ARG002  # the twins have the same parameters
        pin_memory: bool,
    ) -> None:
        self._block_sizes = check_ints("block_sizes", block_sizes, 1, MAX_INT32)
        self._max_num_reqs = check_size("max_num_reqs", max_num_reqs)
        self._max_num_batched_tokens = check_size("max_num_batched_tokens", max_num_batched_tokens)
        self._max_model_len = check_size("max_model_len", max_model_len)
        check_bool("pin_memory", pin_memory)
        self._max_blocks = [-(-self._max_model_len // size) for size in self._block_sizes]
        self._num_groups = len(self._block_sizes)
        num_bytes = 4 * self._max_num_reqs * sum(self._max_blocks)
        num_bytes += 8 * self._num_groups * self._max_num_batched_tokens
        if num_bytes > MAX_INT64:
            raise ValueError(
                f"max_num_reqs {self._max_num_reqs}, max_num_batched_tokens "
                f"{self._max_num_batched_tokens} and max_model_len {self._max_model_len} make "
                f"tables of more than {MAX_INT64} bytes"
            )
        self._rows: list[list[list[int]]] = [
            [[] for _ in range(self._max_num_reqs)] for _ in self._block_sizes
        ]
        self._gathered = [
            np.full((self._max_num_reqs, width), NULL_BLOCK_ID, np.int32)
            for width in self._max_blocks
        ]
        self._slots = np.full(
            (self._num_groups, self._max_num_batched_tokens), PAD_SLOT_ID, np.int64
        )

    def append_block_ids(
        self,
        req_indices: list[int],
        cu_num_new_blocks: list[list[int]],
        new_block_ids: list[list[int]],
        overwrite: list[bool],
    ) -> None:
        """Append block IDs to the rows of request slots, or replace whole rows.

        Args:
            req_indices: The request slots, each at most once.
            cu_num_new_blocks: For each group, `len(req_indices) + 1` ints, from 0 to
                `len(new_block_ids[g])`, that do not decrease: the `j`-th request slot gets the IDs
                `cu_num_new_blocks[g][j] .. cu_num_new_blocks[g][j + 1] - 1` of its group.
            new_block_ids: For each group, the IDs for all request slots, one slot after another.
            overwrite: For each request slot, whether the IDs become the whole row.

        Raises:
            TypeError: A value that is not a list, or an entry of the wrong type.
            IndexError: A request slot that does not exist.
            ValueError: A request slot listed twice, lengths that disagree, starts that do not run
                from 0 to the number of IDs, an ID outside 0 .. 2**31 - 1, a row that would have
                more than `ceil(max_model_len / block_size)` blocks. Nothing is written.

        Example:
            >>> import numpy as np
            >>> tables = BlockTables([2], 2, 8, 6, device=None, pin_memory=False)
            >>> tables.append_block_ids([0, 1], [[0, 2, 3]], [[5, 9, 7]], [False, False])
            >>> tables.append_block_ids([0, 1], [[0, 1, 2]], [[4, 8]], [False, True])
            >>> tables.gather_block_tables(np.array([0, 1], np.int32))[0].tolist()
            [[5, 9, 4], [8, 0, 0]]
        """
        slots = self._check_request_slots(req_indices)
        overwrites = check_list("overwrite", overwrite, len(slots))
        for j, value in enumerate(overwrites):
            check_bool(f"overwrite[{j}]", value)
        check_list("cu_num_new_blocks", cu_num_new_blocks, self._num_groups)
        check_list("new_block_ids", new_block_ids, self._num_groups)

        new_rows: list[dict[int, list[int]]] = []
        for group in range(self._num_groups):
            name = f"new_block_ids[{group}]"
            given_ids = check_list(name, new_block_ids[group])
            starts = self._check_starts(group, cu_num_new_blocks[group], len(slots), len(given_ids))
            ids = check_ints(name, given_ids, 0, MAX_INT32)
            new_rows.append({})
            for j, slot in enumerate(slots):
                kept = [] if overwrites[j] else self._rows[group][slot]
                row = kept + ids[starts[j] : starts[j + 1]]
                if len(row) > self._max_blocks[group]:
                    raise ValueError(
                        f"{name} brings row {slot} to {len(row)} blocks, expected at most "
                        f"{self._max_blocks[group]}"
                    )
                new_rows[group][slot] = row

        for group in range(self._num_groups):
            for slot, row in new_rows[group].items():
                self._rows[group][slot] = row

    def _check_request_slots(self, req_indices: object) -> list[int]:
        """Return the listed request slots; each must exist and be listed once."""
        slots: list[int] = []
        first_listed: dict[int, int] = {}  # by request slot
        for j, value in enumerate(check_list("req_indices", req_indices)):
            slot = check_index(f"req_indices[{j}]", value, self._max_num_reqs)
            if slot in first_listed:
                raise ValueError(
                    f"req_indices[{j}] is {slot}, the same as req_indices[{first_listed[slot]}]"
                )
            first_listed[slot] = j
            slots.append(slot)
        return slots

    def _check_starts(self, group: int, value: object, num_slots: int, num_ids: int) -> list[int]:
        """Return where each request slot's new IDs of a group start, and the end of the last."""
        name = f"cu_num_new_blocks[{group}]"
        check_list(name, value, num_slots + 1)
        starts = check_ints(name, value, 0, num_ids)
        check_starts(name, starts)
        if starts[-1] != num_ids:
            raise ValueError(
                f"{name}[{num_slots}] is {starts[-1]}, expected {num_ids}, "
                f"the length of new_block_ids[{group}]"
            )
        return starts

    def move_row(self, src: int, dst: int) -> None:
        """Move the blocks of a request slot to another slot; the source is empty afterwards.

        Args:
            src: The request slot to move from.
            dst: The request slot to move to, which loses its own blocks. If it is `src`, nothing
                happens.

        Raises:
            TypeError: A request slot that is not an int.
            IndexError: A request slot that does not exist.
        """
        src = check_index("src", src, self._max_num_reqs)
        dst = check_index("dst", dst, self._max_num_reqs)
        if src == dst:
            return
        for rows in self._rows:
            rows[dst] = rows[src]
            rows[src] = []

    def swap_rows(self, a: int, b: int) -> None:
        """Swap the blocks of two request slots, in every group.

        Args:
            a: A request slot.
            b: A request slot. If it is `a`, nothing happens.

        Raises:
            TypeError: A request slot that is not an int.
            IndexError: A request slot that does not exist.
        """
        a = check_index("a", a, self._max_num_reqs)
        b = check_index("b", b, self._max_num_reqs)
        for rows in self._rows:
            rows[a], rows[b] = rows[b], rows[a]

    def clear_row(self, r: int) -> None:
        """Remove all blocks of a request slot, in every group.

        Args:
            r: The request slot.

        Raises:
            TypeError: A request slot that is not an int.
            IndexError: A request slot that does not exist.
        """
        r = check_index("r", r, self._max_num_reqs)
        for rows in self._rows:
            rows[r] = []

    def gather_block_tables(self, idx_mapping: Int32Array) -> tuple[Int32Array, ...]:
        """Gather the rows of a step's requests, in batch order, and return them.

        Args:
            idx_mapping: int32[num_reqs], the request slot of each request, -1 for a padded request;
                `num_reqs <= max_num_reqs`. Entries may repeat.

        Returns:
            For each group, a view int32[num_reqs, max_blocks] of the persistent buffer, which is
            `NULL_BLOCK_ID` past each row's blocks, in padded requests' rows, and past `num_reqs`.
            It has the rows as they are now: a later append, move, swap or clear does not change it;
            the next gather does.

        Raises:
            TypeError: An argument of the wrong type or dtype.
            ValueError: More requests than `max_num_reqs`, or another number of dimensions.
            IndexError: An entry outside -1 .. `max_num_reqs` - 1.
        """
        slots = check_array("idx_mapping", idx_mapping, np.int32, ndim=1).tolist()
        if len(slots) > self._max_num_reqs:
            raise ValueError(
                f"idx_mapping has {len(slots)} entries, expected at most {self._max_num_reqs}"
            )
        for b, slot in enumerate(slots):
            if not PADDED_REQUEST <= slot < self._max_num_reqs:
                raise IndexError(
                    f"idx_mapping[{b}] is {slot}, "
                    f"expected {PADDED_REQUEST} to {self._max_num_reqs - 1}"
                )

        for rows, gathered in zip(self._rows, self._gathered, strict=True):
            gathered[:] = NULL_BLOCK_ID
            for b, slot in enumerate(slots):
                if slot != PADDED_REQUEST:
                    gathered[b, : len(rows[slot])] = rows[slot]
        return tuple(gathered[: len(slots)] for gathered in self._gathered)

    def compute_slot_mappings(
        self, query_start_loc: Int32Array, positions: Int64Array
    ) -> Int64Array:
        """Compute the slot of each token in each group, from the gathered tables.

        Args:
            query_start_loc: int32[num_reqs + 1], as in `compute_slot_mapping`; a request past those
                gathered has a row of nulls.
            positions: int64[num_tokens], `num_tokens <= max_num_batched_tokens`.

        Returns:
            A view int64[num_groups, num_tokens] of the persistent buffer, which is `PAD_SLOT_ID`
            past `num_tokens`.

        Raises:
            TypeError: As `compute_slot_mapping`.
            ValueError: As `compute_slot_mapping`; more requests than `max_num_reqs`, more tokens
                than `max_num_batched_tokens`. Nothing is written.
        """
        starts, positions = check_tokens(query_start_loc, positions)
        if len(starts) - 1 > self._max_num_reqs:
            raise ValueError(
                f"query_start_loc has {len(starts) - 1} requests, "
                f"expected at most {self._max_num_reqs}"
            )
        if len(positions) > self._max_num_batched_tokens:
            raise ValueError(
                f"positions has {len(positions)} entries, "
                f"expected at most {self._max_num_batched_tokens}"
            )
        slots_of_groups = [
            compute_slot_mapping(table, query_start_loc, positions, block_size)
            for table, block_size in zip(self._gathered, self._block_sizes, strict=True)
        ]
        self._slots[:] = PAD_SLOT_ID
        for group, slots in enumerate(slots_of_groups):
            self._slots[group, : len(positions)] = slots
        return self._slots[:, : len(positions)]

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
        num_reqs = check_int("num_reqs", num_reqs, 0, self._max_num_reqs)
        for gathered in self._gathered:
            gathered[:] = NULL_BLOCK_ID
        return tuple(gathered[:num_reqs] for gathered in self._gathered)

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
        num_tokens = check_int("num_tokens", num_tokens, 0, self._max_num_batched_tokens)
        self._slots[:] = PAD_SLOT_ID
        return self._slots[:, :num_tokens]
