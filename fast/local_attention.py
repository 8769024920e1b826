"""Chunked local attention as ordinary attention over virtual requests."""

from typing import Any

import torch

from fast._checks import check_int
from fast._native.local_attention import find_virtual_requests, gather_columns
from fast._native.memory import plain
from fast.batch_fields import read_block_table, read_counts, read_slot_mapping
from fast.checked_mode import is_checked
from fast.kernels import local_attention as kernels
from fast.launch import launch_blocks, uses_kernels
from fast.metadata import CommonAttentionMetadata, validate_metadata
from fast.pinned import upload
from fast.slots import flat


def make_local_attention_virtual_batches(
    attn_chunk_size: int,
    common_attn_metadata: Any,  # noqa: ANN401  (an engine's own metadata serves too)
    block_size: int = 0,
) -> CommonAttentionMetadata:
    """Make each chunk that a request's new tokens touch a request of its own.

    A query sees only the keys of its own chunk, up to itself: an ordinary attention kernel does
    just that over the virtual requests. On a GPU the requests are counted from the host copies,
    and nothing waits for the device.

    Args:
        attn_chunk_size: positions in a chunk.
        common_attn_metadata: the batch; `query_start_loc_cpu` and `seq_lens_cpu` are read, and
            `block_table_tensor`.
        block_size: positions in a block; it must divide the chunk size.

    Returns:
        The virtual batch. Tokens and slots are as they were, `causal` is True, the optional fields
        None. The block table is int32[num_virtual, attn_chunk_size // block_size]; a column past
        the request's last repeats it.

    Raises:
        TypeError: an argument of another type.
        ValueError: a block size that is not positive or does not divide the chunk size; starts that
            decrease, or have more than `num_actual_tokens`; in checked mode a metadata that
            contradicts itself.
        AttributeError: a metadata without what is read.

    Example:
        >>> import torch
        >>> from types import SimpleNamespace
        >>> starts = torch.tensor([0, 4, 14, 19], dtype=torch.int32)
        >>> seq_lens = torch.tensor([6, 17, 9], dtype=torch.int32)
        >>> batch = SimpleNamespace(
        ...     query_start_loc=starts,
        ...     query_start_loc_cpu=starts,
        ...     seq_lens=seq_lens,
        ...     seq_lens_cpu=seq_lens,
        ...     num_reqs=3,
        ...     num_actual_tokens=19,
        ...     block_table_tensor=torch.arange(27, dtype=torch.int32).view(3, 9),
        ...     slot_mapping=torch.arange(19),
        ... )
        >>> local = make_local_attention_virtual_batches(4, batch, 2)
        >>> local.query_start_loc.diff().tolist()
        [2, 2, 1, 4, 4, 1, 4, 1]
        >>> local.seq_lens.tolist()
        [4, 2, 4, 4, 4, 1, 4, 1]

    Source: the definition is kvtwin's own; the name is vLLM's.
    """
    chunk_size = check_int("attn_chunk_size", attn_chunk_size)
    block_size = check_int("block_size", block_size)
    if chunk_size % block_size:
        raise ValueError(
            f"block_size is {block_size}, expected a divisor of attn_chunk_size {chunk_size}"
        )
    metadata = common_attn_metadata
    if is_checked():
        validate_metadata(metadata, block_size)
    num_reqs, num_tokens = read_counts(metadata)
    table = read_block_table(metadata, num_reqs)
    slot_mapping = read_slot_mapping(metadata, num_tokens)
    columns = chunk_size // block_size
    virtual = find_virtual_requests(
        metadata.query_start_loc_cpu,
        metadata.seq_lens_cpu,
        num_reqs,
        num_tokens,
        chunk_size,
        columns,
    )
    size, vectors, max_query_len, max_seq_len = virtual
    starts_cpu = torch.from_numpy(vectors[: size + 1])
    seq_lens_cpu = torch.from_numpy(vectors[size + 1 : 2 * size + 1])
    if uses_kernels(table):
        on_device = upload(vectors[: 4 * size + 1], table.device, pin_memory=True)
        local_starts, local_lens = on_device[: size + 1], on_device[size + 1 : 2 * size + 1]
        rows, first = on_device[2 * size + 1 : 3 * size + 1], on_device[3 * size + 1 :]
        virtual_table = _gather_on_device(table, rows, first, columns)
    else:
        local_starts, local_lens = starts_cpu, seq_lens_cpu
        virtual_table = gather_columns(table, virtual, columns)
    # By position, which saves 0.3 us.
    return CommonAttentionMetadata(
        local_starts,
        starts_cpu,
        local_lens,
        seq_lens_cpu,
        torch.from_numpy(vectors[4 * size + 1 :]),
        size,
        num_tokens,
        max_query_len,
        max_seq_len,
        virtual_table,
        slot_mapping,
    )


def _gather_on_device(
    table: torch.Tensor, rows: torch.Tensor, first: torch.Tensor, columns: int
) -> torch.Tensor:
    """Return `columns` columns of some rows of a table, each from its own first."""
    table = plain("block_table_tensor", table)
    gathered = table.new_empty((len(rows), columns))
    launch_blocks(
        kernels.gather_columns,
        len(rows),
        1,
        flat(table),
        *table.stride(),
        *table.shape,
        rows,
        first,
        gathered,
    )
    return gathered
