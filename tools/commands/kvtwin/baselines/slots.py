"""The slot of every token."""

from __future__ import annotations

import numpy as np
import torch


def compute_slot_mapping(
    block_table: torch.Tensor,
    query_start_loc: torch.Tensor,
    positions: torch.Tensor,
    block_size: int,
    *,
    kernel_block_size: int | None = None,
    cp_world_size: int = 1,
    cp_rank: int = 0,
    cp_kv_cache_interleave_size: int = 1,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Compute the slot of every token; arguments are those of `reference`."""
    table, starts, where = block_table.numpy(), query_start_loc.numpy(), positions.numpy()
    if out is None:
        out = torch.empty(len(where), dtype=torch.int64, device=positions.device)
    slots = out.numpy()
    num_tokens = int(starts[-1])
    request = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    where = where[:num_tokens]
    kernel_size = block_size if kernel_block_size is None else kernel_block_size
    if cp_world_size == 1:
        column = where // kernel_size
        slots[:num_tokens] = table[request, column] * np.int64(kernel_size) + where % kernel_size
    else:
        interleave = cp_kv_cache_interleave_size
        virtual_size = block_size * cp_world_size
        inner = where % virtual_size
        is_mine = inner // interleave % cp_world_size == cp_rank
        offset = inner // (cp_world_size * interleave) * interleave + inner % interleave
        column = where // virtual_size * (block_size // kernel_size) + offset // kernel_size
        slot = table[request, np.where(is_mine, column, 0)] * np.int64(kernel_size)
        slots[:num_tokens] = np.where(is_mine, slot + offset % kernel_size, -1)
    slots[num_tokens:] = -1
    return out[: len(positions)]
