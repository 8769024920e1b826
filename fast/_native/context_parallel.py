"""Count the tokens of each sequence that a context-parallel rank holds."""

import numpy as np
import torch

from fast._checks import INT32
from fast._native.compiler import Int32s, compiled, int32s_at
from fast._native.memory import as_written_array, locate, locate_target, locate_words


def count_local_tokens(
    seq_lens: torch.Tensor,
    size: int,
    rank: int | None,
    interleave: int,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return how many tokens of each sequence a rank holds, or each rank if `rank` is None.

    `seq_lens` is int32[num_reqs] on the CPU; `out`, if given, is contiguous and may have more rows,
    which become 0.

    Returns:
        int32[num_reqs], or without a rank int32[num_reqs, size]: `out`, or a new tensor.
    """
    at, lens = locate("seq_lens", seq_lens, INT32)
    num_reqs = lens.nelement()
    shape = (num_reqs, size) if rank is None else (num_reqs,)
    if out is None:
        local = np.empty(shape, dtype=np.int32)
    else:
        local = as_written_array("out", out, np.int32, len(shape))
        if len(local) < num_reqs or local.shape[1:] != shape[1:]:
            raise ValueError(f"out has shape {local.shape}, expected {shape} or more rows")
    by_rank = local if rank is None else local.reshape(-1, 1)
    write_local_tokens(at, num_reqs, size, rank or 0, interleave, by_rank)
    return torch.from_numpy(local) if out is None else out


@compiled("void(int64, int64, int64, int64, int64, int32[:, ::1])")
def write_local_tokens(
    seq_lens_address: int, num_reqs: int, size: int, rank: int, interleave: int, local: Int32s
) -> None:
    """Write how many tokens of each sequence each rank holds, from rank `rank` on; then 0.

    Reads int32[num_reqs], the lengths.
    """
    seq_lens = int32s_at(seq_lens_address, num_reqs)
    in_round = size * interleave
    for i in range(len(seq_lens)):
        rounds = np.int64(seq_lens[i]) // in_round
        rest = np.int64(seq_lens[i]) - rounds * in_round
        for k in range(local.shape[1]):
            mine = min(max(rest - (rank + k) * interleave, np.int64(0)), np.int64(interleave))
            local[i, k] = rounds * interleave + mine
    for i in range(num_reqs, len(local)):
        local[i, :] = 0


def fill_local_tokens(
    local: torch.Tensor,
    seq_lens: torch.Tensor,
    num_reqs: int,
    size: int,
    rank: int,
    interleave: int,
) -> None:
    """Write how many tokens a rank holds of the first sequences, and 0 past them.

    Both are int32 vectors on the CPU with at least `num_reqs` entries.
    """
    lens_at, step, _lens = locate_words("seq_lens", seq_lens)
    local_at, length = locate_target("dcp_local_seq_lens", local)
    write_local_lens(lens_at, step, num_reqs, size, rank, interleave, local_at, length)
    torch.autograd.graph.increment_version(local)  # torch does not see a loop's writes


@compiled("void(int64, int64, int64, int64, int64, int64, int64, int64)")
def write_local_lens(
    lens_at: int,
    step: int,
    num_reqs: int,
    size: int,
    rank: int,
    interleave: int,
    local_at: int,
    length: int,
) -> None:
    lens, local = int32s_at(lens_at, num_reqs * step + 1), int32s_at(local_at, length)
    in_round = np.uint32(size * interleave)
    for row in range(num_reqs):
        rounds = np.uint32(lens[row * step]) // in_round
        rest = np.int64(lens[row * step]) - np.int64(rounds) * in_round - rank * interleave
        mine = min(max(rest, np.int64(0)), np.int64(interleave))
        local[row] = np.int64(rounds) * interleave + mine
    for row in range(num_reqs, length):
        local[row] = 0
