"""Which program of a causal convolution computes which tokens."""

from typing import Any, Final

import numpy as np
import torch

from fast._checks import (
    IntArray,
    address_of,
    check_host,
    check_starts,
    check_tensor,
    is_checked,
    to_host,
)
from fast._compiled import Int32s, Int64s, compiled, int32s_at
from fast.kernels import causal_conv1d as kernels
from fast.kernels.causal_conv1d import BLOCK_M
from fast.launch import launch_blocks, threads_at_once, threads_in_block, uses_kernels
from fast.sentinels import PAD_SLOT_ID
from fast.slots import flat

MIN_PROGRAMS: Final = 1024
"""The lists for the kernel have room for twice so many programs, or for twice those there are."""

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
        ValueError: starts that are empty, or lists that would be too long; starts on the CPU that
            are elsewhere or of another length. In checked mode also starts that don't rise from 0,
            or that differ from those on the CPU.

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
    nums = np.empty(starts.shape[0] - 1, dtype=np.int32)
    total, most = count_programs.run(address_of("query_start_loc_p", starts), nums)
    # Starts that fall, unchecked, must not take memory for more than good ones can need.
    if total > most:
        raise ValueError(
            f"query_start_loc_p needs {total} programs, expected no more than {starts[-1]} tokens"
            f" of {len(nums)} sequences can need"
        )
    mlist = np.empty(total, dtype=np.int64)
    offsetlist = np.empty(total, dtype=np.int32)
    length = 2 * max(MIN_PROGRAMS, total)
    on_device = uses_kernels(query_start_loc_p)
    padded = np.empty((2, 0 if on_device else length), dtype=np.int32)
    list_programs.run(nums, mlist, offsetlist, padded)
    if on_device:
        batch_ptr = query_start_loc_p.new_empty(length)
        token_chunk_offset_ptr = query_start_loc_p.new_empty(length)
        blocks_at_once = threads_at_once() // threads_in_block(kernels.fill_programs)
        launch_blocks(
            kernels.fill_programs,
            max(min(len(nums), MAX_BLOCKS, blocks_at_once), 1),
            1,
            flat(query_start_loc_p),
            query_start_loc_p.stride(0),
            len(nums),
            batch_ptr,
            token_chunk_offset_ptr,
        )
    else:
        batch_ptr = torch.from_numpy(padded[0])
        token_chunk_offset_ptr = torch.from_numpy(padded[1])
    described = {
        "nums": torch.from_numpy(nums),
        "tot": total,
        "mlist": torch.from_numpy(mlist),
        "mlist_len": total,
        "offsetlist": torch.from_numpy(offsetlist),
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
        values = to_host(starts)
        check_starts("query_start_loc_p", values)
        if copy is not None:
            _check_copy(values, copy.numpy())
    if copy is not None:
        return copy.contiguous()
    return starts.contiguous() if starts.is_cpu else starts.cpu()


def _check_copy(starts: IntArray, copy: IntArray) -> None:
    """Refuse a copy on the CPU that differs from what it is a copy of."""
    unlike = np.flatnonzero(starts != copy)
    if len(unlike):
        at = unlike[0]
        raise ValueError(
            f"query_start_loc_p_cpu[{at}] is {copy[at]}, but query_start_loc_p[{at}] is"
            f" {starts[at]}"
        )


@compiled("UniTuple(int64, 2)(int64, int32[::1])")
def count_programs(starts_address: int, nums: Int32s) -> tuple[Any, Any]:
    """Write how many programs each sequence has; return their sum, and the most that it can be.

    Reads int32, the starts, one more than there are sequences.
    """
    starts = int32s_at(starts_address, len(nums) + 1)
    total = 0
    for i in range(len(nums)):
        num_tokens = np.int64(starts[i + 1]) - np.int64(starts[i])
        nums[i] = (max(num_tokens, np.int64(0)) + BLOCK_M - 1) // BLOCK_M
        total += nums[i]
    return total, np.int64(starts[len(nums)]) // BLOCK_M + len(nums)


@compiled("void(int32[::1], int64[::1], int32[::1], int32[:, ::1])")
def list_programs(nums: Int32s, mlist: Int64s, offsetlist: Int32s, padded: Int32s) -> None:
    """Write the sequence of each program, and its number within the sequence.

    `padded`, unless it is empty, takes both once more, with padding behind them.
    """
    at = np.uint64(0)
    is_padded = padded.shape[1] > 0
    for i in range(len(nums)):
        for program in range(nums[i]):
            mlist[at] = i
            offsetlist[at] = program
            if is_padded:
                padded[0, at] = i
                padded[1, at] = program
            at += np.uint64(1)
    # Each row on its own, and unsigned: 2048 entries of each in a fifth of the time.
    for k in range(at, np.uint64(padded.shape[1])):
        padded[0, k] = PAD_SLOT_ID
    for k in range(at, np.uint64(padded.shape[1])):
        padded[1, k] = PAD_SLOT_ID
