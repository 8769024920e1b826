"""One wrong slot, put in on purpose: the least that can go wrong, to see that it is found."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from tools.runner.scheduler import ScheduledRequest, Step
    from tools.runner.worker import Batch

MIN_READERS = 4
"""How many tokens the request generates after the step, at least: each reads the wrong place."""


class WrongSlot:
    """Puts one token's slot one further, in one step.

    It is the last token of the step of a request that goes on: the shortest such request. Among few
    keys a wrong one counts; among many it may change no token, only a number behind one.

    Args:
        step_index: The step; where no token suits in it, the next one that has one.
        block_size: Tokens in a block of the kernels: the next slot must be in the same block.

    Attributes:
        line: What was done; None before.
    """

    def __init__(self, step_index: int, block_size: int) -> None:
        self.line: str | None = None
        self._step_index = step_index
        self._block_size = block_size

    def put(self, step: Step, batch: Batch, slot_mappings: torch.Tensor) -> None:
        """Put the slot wrong, if it is time.

        Args:
            step: The step, with the requests in order of arrival.
            batch: The same in the batch's order.
            slot_mappings: int64[num_groups, num_tokens], which is changed.
        """
        if self.line is not None or step.index < self._step_index:
            return
        suited = filter(self._suits, step.scheduled.values())
        entry = min(suited, key=_last_position, default=None)
        if entry is None:
            return
        token = batch.query_lens.cumsum()[batch.entries.index(entry)] - 1
        slot_mappings[:, token] += 1
        self.line = (
            f"step {step.index}: the slot of {entry.request.request_id}'s token "
            f"{_last_position(entry)} is one too far"
        )

    def _suits(self, entry: ScheduledRequest) -> bool:
        """Say whether enough will be read of a request, and its slot is not a block's last."""
        num_readers = entry.request.num_missing_tokens - entry.is_sampled
        return num_readers >= MIN_READERS and (_last_position(entry) + 1) % self._block_size != 0


def _last_position(entry: ScheduledRequest) -> int:
    """Return the position of the last token that a step computes of a request."""
    return entry.request.num_computed_tokens + entry.num_new_tokens - 1
