"""Chunked local attention as ordinary attention over virtual requests."""

from typing import Any

import numpy as np
import torch

from fast._checks import address_of, check_int, check_tensor, host_vector, is_checked
from fast._compiled import Int32s, compiled, int32s_at
from fast.launch import uses_kernels
from fast.metadata import CommonAttentionMetadata, validate_metadata
from fast.pinned import upload
from fast.sentinels import NULL_BLOCK_ID


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
        ValueError: a block size that is not positive or does not divide the chunk size; in checked
            mode a metadata that contradicts itself.
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
    num_reqs = check_int("num_reqs", metadata.num_reqs, 0)
    starts = host_vector("query_start_loc_cpu", metadata.query_start_loc_cpu, num_reqs + 1)
    seq_lens = host_vector("seq_lens_cpu", metadata.seq_lens_cpu, num_reqs)
    table = metadata.block_table_tensor
    check_tensor("block_table_tensor", table, torch.int32, 2)
    if table.shape[0] < num_reqs:
        raise ValueError(f"block_table_tensor has {len(table)} rows, expected at least {num_reqs}")

    addresses = (
        address_of("query_start_loc_cpu", starts),
        address_of("seq_lens_cpu", seq_lens),
    )
    size = count_virtual_requests.run(*addresses, num_reqs, chunk_size)
    columns = chunk_size // block_size
    vectors = np.empty(5 * size + 1, dtype=np.int32)
    max_query_len, max_seq_len = fill_virtual_requests.run(
        *addresses, num_reqs, chunk_size, columns, size, vectors
    )
    starts_cpu = torch.from_numpy(vectors[: size + 1])
    seq_lens_cpu = torch.from_numpy(vectors[size + 1 : 2 * size + 1])
    if uses_kernels(table):
        on_device = upload(vectors[: 4 * size + 1], table.device, pin_memory=True)
        local_starts, local_lens = on_device[: size + 1], on_device[size + 1 : 2 * size + 1]
        rows, first = on_device[2 * size + 1 : 3 * size + 1], on_device[3 * size + 1 :]
        virtual_table = _gather_on_device(table, rows, first, columns)
    else:
        local_starts, local_lens = starts_cpu, seq_lens_cpu
        gathered = np.empty(size * columns, dtype=np.int32)
        # Rows in one piece are copied in a quarter of the time.
        whole = table.contiguous()
        shape = (whole.shape[0], whole.shape[1])
        address = address_of("block_table_tensor", whole)
        gather_columns.run(address, *shape, vectors[2 * size + 1 :], gathered, columns)
        virtual_table = torch.from_numpy(gathered.reshape(size, columns))
    # By position, which saves 0.3 us.
    return CommonAttentionMetadata(
        local_starts,
        starts_cpu,
        local_lens,
        seq_lens_cpu,
        torch.from_numpy(vectors[4 * size + 1 :]),
        size,
        int(metadata.num_actual_tokens),
        max_query_len,
        max_seq_len,
        virtual_table,
        metadata.slot_mapping,
    )


def _gather_on_device(
    table: torch.Tensor, rows: torch.Tensor, first: torch.Tensor, columns: int
) -> torch.Tensor:
    """Return `columns` columns of some rows of a table, each from its own first."""
    width = table.shape[1]
    if width == 0:
        return table.new_full((len(rows), columns), NULL_BLOCK_ID)
    steps = torch.arange(columns, dtype=torch.int64, device=table.device)
    indices = (first.unsqueeze(1) + steps).clamp_(0, width - 1)
    return table[rows.unsqueeze(1), indices]


@compiled("int64(int64, int64, int64, int64)")
def count_virtual_requests(
    starts_address: int, seq_lens_address: int, num_reqs: int, chunk_size: int
) -> int:
    """Count the chunks that requests touch; a request without tokens has one.

    Reads int32[num_reqs + 1], the starts, and int32[num_reqs], the lengths.
    """
    starts = int32s_at(starts_address, num_reqs + 1)
    seq_lens = int32s_at(seq_lens_address, num_reqs)
    size = 0
    for request in range(num_reqs):
        seq_len = np.int64(max(seq_lens[request], 0))
        query_len = min(np.int64(starts[request + 1]) - starts[request], seq_len)
        size += 1
        if query_len > 0:
            size += (seq_len - 1) // chunk_size - (seq_len - query_len) // chunk_size
    return size


@compiled("UniTuple(int64, 2)(int64, int64, int64, int64, int64, int64, int32[::1])")
def fill_virtual_requests(
    starts_address: int,
    seq_lens_address: int,
    num_reqs: int,
    chunk_size: int,
    columns: int,
    size: int,
    vectors: Int32s,
) -> tuple[Any, Any]:
    """Write the virtual requests; return the longest query and the longest sequence.

    `vectors` takes the starts of so many, their lengths, their requests, their first columns, and
    their computed tokens.
    """
    starts = int32s_at(starts_address, num_reqs + 1)
    seq_lens = int32s_at(seq_lens_address, num_reqs)
    max_query_len = np.int64(0)
    max_seq_len = np.int64(0)
    vectors[0] = 0
    token = np.int64(0)
    at = 0
    for request in range(num_reqs):
        seq_len = np.int64(max(seq_lens[request], 0))
        query_len = min(np.int64(starts[request + 1]) - starts[request], seq_len)
        position = seq_len - max(query_len, np.int64(0))
        chunk = max(np.int64(0), min(position, seq_len - 1)) // chunk_size
        while True:
            end = min((chunk + 1) * chunk_size, seq_len)
            query_len = end - position
            length = end - chunk * chunk_size
            token += query_len
            vectors[at + 1] = token
            vectors[size + 1 + at] = length
            vectors[2 * size + 1 + at] = request
            vectors[3 * size + 1 + at] = chunk * columns
            vectors[4 * size + 1 + at] = length - query_len
            max_query_len = max(max_query_len, query_len)
            max_seq_len = max(max_seq_len, length)
            at += 1
            position = end
            chunk += 1
            if position >= seq_len:
                break
    return max_query_len, max_seq_len


@compiled("void(int64, int64, int64, int32[::1], int32[::1], int64)")
def gather_columns(
    table_address: int,
    num_rows: int,
    width: int,
    rows_and_first: Int32s,
    gathered: Int32s,
    columns: int,
) -> None:
    """Copy columns of some rows, each from its own first; past the table's last, the last again.

    Reads int32[num_rows, width], the table.
    """
    table = int32s_at(table_address, num_rows * width)
    size = len(gathered) // columns
    for i in range(size):
        # Unsigned: other indices are tested for being negative, half of the time.
        row = np.uint64(rows_and_first[i] * width)
        first = np.uint64(min(rows_and_first[size + i], width))
        here = np.uint64(i * columns)
        inside = min(np.uint64(columns), np.uint64(width) - first)
        for k in range(np.uint64(0), inside):
            gathered[here + k] = table[row + first + k]
        last = table[row + np.uint64(width - 1)] if width else NULL_BLOCK_ID
        for k in range(inside, np.uint64(columns)):
            gathered[here + k] = last
