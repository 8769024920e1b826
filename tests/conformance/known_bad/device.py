"""What the device path does without a kernel, as one writes it with torch in a hurry."""

from __future__ import annotations

from collections.abc import Callable

import torch

from known_bad.entries import rewritten


def _make_gather(bug: str | None) -> Callable[..., torch.Tensor]:
    def gather(
        table: torch.Tensor, rows: torch.Tensor, first: torch.Tensor, columns: int
    ) -> torch.Tensor:
        width = table.shape[1]
        if width == 0 and bug != "device: a table of no columns is like any other":
            return table.new_zeros((len(rows), columns))
        indices = first.long().unsqueeze(1) + torch.arange(columns)
        if bug == "device: columns past the table wrap around":
            indices %= width
        elif bug != "device: columns past the table are looked up":
            indices = indices.clamp(max=width - (bug != "device: the clamp is one too far"))
        if bug == "device: rows are taken in order":
            rows = torch.arange(len(rows)).clamp(max=max(len(table) - 1, 0))
        return table[rows.long().unsqueeze(1), indices]

    return gather


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
        "make_local_attention_virtual_batches",
        _make_gather,
        place="local_attention._gather_on_device",
        target="sim",
        answers={
            "device: columns past the table wrap around": "Somebody's block, never read.",
            "device: columns past the table are looked up": "The host path clamps; a GPU asserts "
            "a while later, elsewhere.",
            "device: the clamp is one too far": "Likewise.",
            "device: a table of no columns is like any other": "Only a dummy run has one.",
            "device: rows are taken in order": "Right while each request touches one chunk.",
        },
    ),
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
