"""Express chunked local attention as ordinary attention over virtual requests."""

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from fast._checks import check_divisor, check_int
from fast._native.local_attention import find_virtual_requests, gather_columns
from fast._native.memory import as_array, plain
from fast.checked_mode import is_checked
from fast.kernels import local_attention as kernels
from fast.launch import launch_blocks, uses_kernels
from fast.metadata import CommonAttentionMetadata
from fast.metadata_validation import (
    read_block_table,
    read_counts,
    read_optional,
    read_slot_mapping,
    validate_metadata,
)
from fast.operators import check_not_traced
from fast.pinned import upload
from fast.row_moves import find_unit
from fast.slots import flat

_OPTIONAL: Final = (
    *("is_prefilling", "positions", "seq_lens_cpu_upper_bound", "max_logits_per_req", "req_idx"),
)


def make_local_attention_virtual_batches(
    attn_chunk_size: int, common_attn_metadata: Any, block_size: int = 0
) -> CommonAttentionMetadata:
    """Make one virtual request of each chunk that a request's query tokens touch.

    On a GPU the call does not synchronise, except in checked mode: the virtual requests are counted
    on the host. An engine's own metadata is accepted. Outside checked mode only `num_reqs`,
    `num_actual_tokens`, `query_start_loc_cpu`, `seq_lens_cpu`, `block_table_tensor`, `slot_mapping`
    and the optional fields that are kept are read. Starts that decrease or exceed
    `num_actual_tokens` are always rejected, since they determine how much is allocated.

    Definition: `reference.make_local_attention_virtual_batches`.
    """
    chunk_size = check_int("attn_chunk_size", attn_chunk_size)
    block_size = check_int("block_size", block_size)
    check_divisor("block_size", block_size, "attn_chunk_size", chunk_size)
    check_not_traced("make_local_attention_virtual_batches")
    metadata = common_attn_metadata
    if is_checked():
        validate_metadata(metadata, block_size)
    if metadata.seq_lens_cpu is None:
        raise ValueError("seq_lens_cpu is None, but chunks need the exact lengths on the host")
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
    optional = read_optional(metadata, _OPTIONAL, num_reqs, num_tokens)
    starts_cpu = torch.from_numpy(vectors[: size + 1])
    seq_lens_cpu = torch.from_numpy(vectors[size + 1 : 2 * size + 1])
    if uses_kernels(table):
        on_device = upload(vectors[: 4 * size + 1], table.device, pin_memory=True)
        local_starts, local_lens, rows, first = on_device.split_with_sizes(
            [size + 1, size, size, size]
        )
        virtual_table = _gather_on_device(table, rows, first, columns)
    else:
        local_starts, local_lens = starts_cpu, seq_lens_cpu
        virtual_table = gather_columns(table, virtual, columns)
    if optional:
        _repeat(optional, vectors[2 * size + 1 : 3 * size + 1], seq_lens_cpu)
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
        **optional,
    )


def _repeat(
    optional: dict[str, Any], requests: npt.NDArray[np.int32], seq_lens_cpu: torch.Tensor
) -> None:
    """Let optional fields have the entry of each virtual request's request."""
    if "is_prefilling" in optional:
        values = as_array("is_prefilling", optional["is_prefilling"])
        optional["is_prefilling"] = torch.from_numpy(values[requests])
    if "req_idx" in optional:
        optional["req_idx"] = optional["req_idx"][requests]
    if "seq_lens_cpu_upper_bound" in optional:
        optional["seq_lens_cpu_upper_bound"] = seq_lens_cpu


def _gather_on_device(
    table: torch.Tensor, rows: torch.Tensor, first: torch.Tensor, columns: int
) -> torch.Tensor:
    """Return `columns` columns of some rows of a table, each from its own first column on."""
    table = plain("block_table_tensor", table)
    gathered = table.new_empty((len(rows), columns))
    # A chunk begins at a multiple of `columns`.
    size = find_unit(table, gathered, 4 * (table.stride(0) | columns))
    launch_blocks(
        kernels.gather_columns,
        len(rows),
        1,
        flat(table).view(torch.uint8),
        *table.stride(),
        *table.shape,
        rows,
        first,
        gathered.view(-1).view(torch.uint8),
        columns,
        max(size, 4),
    )
    return gathered
