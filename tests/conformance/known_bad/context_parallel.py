"""Local lengths of context-parallel ranks, as one writes them with torch in a hurry."""

# ruff: noqa: C901  # a branch for each bug

from __future__ import annotations

from collections.abc import Callable

import torch

import fast
from known_bad.entries import counted_from_1, rewritten
from known_bad.outputs import LENGTHS, REFUSALS, with_out

REAL = fast.get_dcp_local_seq_lens


def _make(bug: str | None) -> Callable[..., torch.Tensor]:
    def get_dcp_local_seq_lens(
        seq_lens: torch.Tensor,
        dcp_size: int = 1,
        dcp_rank: int | None = None,
        cp_kv_cache_interleave_size: int = 1,
    ) -> torch.Tensor:
        size, interleave = dcp_size, cp_kv_cache_interleave_size
        try:
            REAL(seq_lens, size, dcp_rank, interleave)
        except ValueError as error:
            if bug == "the length at fault is counted from 1":
                raise ValueError(counted_from_1(str(error))) from error
            if bug != "a rank outside holds nothing" or "dcp_rank" not in str(error):
                raise
        ranks = torch.arange(size)
        lens = seq_lens.long().unsqueeze(1)
        if bug == "the interleave is ignored":
            interleave = 1
        rounds = lens // (size * interleave) * interleave
        if bug == "a round is added in int32":
            rounded_up = seq_lens.unsqueeze(1) + size * interleave
            rounds = (rounded_up // (size * interleave) - 1).long() * interleave
        rest = lens - rounds * size - ranks * interleave
        if bug == "a rank's rest has no end":
            part = rest.clamp(min=0)
        elif bug == "a rank's rest may be negative":
            part = rest.clamp(max=interleave)
        else:
            part = rest.clamp(0, interleave)
        local = rounds + part
        if bug == "the last rank comes first":
            local = local.flip(1)
        if bug != "local lengths are int64":
            local = local.to(torch.int32)
        if bug == "one rank's lengths are the input" and size == 1 and dcp_rank == 0:
            return seq_lens
        is_all = not dcp_rank if bug == "rank 0 is no rank" else dcp_rank is None
        if is_all:
            return local.T.contiguous() if bug == "a row for each rank" else local
        return local[:, min(dcp_rank or 0, size - 1)]

    return with_out(bug, REAL, get_dcp_local_seq_lens)


CONTEXT_PARALLEL = rewritten(
    "get_dcp_local_seq_lens",
    _make,
    answers={
        "the interleave is ignored": "Right at the default, and the sum is always right.",
        "a round is added in int32": "Right up to sequences near 2**31.",
        "a rank's rest has no end": "Right for the last rank.",
        "a rank's rest may be negative": "Right for the first rank.",
        "the last rank comes first": "The sum is right.",
        "local lengths are int64": "Equal values; the kernel reads every other one as 0.",
        "rank 0 is no rank": "`if not dcp_rank`: right on every other rank.",
        "one rank's lengths are the input": "Right until the runner writes the next step's "
        "lengths in their place.",
        "a row for each rank": "The same numbers, transposed; right for one request and one rank.",
        **LENGTHS,
    },
    refusals={
        "a rank outside holds nothing": "A job with a wrong world size runs, and forgets.",
        "the length at fault is counted from 1": "The class and the argument are right; the reader "
        "looks at the next request.",
        **REFUSALS,
    },
)
