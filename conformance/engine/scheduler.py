"""The scheduler: which requests run in a step, with how many tokens and in which blocks.

Requests are served first come, first served. A prompt is prefilled in chunks, as large as the
step's token budget allows. Blocks come from one pool for all KV cache groups; those before a
sliding window are freed. When the pool runs dry, the request admitted last is preempted: its blocks
are freed, and later it is computed again from its first token, or from the end of a prefix that is
still cached.
"""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from conformance.engine.block_pool import NULL_BLOCK, BlockPool, PrefixCache
from conformance.engine.request import Request

NO_LIMIT = 2**31 - 1
"""Counts, lengths and block ids are int32."""


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """How an engine is set up."""

    block_sizes: Sequence[int]  # tokens in a block of each KV cache group
    num_blocks: int  # blocks of the pool of all groups, the null block included
    # For each group, how many computed tokens before the new ones are read; 0: all.
    sliding_window_reach: Sequence[int] = ()
    reuses_latest_block: bool = False  # whether the block that was freed last is handed out first
    shares_prefixes: bool = False  # whether full blocks of a common prefix are shared
    token_budget: int = 2048  # the most tokens in one step
    max_num_seqs: int = 64  # the most requests running at once
    max_model_len: int = 16_384  # the longest sequence that is served, in tokens
    # The most tokens of a request in a step, so that several prompts are prefilled side by side.
    long_prefill_token_threshold: int = NO_LIMIT
    num_speculative_tokens: int = 0  # the most draft tokens of a decode
    padding: int = 8  # CUDA graphs are captured for multiples of so many requests and tokens

    @property
    def decode_threshold(self) -> int:
        """The most new tokens of a decode: the last one sampled, and the drafts after it."""
        return 1 + self.num_speculative_tokens

    def padded(self, count: int) -> int:
        """Round a number of requests or tokens up to the next multiple of `padding`.

        Example:
            >>> EngineSettings(block_sizes=[16], num_blocks=9, padding=8).padded(9)
            16
        """
        return -(-count // self.padding) * self.padding

    def num_blocks_of(self, num_tokens: int) -> list[int]:
        """Count the blocks of a sequence of so many tokens, for each KV cache group."""
        return [-(-num_tokens // block_size) for block_size in self.block_sizes]

    def num_skipped_of(self, num_computed_tokens: int) -> list[int]:
        """Count the blocks that lie wholly before the window, for each KV cache group."""
        reaches = self.sliding_window_reach or [0] * len(self.block_sizes)
        return [
            max(num_computed_tokens - reach, 0) // size if reach else 0
            for size, reach in zip(self.block_sizes, reaches, strict=True)
        ]


@dataclass(frozen=True, kw_only=True)
class Policy:
    """How a step is scheduled. The default is first come, first served, within the settings."""

    token_budget: int = NO_LIMIT  # the most tokens of the step
    max_tokens_per_request: int = NO_LIMIT  # the most tokens of one request
    # Positions in the list of running requests of those that are not scheduled.
    skipped: frozenset[int] = frozenset()
    admits: bool = True  # whether waiting requests are admitted
    # Whether they are admitted in a step that preempts. A preempted request is first in the queue,
    # so it would be resumed at once.
    admits_after_preemption: bool = False


FIRST_COME_FIRST_SERVED = Policy()


@dataclass(kw_only=True)
class SchedulerOutput:
    """The requests, tokens and new blocks of a step, as a worker gets them.

    The dicts have the step's requests in the order in which they were admitted, by request id.
    """

    finished_req_ids: list[str]  # requests that ended since the last step; their blocks are free
    preempted_req_ids: list[str]  # requests that lost their blocks since then
    admitted_req_ids: list[str]  # requests that are new or resumed: a worker must add them
    # Requests whose known tokens are all computed after the step, so that a token is sampled.
    sampled_req_ids: list[str]
    # New tokens of each request, drafts included. `reorder_batch_to_split_decodes_and_prefills`
    # reads this dict.
    num_scheduled_tokens: dict[str, int]
    num_computed_tokens: dict[str, int]  # tokens of each request in the cache before the step
    num_prompt_tokens: dict[str, int]  # length of each request's prompt
    token_ids: dict[str, list[int]]  # the known tokens of each request
    spec_token_ids: dict[str, list[int]]  # the drafts after them, which are among the new tokens
    # For each request and KV cache group, the blocks that it gets. They are all blocks of a request
    # that is new or resumed.
    new_block_ids: dict[str, list[list[int]]]
    # All its blocks; the null block where one was freed, as it lies before the window.
    block_ids: dict[str, list[list[int]]]

    @property
    def removed_req_ids(self) -> list[str]:
        """The requests that a worker must remove: finished and preempted ones."""
        return self.finished_req_ids + self.preempted_req_ids


@dataclass
class _Step:
    policy: Policy
    budget: int
    scheduled: list[Request] = field(default_factory=list)
    admitted: list[Request] = field(default_factory=list)
    num_scheduled_tokens: dict[str, int] = field(default_factory=dict)
    new_block_ids: dict[str, list[list[int]]] = field(default_factory=dict)


class Scheduler:
    """Serves requests, step by step.

    Attributes:
        waiting: Requests without blocks, in the order in which they are admitted.
        running: Requests with blocks, in the order in which they were admitted.
        num_preemptions: How often a request was preempted.

    Example:
        >>> settings = EngineSettings(block_sizes=[16], num_blocks=9, token_budget=4)
        >>> scheduler = Scheduler(settings)
        >>> scheduler.add_request(Request("a", [7] * 5, max_new_tokens=2))
        >>> scheduler.add_request(Request("b", [8] * 2, max_new_tokens=1))
        >>> scheduler.update_from_output(scheduler.schedule(), {})
        []
        >>> scheduler.schedule().num_scheduled_tokens
        {'a': 1, 'b': 2}
    """

    def __init__(self, settings: EngineSettings) -> None:
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.num_preemptions = 0
        self._settings = settings
        self._pool = BlockPool(settings.num_blocks, reuses_latest=settings.reuses_latest_block)
        self._prefix_cache: PrefixCache | None = None
        if settings.shares_prefixes:
            self._prefix_cache = PrefixCache(
                self._pool, settings.block_sizes, settings.num_skipped_of
            )
        self._longest = longest_request(settings)
        self._finished_req_ids: list[str] = []
        self._preempted_req_ids: list[str] = []

    @property
    def has_requests(self) -> bool:
        return bool(self.waiting or self.running)

    def add_request(self, request: Request) -> None:
        """Queue a request.

        Raises:
            ValueError: It has no prompt, no token to generate, or is longer than any sequence that
                the engine can serve.
        """
        num_prompt_tokens, max_new_tokens = request.num_prompt_tokens, request.max_new_tokens
        if (
            min(num_prompt_tokens, max_new_tokens) < 1
            or num_prompt_tokens + max_new_tokens > self._longest
        ):
            raise ValueError(
                f"{request.request_id} has {num_prompt_tokens} prompt tokens and max_new_tokens "
                f"{max_new_tokens}, expected at least 1 of each and at most {self._longest} in all"
            )
        self.waiting.append(request)

    def schedule(self, policy: Policy = FIRST_COME_FIRST_SERVED) -> SchedulerOutput | None:
        """Return the next step, or None if there is nothing to compute.

        Its results go to `update_from_output`.
        """
        step = _Step(policy, min(policy.token_budget, self._settings.token_budget))
        self._schedule_running(step)
        if policy.admits and (policy.admits_after_preemption or not self._preempted_req_ids):
            self._schedule_waiting(step)
        return self._make_output(step) if step.scheduled else None

    def update_from_output(
        self,
        output: SchedulerOutput,
        sampled_token_ids: Mapping[str, list[int]],
        draft_token_ids: Mapping[str, list[int]] | None = None,
    ) -> list[Request]:
        """Update the requests with a step's results.

        Args:
            output: The step, which was executed.
            sampled_token_ids: For each of its `sampled_req_ids` the accepted drafts and the token
                that was sampled after them.
            draft_token_ids: New draft tokens, for the requests that have some.

        Returns:
            The requests that are finished now.
        """
        finished = []
        for request in tuple(self.running):
            req_id = request.request_id
            if req_id not in output.num_scheduled_tokens:
                continue
            request.append(sampled_token_ids.get(req_id, []), output.num_scheduled_tokens[req_id])
            request.spec_token_ids = list((draft_token_ids or {}).get(req_id, []))
            if self._prefix_cache is not None:
                self._prefix_cache.cache_full_blocks(request)
            if request.num_missing_tokens == 0:
                self.finish(request)
                finished.append(request)
        return finished

    def preempt(self, request: Request) -> None:
        """Free the blocks of a running request, and put it first in the queue."""
        self.running.remove(request)
        self._free(request)
        request.num_computed_tokens = request.num_rejected_tokens = 0
        self.waiting.appendleft(request)
        self._preempted_req_ids.append(request.request_id)
        self.num_preemptions += 1

    def finish(self, request: Request) -> None:
        self.running.remove(request)
        self._free(request)
        self._finished_req_ids.append(request.request_id)

    def _schedule_running(self, step: _Step) -> None:
        """Give running requests their tokens; if blocks run out, preempt from the end."""
        for position, request in enumerate(tuple(self.running)):
            if step.budget == 0 or request not in self.running:
                return  # it was preempted, and so were all after it
            if position in step.policy.skipped:
                continue
            while not self._try_schedule(step, request):
                victim = self.running[-1]
                self.preempt(victim)
                if victim is request:
                    return

    def _schedule_waiting(self, step: _Step) -> None:
        """Admit waiting requests as long as budget, places and blocks last."""
        while self.waiting and step.budget > 0 and len(self.running) < self._settings.max_num_seqs:
            request = self.waiting[0]
            if self._prefix_cache is not None:
                found = self._prefix_cache.find_longest_prefix(request)
                request.num_computed_tokens, request.block_ids = found
            else:
                request.block_ids = tuple([] for _ in self._settings.block_sizes)
            if not self._try_schedule(step, request, is_admitted=True):
                request.block_ids, request.num_computed_tokens = (), 0
                return
            self.running.append(self.waiting.popleft())
            step.admitted.append(request)

    def _try_schedule(self, step: _Step, request: Request, *, is_admitted: bool = False) -> bool:
        """Give a request its tokens of the step; return whether there are enough blocks for them.

        With `is_admitted`, its blocks are cached ones to which it has no reference yet.
        """
        maximum = min(
            step.budget,
            step.policy.max_tokens_per_request,
            self._settings.long_prefill_token_threshold,
        )
        num_known = request.num_tokens + len(request.spec_token_ids)
        end = min(num_known, self._settings.max_model_len, request.num_computed_tokens + maximum)
        if not is_admitted:
            self._free_skipped(request)
        missing = [
            max(0, needed - len(block_ids))
            for needed, block_ids in zip(
                self._settings.num_blocks_of(end), request.block_ids, strict=True
            )
        ]
        cached = _without_null(request.block_ids) if is_admitted else []
        num_revived = sum(self._pool.ref_count(block_id) == 0 for block_id in cached)
        if sum(missing) + num_revived > self._pool.num_free_blocks:
            return False
        for block_id in cached:
            self._pool.touch(block_id)
        new_block_ids = [self._pool.get_new_blocks(count) for count in missing]
        for block_ids, new in zip(request.block_ids, new_block_ids, strict=True):
            block_ids.extend(new)
        if is_admitted:
            new_block_ids = [list(block_ids) for block_ids in request.block_ids]
        del request.spec_token_ids[max(end - request.num_tokens, 0) :]
        num_scheduled_tokens = end - request.num_computed_tokens
        step.scheduled.append(request)
        step.num_scheduled_tokens[request.request_id] = num_scheduled_tokens
        step.new_block_ids[request.request_id] = new_block_ids
        step.budget -= num_scheduled_tokens
        return True

    def _free_skipped(self, request: Request) -> None:
        """Free the blocks that lie before the window; nothing reads them any more."""
        counts = self._settings.num_skipped_of(request.num_computed_tokens)
        for block_ids, count in zip(request.block_ids, counts, strict=True):
            self._pool.free_blocks(_without_null([block_ids[:count]]))
            block_ids[:count] = [NULL_BLOCK] * count

    def _free(self, request: Request) -> None:
        for block_ids in request.block_ids:
            self._pool.free_blocks(_without_null([block_ids]))
        request.block_ids = ()
        request.spec_token_ids = []

    def _make_output(self, step: _Step) -> SchedulerOutput:
        starts = {r.request_id: r.num_computed_tokens for r in step.scheduled}
        ends = {name: start + step.num_scheduled_tokens[name] for name, start in starts.items()}
        output = SchedulerOutput(
            finished_req_ids=self._finished_req_ids,
            preempted_req_ids=self._preempted_req_ids,
            admitted_req_ids=[r.request_id for r in step.admitted],
            sampled_req_ids=[
                r.request_id for r in step.scheduled if ends[r.request_id] >= r.num_tokens
            ],
            num_scheduled_tokens=step.num_scheduled_tokens,
            num_computed_tokens=starts,
            num_prompt_tokens={r.request_id: r.num_prompt_tokens for r in step.scheduled},
            token_ids={r.request_id: list(r.token_ids) for r in step.scheduled},
            spec_token_ids={r.request_id: list(r.spec_token_ids) for r in step.scheduled},
            new_block_ids=step.new_block_ids,
            block_ids={r.request_id: [list(ids) for ids in r.block_ids] for r in step.scheduled},
        )
        self._finished_req_ids, self._preempted_req_ids = [], []
        return output


def _without_null(block_ids: Iterable[Sequence[int]]) -> list[int]:
    return [block_id for of_group in block_ids for block_id in of_group if block_id != NULL_BLOCK]


def longest_request(settings: EngineSettings) -> int:
    """Return the tokens (prompt and output) of the longest request that fits into the whole pool.

    Example:
        >>> longest_request(EngineSettings(block_sizes=[4, 2], num_blocks=1 + 5))
        6
    """
    longest = bisect.bisect_right(
        range(1, settings.max_model_len + 1),
        settings.num_blocks - 1,
        key=lambda num_tokens: sum(settings.num_blocks_of(num_tokens)),
    )
    if longest == settings.max_model_len:
        return longest
    return max(longest - settings.num_speculative_tokens, 0)


def serve(
    scheduler: Scheduler,
    requests: Iterable[tuple[float, Request]],
    execute: Callable[[SchedulerOutput], Sequence[Mapping[str, list[int]]]],
    duration: Callable[[SchedulerOutput], float],
) -> Iterator[SchedulerOutput]:
    """Yield step after step, as executed, until every request has ended.

    Args:
        scheduler: A new scheduler.
        requests: Pairs of an arrival time and a request, sorted by time, in any unit.
        execute: Computes a step, and returns its results, as `update_from_output` takes them.
        duration: Returns how long a step takes on the simulated clock.
    """
    arrivals, clock = deque(requests), 0.0
    while arrivals or scheduler.has_requests:
        if not scheduler.has_requests:
            clock = max(clock, arrivals[0][0])
        while arrivals and arrivals[0][0] <= clock:
            scheduler.add_request(arrivals.popleft()[1])
        step = scheduler.schedule()
        if step is not None:
            clock += duration(step)
            scheduler.update_from_output(step, *execute(step))
            yield step
