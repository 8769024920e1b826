"""The scheduler: which requests run in a step, with how many tokens and in which blocks.

Requests are served first come, first served. A prompt is prefilled in chunks, as large as the
step's token budget allows. Blocks come from one pool for all KV cache groups. When it runs dry, the
request admitted last is preempted: its blocks are freed, and later it is computed again from its
first token, or from the end of a prefix that is still cached.
"""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from conformance.engine.block_pool import BlockPool
from conformance.engine.cache_group import CacheGroup
from conformance.engine.prefix_cache import PrefixCache
from conformance.engine.request import Request
from conformance.engine.scheduler_output import SchedulerOutput
from conformance.engine.settings import FIRST_COME_FIRST_SERVED, EngineSettings, Policy


@dataclass
class _Step:
    """A step under construction."""

    policy: Policy
    budget: int
    scheduled: list[Request] = field(default_factory=list)
    admitted: list[Request] = field(default_factory=list)
    num_scheduled_tokens: dict[str, int] = field(default_factory=dict)
    new_block_ids: dict[str, tuple[list[int], ...]] = field(default_factory=dict)


class Scheduler:
    """Serves requests, step by step.

    Args:
        settings: The settings of the engine.
        groups: The KV cache groups that take blocks.
        pool: The blocks.
        shares_prefixes: Whether full blocks of a common prefix are shared.

    Attributes:
        waiting: Requests without blocks, in the order in which they are admitted.
        running: Requests with blocks, in the order in which they were admitted.
        num_preemptions: How often a request was preempted.

    Example:
        >>> from conformance.engine.cache_group import AttentionGroup
        >>> settings = EngineSettings(token_budget=4)
        >>> scheduler = Scheduler(settings, [AttentionGroup(16)], BlockPool(9))
        >>> scheduler.add_request(Request("a", [7] * 5, max_new_tokens=2))
        >>> scheduler.add_request(Request("b", [8] * 2, max_new_tokens=1))
        >>> scheduler.update_from_output(scheduler.schedule(), {})
        []
        >>> scheduler.schedule().num_scheduled_tokens
        {'a': 1, 'b': 2}
    """

    def __init__(
        self,
        settings: EngineSettings,
        groups: Sequence[CacheGroup],
        pool: BlockPool,
        *,
        shares_prefixes: bool = False,
    ) -> None:
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.num_preemptions = 0
        self._settings = settings
        self._groups = groups
        self._pool = pool
        self._prefix_cache = PrefixCache(pool, groups) if shares_prefixes else None
        self._longest = longest_request(settings, groups, pool.num_free_blocks)
        self._finished_req_ids: list[str] = []
        self._preempted_req_ids: list[str] = []
        self._num_steps = 0

    @property
    def has_requests(self) -> bool:
        """Whether a request is waiting or running."""
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
        request.is_preempted = True
        self.waiting.appendleft(request)
        self._preempted_req_ids.append(request.request_id)
        self.num_preemptions += 1

    def finish(self, request: Request) -> None:
        """End a running request, whether it has all its tokens or not."""
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
            num_cached_tokens, request.block_ids = 0, tuple([] for _ in self._groups)
            if self._prefix_cache is not None:
                found = self._prefix_cache.find_longest_prefix(request)
                num_cached_tokens, request.block_ids = found
            request.num_computed_tokens = request.num_cached_tokens = num_cached_tokens
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
        missing = [
            max(0, group.num_blocks(end) - len(block_ids))
            for group, block_ids in zip(self._groups, request.block_ids, strict=True)
        ]
        cached = [b for block_ids in request.block_ids for b in block_ids] if is_admitted else []
        num_revived = sum(self._pool.ref_count(block_id) == 0 for block_id in cached)
        if sum(missing) + num_revived > self._pool.num_free_blocks:
            return False
        for block_id in cached:
            self._pool.touch(block_id)
        new_block_ids = tuple(self._pool.get_new_blocks(count) for count in missing)
        for block_ids, new in zip(request.block_ids, new_block_ids, strict=True):
            block_ids.extend(new)
        if is_admitted:
            new_block_ids = tuple(list(block_ids) for block_ids in request.block_ids)
        del request.spec_token_ids[max(end - request.num_tokens, 0) :]
        num_scheduled_tokens = end - request.num_computed_tokens
        step.scheduled.append(request)
        step.num_scheduled_tokens[request.request_id] = num_scheduled_tokens
        step.new_block_ids[request.request_id] = new_block_ids
        step.budget -= num_scheduled_tokens
        return True

    def _free(self, request: Request) -> None:
        """Free all blocks of a request."""
        for block_ids in request.block_ids:
            self._pool.free_blocks(block_ids)
        request.block_ids = ()
        request.spec_token_ids = []

    def _make_output(self, step: _Step) -> SchedulerOutput:
        """Make the `SchedulerOutput` of a step."""
        starts = {r.request_id: r.num_computed_tokens for r in step.scheduled}
        ends = {name: start + step.num_scheduled_tokens[name] for name, start in starts.items()}
        output = SchedulerOutput(
            step_index=self._num_steps,
            finished_req_ids=tuple(self._finished_req_ids),
            preempted_req_ids=tuple(self._preempted_req_ids),
            new_req_ids=tuple(r.request_id for r in step.admitted if not r.is_preempted),
            resumed_req_ids=tuple(r.request_id for r in step.admitted if r.is_preempted),
            num_scheduled_tokens=step.num_scheduled_tokens,
            token_ids={
                r.request_id: (r.token_ids + r.spec_token_ids)[starts[r.request_id] : end]
                for r, end in zip(step.scheduled, ends.values(), strict=True)
            },
            sampled_req_ids=tuple(
                r.request_id for r in step.scheduled if ends[r.request_id] >= r.num_tokens
            ),
            new_block_ids=step.new_block_ids,
            num_computed_tokens=starts,
            num_prompt_tokens={r.request_id: r.num_prompt_tokens for r in step.scheduled},
        )
        for request in step.admitted:
            request.is_preempted = False
        self._finished_req_ids.clear()
        self._preempted_req_ids.clear()
        self._num_steps += 1
        return output


def longest_request(
    settings: EngineSettings, groups: Sequence[CacheGroup], num_usable_blocks: int
) -> int:
    """Return the tokens (prompt and output) of the longest request that fits into the whole pool.

    `num_usable_blocks` does not include the null block.
    """

    def num_blocks(num_tokens: int) -> int:
        return sum(group.num_blocks(num_tokens) for group in groups)

    lengths = range(1, settings.max_model_len + 1)
    longest = bisect.bisect_right(lengths, num_usable_blocks, key=num_blocks)
    if longest == settings.max_model_len:
        return longest
    return max(longest - settings.num_speculative_tokens, 0)
