"""Assign the tokens of a causal convolution to programs."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

BLOCK_M = 8
MIN_PROGRAMS = 1024


def compute_causal_conv1d_metadata(
    query_start_loc_p: torch.Tensor,
) -> tuple[dict[int, dict[str, Any]], torch.Tensor, torch.Tensor]:
    """List the programs of a causal convolution; the argument is that of `reference`."""
    num_tokens = np.diff(query_start_loc_p.numpy())
    nums = (num_tokens + (BLOCK_M - 1)) // BLOCK_M
    ends = np.cumsum(nums)
    total = int(ends[-1]) if len(ends) else 0
    sequence = np.repeat(np.arange(len(nums)), nums)
    program = (np.arange(total) - np.repeat(ends - nums, nums)).astype(np.int32)
    length = 2 * max(MIN_PROGRAMS, total)
    padded = np.full((2, length), -1, np.int32)
    padded[0, :total] = sequence
    padded[1, :total] = program
    batch_ptr, token_chunk_offset_ptr = map(torch.from_numpy, padded)
    described = {
        "nums": torch.from_numpy(nums),
        "tot": total,
        "mlist": torch.from_numpy(sequence),
        "mlist_len": total,
        "offsetlist": torch.from_numpy(program),
        "batch_ptr": batch_ptr,
        "token_chunk_offset_ptr": token_chunk_offset_ptr,
    }
    return {BLOCK_M: described}, batch_ptr, token_chunk_offset_ptr
