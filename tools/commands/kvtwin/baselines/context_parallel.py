"""Count the tokens of a sequence on each context-parallel rank."""

from __future__ import annotations

import torch


def get_dcp_local_seq_lens(
    seq_lens: torch.Tensor,
    dcp_size: int = 1,
    dcp_rank: int | None = None,
    cp_kv_cache_interleave_size: int = 1,
) -> torch.Tensor:
    """Count the tokens of each sequence on a rank; arguments are those of `reference`."""
    in_round = dcp_size * cp_kv_cache_interleave_size
    rounds = torch.div(seq_lens, in_round, rounding_mode="floor")
    rest = seq_lens - rounds * in_round
    if dcp_rank is None:
        first = torch.arange(dcp_size, dtype=torch.int32, device=seq_lens.device)
        first *= cp_kv_cache_interleave_size
        rounds, rest = rounds.unsqueeze(1), rest.unsqueeze(1) - first
    else:
        rest = rest - dcp_rank * cp_kv_cache_interleave_size
    return rounds * cp_kv_cache_interleave_size + rest.clamp_(0, cp_kv_cache_interleave_size)
