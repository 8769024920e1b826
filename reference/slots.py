"""Slots: where tokens are stored in the physical cache. `block_table` exports the names."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from reference._checks import (
    Int32Array,
    Int64Array,
    IntArray,
    check_array,
    check_divisor,
    check_int,
    check_out,
    check_product,
    check_size,
    check_tokens,
)

PAD_SLOT_ID = -1
"""The slot of a token that is not written: padding, or held by another rank."""

NULL_BLOCK_ID = 0
"""The block that no request owns; it fills the entries of a table without a block."""

INTEGER_DTYPES = (np.int8, np.int16, np.int32, np.int64, np.uint8)
"""The dtypes of block IDs that `map_to_kernel_blocks` takes."""


@dataclass(frozen=True)
class BlockLayout:
    """How positions map to blocks and ranks: checked sizes, all at least 1.

    Attributes:
        block_size: Positions in a block of one rank.
        kernel_block_size: Positions in a block as the table lists them; divides `block_size`.
        cp_world_size: Number of context-parallel ranks.
        cp_rank: The rank whose slots are computed.
        interleave: Consecutive positions that stay on one rank; divides `block_size`.
    """

    block_size: int
    kernel_block_size: int
    cp_world_size: int
    cp_rank: int
    interleave: int


def check_block_layout(
    block_size: object,
    kernel_block_size: object,
    cp_world_size: object,
    cp_rank: object,
    cp_kv_cache_interleave_size: object,
) -> BlockLayout:
    """Return the sizes of blocks and of context parallelism; they must be consistent."""
    block = check_size("block_size", block_size)
    kernel_block = block
    if kernel_block_size is not None:
        kernel_block = check_size("kernel_block_size", kernel_block_size)
    world = check_size("cp_world_size", cp_world_size)
    rank = check_int("cp_rank", cp_rank, 0, world - 1)
    interleave = check_size("cp_kv_cache_interleave_size", cp_kv_cache_interleave_size)
    check_divisor("cp_kv_cache_interleave_size", interleave, "block_size", block)
    check_divisor("kernel_block_size", kernel_block, "block_size", block)
    check_product("block_size", block, "cp_world_size", world)
    return BlockLayout(block, kernel_block, world, rank, interleave)


def compute_slot_mapping(
    block_table: Int32Array,
    query_start_loc: Int32Array,
    positions: Int64Array,
    block_size: int,
    *,
    kernel_block_size: int | None = None,
    cp_world_size: int = 1,
    cp_rank: int = 0,
    cp_kv_cache_interleave_size: int = 1,
    out: Int64Array | None = None,
) -> Int64Array:
    """Compute the slot to which each token of a batch is written.

    With one rank, a token is stored in block `position // block_size` of its request's row, at the
    offset `position % block_size`. Several context-parallel ranks hold the tokens interleaved: a
    *virtual block* is `block_size * cp_world_size` positions, and `v` is the position's offset in
    its virtual block. The rank `v // interleave % cp_world_size` holds the token, in block
    `position // virtual block size` of the row, at the offset
    `v // (cp_world_size * interleave) * interleave + v % interleave`. If the table lists kernel
    blocks, block `k` of the row is its columns `k * n .. k * n + n - 1` with
    `n = block_size / kernel_block_size`.

    Args:
        block_table: int32[num_rows, max_blocks], the block IDs of each request,
            `num_rows >= num_reqs`.
        query_start_loc: int32[num_reqs + 1], where each request's tokens start; tokens past the
            last entry are padding, and their positions are not read.
        positions: int64[num_tokens], each token's index in its request's sequence.
        block_size: Positions in a block of one rank; times `cp_world_size` at most 2**31 - 1.
        kernel_block_size: Positions in a block as the table lists them; divides `block_size`. None:
            `block_size`.
        cp_world_size: Number of context-parallel ranks.
        cp_rank: The rank whose slots are computed.
        cp_kv_cache_interleave_size: Consecutive positions that stay on one rank; divides
            `block_size`, also with one rank.
        out: int64[at least num_tokens], the array to write to; None: a new one. Past `num_tokens`
            it is filled with `PAD_SLOT_ID`. It must share no memory with the inputs, and its
            entries none with each other; any other stride is allowed.

    Returns:
        int64[num_tokens], in slots: `block ID * kernel_block_size + offset`; `PAD_SLOT_ID` for
        padding and for tokens that another rank holds. With `out`, its first `num_tokens` entries.

    Raises:
        TypeError: An argument of the wrong type or dtype.
        ValueError: A size below 1 or one that does not divide as stated, a rank that does not
            exist, more requests than rows or more tokens than positions, a negative position, or,
            on the rank that holds the token, a column outside the table or a negative block ID.
            Nothing is written.

    Example:
        >>> import numpy as np
        >>> block_table = np.array([[5, 9], [7, 3]], np.int32)
        >>> query_start_loc = np.array([0, 3, 4], np.int32)
        >>> positions = np.array([1, 2, 3, 0])
        >>> compute_slot_mapping(block_table, query_start_loc, positions, 2).tolist()
        [11, 18, 19, 14]
        >>> compute_slot_mapping(
        ...     block_table, query_start_loc, positions, 2, cp_world_size=2, cp_rank=1
        ... ).tolist()
        [10, -1, 11, -1]

    Source: the definition is kvtwin's own; the names are vLLM's.
    """
    layout = check_block_layout(
        block_size, kernel_block_size, cp_world_size, cp_rank, cp_kv_cache_interleave_size
    )
    starts, positions = check_tokens(query_start_loc, positions)
    check_array("block_table", block_table, np.int32, ndim=2)
    if len(block_table) < len(starts) - 1:
        raise ValueError(
            f"query_start_loc has {len(starts) - 1} requests, but block_table has "
            f"{len(block_table)} rows"
        )
    if out is not None:
        check_out(out, len(positions), [block_table, query_start_loc, positions])

    slots = _slots_of_tokens(block_table, starts, positions.tolist(), layout)
    if out is None:
        return np.array(slots, dtype=np.int64)
    out[:] = PAD_SLOT_ID
    out[: len(slots)] = slots
    return out[: len(slots)]


def _slots_of_tokens(
    block_table: Int32Array, starts: list[int], positions: list[int], layout: BlockLayout
) -> list[int]:
    """Return the slot of each token, request by request."""
    num_columns = block_table.shape[1]
    slots = [PAD_SLOT_ID] * len(positions)
    for request in range(len(starts) - 1):
        for token in range(starts[request], starts[request + 1]):
            position = positions[token]
            if position < 0:
                raise ValueError(f"positions[{token}] is {position}, expected at least 0")
            place = _place_on_rank(position, layout)
            if place is None:
                continue
            column, offset = place
            if column >= num_columns:
                raise ValueError(
                    f"positions[{token}] is {position} and needs column {column}, but block_table "
                    f"has {num_columns} columns"
                )
            block_id = int(block_table[request, column])
            if block_id < 0:
                raise ValueError(
                    f"block_table[{request}, {column}] is {block_id}, expected at least 0, as it "
                    f"holds positions[{token}]"
                )
            slots[token] = block_id * layout.kernel_block_size + offset
    return slots


def _place_on_rank(position: int, layout: BlockLayout) -> tuple[int, int] | None:
    """Return a position's column and offset in its block; None if another rank holds it."""
    virtual_block_size = layout.block_size * layout.cp_world_size
    block = position // virtual_block_size
    in_virtual_block = position % virtual_block_size
    if in_virtual_block // layout.interleave % layout.cp_world_size != layout.cp_rank:
        return None
    round_of_ranks = in_virtual_block // (layout.cp_world_size * layout.interleave)
    offset = round_of_ranks * layout.interleave + in_virtual_block % layout.interleave
    kernel_blocks_per_block = layout.block_size // layout.kernel_block_size
    column = block * kernel_blocks_per_block + offset // layout.kernel_block_size
    return column, offset % layout.kernel_block_size


