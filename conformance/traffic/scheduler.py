"""A continuous-batching scheduler: turns a trace of requests into the steps of an engine.

Time is simulated. A step takes `SECONDS_PER_STEP` and `SECONDS_PER_TOKEN` for each of its tokens,
about what an 8B model takes on one A100, so requests arrive while others run, queue up in a burst,
and thin out after it. When there is nothing to run, the clock jumps to the next arrival.

Requests are served first come, first served: the running ones are kept in order of arrival, and no
waiting request arrived before a running one. A prompt is prefilled in chunks, as large as the token
budget still allows, but no larger than `Settings.long_prefill_token_threshold`. Blocks come from
one pool for all KV cache groups; when it runs dry, the latest running request is preempted: its
blocks are freed, and it is computed from the start again later, first in the queue. In a step that
preempts, nothing is admitted.

Blocks of sliding-window and chunked layers are kept until their request ends, and prefixes are not
shared. States have one block for each request; cross attention has its blocks of the encoder's
tokens from the start.
"""

import random
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from conformance.traffic.block_pool import BlockPool
from conformance.traffic.settings import Settings
from conformance.traffic.trace import TraceRequest
from conformance.zoo.model import Model

SECONDS_PER_STEP = 0.03
SECONDS_PER_TOKEN = 0.0001
ACCEPTANCE_RATE = 0.7
"""How likely a draft token is accepted when those before it were."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step of an engine, as the scheduler tells it to a runner.

    The dicts have the step's requests in order of arrival, by request id.

    Attributes:
        index: The step's number, from 0.
        finished_ids: Requests that ended after the step before; their blocks are free.
        preempted_ids: Requests whose blocks this step took away.
        new_ids: Requests scheduled for the first time.
        resumed_ids: Requests scheduled for the first time after they were preempted.
        num_scheduled_tokens: New tokens of each request, drafts included. This is the dict that
            `reorder_batch_to_split_decodes_and_prefills` reads.
        new_block_ids: For each request and KV cache group, the blocks that it gets.
        overwrite: Whether these become the request's whole row (it is new or resumed) or are
            appended to it.
        num_computed_tokens: Tokens of each request in the cache before the step.
        num_prompt_tokens: Length of each request's prompt.
    """

    index: int
    finished_ids: tuple[str, ...]
    preempted_ids: tuple[str, ...]
    new_ids: tuple[str, ...]
    resumed_ids: tuple[str, ...]
    num_scheduled_tokens: dict[str, int]
    new_block_ids: dict[str, tuple[list[int], ...]]
    overwrite: dict[str, bool]
    num_computed_tokens: dict[str, int]
    num_prompt_tokens: dict[str, int]


@dataclass
class _Request:
    """A request while it is served: `num_tokens` of its tokens are known, prompt and sampled."""

    request_id: str
    arrival_seconds: float
    num_prompt_tokens: int
    num_total_tokens: int
    num_tokens: int
    num_computed_tokens: int = 0
    num_draft_tokens: int = 0
    is_preempted: bool = False
    block_ids: tuple[list[int], ...] = ()


@dataclass
class _Plan:
    """What a step is going to be, while it is put together."""

    budget: int
    preempted: list[_Request] = field(default_factory=list)
    admitted: list[_Request] = field(default_factory=list)
    num_scheduled_tokens: dict[str, int] = field(default_factory=dict)
    new_block_ids: dict[str, tuple[list[int], ...]] = field(default_factory=dict)


