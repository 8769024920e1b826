"""Shift one slot by one on purpose, to see that the comparison of tokens finds it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tools.runner.batch import Batch
from tools.runner.scheduler import ScheduledRequest, Step

MIN_READERS = 4
"""How many tokens the request generates after the step, at least: each reads the wrong place."""


class WrongSlot:
    """Puts one token's slot one further, in one step.

    It is the last token of the step of a request that goes on: the shortest such request. Among few
    keys a wrong one counts; among many it may change no token, only a number behind one.

    Args:
        step_index: The step; where no token suits in it, the next one that has one.

    Attributes:
        line: What was done; None before.
    """

    def __init__(self, step_index: int) -> None:
        self.line: str | None = None
        self._step_index = step_index

    def put(
        self, step: Step, batch: Batch, slot_mappings: torch.Tensor, block_sizes: Sequence[int]
    ) -> None:
        """Put the slot wrong, if it is time.

        Args:
            step: The step, with the requests in order of arrival.
            batch: The same in the batch's order.
            slot_mappings: int64[num_groups, num_tokens], which is changed.
            block_sizes: Tokens in a block of each group's kernels.
        """
        if self.line is not None or step.index < self._step_index:
            return
        suited = (e for e in step.scheduled.values() if _is_suited(e, block_sizes))
        entry = min(suited, key=_last_position, default=None)
        if entry is None:
            return
        token = batch.query_lens.cumsum()[batch.entries.index(entry)] - 1
        slot_mappings[:, token] += 1
        self.line = (
            f"step {step.index}: the slot of {entry.request.request_id}'s token "
            f"{_last_position(entry)} is one too far"
        )


def _is_suited(entry: ScheduledRequest, block_sizes: Sequence[int]) -> bool:
    """Say whether enough will read a request's last token, and its slot is no block's last.

    The slot behind a block's last may be that of another request: two would be wrong.
    """
    num_readers = entry.request.num_missing_tokens - entry.is_sampled
    return num_readers >= MIN_READERS and all(
        (_last_position(entry) + 1) % block_size for block_size in block_sizes
    )


def _last_position(entry: ScheduledRequest) -> int:
    """Return the position of the last token that a step computes of a request."""
    return entry.request.num_computed_tokens + entry.num_new_tokens - 1
