"""The scheduler of the stateful test: it follows drawn plans, and records what it does.

A step is scheduled, executed by runners, and then finished; accepted drafts are decided last.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from conformance.engine.block_pool import BlockPool
from conformance.engine.request import Request
from conformance.engine.scheduler import Scheduler
from conformance.engine.scheduler_output import SchedulerOutput
from conformance.stateful import coverage
from conformance.stateful.coverage import Goal
from conformance.stateful.plan import Plan
from conformance.stateful.setup import Setup
from conformance.stateful.snapshot import RequestSnapshot, Snapshot, listed

POOL_IS_DRY = "because no block is free"


class Prefixes:
    """Numbers prefixes: equal ones have the same number, as a key depends on all tokens up to it.

    Example:
        >>> prefixes = Prefixes()
        >>> numbers = prefixes.along([5, 7, 5])
        >>> numbers, prefixes.along([5, 7]), prefixes.along([7])
        ([1, 2, 3], [1, 2], [4])
    """

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, int], int] = {}

    def along(self, tokens: list[int]) -> list[int]:
        """Return the numbers of the prefixes that end with each token of a sequence."""
        found, prefix = [], 0
        for token in tokens:
            prefix = self._numbers.setdefault((prefix, token), len(self._numbers) + 1)
            found.append(prefix)
        return found


class RecordedPool(BlockPool):
    """A `BlockPool` that records what happens to blocks.

    Attributes:
        goals: The goals that were reached; the caller clears them.
        freed_in_step: Blocks that were freed in this step; the caller clears them.
    """

    def __init__(self, num_blocks: int, *, reuses_latest: bool) -> None:
        super().__init__(num_blocks, reuses_latest=reuses_latest)
        self.goals: set[Goal] = set()
        self.freed_in_step: set[int] = set()

    def touch(self, block_id: int) -> None:
        """Add a reference to a block."""
        is_live = self.ref_count(block_id) > 0
        self.goals.add(Goal.SHARED_WITH_LIVE if is_live else Goal.SHARED_WITH_GONE)
        super().touch(block_id)

    def free_blocks(self, block_ids: Sequence[int]) -> None:
        """Remove a request's references to blocks."""
        super().free_blocks(block_ids)
        freed = {block_id for block_id in block_ids if not self.ref_count(block_id)}
        self.freed_in_step |= freed
        if len(freed) < len(block_ids):
            self.goals.add(Goal.SHARED_BLOCK_FREED)

    def _evict(self, block_id: int) -> None:
        """Remove a block from the cache."""
        if block_id in self._key_of:
            self.goals.add(Goal.PREFIX_FORGOTTEN)
        if block_id in self.freed_in_step:
            self.goals.add(Goal.FREED_AND_TAKEN)
        super()._evict(block_id)


