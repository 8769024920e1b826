"""Find the requests of micro-batches, and their starts, lengths and computed tokens."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fast._checks import INT32
from fast._native.compiler import Int32s, Int64s, compiled, int32s_at
from fast._native.memory import check_written, locate


def add_up(num_tokens: npt.NDArray[np.int64]) -> tuple[int, bool]:
    """Return the sum of some numbers, and whether it and all partial sums fit into an int64."""
    check_written("num_scheduled_tokens", num_tokens, np.int64, 1)
    total, fits = add_checked(num_tokens)
    return (total, True) if fits else (sum(num_tokens.tolist()), False)


def find_requests(num_tokens: npt.NDArray[np.int64], cuts: list[int], fits: bool) -> list[int]:
    """Return, for each interval between two cuts, its first request and the end of its requests.

    `num_tokens` is int64[at least 1], each request's tokens; `cuts` increase from 0 to the sum. If
    partial sums do not fit into an int64 (`fits` is False), Python ints are used.
    """
    if not fits:
        limits = [0] * (2 * len(cuts) - 2)
        write_requests(num_tokens.tolist(), cuts, limits)
        return limits
    check_written("num_scheduled_tokens", num_tokens, np.int64, 1)
    bounds = np.empty(2 * len(cuts) - 2, dtype=np.int64)
    write_requests_of_int64(num_tokens, np.array(cuts, dtype=np.int64), bounds)
    found: list[int] = bounds.tolist()
    return found


class BatchVectors:
    """A batch's vectors on the host, verified once for all its micro-batches.

    They are `query_start_loc_cpu`, int32[num_reqs + 1], `seq_lens_cpu` and
    `num_computed_tokens_cpu`, int32[num_reqs].
    """

    def __init__(
        self,
        query_start_loc_cpu: torch.Tensor,
        seq_lens_cpu: torch.Tensor,
        num_computed_tokens_cpu: torch.Tensor,
        num_reqs: int,
    ) -> None:
        self.num_reqs = num_reqs
        starts_at, self.starts = locate(
            "query_start_loc_cpu", query_start_loc_cpu, INT32, num_reqs + 1
        )
        seq_lens_at, self.seq_lens = locate("seq_lens_cpu", seq_lens_cpu, INT32, num_reqs)
        computed_at, self._computed = locate(
            "num_computed_tokens_cpu", num_computed_tokens_cpu, INT32, num_reqs
        )
        self._at = (starts_at, seq_lens_at, computed_at)  # of this batch, for this call

    def cut(self, r0: int, r1: int, t0: int, t1: int) -> tuple[npt.NDArray[np.int32], int]:
        """Return a micro-batch's starts, lengths and computed tokens, and its longest query.

        They follow one another in one array. The longest query is -1 if the tokens do not begin in
        the first request, or go past the last. Requests outside the batch are a ValueError.
        """
        if not 0 <= r0 < r1 <= self.num_reqs:
            raise ValueError(f"requests {r0} to {r1} are not among {self.num_reqs}")
        vectors = np.empty(3 * (r1 - r0) + 1, dtype=np.int32)
        return vectors, cut_requests(*self._at, self.num_reqs, r0, r1, t0, t1, vectors)


@compiled("Tuple((int64, boolean))(int64[::1])")
def add_checked(num_tokens: Int64s) -> tuple[Any, Any]:
    """Return the sum of some numbers, and whether no partial sum overflowed."""
    total = np.int64(0)
    wrapped = np.int64(0)
    for i in range(len(num_tokens)):
        before = total
        total += num_tokens[i]
        # The sign bit is set if both addends have another sign than their sum.
        wrapped |= (before ^ total) & (num_tokens[i] ^ total)
    return total, wrapped >= 0


def write_requests(num_tokens: Int64s, cuts: Int64s, bounds: Int64s) -> None:
    """Write the first request of each interval between two cuts, and the end of its requests."""
    request = 0
    last = len(num_tokens) - 1
    end = num_tokens[0]  # of the request's tokens
    for part in range(len(cuts) - 1):
        while end <= cuts[part] and request < last:
            request += 1
            end += num_tokens[request]
        bounds[2 * part] = request
        while end < cuts[part + 1] and request < last:
            request += 1
            end += num_tokens[request]
        bounds[2 * part + 1] = request + 1


write_requests_of_int64 = compiled("void(int64[::1], int64[::1], int64[::1])")(write_requests)


@compiled("int64(int64, int64, int64, int64, int64, int64, int64, int64, int32[::1])")
def cut_requests(
    starts_address: int,
    seq_lens_address: int,
    computed_address: int,
    num_reqs: int,
    r0: int,
    r1: int,
    t0: int,
    t1: int,
    vectors: Int32s,
) -> Any:
    """Write the starts, lengths and computed tokens of a micro-batch; return its longest query.

    Reads int32[num_reqs + 1], the starts, and int32[num_reqs], lengths and computed tokens. Returns
    -1 if the tokens do not begin in the first request, or go past the last.
    """
    starts = int32s_at(starts_address, num_reqs + 1)
    seq_lens = int32s_at(seq_lens_address, num_reqs)
    computed = int32s_at(computed_address, num_reqs)
    total = np.int64(starts[num_reqs])
    begins = starts[r0] <= t0 < starts[r0 + 1]
    in_padding = t0 >= total and starts[r0] == starts[r0 + 1]
    if not (begins or in_padding) or max(np.int64(starts[r1]), np.int64(t0)) < min(
        np.int64(t1), total
    ):
        return np.int64(-1)
    size = r1 - r0
    vectors[0] = min(max(starts[r0], t0), t1) - t0
    longest = np.int64(0)
    for i in range(size):
        start = np.int64(starts[r0 + i])
        end = np.int64(starts[r0 + i + 1])
        behind = max(end - max(start, np.int64(t1)), np.int64(0))
        before = max(min(end, np.int64(t0)) - start, np.int64(0))
        vectors[i + 1] = min(max(starts[r0 + i + 1], t0), t1) - t0
        vectors[size + 1 + i] = seq_lens[r0 + i] - behind
        vectors[2 * size + 1 + i] = computed[r0 + i] + before
        longest = max(longest, end - start - behind - before)
    return longest
