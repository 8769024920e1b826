"""A kernel that lists the programs of a causal convolution."""

from typing import Final

import numpy as np

from fast._native.compiler import Int32s
from fast.kernels.cuda import cuda, device_function, kernel
from fast.kernels.unsigned import divide_up
from fast.sentinels import PAD_SLOT_ID

BLOCK_M: Final = 8
"""Tokens of a sequence that one program of the convolution computes."""

MAX_THREADS: Final = 128
"""The most threads in a block."""


@device_function
def count_programs(query_start_loc: Int32s, stride: int, sequence: int) -> np.uint32:
    """Return how many programs a sequence has."""
    start = np.int64(query_start_loc[np.uint64(sequence * stride)])
    end = np.int64(query_start_loc[np.uint64((sequence + 1) * stride)])
    return np.uint32((max(end - start, np.int64(0)) + BLOCK_M - 1) // BLOCK_M)


@kernel("void(int32[::1], int64, int64, int32[::1], int32[::1])", threads=MAX_THREADS)
def fill_programs(
    query_start_loc: Int32s,
    stride: int,
    num_sequences: int,
    batch_ptr: Int32s,
    token_chunk_offset_ptr: Int32s,
) -> None:
    """List the programs of all sequences: each block of threads (x) has some of the sequences.

    The threads of a block add up the programs of all sequences and of those before its own, each
    some of them, then in pairs; then they share each sequence's programs, and all blocks share the
    padding after the last.

    Reads query_start_loc (every `stride`-th entry); writes its own sequences' entries of batch_ptr
    and token_chunk_offset_ptr, which have the same length, and every `gridsize`-th of the padding.
    There are fewer than 2**30 sequences and at most 2**31 tokens, so lists are below 2**32.
    """
    sums = cuda.shared.array((2, MAX_THREADS), np.uint32)
    thread = np.uint32(cuda.threadIdx.x)
    length = np.int64(batch_ptr.shape[0])
    share = divide_up(num_sequences, cuda.gridDim.x)
    own = np.uint32(cuda.blockIdx.x * share)
    before, total = np.uint32(0), np.uint32(0)
    sequence = thread
    while sequence < num_sequences:
        count = count_programs(query_start_loc, stride, sequence)
        total = np.uint32(total + count)
        if sequence < own:
            before = np.uint32(before + count)
        sequence = np.uint32(sequence + cuda.blockDim.x)
    sums[0, thread] = before
    sums[1, thread] = total
    width = np.uint32(cuda.blockDim.x)
    while width > 1:
        half = np.uint32((width + 1) // 2)
        cuda.syncthreads()
        if thread < width - half:
            sums[0, thread] += sums[0, np.uint32(thread + half)]
            sums[1, thread] += sums[1, np.uint32(thread + half)]
        width = half
    cuda.syncthreads()

    first = np.int64(sums[0, 0])
    sequence = own
    while sequence < min(np.int64(own + share), np.int64(num_sequences)):
        count = count_programs(query_start_loc, stride, sequence)
        program = thread
        while program < min(count, length - first):
            batch_ptr[np.uint64(first + program)] = sequence
            token_chunk_offset_ptr[np.uint64(first + program)] = program
            program = np.uint32(program + cuda.blockDim.x)
        first += count
        sequence = np.uint32(sequence + 1)
    end = np.int64(sums[1, 0])
    padding = np.uint32(cuda.grid(1))
    while padding < length - end:
        batch_ptr[np.uint64(end + padding)] = PAD_SLOT_ID
        token_chunk_offset_ptr[np.uint64(end + padding)] = PAD_SLOT_ID
        padding = np.uint32(padding + cuda.gridsize(1))
