"""A kernel for the block table of chunked local attention."""

import numpy as np

from fast._native.compiler import Int32s
from fast.kernels.cuda import cuda, kernel
from fast.kernels.moves import Bytes, copy_bytes, fill_bytes
from fast.kernels.unsigned import divide
from fast.sentinels import NULL_BLOCK_ID


@kernel(
    "void(uint8[::1], int64, int64, int64, int64, int32[::1], int32[::1], uint8[::1], int64, int64)"
)
def gather_columns(
    table: Bytes,
    row_stride: int,
    column_stride: int,
    num_rows: int,
    num_columns: int,
    rows: Int32s,
    first_columns: Int32s,
    gathered: Bytes,
    num_gathered: int,
    size: int,
) -> None:
    """Copy `num_gathered` columns of some rows of a table: one block of threads for a row (x).

    Its threads share the columns. Those that the table has are copied `size` bytes at once, 4 of
    which are a block ID; past the table's last column, that is copied again. If the table has no
    such row, or no columns, the null block is written.

    Reads rows, first_columns, table (flat, accessed through its strides in IDs); writes its own row
    of gathered, which has fewer than 2**31 columns. The host makes `size` a divisor of the address
    of every row and of every first column.
    """
    here = np.uint32(cuda.blockIdx.x)
    row = np.int64(rows[here])
    first = np.int64(first_columns[here])
    begin = np.int64(here) * num_gathered
    is_in_table = row >= 0 and row < num_rows and num_columns > 0
    num_units = np.uint32(0)
    if is_in_table and first >= 0 and column_stride == 1:
        inside = max(np.int64(0), min(num_columns - first, np.int64(num_gathered)))
        num_units, _ = divide(inside, size // 4)
        unit = np.uint32(cuda.threadIdx.x)
        while unit < num_units:
            source = np.uint64(4 * (row * row_stride + first) + unit * size)
            copy_bytes(gathered, np.uint64(4 * begin + unit * size), table, source, size)
            unit = np.uint32(unit + cuda.blockDim.x)
    k = np.uint32(num_units * (size // 4) + cuda.threadIdx.x)
    while k < num_gathered:
        target = np.uint64(4 * (begin + k))
        if is_in_table:
            column = max(np.int64(0), min(first + k, num_columns - 1))
            source = np.uint64(4 * (row * row_stride + column * column_stride))
            copy_bytes(gathered, target, table, source, 4)
        else:
            fill_bytes(gathered, target, NULL_BLOCK_ID, 4)
        k = np.uint32(k + cuda.blockDim.x)
