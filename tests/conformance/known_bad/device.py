"""What the device path does without a kernel, as one writes it with torch in a hurry."""

from __future__ import annotations

from collections.abc import Callable

import torch

from known_bad.entries import rewritten


def _make_count(bug: str | None) -> Callable[..., torch.Tensor]:
    def count(
        seq_lens: torch.Tensor, size: int, rank: int, ranks: int, interleave: int
    ) -> torch.Tensor:
        lens = seq_lens.long().unsqueeze(1)
        first = torch.arange(rank, rank + ranks) * interleave
        if bug == "device: every rank is the first":
            first = torch.arange(ranks) * interleave
        rounds = lens // (size * interleave) * interleave
        rest = (lens % (size * interleave) - first).clamp(min=0)
        if bug != "device: a rank's rest has no end":
            rest = rest.clamp(max=interleave)
        local = rounds + rest
        return local if bug == "device: local lengths are int64" else local.to(torch.int32)

    return count


DEVICE = [
    *rewritten(
        "get_dcp_local_seq_lens",
        _make_count,
        place="context_parallel._count_on_device",
        target="sim",
        answers={
            "device: every rank is the first": "Right on the first rank, and for all of them.",
            "device: a rank's rest has no end": "Right for the last rank.",
            "device: local lengths are int64": "The host path has int32.",
        },
    ),
]