class PlannedScheduler(Scheduler):
    """Schedules requests according to plans, as far as possible.

    Attributes:
        setup: Its groups and limits.
        pool: The blocks.
        finished: Requests that have ended.
        log: What happened, line by line.

    Example:
        >>> scheduler = PlannedScheduler(Setup(block_sizes=(2,)))
        >>> scheduler.arrive([1, 2, 3], max_new_tokens=2)
        >>> step = scheduler.start_step(Plan()).step
        >>> step.num_scheduled_tokens, step.new_block_ids
        ({'request-0': 3}, {'request-0': ([1, 2],)})
        >>> scheduler.finish_step(Plan())
        >>> scheduler.start_step(Plan()).step.num_computed_tokens
        {'request-0': 3}
    """

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.pool = RecordedPool(setup.num_blocks, reuses_latest=setup.reuses_latest)
        super().__init__(setup.settings, setup.groups, self.pool, shares_prefixes=True)
        self.finished: list[Request] = []
        self.log: list[str] = [str(setup)]
        self._goals: set[Goal] = set()
        self._prefixes = Prefixes()
        self._new_tokens = count(1)
        self._num_requests = 0
        self._step: SchedulerOutput | None = None
        self._former_block_ids: dict[str, tuple[list[int], ...]] = {}
        self._group_of: dict[int, int] = {}
        self._idle_ids: set[str] = set()

    @property
    def requests(self) -> list[Request]:
        """All requests that there ever were: finished, running, waiting."""
        return [*self.finished, *self.running, *self.waiting]

    def shares(self, request: Request) -> bool:
        """Return whether another request holds one of a request's blocks too."""
        return any(self.pool.ref_count(b) > 1 for ids in request.block_ids for b in ids)

    def fresh_tokens(self, number: int) -> list[int]:
        """Return tokens that no request has yet."""
        return [next(self._new_tokens) for _ in range(number)]

    def take_goals(self) -> set[Goal]:
        """Return the coverage goals that were reached since the last call."""
        reached = self._goals | self.pool.goals
        self._goals.clear()
        self.pool.goals.clear()
        return reached

    def arrive(self, prompt: list[int], max_new_tokens: int) -> None:
        """Add a request; its prompt and new tokens are cut to the maximum model length."""
        longest = self.setup.max_model_len
        prompt = prompt[: longest - 1]
        max_new_tokens = min(max_new_tokens, longest - len(prompt))
        request = Request(f"request-{self._num_requests}", list(prompt), max_new_tokens)
        self._num_requests += 1
        self.add_request(request)
        self.log.append(
            f"{request.request_id} arrives with the tokens {listed(prompt)} and "
            f"max_new_tokens = {max_new_tokens}"
        )

    def preempt(self, request: Request, why: str = POOL_IS_DRY) -> None:
        """Free the blocks of a running request, and put it first in the queue."""
        if why == POOL_IS_DRY:
            self._goals.add(Goal.POOL_DRY)
        self._goals.update(coverage.of_preempted(request))
        self._former_block_ids[request.request_id] = request.block_ids
        super().preempt(request)
        self.log.append(f"{request.request_id} is preempted {why}")

    def finish(self, request: Request, why: str = "with all its tokens") -> None:
        """End a running request."""
        if request.is_in_prefill:
            self._goals.add(Goal.ENDED_IN_PREFILL)
        super().finish(request)
        self.finished.append(request)
        self.log.append(f"{request.request_id} ends {why}")

    def start_step(self, plan: Plan) -> Snapshot | None:
        """Return the next step according to a plan, or None if there is nothing to compute."""
        if plan.finishes is not None and self.running:
            self.finish(plan.finishes.pick(self.running, self.shares), "early")
        if plan.preempts is not None and self.running:
            self.preempt(plan.preempts.pick(self.running, self.shares), "as planned by the test")
        self._step = self.schedule(plan)
        if self._step is None:
            return None
        self._record(self._step)
        return self._take_snapshot(self._step)

    def finish_step(self, plan: Plan) -> None:
        """Update requests after the step was executed; the plan says which drafts are accepted."""
        if self._step is None:
            return
        num_accepted = iter(plan.accepted * len(self.running))
        num_new_drafts = min(plan.num_drafts, self.setup.num_speculative_tokens)
        scheduled = self._scheduled(self._step)
        num_drafts = [len(request.spec_token_ids) for request in scheduled]
        sampled, drafts = {}, {}
        for request in scheduled:
            if request.request_id in self._step.sampled_req_ids:
                accepted = []
                if request.spec_token_ids:
                    maximum = min(next(num_accepted), request.num_missing_tokens - 1)
                    accepted = request.spec_token_ids[:maximum]
                    self.log.append(
                        f"  {request.request_id} accepts {len(accepted)} of "
                        f"{len(request.spec_token_ids)}"
                    )
                sampled[request.request_id] = accepted + self.fresh_tokens(1)
                drafts[request.request_id] = self.fresh_tokens(num_new_drafts)
        self.update_from_output(self._step, sampled, drafts)
        for request, num_tried in zip(scheduled, num_drafts, strict=True):
            self._goals.update(coverage.of_computed(request, num_tried, self.setup))
        self.pool.freed_in_step.clear()

    def _scheduled(self, step: SchedulerOutput) -> list[Request]:
        """Return the requests of a step."""
        return [r for r in self.running if r.request_id in step.num_scheduled_tokens]

    def _record(self, step: SchedulerOutput) -> None:
        """Record the coverage goals that a step reaches."""
        for request in self._scheduled(step):
            req_id = request.request_id
            if request.num_rejected_tokens:
                self._goals.add(Goal.WRITTEN_AGAIN)
            if req_id in self._idle_ids and req_id not in step.admitted_req_ids:
                self._goals.add(Goal.COMES_BACK)
            if req_id in step.resumed_req_ids:
                self._goals.update(coverage.of_resumed(request, self._former_block_ids[req_id]))
            for group, block_ids in enumerate(step.new_block_ids[req_id]):
                for block_id in block_ids:
                    if self._group_of.setdefault(block_id, group) != group:
                        self._goals.add(Goal.OTHER_GROUP)
                        self._group_of[block_id] = group
        self._idle_ids = {r.request_id for r in self.running} - set(step.num_scheduled_tokens)
        if self._idle_ids:
            self._goals.add(Goal.SITS_OUT)

    def _take_snapshot(self, step: SchedulerOutput) -> Snapshot:
        """Log a step, and return the state in which it runs."""
        requests = {r.request_id: self._take_request_snapshot(step, r) for r in self.running}
        scheduled = {req_id: requests[req_id] for req_id in step.num_scheduled_tokens}
        self.log += [f"step {step.step_index}:", *(f"  {one}" for one in scheduled.values())]
        others = tuple(one for req_id, one in requests.items() if req_id not in scheduled)
        return Snapshot(step, scheduled, others, self.pool.free_block_ids)

    def _take_request_snapshot(self, step: SchedulerOutput, request: Request) -> RequestSnapshot:
        """Return the state of a request while a step runs."""
        start = request.num_computed_tokens
        stop = start + step.num_scheduled_tokens.get(request.request_id, 0)
        tokens = request.token_ids + request.spec_token_ids
        return RequestSnapshot(
            request.request_id,
            start,
            stop,
            tuple(self._prefixes.along(tokens[:stop])),
            tuple(tuple(ids) for ids in request.block_ids),
            max(stop - request.num_tokens, 0),
            request.num_cached_tokens,
        )
