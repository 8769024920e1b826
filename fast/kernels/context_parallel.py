"""A kernel for the lengths of sequences on a context-parallel rank."""

import numpy as np

from fast._native.compiler import Int32s
from fast.kernels.cuda import cuda, kernel


@kernel("void(int32[::1], int64, int64, int64, int64, int64, int64, int32[::1])")
def count_local_tokens(
    seq_lens: Int32s,
    step: int,
    num_reqs: int,
    size: int,
    first_rank: int,
    num_ranks: int,
    interleave: int,
    local: Int32s,
) -> None:
    """Count the tokens of each sequence on each of some ranks: one thread for an entry of `local`.

    Reads the first `num_reqs` of seq_lens (flat, accessed through its stride); writes its own entry
    of local, which has `num_ranks` for each sequence, 0 past the sequences. The host keeps `size *
    interleave` below 2**31.
    """
    entry = np.int64(cuda.grid(1))
    if entry >= local.shape[0]:
        return
    row, rank = entry, np.int64(first_rank)
    if num_ranks > 1:
        row = np.int64(np.uint64(entry) // np.uint64(num_ranks))
        rank += entry - row * num_ranks
    mine = np.int64(0)
    if row < num_reqs:
        length = np.int64(seq_lens[np.uint64(row * step)])
        rounds = np.int64(np.uint32(length) // np.uint32(size * interleave))
        rest = length - rounds * size * interleave - rank * interleave
        mine = rounds * interleave + min(max(rest, np.int64(0)), np.int64(interleave))
    local[np.uint64(entry)] = mine
