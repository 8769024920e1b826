"""One step of an engine, as the scheduler gives it to a worker."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class SchedulerOutput:
    """The requests, tokens and new blocks of a step.

    The dicts have the step's requests in the order in which they were admitted, by request id.

    Attributes:
        step_index: The step's number, from 0.
        finished_req_ids: Requests that ended since the last step; their blocks are free.
        preempted_req_ids: Requests that lost their blocks since then.
        new_req_ids: Requests that are scheduled for the first time.
        resumed_req_ids: Requests that are scheduled again after they were preempted.
        num_scheduled_tokens: New tokens of each request, drafts included.
            `reorder_batch_to_split_decodes_and_prefills` reads this dict.
        token_ids: These tokens.
        sampled_req_ids: Requests whose known tokens are all computed after the step, so that a
            token is sampled.
        new_block_ids: For each request and KV cache group, the blocks that it gets. They are all
            blocks of a request that is new or resumed.
        num_computed_tokens: Tokens of each request in the cache before the step.
        num_prompt_tokens: Length of each request's prompt.
    """

    step_index: int
    finished_req_ids: tuple[str, ...]
    preempted_req_ids: tuple[str, ...]
    new_req_ids: tuple[str, ...]
    resumed_req_ids: tuple[str, ...]
    num_scheduled_tokens: dict[str, int]
    token_ids: dict[str, list[int]]
    sampled_req_ids: tuple[str, ...]
    new_block_ids: dict[str, tuple[list[int], ...]]
    num_computed_tokens: dict[str, int]
    num_prompt_tokens: dict[str, int]

    @property
    def admitted_req_ids(self) -> tuple[str, ...]:
        """The requests that a worker must add: new and resumed ones."""
        return self.new_req_ids + self.resumed_req_ids

    @property
    def removed_req_ids(self) -> tuple[str, ...]:
        """The requests that a worker must remove: finished and preempted ones."""
        return self.finished_req_ids + self.preempted_req_ids
