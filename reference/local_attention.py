"""Chunked local attention as ordinary paged attention, over virtual requests."""

from __future__ import annotations

from typing import Any

import numpy as np

from reference._checks import check_divisor, check_size
from reference.block_table import NULL_BLOCK_ID
from reference.metadata import CommonAttentionMetadata, validate_metadata


def make_local_attention_virtual_batches(
    attn_chunk_size: int, common_attn_metadata: CommonAttentionMetadata, block_size: int = 0
) -> CommonAttentionMetadata:
    """Make one virtual request of each chunk that a request's query tokens touch.

    In chunked local attention a query at position `p` sees the keys of its own chunk,
    `p // attn_chunk_size`, up to itself. An ordinary attention kernel computes the same over
    virtual requests. The query tokens of a request are at the last positions of its sequence. Those
    in chunk `k` become one virtual request, in ascending order of `k`. Its sequence length is
    `min((k + 1) * attn_chunk_size, s_i) - k * attn_chunk_size`; the tokens of it that are not query
    tokens count as computed. Its row has the request's blocks of that chunk; a column past the
    table's width repeats the last column (`NULL_BLOCK_ID` if the table has no columns).

    A request without query tokens becomes one virtual request without query tokens. Its sequence is
    the part of its last position's chunk up to that position, all of it computed.

    Args:
        attn_chunk_size: Positions in a chunk.
        common_attn_metadata: The batch, valid.
        block_size: Positions in a block; must be given, and divide `attn_chunk_size`.

    Returns:
        A new metadata of the virtual requests. `max_query_len` and `max_seq_len` are their maxima,
        and the block table is int32[num_virtual_requests, attn_chunk_size / block_size].
        `num_actual_tokens` and `max_logits_per_req` are unchanged; `slot_mapping` and `positions`
        are the same objects. `is_prefilling` and `req_idx` have the entry of each virtual request's
        request. `seq_lens_cpu_upper_bound`, if the batch has it, is the new `seq_lens_cpu`. It is
        causal. All other optional fields are None, since the virtual sequences are others.

    Raises:
        TypeError: An argument or a field of the wrong type or dtype.
        ValueError: A size below 1, a `block_size` that does not divide `attn_chunk_size`, an
            invalid metadata, one without `seq_lens_cpu`: a bound of a length does not say in which
            chunk its tokens are.

    Example:
        >>> import numpy as np
        >>> starts, lens = np.array([0, 4, 14, 19], np.int32), np.array([6, 17, 9], np.int32)
        >>> computed = np.array([2, 7, 4], np.int32)
        >>> columns = np.array([range(9)] * 3, np.int32)
        >>> batch = CommonAttentionMetadata(
        ...     starts, starts, lens, lens, computed, 3, 19, 10, 17, columns, np.arange(19)
        ... )
        >>> virtual = make_local_attention_virtual_batches(4, batch, block_size=2)
        >>> np.diff(virtual.query_start_loc).tolist()
        [2, 2, 1, 4, 4, 1, 4, 1]
        >>> virtual.seq_lens.tolist()
        [4, 2, 4, 4, 4, 1, 4, 1]
        >>> virtual.block_table_tensor.tolist()
        [[0, 1], [2, 3], [2, 3], [4, 5], [6, 7], [8, 8], [2, 3], [4, 5]]

    Source: the definition is kvtwin's own; the names are vLLM's.
    """
    chunk = check_size("attn_chunk_size", attn_chunk_size)
    block_size = check_size("block_size", block_size)
    check_divisor("block_size", block_size, "attn_chunk_size", chunk)
    validate_metadata(common_attn_metadata, block_size)
    if common_attn_metadata.seq_lens_cpu is None:
        raise ValueError("seq_lens_cpu is None, but chunks need the exact lengths on the host")
    all_starts = common_attn_metadata.query_start_loc.tolist()
    all_seq_lens = common_attn_metadata.seq_lens.tolist()
    block_table = common_attn_metadata.block_table_tensor

    query_lens, seq_lens, rows, owners = [], [], [], []
    for request in range(int(common_attn_metadata.num_reqs)):
        seq_len = all_seq_lens[request]
        first_query = seq_len - (all_starts[request + 1] - all_starts[request])
        request_row = block_table[request].tolist()
        for chunk_index in _chunks_touched(first_query, seq_len, chunk):
            chunk_start = chunk_index * chunk
            chunk_stop = min(chunk_start + chunk, seq_len)
            query_lens.append(chunk_stop - max(first_query, chunk_start))
            seq_lens.append(chunk_stop - chunk_start)
            owners.append(request)
            rows.append(_row_of_chunk(request_row, chunk_start // block_size, chunk // block_size))

    starts = [0]
    for query_len in query_lens:
        starts.append(starts[-1] + query_len)
    computed = [s - q for s, q in zip(seq_lens, query_lens, strict=True)]
    seq_lens_cpu = np.array(seq_lens, dtype=np.int32)
    has_bounds = getattr(common_attn_metadata, "seq_lens_cpu_upper_bound", None) is not None
    most_logits = getattr(common_attn_metadata, "max_logits_per_req", None)
    optional: dict[str, Any] = {
        "positions": getattr(common_attn_metadata, "positions", None),
        "seq_lens_cpu_upper_bound": seq_lens_cpu if has_bounds else None,
        "max_logits_per_req": None if most_logits is None else int(most_logits),
    }
    for name in ("is_prefilling", "req_idx"):
        values = getattr(common_attn_metadata, name, None)
        optional[name] = None if values is None else values[np.array(owners, dtype=np.int64)]
    return CommonAttentionMetadata(
        query_start_loc=np.array(starts, dtype=np.int32),
        query_start_loc_cpu=np.array(starts, dtype=np.int32),
        seq_lens=np.array(seq_lens, dtype=np.int32),
        seq_lens_cpu=seq_lens_cpu,
        num_computed_tokens_cpu=np.array(computed, dtype=np.int32),
        num_reqs=len(rows),
        num_actual_tokens=int(common_attn_metadata.num_actual_tokens),
        max_query_len=max(query_lens, default=0),
        max_seq_len=max(seq_lens, default=0),
        block_table_tensor=np.array(rows, dtype=np.int32).reshape(len(rows), chunk // block_size),
        slot_mapping=common_attn_metadata.slot_mapping,
        causal=True,
        **optional,
    )


def _chunks_touched(first_query: int, seq_len: int, chunk: int) -> range:
    """Return the chunks of the query positions `first_query .. seq_len - 1`, at least one."""
    if seq_len == 0:
        return range(1)
    last_chunk = (seq_len - 1) // chunk
    if first_query == seq_len:
        return range(last_chunk, last_chunk + 1)
    return range(first_query // chunk, last_chunk + 1)


def _row_of_chunk(request_row: list[int], first_column: int, num_columns: int) -> list[int]:
    """Return columns of a row, the last one repeated past its end; nulls if the row is empty."""
    if not request_row:
        return [NULL_BLOCK_ID] * num_columns
    row = request_row[first_column : first_column + num_columns]
    return row + request_row[-1:] * (num_columns - len(row))
