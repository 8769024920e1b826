"""Count and list the programs of a causal convolution."""

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from fast._checks import INT32, check_starts
from fast._native.compiler import Int32s, Int64s, compiled, int32s_at
from fast._native.memory import locate
from fast.kernels.causal_conv1d import BLOCK_M
from fast.sentinels import PAD_SLOT_ID

MIN_PROGRAMS: Final = 1024
"""`batch_ptr` and `token_chunk_offset_ptr` have at least twice this length."""


class Programs(NamedTuple):
    """The programs of a batch of sequences, on the host.

    Attributes:
        nums: int32[num_sequences], programs of each sequence.
        total: Their sum.
        mlist: int64[total], the sequence of each program.
        offsetlist: int32[total], the offset of each program in its sequence.
        padded: int32[2, length], both lists padded with -1; empty unless requested.
        length: The length of the padded lists.
    """

    nums: npt.NDArray[np.int32]
    total: int
    mlist: npt.NDArray[np.int64]
    offsetlist: npt.NDArray[np.int32]
    padded: npt.NDArray[np.int32]
    length: int


def list_programs(starts: torch.Tensor, *, pad: bool) -> Programs:
    """List the programs of sequences; with `pad` also the padded lists.

    `starts` is int32[num_sequences + 1] on the CPU with at least one entry. Negative or decreasing
    starts are a ValueError, since they determine how much is allocated.
    """
    at, starts = locate("query_start_loc_p", starts, INT32)
    nums = np.empty(starts.nelement() - 1, dtype=np.int32)
    total = count_programs(at, nums)
    if total < 0:
        check_starts("query_start_loc_p", starts.numpy())
    mlist = np.empty(total, dtype=np.int64)
    offsetlist = np.empty(total, dtype=np.int32)
    length = 2 * max(MIN_PROGRAMS, total)
    padded = np.empty((2, length if pad else 0), dtype=np.int32)
    write_programs(nums, mlist, offsetlist, padded)
    return Programs(nums, total, mlist, offsetlist, padded, length)


@compiled("int64(int64, int32[::1])")
def count_programs(starts_address: int, nums: Int32s) -> Any:
    """Write how many programs each sequence has; return their sum, or -1 if starts decrease.

    Reads int32[num_sequences + 1], the starts.
    """
    starts = int32s_at(starts_address, len(nums) + 1)
    total = np.int64(0)
    falls = np.int64(starts[0])
    for i in range(len(nums)):
        num_tokens = np.int64(starts[i + 1]) - np.int64(starts[i])
        falls |= num_tokens
        nums[i] = (max(num_tokens, np.int64(0)) + BLOCK_M - 1) // BLOCK_M
        total += nums[i]
    return total if falls >= 0 else np.int64(-1)


@compiled("void(int32[::1], int64[::1], int32[::1], int32[:, ::1])")
def write_programs(nums: Int32s, mlist: Int64s, offsetlist: Int32s, padded: Int32s) -> None:
    """Write the sequence of each program, and its offset in the sequence.

    `padded`, unless it is empty, gets both lists too, with padding after them.
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
    # Row by row, and with unsigned indices: 2048 entries of each take a fifth of the time.
    for k in range(at, np.uint64(padded.shape[1])):
        padded[0, k] = PAD_SLOT_ID
    for k in range(at, np.uint64(padded.shape[1])):
        padded[1, k] = PAD_SLOT_ID
