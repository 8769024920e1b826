"""A kernel for fast prefill with a shared KV cache."""

import numpy as np

from fast._native.compiler import Int32s, Int64s
from fast.kernels.cuda import cuda, kernel


@kernel(
    "void(int32[::1], int64, int64, int32[::1], int64, int64, int32[::1],"
    " int64[::1], int64, int64, int64[::1])"
)
def count_logits_indices(
    query_start_loc: Int32s,
    starts_stride: int,
    num_reqs: int,
    indices: Int32s,
    indices_stride: int,
    num_indices: int,
    logits_start_loc: Int32s,
    positions: Int64s,
    positions_stride: int,
    num_positions: int,
    gathered: Int64s,
) -> None:
    """Count the needed tokens before each request, and gather their positions.

    One thread for every `gridsize`-th request and token. The indices increase, so those before a
    request's first token are found by binary search: no thread needs the result of another.

    Reads query_start_loc, the first `num_indices` of indices, positions (arrays are accessed
    through their strides); writes its own entries of logits_start_loc, `num_reqs + 1` of them, the
    first one 0, and of gathered, if there are positions, 0 for an index that is no token. The host
    keeps `num_reqs` and `num_indices` below 2**31.
    """
    request = np.uint32(cuda.grid(1))
    while request <= num_reqs:
        low = np.uint32(0)
        high = np.uint32(num_indices)
        if request == 0:
            high = np.uint32(0)
        start = query_start_loc[np.uint64(request * starts_stride)]
        while low < high:
            middle = np.uint32((low + high) // 2)
            if indices[np.uint64(middle * indices_stride)] < start:
                low = np.uint32(middle + 1)
            else:
                high = middle
        logits_start_loc[request] = low
        request = np.uint32(request + cuda.gridsize(1))
    token = np.uint32(cuda.grid(1))
    while token < gathered.shape[0]:
        index = np.int64(indices[np.uint64(token * indices_stride)])
        position = np.int64(0)
        if 0 <= index < num_positions:
            position = positions[np.uint64(index * positions_stride)]
        gathered[token] = position
        token = np.uint32(token + cuda.gridsize(1))
