"""The scheduler: which requests run in a step, with how many tokens and in which blocks.

Requests are served first come, first served. A prompt is prefilled in chunks, each as large as the
rest of the step's token budget. Blocks come from one pool for all KV cache groups. When it is
empty, the request that came last is preempted: it loses its blocks, and is computed again later
from its first token, generated tokens included. A step that preempts admits no request.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tools.runner.block_pool import BlockPool
from tools.runner.requests import Request
from tools.runner.settings import Settings


@dataclass(frozen=True)
class ScheduledRequest:
    """A request's part in a step.

    Attributes:
        request: The request.
        num_new_tokens: How many of its known tokens, behind the computed ones, are computed.
        new_block_ids: The blocks that it gets for them, for each KV cache group.
        is_admitted: Whether it did not run in the step before: these are all blocks it has.
    """

    request: Request
    num_new_tokens: int
    new_block_ids: list[list[int]]
    is_admitted: bool

    @property
    def is_sampled(self) -> bool:
        """Whether its known tokens are all computed after the step: it gets a next one."""
        request = self.request
        return request.num_computed_tokens + self.num_new_tokens == request.num_tokens


@dataclass(frozen=True)
class Step:
    """A step, as the scheduler tells it to the worker.

    Attributes:
        index: Its number, from 0.
        gone_ids: Requests that finished in the step before, and those that are preempted now.
        scheduled: The requests that run, by id, in order of arrival.
    """

    index: int
    gone_ids: list[str]
    scheduled: dict[str, ScheduledRequest]

    @property
    def num_scheduled_tokens(self) -> dict[str, int]:
        """The new tokens of each request, by id; `fast` reads it to order the batch."""
        return {req_id: entry.num_new_tokens for req_id, entry in self.scheduled.items()}


class Scheduler:
    """Serves requests, step by step.

    Args:
        requests: What to serve, by arrival.
        settings: Of the engine.
        num_groups: KV cache groups; each takes blocks for every request.

    Attributes:
        num_preemptions: How often a request was preempted.

    Raises:
        ValueError: A request without a prompt, which wants no token, or too long to be served.

    Example:
        >>> requests = [Request("a", [1] * 100, 1), Request("b", [2] * 3, 1)]
        >>> scheduler = Scheduler(requests, Settings(), num_groups=1)
        >>> first, second = scheduler.schedule(), scheduler.schedule()
        >>> first.num_scheduled_tokens
        {'a': 64}
    """

    def __init__(self, requests: Sequence[Request], settings: Settings, num_groups: int) -> None:
        for request in requests:
            num_prompt_tokens, num_new_tokens = (
                len(request.prompt_token_ids),
                request.max_new_tokens,
            )
            most = settings.max_model_len
            if (
                min(num_prompt_tokens, num_new_tokens) < 1
                or num_prompt_tokens + num_new_tokens > most
            ):
                raise ValueError(
                    f"{request.request_id} has {num_prompt_tokens} prompt tokens and wants "
                    f"{num_new_tokens} more, expected at least 1 of each and at most {most} in all"
                )
        self.num_preemptions = 0
        self._settings = settings
        self._num_groups = num_groups
        self._pool = BlockPool(settings.pool_blocks(num_groups))
        self._arriving = deque(requests)
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []
        self._finished_ids: list[str] = []
        self._num_steps = 0
        self._clock = 0

    @property
    def has_requests(self) -> bool:
        """Whether there is anything left to serve."""
        return bool(self._arriving or self._waiting or self._running)

    def schedule(self) -> Step:
        """Make the next step; its results go to `update`."""
        self._receive()
        gone_ids, self._finished_ids = self._finished_ids, []
        scheduled: dict[str, ScheduledRequest] = {}
        budget = self._settings.token_budget

        num_preempted = 0
        for request in tuple(self._running):
            if request not in self._running or budget == 0:
                break  # it was preempted for an earlier one, and so were all behind it
            while not self._fits(request, budget):
                victim = self._running.pop()
                self._preempt(victim)
                gone_ids.append(victim.request_id)
                num_preempted += 1
                if victim is request:
                    break
            else:
                entry = self._take(request, budget, is_admitted=False)
                scheduled[request.request_id] = entry
                budget -= entry.num_new_tokens

        # What was preempted just now waits first in the queue: it would be admitted at once.
        while self._waiting and budget > 0 and not num_preempted:
            request = self._waiting[0]
            if len(self._running) == self._settings.max_num_seqs or not self._fits(request, budget):
                break
            self._running.append(self._waiting.popleft())
            entry = self._take(request, budget, is_admitted=True)
            scheduled[request.request_id] = entry
            budget -= entry.num_new_tokens

        self._num_steps += 1
        self._clock += 1
        return Step(self._num_steps - 1, gone_ids, scheduled)

    def update(self, step: Step, sampled_token_ids: Mapping[str, int]) -> list[Request]:
        """Take a step's results.

        Args:
            step: The step that was executed.
            sampled_token_ids: The next token of each request that has one, by id.

        Returns:
            The requests that are finished now.
        """
        finished = []
        for req_id, entry in step.scheduled.items():
            request = entry.request
            request.num_computed_tokens += entry.num_new_tokens
            if req_id in sampled_token_ids:
                request.output_token_ids.append(sampled_token_ids[req_id])
            if request.num_missing_tokens == 0:
                self._running.remove(request)
                self._free(request)
                self._finished_ids.append(req_id)
                finished.append(request)
        return finished

    def _receive(self) -> None:
        """Queue up what has arrived; when there is nothing else, wait for it."""
        if self._arriving and not self._waiting and not self._running:
            self._clock = max(self._clock, self._arriving[0].arrival_step)
        while self._arriving and self._arriving[0].arrival_step <= self._clock:
            self._waiting.append(self._arriving.popleft())

    def _num_new_tokens(self, request: Request, budget: int) -> int:
        """Say how many tokens of a request a step computes."""
        return min(budget, request.num_tokens - request.num_computed_tokens)

    def _num_new_blocks(self, request: Request, budget: int) -> int:
        """Say how many more blocks that takes in each group."""
        end = request.num_computed_tokens + self._num_new_tokens(request, budget)
        num_blocks = len(request.block_ids[0]) if request.block_ids else 0
        return max(0, self._settings.num_blocks(end) - num_blocks)

    def _fits(self, request: Request, budget: int) -> bool:
        """Say whether the pool has these blocks."""
        return self._num_new_blocks(request, budget) * self._num_groups <= self._pool.num_free

    def _take(self, request: Request, budget: int, *, is_admitted: bool) -> ScheduledRequest:
        """Give a request its tokens of the step and their blocks."""
        num_new_tokens = self._num_new_tokens(request, budget)
        count = self._num_new_blocks(request, budget)
        new_block_ids = [self._pool.take(count) for _ in range(self._num_groups)]
        if not request.block_ids:
            request.block_ids = [[] for _ in range(self._num_groups)]
        for block_ids, new in zip(request.block_ids, new_block_ids, strict=True):
            block_ids.extend(new)
        return ScheduledRequest(request, num_new_tokens, new_block_ids, is_admitted)

    def _preempt(self, request: Request) -> None:
        """Take a request's blocks away, and put it first in the queue."""
        self._free(request)
        request.num_computed_tokens = 0
        self._waiting.appendleft(request)
        self.num_preemptions += 1

    def _free(self, request: Request) -> None:
        """Give a request's blocks back."""
        for block_ids in request.block_ids:
            self._pool.give_back(block_ids)
        request.block_ids = []
