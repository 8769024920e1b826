"""What a batch reads and writes: the slots of the cache that each of its tokens accesses.

Every function of the batch plumbing must preserve this relation, or transform it in a stated way.
It is computed from the metadata alone, independently of `compute_slot_mapping`.
"""

from __future__ import annotations

from reference._checks import check_int
from reference.block_table import PAD_SLOT_ID
from reference.metadata import CommonAttentionMetadata, validate_metadata
from reference.slots import BlockLayout, check_block_layout


def kv_reads(
    metadata: CommonAttentionMetadata,
    block_size: int,
    *,
    kernel_block_size: int | None = None,
    cp_world_size: int = 1,
    cp_rank: int = 0,
    cp_kv_cache_interleave_size: int = 1,
) -> set[tuple[int, int, int]]:
    """Return the slot that each query token reads for each key position, on one rank.

    The `j`-th token of request `i` is at position `s_i - q_i + j`. It reads the keys up to its own
    position, or the whole sequence if the batch is not causal. The rank holds the key positions `p`
    with `p // interleave % cp_world_size == cp_rank`, one after another in its blocks: the `n`-th
    of them (from 0) is in block `n // block_size` of the row, at the offset `n % block_size`.

    Args:
        metadata: The batch, valid. `seq_lens` are global; the block table lists this rank's blocks.
        block_size: Positions in a block of one rank; times `cp_world_size` at most 2**31 - 1.
        kernel_block_size: Positions in a block as the table lists them; divides `block_size`. None:
            `block_size`.
        cp_world_size: Number of context-parallel ranks.
        cp_rank: The rank that reads.
        cp_kv_cache_interleave_size: Consecutive positions that stay on one rank; divides
            `block_size`.

    Returns:
        The set of (token, key position, slot).

    Raises:
        TypeError: An argument or a field of the wrong type or dtype.
        ValueError: A size below 1 or one that does not divide as stated, a rank that does not
            exist, an invalid metadata, a sequence with blocks outside its row, a negative block ID
            that is read.

    Example:
        >>> import numpy as np
        >>> starts, lens = np.array([0, 2], np.int32), np.array([3], np.int32)
        >>> computed, row = np.array([1], np.int32), np.array([[5, 9]], np.int32)
        >>> batch = CommonAttentionMetadata(
        ...     starts, starts, lens, lens, computed, 1, 2, 2, 3, row, np.array([11, 18])
        ... )
        >>> sorted(kv_reads(batch, 2))
        [(0, 0, 10), (0, 1, 11), (1, 0, 10), (1, 1, 11), (1, 2, 18)]
        >>> sorted(kv_reads(batch, 2, cp_world_size=2, cp_rank=1))
        [(0, 1, 10), (1, 1, 10)]

    Source: the definition is kvtwin's own.
    """
    layout = check_block_layout(
        block_size, kernel_block_size, cp_world_size, cp_rank, cp_kv_cache_interleave_size
    )
    validate_metadata(metadata)
    starts = metadata.query_start_loc.tolist()
    seq_lens = metadata.seq_lens.tolist()
    reads = set()
    for request, seq_len in enumerate(seq_lens):
        held_positions = [
            p
            for p in range(seq_len)
            if p // layout.interleave % layout.cp_world_size == layout.cp_rank
        ]
        _check_row(metadata, request, len(held_positions), layout)
        query_len = starts[request + 1] - starts[request]
        if query_len == 0:
            continue
        slots = [_slot_of_place(metadata, request, n, layout) for n in range(len(held_positions))]
        for j in range(query_len):
            position = seq_len - query_len + j
            for key_position, slot in zip(held_positions, slots, strict=True):
                if key_position <= position or not metadata.causal:
                    reads.add((starts[request] + j, key_position, slot))
    return reads


def _place(n: int, layout: BlockLayout) -> tuple[int, int]:
    """Return the column and the offset of the `n`-th position of a row."""
    block, offset = n // layout.block_size, n % layout.block_size
    kernel_blocks_per_block = layout.block_size // layout.kernel_block_size
    column = block * kernel_blocks_per_block + offset // layout.kernel_block_size
    return column, offset % layout.kernel_block_size


def _check_row(
    metadata: CommonAttentionMetadata, request: int, num_places: int, layout: BlockLayout
) -> None:
    """Check that a request's row has all blocks that its sequence needs on the rank."""
    num_columns = metadata.block_table_tensor.shape[1]
    num_blocks = _place(num_places - 1, layout)[0] + 1 if num_places > 0 else 0
    if num_blocks > num_columns:
        raise ValueError(
            f"seq_lens[{request}] is {metadata.seq_lens[request]} and needs {num_blocks} blocks of "
            f"{layout.kernel_block_size}, but row {request} of block_table_tensor has {num_columns}"
        )


def _slot_of_place(
    metadata: CommonAttentionMetadata, request: int, n: int, layout: BlockLayout
) -> int:
    """Return the slot of the `n`-th position of a row."""
    column, offset = _place(n, layout)
    block_id = int(metadata.block_table_tensor[request, column])
    if block_id < 0:
        raise ValueError(
            f"block_table_tensor[{request}, {column}] is {block_id}, expected at least 0"
        )
    return block_id * layout.kernel_block_size + offset


def kv_writes(metadata: CommonAttentionMetadata) -> set[tuple[int, int]]:
    """Return the slot to which each token is written.

    Args:
        metadata: The batch, valid.

    Returns:
        The set of (token, slot), for the first `num_actual_tokens` tokens, without those whose slot
        is `PAD_SLOT_ID`.

    Raises:
        TypeError: A field of the wrong type or dtype.
        ValueError: An invalid metadata, a slot below `PAD_SLOT_ID`.

    Example:
        >>> import numpy as np
        >>> starts, lens = np.array([0, 2], np.int32), np.array([3], np.int32)
        >>> computed, row = np.array([1], np.int32), np.array([[5, 9]], np.int32)
        >>> batch = CommonAttentionMetadata(
        ...     starts, starts, lens, lens, computed, 1, 3, 2, 3, row, np.array([11, 18, -1])
        ... )
        >>> sorted(kv_writes(batch))
        [(0, 11), (1, 18)]

    Source: the definition is kvtwin's own.
    """
    validate_metadata(metadata)
    writes = set()
    for token in range(int(metadata.num_actual_tokens)):
        slot = check_int(f"slot_mapping[{token}]", metadata.slot_mapping[token], PAD_SLOT_ID)
        if slot != PAD_SLOT_ID:
            writes.add((token, slot))
    return writes
