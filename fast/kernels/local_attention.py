"""A kernel for the block table of chunked local attention."""

import numpy as np

from fast._native.compiler import Int32s
from fast.kernels.cuda import cuda, kernel
from fast.sentinels import NULL_BLOCK_ID


@kernel("void(int32[::1], int64, int64, int64, int64, int32[::1], int32[::1], int32[:, ::1])")
def gather_columns(
    table: Int32s,
    row_stride: int,
    column_stride: int,
    num_rows: int,
    num_columns: int,
    rows: Int32s,
    first_columns: Int32s,
    gathered: Int32s,
) -> None:
    """Copy columns of some rows of a table: one block of threads for each row of `gathered` (x).

    Its threads share the columns: each copies every `blockDim.x`-th of them. Past the table's last
    column, the last one is copied again; if the table has no such row, or no columns, the null
    block is written.

    Reads rows, first_columns, table (flat, accessed through its strides); writes its own row of
    gathered, which has fewer than 2**31 columns.
    """
    here = np.uint32(cuda.blockIdx.x)
    row = np.int64(rows[here])
    first = np.int64(first_columns[here])
    is_in_table = row >= 0 and row < num_rows and num_columns > 0
    k = np.uint32(cuda.threadIdx.x)
    while k < gathered.shape[1]:
        block_id = np.int32(NULL_BLOCK_ID)
        if is_in_table:
            column = max(np.int64(0), min(first + k, num_columns - 1))
            block_id = table[np.uint64(row * row_stride + column * column_stride)]
        gathered[here, k] = block_id
        k = np.uint32(k + cuda.blockDim.x)
