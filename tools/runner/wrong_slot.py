"""Shift one slot by one on purpose, to show that the comparison of tokens detects it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from conformance.engine.request import Request
from conformance.engine.scheduler_output import SchedulerOutput
from tools.runner.batch import Batch

MIN_READERS = 4
"""The minimum number of tokens that the request generates after the step; each reads the slot."""


class WrongSlot:
    """Shifts one token's slot by one, in one step.

    It is the last token of the step of the shortest request that continues. Among few keys a wrong
    one matters; among many it may change no token.

    Args:
        step_index: The step, or the next one with a suitable token.
        requests: All requests, by ID.

    Attributes:
        line: A description of the shift; None before it happened.
    """

    def __init__(self, step_index: int, requests: Mapping[str, Request]) -> None:
        self.line: str | None = None
        self._step_index = step_index
        self._requests = requests

    def put(
        self,
        step: SchedulerOutput,
        batch: Batch,
        slot_mappings: torch.Tensor,
        block_sizes: Sequence[int],
    ) -> None:
        """Shift the slot if this is the first suitable step.

        Args:
            step: The step, before its tokens are computed.
            batch: The step in the order of the batch.
            slot_mappings: int64[num_groups, num_tokens], which is changed.
            block_sizes: Tokens in a block of each group's kernels.
        """
        if self.line is not None or step.step_index < self._step_index:
            return
        last_positions = {
            req_id: step.num_computed_tokens[req_id] + num_tokens - 1
            for req_id, num_tokens in step.num_scheduled_tokens.items()
        }
        suited = [
            req_id
            for req_id, last_position in last_positions.items()
            if self._num_readers(step, req_id) >= MIN_READERS
            # The slot after the last of a block may belong to another request.
            and all((last_position + 1) % block_size for block_size in block_sizes)
        ]
        if not suited:
            return
        req_id = min(suited, key=last_positions.__getitem__)
        token = batch.query_lens.cumsum()[batch.req_ids.index(req_id)] - 1
        slot_mappings[:, token] += 1
        self.line = (
            f"step {step.step_index}: the slot of {req_id}'s token {last_positions[req_id]} is one "
            f"too far"
        )

    def _num_readers(self, step: SchedulerOutput, req_id: str) -> int:
        """Count the tokens that a request generates after a step."""
        return self._requests[req_id].num_missing_tokens - (req_id in step.sampled_req_ids)
