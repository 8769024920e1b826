"""The kernel for the causal convolution's lists of programs."""

from typing import Final

import numpy as np

from fast._compiled import Int32s
from fast.kernels.cuda import cuda, device_function, kernel
from fast.sentinels import PAD_SLOT_ID

BLOCK_M: Final = 8
"""Tokens of a sequence that one program of the convolution computes."""


@device_function
def count_programs(query_start_loc: Int32s, stride: int, sequence: int) -> np.int64:
    """Return how many programs a sequence has."""
    start = np.int64(query_start_loc[sequence * stride])
    end = np.int64(query_start_loc[(sequence + 1) * stride])
    return (max(end - start, np.int64(0)) + BLOCK_M - 1) // BLOCK_M


@kernel("void(int32[::1], int64, int64, int32[::1], int32[::1])")
def fill_programs(
    query_start_loc: Int32s,
    stride: int,
    num_sequences: int,
    batch_ptr: Int32s,
    token_chunk_offset_ptr: Int32s,
) -> None:
    """List the programs of all sequences: blocks of threads for some sequences (x) each.

    The threads of a block add up the programs of all sequences and of those before its own; then
    they share each sequence's programs, and all blocks share the padding behind the last.

    Reads query_start_loc (every `stride`-th entry); writes its own sequences' entries of batch_ptr
    and token_chunk_offset_ptr, as long as each other, and every `gridsize`-th of the padding.
    """
    sums = cuda.shared.array(2, np.int64)
    thread, threads = np.int64(cuda.threadIdx.x), np.int64(cuda.blockDim.x)
    length = np.int64(batch_ptr.shape[0])
    share = (num_sequences + cuda.gridDim.x - 1) // cuda.gridDim.x
    own = np.int64(cuda.blockIdx.x) * share
    if thread == 0:
        sums[0] = 0
        sums[1] = 0
    before, total = np.int64(0), np.int64(0)
    for sequence in range(thread, num_sequences, threads):
        count = count_programs(query_start_loc, stride, sequence)
        total += count
        if sequence < own:
            before += count
    cuda.syncthreads()
    cuda.atomic.add(sums, 0, before)
    cuda.atomic.add(sums, 1, total)
    cuda.syncthreads()

    first = sums[0]
    for sequence in range(own, min(own + share, num_sequences)):
        count = count_programs(query_start_loc, stride, sequence)
        for program in range(thread, min(count, length - first), threads):
            batch_ptr[first + program] = sequence
            token_chunk_offset_ptr[first + program] = program
        first += count
    for entry in range(sums[1] + cuda.grid(1), length, cuda.gridsize(1)):
        batch_ptr[entry] = PAD_SLOT_ID
        token_chunk_offset_ptr[entry] = PAD_SLOT_ID
