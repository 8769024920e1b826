"""Count the tokens of each request whose logits are needed."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fast._checks import INT32
from fast._native.compiler import Int32s, compiled, int32s_at, int64s_at
from fast._native.memory import locate, plain


def count_logits_indices(
    query_start_loc_cpu: torch.Tensor, num_reqs: int, indices: torch.Tensor, num_indices: int
) -> tuple[npt.NDArray[np.int32], int]:
    """Return where each request starts among some tokens, and the most tokens of a request.

    `query_start_loc_cpu` is int32[num_reqs + 1]; `indices` is int32 or int64[at least num_indices],
    tokens in increasing order; both are on the CPU.

    Returns:
        int32[num_reqs + 1], and the maximum.
    """
    at, _starts = locate("query_start_loc_cpu", query_start_loc_cpu, INT32, num_reqs + 1)
    if indices.dtype is not torch.int64:
        indices = plain("logits_indices_padded", indices).to(torch.int64)
    indices_at, wide = locate("logits_indices_padded", indices, torch.int64)
    if not 0 <= num_indices <= wide.nelement():
        raise ValueError(f"{num_indices} indices are not among {wide.nelement()}")
    counted = np.empty(num_reqs + 1, dtype=np.int32)
    return counted, write_starts(at, indices_at, num_indices, counted)


@compiled("int64(int64, int64, int64, int32[::1])")
def write_starts(
    starts_address: int, indices_address: int, num_indices: int, counted: Int32s
) -> Any:
    """Write where each request starts among the tokens; return the most tokens of a request.

    Reads int32, as many starts as there are to write, and int64[num_indices], the tokens.
    """
    starts = int32s_at(starts_address, len(counted))
    indices = int64s_at(indices_address, num_indices)
    most = np.int64(0)
    at = np.int64(0)
    counted[0] = 0
    for request in range(len(starts) - 1):
        before = at
        while at < len(indices) and indices[at] < starts[request + 1]:
            at += 1
        counted[request + 1] = at
        most = max(most, at - before)
    return most
