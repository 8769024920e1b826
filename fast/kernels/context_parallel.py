"""A kernel for the lengths of sequences on a context-parallel rank."""

import numpy as np

from fast._native.compiler import Int32s
from fast.kernels.cuda import cuda, kernel


@kernel("void(int32[::1], int64, int64, int64, int64, int64, int64, int64, int32[::1])")
def count_local_tokens(
    seq_lens: Int32s,
    step: int,
    num_reqs: int,
    size: int,
    first_rank: int,
    num_ranks: int,
    interleave: int,
    num_rows: int,
    local: Int32s,
) -> None:
    """Count the tokens of each sequence on each of some ranks: one thread for a row of `local`.

    Reads the first `num_reqs` of seq_lens (flat, accessed through its stride); writes its own row
    of local, `num_ranks` entries, 0 past the sequences. The host keeps `size * interleave` below
    2**31.
    """
    row = np.int64(cuda.grid(1))
    if row >= num_rows:
        return
    rounds, rest, most = np.int64(0), np.int64(0), np.int64(0)
    if row < num_reqs:
        length = np.int64(seq_lens[np.uint64(row * step)])
        rounds = np.int64(np.uint32(length) // np.uint32(size * interleave)) * interleave
        rest = length - rounds * size - first_rank * interleave
        most = np.int64(interleave)
    for rank in range(num_ranks):
        local[np.uint64(row * num_ranks + rank)] = rounds + min(max(rest, np.int64(0)), most)
        rest -= interleave
