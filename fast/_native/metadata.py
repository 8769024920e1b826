"""Compute the maxima of a batch's metadata."""

from typing import Any

import numpy as np
import torch

from fast._checks import INT32
from fast._native.compiler import compiled, int32s_at
from fast._native.memory import locate


def find_maxima(
    query_start_loc_cpu: torch.Tensor, seq_lens_cpu: torch.Tensor | None, num_reqs: int
) -> tuple[int, int]:
    """Return the longest query and the longest sequence of a batch, in tokens; 0 if not known."""
    if seq_lens_cpu is None:
        seq_lens_cpu = torch.zeros(num_reqs, dtype=INT32, device="cpu")
    at, _starts = locate("query_start_loc.cpu", query_start_loc_cpu, INT32, num_reqs + 1)
    seq_lens_at, _seq_lens = locate("seq_lens.cpu", seq_lens_cpu, INT32, num_reqs)
    return scan_for_maxima(at, seq_lens_at, num_reqs)


@compiled("UniTuple(int64, 2)(int64, int64, int64)")
def scan_for_maxima(starts_address: int, seq_lens_address: int, num_reqs: int) -> tuple[Any, Any]:
    """Return the longest query and the longest sequence of some requests, in tokens.

    Reads int32[num_reqs + 1], the starts, and int32[num_reqs], the lengths.
    """
    starts = int32s_at(starts_address, num_reqs + 1)
    seq_lens = int32s_at(seq_lens_address, num_reqs)
    longest_query, longest_sequence = np.int64(0), np.int64(0)
    for i in range(num_reqs):
        longest_query = max(longest_query, np.int64(starts[i + 1]) - np.int64(starts[i]))
        longest_sequence = max(longest_sequence, np.int64(seq_lens[i]))
    return longest_query, longest_sequence
