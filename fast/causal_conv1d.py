"""Which program of a causal convolution computes which tokens."""

from typing import Any, Final

import numpy as np
import torch

from fast._checks import IntArray, check_host, check_starts, check_tensor
from fast._native.causal_conv1d import list_programs
from fast._native.memory import plain, to_host
from fast.checked_mode import is_checked
from fast.kernels import causal_conv1d as kernels
from fast.kernels.causal_conv1d import BLOCK_M
from fast.launch import launch_blocks, threads_at_once, threads_in_block, uses_kernels
from fast.slots import flat

MAX_BLOCKS: Final = 1024
"""The most blocks of threads that list programs: each reads all starts."""


def compute_causal_conv1d_metadata(
    query_start_loc_p: torch.Tensor, *, query_start_loc_p_cpu: torch.Tensor | None = None
) -> tuple[dict[int, dict[str, Any]], torch.Tensor, torch.Tensor]:
    """List the programs of a causal convolution: one for each 8 tokens of each sequence.

    On a GPU this waits for the device, unless the starts are given on the CPU as well.

    Args:
        query_start_loc_p: int32[num_sequences + 1], each sequence's first token, then their number.
        query_start_loc_p_cpu: int32[num_sequences + 1], the same on the CPU; with it nothing waits.
            `reference` has no such argument.

    Returns:
        `({8: d}, batch_ptr, token_chunk_offset_ptr)`. The two tensors are int32[2 * max(1024,
        programs)] on the input's device: the sequence of each program and its number within the
        sequence, -1 behind the last. Both are in `d` too, with `nums`: int32[num_sequences], on
        the CPU, programs of each sequence; `tot` and `mlist_len`: their sum; `mlist`:
        int64[programs] and `offsetlist`: int32[programs], on the CPU, what the tensors begin with.

    Raises:
        TypeError: an argument of another type or dtype.
        ValueError: starts that are empty, negative or decrease; starts on the CPU that are
            elsewhere or of another length. In checked mode also starts that don't begin at 0, or
            that differ from those on the CPU.

    Example:
        >>> import torch
        >>> starts = torch.tensor([0, 9, 9, 25], dtype=torch.int32)
        >>> nums_dict, batch_ptr, token_chunk_offset_ptr = compute_causal_conv1d_metadata(starts)
        >>> nums_dict[8]["nums"].tolist(), batch_ptr[:5].tolist()
        ([2, 0, 2], [0, 0, 2, 2, -1])
        >>> token_chunk_offset_ptr[:5].tolist()
        [0, 1, 0, 1, -1]

    Source: the definition is kvtwin's own; the name is vLLM's.
    """
    starts = _host_starts(query_start_loc_p, query_start_loc_p_cpu)
    on_device = uses_kernels(query_start_loc_p)
    programs = list_programs(starts, pad=not on_device)
    total = programs.total
    if on_device:
        starts_there = plain("query_start_loc_p", query_start_loc_p)
        batch_ptr = starts_there.new_empty(programs.length)
        token_chunk_offset_ptr = starts_there.new_empty(programs.length)
        blocks_at_once = threads_at_once() // threads_in_block(kernels.fill_programs)
        launch_blocks(
            kernels.fill_programs,
            max(min(len(programs.nums), MAX_BLOCKS, blocks_at_once), 1),
            1,
            flat(starts_there),
            starts_there.stride(0),
            len(programs.nums),
            batch_ptr,
            token_chunk_offset_ptr,
        )
    else:
        batch_ptr = torch.from_numpy(programs.padded[0])
        token_chunk_offset_ptr = torch.from_numpy(programs.padded[1])
    described = {
        "nums": torch.from_numpy(programs.nums),
        "tot": total,
        "mlist": torch.from_numpy(programs.mlist),
        "mlist_len": total,
        "offsetlist": torch.from_numpy(programs.offsetlist),
        "batch_ptr": batch_ptr,
        "token_chunk_offset_ptr": token_chunk_offset_ptr,
    }
    return {BLOCK_M: described}, batch_ptr, token_chunk_offset_ptr


def _host_starts(starts: torch.Tensor, copy: torch.Tensor | None) -> torch.Tensor:
    """Return the starts on the host, one behind another, from their copy if there is one."""
    check_tensor("query_start_loc_p", starts, torch.int32, 1)
    if starts.shape[0] == 0:
        raise ValueError("query_start_loc_p is empty, expected num_reqs + 1 entries")
    if copy is not None:
        check_tensor("query_start_loc_p_cpu", copy, torch.int32, 1)
        check_host("query_start_loc_p_cpu", copy)
        if copy.shape[0] != starts.shape[0]:
            raise ValueError(
                f"query_start_loc_p_cpu has {len(copy)} entries, but query_start_loc_p has"
                f" {len(starts)}"
            )
    if is_checked():
        values = to_host("query_start_loc_p", starts)
        check_starts("query_start_loc_p", values)
        if copy is not None:
            _check_copy(values, to_host("query_start_loc_p_cpu", copy))
    if copy is not None:
        return copy
    return starts if starts.is_cpu else plain("query_start_loc_p", starts).cpu()


def _check_copy(starts: IntArray, copy: IntArray) -> None:
    """Refuse a copy on the CPU that differs from what it is a copy of."""
    unlike = np.flatnonzero(starts != copy)
    if len(unlike):
        at = unlike[0]
        raise ValueError(
            f"query_start_loc_p_cpu[{at}] is {copy[at]}, but query_start_loc_p[{at}] is"
            f" {starts[at]}"
        )
