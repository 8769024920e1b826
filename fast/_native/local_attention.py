"""Find the virtual requests of chunked local attention, and their rows of the block table."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from fast._checks import INT32, check_starts
from fast._native.compiler import Int32s, compiled, int32s_at
from fast._native.memory import locate, locate_table
from fast.sentinels import NULL_BLOCK_ID


class VirtualRequests(NamedTuple):
    """The virtual requests of a batch, on the host.

    Attributes:
        size: Their number.
        vectors: int32[5 * size + 1]: their starts, lengths, requests, first columns in the block
            table, and computed tokens, one vector after another.
        max_query_len: The longest query, in tokens.
        max_seq_len: The longest sequence, in tokens.
    """

    size: int
    vectors: npt.NDArray[np.int32]
    max_query_len: int
    max_seq_len: int


def find_virtual_requests(
    query_start_loc_cpu: torch.Tensor,
    seq_lens_cpu: torch.Tensor,
    num_reqs: int,
    num_actual_tokens: int,
    chunk_size: int,
    columns: int,
) -> VirtualRequests:
    """Find the chunks of `columns` blocks that the requests' new tokens touch.

    Starts that decrease, or exceed `num_actual_tokens`, are a ValueError, since they determine how
    much is allocated.
    """
    starts_at, starts = locate("query_start_loc_cpu", query_start_loc_cpu, INT32, num_reqs + 1)
    seq_lens_at, _seq_lens = locate("seq_lens_cpu", seq_lens_cpu, INT32, num_reqs)
    lengths = np.empty((num_reqs, 2), dtype=np.int32)
    size, num_tokens = count_virtual_requests(starts_at, seq_lens_at, chunk_size, lengths)
    if not 0 <= num_tokens <= num_actual_tokens:
        check_starts("query_start_loc_cpu", starts.numpy())
        raise ValueError(
            f"query_start_loc_cpu[-1] is {int(starts[-1])}, more than num_actual_tokens"
            f" {num_actual_tokens}"
        )
    vectors = np.empty(5 * size + 1, dtype=np.int32)
    longest = fill_virtual_requests(lengths, chunk_size, columns, size, vectors)
    return VirtualRequests(size, vectors, *longest)


def gather_columns(
    block_table: torch.Tensor, virtual: VirtualRequests, columns: int
) -> torch.Tensor:
    """Return int32[size, columns], the block-table rows of the virtual requests.

    `block_table` is int32[num_rows, max_blocks] on the CPU. Past its end, its last column is used.
    """
    _, whole, _, _ = locate_table("block_table_tensor", block_table, INT32)
    whole = whole.contiguous()  # contiguous rows are copied in a quarter of the time
    num_rows, width = whole.shape
    size = virtual.size
    rows_and_first = virtual.vectors[2 * size + 1 : 4 * size + 1]
    gathered = np.empty(size * columns, dtype=np.int32)
    copy_columns(whole.data_ptr(), num_rows, width, rows_and_first, gathered, columns)
    return torch.from_numpy(gathered.reshape(size, columns))


@compiled("UniTuple(int64, 2)(int64, int64, int64, int32[:, ::1])")
def count_virtual_requests(
    starts_address: int, seq_lens_address: int, chunk_size: int, lengths: Int32s
) -> tuple[Any, Any]:
    """Return how many chunks the requests touch, and their tokens; -1 tokens if starts decrease.

    A request without tokens has one chunk. Reads int32[num_reqs + 1], the starts, and
    int32[num_reqs], the lengths; writes each request's query and sequence length, which determine
    what is allocated, to int32[num_reqs, 2]: another thread may change what is read.
    """
    num_reqs = len(lengths)
    starts = int32s_at(starts_address, num_reqs + 1)
    seq_lens = int32s_at(seq_lens_address, num_reqs)
    size = np.int64(0)
    falls = np.int64(0)
    total = np.int64(0)
    start = np.int64(starts[0])
    for request in range(num_reqs):
        end = np.int64(starts[request + 1])
        seq_len = np.int64(max(seq_lens[request], 0))
        num_tokens = end - start
        start = end
        falls |= num_tokens
        total += num_tokens
        query_len = max(min(num_tokens, seq_len), np.int64(0))
        lengths[request, 0] = query_len
        lengths[request, 1] = seq_len
        size += 1
        if query_len > 0:
            size += (seq_len - 1) // chunk_size - (seq_len - query_len) // chunk_size
    return size, total if falls >= 0 else np.int64(-1)


@compiled("UniTuple(int64, 2)(int32[:, ::1], int64, int64, int64, int32[::1])")
def fill_virtual_requests(
    lengths: Int32s, chunk_size: int, columns: int, size: int, vectors: Int32s
) -> tuple[Any, Any]:
    """Write the virtual requests; return the longest query and the longest sequence.

    Reads each request's query and sequence length. Writes `vectors` as in `VirtualRequests`.
    """
    max_query_len = np.int64(0)
    max_seq_len = np.int64(0)
    vectors[0] = 0
    token = np.int64(0)
    at = 0
    for request in range(len(lengths)):
        query_len, seq_len = np.int64(lengths[request, 0]), np.int64(lengths[request, 1])
        position = seq_len - query_len
        chunk = max(np.int64(0), min(position, seq_len - 1)) // chunk_size
        while True:
            end = min((chunk + 1) * chunk_size, seq_len)
            query_len = end - position
            length = end - chunk * chunk_size
            token += query_len
            vectors[at + 1] = token
            vectors[size + 1 + at] = length
            vectors[2 * size + 1 + at] = request
            vectors[3 * size + 1 + at] = chunk * columns
            vectors[4 * size + 1 + at] = length - query_len
            max_query_len = max(max_query_len, query_len)
            max_seq_len = max(max_seq_len, length)
            at += 1
            position = end
            chunk += 1
            if position >= seq_len:
                break
    return max_query_len, max_seq_len


@compiled("void(int64, int64, int64, int32[::1], int32[::1], int64)")
def copy_columns(
    table_address: int,
    num_rows: int,
    width: int,
    rows_and_first: Int32s,
    gathered: Int32s,
    columns: int,
) -> None:
    """Copy columns of some rows, each from its own first on; past the end, copy the last again.

    Reads int32[num_rows, width], the table.
    """
    table = int32s_at(table_address, num_rows * width)
    size = len(gathered) // columns
    for i in range(size):
        # Unsigned: the test for negative indices takes half of the time.
        row = np.uint64(rows_and_first[i] * width)
        first = np.uint64(min(rows_and_first[size + i], width))
        here = np.uint64(i * columns)
        inside = min(np.uint64(columns), np.uint64(width) - first)
        for k in range(np.uint64(0), inside):
            gathered[here + k] = table[row + first + k]
        last = table[row + np.uint64(width - 1)] if width else NULL_BLOCK_ID
        for k in range(inside, np.uint64(columns)):
            gathered[here + k] = last