def map_to_kernel_blocks(block_ids: IntArray, blocks_per_kv_block: int) -> IntArray:
    """Replace each of a manager's block IDs by the IDs of its kernel blocks.

    Args:
        block_ids: int8, int16, int32, int64 or uint8[..., k], none negative.
        blocks_per_kv_block: Kernel blocks in a manager's block, `n`.

    Returns:
        A new array [..., k * n] of the same dtype: for each block `b`, in order,
        `b * n .. b * n + n - 1`.

    Raises:
        TypeError: An argument of the wrong type or dtype.
        ValueError: No dimensions, a negative ID, an ID that the dtype cannot hold, a number of
            kernel blocks outside 1 .. 2**31 - 1.

    Example:
        >>> import numpy as np
        >>> map_to_kernel_blocks(np.array([0, 3], np.int32), 2).tolist()
        [0, 1, 6, 7]

    Source: the definition is kvtwin's own; the name is vLLM's.
    """
    check_array("block_ids", block_ids, INTEGER_DTYPES, ndim=None)
    n = check_size("blocks_per_kv_block", blocks_per_kv_block)
    greatest = (int(np.iinfo(block_ids.dtype).max) + 1) // n - 1
    if block_ids.size > 0 and greatest < 0:
        raise ValueError(f"blocks_per_kv_block is {n}, more than {block_ids.dtype} can count")
    for index in np.ndindex(block_ids.shape):
        block_id = int(block_ids[index])
        name = f"block_ids[{', '.join(map(str, index))}]"
        if not 0 <= block_id <= greatest:
            raise ValueError(
                f"{name} is {block_id}, expected 0 to {greatest}, as each is {n} kernel blocks in "
                f"{block_ids.dtype}"
            )

    *leading, num_blocks = block_ids.shape
    result = np.empty((*leading, num_blocks * n), block_ids.dtype)
    for index in np.ndindex(*leading):
        kernel_ids: list[int] = []
        for block_id in block_ids[index].tolist():
            kernel_ids.extend(range(block_id * n, block_id * n + n))
        result[index] = kernel_ids
    return result
