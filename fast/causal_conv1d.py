"""Assign the tokens of a ragged batch to the programs of a causal convolution."""

from typing import Any, Final

import torch

from fast._checks import CPU, INT32, check_any_start, check_copy, check_starts, check_tensor
from fast._native.causal_conv1d import list_programs
from fast._native.memory import plain, to_host
from fast.checked_mode import is_checked
from fast.kernels import causal_conv1d as kernels
from fast.kernels.causal_conv1d import BLOCK_M
from fast.launch import launch_blocks, threads_at_once, threads_in_block, uses_kernels
from fast.operators import check_not_traced
from fast.slots import flat

MAX_BLOCKS: Final = 1024
"""The most blocks of threads that list programs, since each reads all starts."""


def compute_causal_conv1d_metadata(
    query_start_loc_p: torch.Tensor, *, query_start_loc_p_cpu: torch.Tensor | None = None
) -> tuple[dict[int, dict[str, Any]], torch.Tensor, torch.Tensor]:
    """List the programs of a causal convolution kernel: one for each run of 8 tokens.

    `nums`, `mlist` and `offsetlist` are on the CPU; `batch_ptr` and `token_chunk_offset_ptr` are on
    the device of the input. On a GPU the call synchronises, unless it is given the starts on the
    CPU too:

    - `query_start_loc_p_cpu`: int32[num_sequences + 1], the same values on the CPU.

    Negative and decreasing starts are always rejected, since they determine how much is allocated.
    Only checked mode rejects a first start other than 0, and CPU values that differ from those on
    the device.

    Definition: `reference.compute_causal_conv1d_metadata`.
    """
    check_not_traced("compute_causal_conv1d_metadata")
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
    """Return the starts on the CPU, from `copy` if it is given."""
    check_tensor("query_start_loc_p", starts, INT32, 1)
    check_any_start("query_start_loc_p", starts.shape[0])
    if copy is not None:
        check_tensor("query_start_loc_p_cpu", copy, INT32, 1, CPU)
        if copy.shape[0] != starts.shape[0]:
            raise ValueError(
                f"query_start_loc_p_cpu has {len(copy)} entries, but query_start_loc_p has"
                f" {len(starts)}"
            )
    if is_checked():
        values = to_host("query_start_loc_p", starts)
        check_starts("query_start_loc_p", values)
        if copy is not None:
            copied = to_host("query_start_loc_p_cpu", copy)
            check_copy("query_start_loc_p_cpu", copied, "query_start_loc_p", values)
    if copy is not None:
        return copy
    return starts if starts.is_cpu else plain("query_start_loc_p", starts).cpu()