class Scheduler:
    """Serves a trace of requests step by step.

    Args:
        requests: The trace, by arrival.
        model: Which serves them.
        settings: Of the engine.
        seed: Of the accepted draft tokens.

    Attributes:
        groups: The KV cache groups that take blocks.
        clock_seconds: The simulated time.
        num_finished: Requests that have ended.
        num_preemptions: How often a request was preempted.

    Raises:
        ValueError: A request is longer than the engine's longest sequence, or would not fit into
            the pool of blocks on its own.

    Example:
        >>> from conformance.zoo.models import get_model
        >>> trace = [TraceRequest(0.0, 5, 2), TraceRequest(0.0, 3, 1)]
        >>> settings = Settings(token_budget=4)
        >>> for step in Scheduler(trace, get_model("llama-3.1-8b"), settings):
        ...     print(step.num_scheduled_tokens)
        {'request-0': 4}
        {'request-0': 1, 'request-1': 3}
        {'request-0': 1}
    """

    def __init__(
        self,
        requests: Sequence[TraceRequest],
        model: Model,
        settings: Settings,
        *,
        seed: int = 0,
    ) -> None:
        self.settings = settings
        self.groups = settings.cache_groups(model)
        self._max_model_len = settings.serving(model).max_model_len
        longest = settings.longest_request(model)
        self._arriving: deque[_Request] = deque()
        for number, request in enumerate(requests):
            if request.total_tokens > longest:
                raise ValueError(
                    f"requests[{number}] has {request.total_tokens} tokens, but at most {longest} "
                    f"fit: max_model_len is {self._max_model_len} and the pool has "
                    f"{settings.pool_blocks(model)} blocks, one of them the null block"
                )
            self._arriving.append(
                _Request(
                    f"request-{number}",
                    request.arrival_seconds,
                    request.context_tokens,
                    request.total_tokens,
                    request.context_tokens,
                )
            )
        self._pool = BlockPool(settings.pool_blocks(model))
        self._random = random.Random(seed)  # noqa: S311  # a simulation has no secrets
        self._waiting: deque[_Request] = deque()
        self._running: list[_Request] = []
        self._finished_ids: list[str] = []
        self._num_steps = 0
        self.clock_seconds = 0.0
        self.num_finished = 0
        self.num_preemptions = 0

    def __iter__(self) -> Iterator[Step]:
        """Yield step after step until every request has ended."""
        while self._arriving or self._waiting or self._running:
            yield self._next_step()

    def _next_step(self) -> Step:
        """Make a step, and let it happen."""
        self._receive()
        plan = _Plan(self.settings.token_budget)
        self._schedule_running(plan)
        if not plan.preempted:
            self._schedule_waiting(plan)
        step = self._make_step(plan)
        self._advance(step)
        return step

    def _receive(self) -> None:
        """Queue up what has arrived; when there is nothing else, wait for it."""
        if not self._waiting and not self._running:
            self.clock_seconds = max(self.clock_seconds, self._arriving[0].arrival_seconds)
        while self._arriving and self._arriving[0].arrival_seconds <= self.clock_seconds:
            self._waiting.append(self._arriving.popleft())

    def _schedule_running(self, plan: _Plan) -> None:
        """Give running requests their tokens, preempting from the end where blocks lack."""
        position = 0
        while position < len(self._running) and plan.budget > 0:
            request = self._running[position]
            while not self._schedule(plan, request):
                victim = self._running.pop()
                self._preempt(plan, victim)
                if victim is request:
                    return
            position += 1

    def _schedule_waiting(self, plan: _Plan) -> None:
        """Admit waiting requests, as long as budget, places and blocks last."""
        while self._waiting and plan.budget > 0 and len(self._running) < self.settings.max_num_seqs:
            request = self._waiting[0]
            if not request.block_ids:
                request.block_ids = tuple([] for _ in self.groups)
            if not self._schedule(plan, request):
                return
            self._running.append(self._waiting.popleft())
            plan.admitted.append(request)

    def _schedule(self, plan: _Plan, request: _Request) -> bool:
        """Give a request its tokens of the step and their blocks, if there are enough blocks."""
        known = request.num_tokens + request.num_draft_tokens
        most = min(plan.budget, self.settings.long_prefill_token_threshold)
        end = min(known, self._max_model_len, request.num_computed_tokens + most)
        missing = [
            max(0, group.num_blocks(end) - len(block_ids))
            for group, block_ids in zip(self.groups, request.block_ids, strict=True)
        ]
        if sum(missing) > self._pool.num_free:
            return False
        new_block_ids = tuple(self._pool.take(count) for count in missing)
        for block_ids, new in zip(request.block_ids, new_block_ids, strict=True):
            block_ids.extend(new)
        plan.new_block_ids[request.request_id] = new_block_ids
        plan.num_scheduled_tokens[request.request_id] = end - request.num_computed_tokens
        plan.budget -= end - request.num_computed_tokens
        return True

    def _preempt(self, plan: _Plan, request: _Request) -> None:
        """Take a request's blocks away, and put it first in the queue."""
        self._free_blocks(request)
        request.num_computed_tokens = 0
        request.num_draft_tokens = 0
        request.is_preempted = True
        self._waiting.appendleft(request)
        plan.preempted.append(request)
        self.num_preemptions += 1

    def _free_blocks(self, request: _Request) -> None:
        """Give all blocks of a request back."""
        for block_ids in request.block_ids:
            self._pool.give_back(block_ids)
        request.block_ids = ()

    def _make_step(self, plan: _Plan) -> Step:
        """Write the plan down as a step."""
        scheduled = [r for r in self._running if r.request_id in plan.num_scheduled_tokens]
        overwritten = {request.request_id for request in plan.admitted}
        step = Step(
            index=self._num_steps,
            finished_ids=tuple(self._finished_ids),
            preempted_ids=tuple(request.request_id for request in plan.preempted),
            new_ids=tuple(r.request_id for r in plan.admitted if not r.is_preempted),
            resumed_ids=tuple(r.request_id for r in plan.admitted if r.is_preempted),
            num_scheduled_tokens=plan.num_scheduled_tokens,
            new_block_ids=plan.new_block_ids,
            overwrite={r.request_id: r.request_id in overwritten for r in scheduled},
            num_computed_tokens={r.request_id: r.num_computed_tokens for r in scheduled},
            num_prompt_tokens={r.request_id: r.num_prompt_tokens for r in scheduled},
        )
        for request in plan.admitted:
            request.is_preempted = False
        self._finished_ids.clear()
        self._num_steps += 1
        return step

    def _advance(self, step: Step) -> None:
        """Let the step happen: tokens are computed, some are sampled, some requests end."""
        num_tokens = sum(step.num_scheduled_tokens.values())
        self.clock_seconds += SECONDS_PER_STEP + SECONDS_PER_TOKEN * num_tokens
        for request in list(self._running):
            end = request.num_computed_tokens + step.num_scheduled_tokens.get(request.request_id, 0)
            if end < request.num_tokens:
                request.num_computed_tokens = end
                continue
            accepted = self._count_accepted(end - request.num_tokens)
            accepted = min(accepted, request.num_total_tokens - request.num_tokens - 1)
            request.num_computed_tokens = request.num_tokens + accepted
            request.num_tokens += 1 + accepted
            request.num_draft_tokens = self.settings.num_speculative_tokens
            if request.num_tokens == request.num_total_tokens:
                self._running.remove(request)
                self._free_blocks(request)
                self._finished_ids.append(request.request_id)
                self.num_finished += 1

    def _count_accepted(self, num_draft_tokens: int) -> int:
        """Draw how many draft tokens are accepted: up to the first rejected one."""
        for accepted in range(num_draft_tokens):
            if self._random.random() >= ACCEPTANCE_RATE:
                return accepted
        return num_draft_tokens
