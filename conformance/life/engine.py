"""The engine of a life: a small scheduler that does what it is told, as far as it can.

Unlike `conformance.traffic.scheduler` it knows the tokens themselves, shares full blocks of a
common prefix, and takes its decisions from a `Plan`. A step is scheduled, carried out by runners,
and then settled: only then it is known which drafts were accepted.
"""

from __future__ import annotations

from collections import deque
from itertools import count

from conformance.life.blocks import SharedBlocks
from conformance.life.events import of_computed, of_preempted, of_resumed
from conformance.life.notes import Notes
from conformance.life.plan import Plan
from conformance.life.prefixes import Prefixes
from conformance.life.request import Request
from conformance.life.scene import Scene, listed
from conformance.life.setup import Setup
from conformance.life.situations import Event


class Engine:
    """Schedules requests step by step.

    Args:
        setup: Its groups and limits.

    Attributes:
        setup: As given.
        prefixes: The numbers of all prefixes.
        blocks: The pool.
        waiting: Requests that have no blocks yet, or no longer.
        running: Those that have, in order of admission.
        ended: Those that are over.
        story: What happened, in words.

    Example:
        >>> engine = Engine(Setup(block_sizes=(2,)))
        >>> engine.arrive([1, 2, 3], num_more_tokens=2)
        >>> scene = engine.schedule(Plan())
        >>> scene.step.num_scheduled_tokens, scene.step.new_block_ids
        ({'request-0': 3}, {'request-0': ([1, 2],)})
        >>> engine.settle(Plan())
        >>> engine.schedule(Plan()).step.num_computed_tokens
        {'request-0': 3}
    """

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.prefixes = Prefixes()
        self.blocks = SharedBlocks(
            setup.num_blocks, setup.block_sizes, takes_latest=setup.takes_latest
        )
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.ended: list[Request] = []
        self.story: list[str] = []
        self._events: set[Event] = set()
        self._new_tokens = count(1)
        self._num_requests = 0
        self._notes = Notes()

    @property
    def requests(self) -> list[Request]:
        """All requests that there ever were: those that are over, running, waiting."""
        return [*self.ended, *self.running, *self.waiting]

    def shares(self, request: Request) -> bool:
        """Tell whether another request holds one of a request's blocks too."""
        return any(self.blocks.num_holders(b) > 1 for ids in request.block_ids for b in ids)

    def fresh_tokens(self, number: int) -> list[int]:
        """Return tokens that stand nowhere yet."""
        return [next(self._new_tokens) for _ in range(number)]

    def take_events(self) -> set[Event]:
        """Return the hard cases that were met since this was last asked."""
        found = self._events | self.blocks.events
        self._events.clear()
        self.blocks.events.clear()
        return found

    def arrive(self, prompt: list[int], num_more_tokens: int) -> None:
        """Let a request arrive.

        Args:
            prompt: Its tokens, at least one; cut to what the engine serves.
            num_more_tokens: How many it wants, at least one.
        """
        longest = self.setup.max_model_len
        prompt = prompt[: longest - 1]
        request = Request(
            request_id=f"request-{self._num_requests}",
            num_prompt_tokens=len(prompt),
            num_total_tokens=min(len(prompt) + num_more_tokens, longest),
            tokens=list(prompt),
            prefixes=self.prefixes.along(prompt),
        )
        self._num_requests += 1
        self.waiting.append(request)
        num_more_tokens = request.num_total_tokens - len(prompt)
        tokens = f"the tokens {listed(prompt)}"
        self.story.append(
            f"{request.request_id} arrives with {tokens}, and wants {num_more_tokens} more"
        )

    def preempt(self, request: Request, why: str = "for another's sake") -> None:
        """Take a running request's blocks away, and put it first in the queue."""
        self._events.update(of_preempted(request))
        self.running.remove(request)
        request.former_block_ids = request.block_ids
        self._leave(request)
        self._notes.preempted_ids.append(request.request_id)
        request.num_computed_tokens = request.num_rejected = 0
        request.is_preempted = True
        self.waiting.appendleft(request)
        self.story.append(f"{request.request_id} is preempted {why}")

    def finish(self, request: Request, why: str = "early") -> None:
        """End a running request."""
        if request.is_in_prefill:
            self._events.add(Event.ENDED_IN_PREFILL)
        self.running.remove(request)
        self._leave(request)
        self._notes.finished_ids.append(request.request_id)
        self.ended.append(request)
        self.story.append(f"{request.request_id} ends {why}")

    def schedule(self, plan: Plan) -> Scene | None:
        """Decide what the next step computes.

        Args:
            plan: What it is to be like.

        Returns:
            The step, None where there is nothing to compute.
        """
        most = self.setup.token_budget
        budget = most if plan.most_tokens is None else min(plan.most_tokens, most)
        self._notes.begin()
        if plan.ends is not None and self.running:
            self.finish(plan.ends.among(self))
        if plan.preempts is not None and self.running:
            self.preempt(plan.preempts.among(self))
        budget = self._schedule_running(plan, budget)
        admitted = self._admit(plan, budget) if plan.admits else []
        return self._make_scene(admitted) if self._notes.num_scheduled_tokens else None

    def settle(self, plan: Plan) -> None:
        """Let the step that was scheduled have happened.

        Args:
            plan: The one that it was scheduled with.
        """
        accepted = iter(plan.accepted * len(self.running))
        num_scheduled = self._notes.num_scheduled_tokens
        for request in list(self.running):
            if request.request_id not in num_scheduled:
                continue
            request.sat_out = False
            stop = request.num_computed_tokens + num_scheduled[request.request_id]
            num_tried = max(stop - request.num_tokens, 0)
            if request.compute(stop):
                most = next(accepted) if num_tried else 0
                most = request.sample(most, next(self._new_tokens), self.prefixes)
                if num_tried:
                    self.story.append(f"  {request.request_id} accepts {most} of {num_tried}")
            self._events.update(of_computed(request, num_tried, self.setup))
            computed = request.prefixes[: request.num_computed_tokens]
            self.blocks.remember(computed, request.block_ids)
            if request.num_tokens >= request.num_total_tokens:
                self.finish(request, "with all its tokens")
        self.blocks.end_step()

    def _schedule_running(self, plan: Plan, budget: int) -> int:
        """Give running requests their tokens, preempting from the end; return what is left."""
        for position, request in enumerate(list(self.running)):
            if request not in self.running or budget == 0:
                continue
            if position in plan.idle:
                request.sat_out = True
                self._events.add(Event.SITS_OUT)
                continue
            if request.is_decoding:
                most = min(plan.num_drafts, self.setup.num_speculative_tokens)
                request.draft(self.fresh_tokens(most), self.prefixes)
            stop = self._stop(request, plan, budget)
            while request in self.running and self._num_missing(request, stop) > 0:
                if self._num_missing(request, stop) <= self.blocks.num_free:
                    break
                self._events.add(Event.POOL_DRY)
                self.preempt(self.running[-1], "because the pool is dry")
            if request in self.running:
                budget -= self._note_scheduled(request, stop, self._take_blocks(request, stop))
        return budget

    def _admit(self, plan: Plan, budget: int) -> list[Request]:
        """Let waiting requests in, first come, first served."""
        admitted: list[Request] = []
        while self.waiting and budget > 0 and len(self.running) < self.setup.max_num_seqs:
            request = self.waiting[0]
            # At least one token is computed: the last one's logits are wanted.
            num_shared, shared = self.blocks.find(request.prefixes, request.num_tokens - 1)
            request.block_ids, request.num_computed_tokens = shared, num_shared
            stop = self._stop(request, plan, budget)
            num_revived = sum(not self.blocks.num_holders(b) for ids in shared for b in ids)
            if self._num_missing(request, stop) + num_revived > self.blocks.num_free:
                request.block_ids, request.num_computed_tokens = [], 0
                break
            for block_ids in shared:
                for block_id in block_ids:
                    self.blocks.share(block_id)
            request.num_shared_tokens = num_shared
            self._take_blocks(request, stop)
            all_blocks = tuple(list(ids) for ids in request.block_ids)
            budget -= self._note_scheduled(request, stop, all_blocks)
            if request.is_preempted:
                self._events.update(of_resumed(request))
            self.running.append(self.waiting.popleft())
            admitted.append(request)
        return admitted

    def _stop(self, request: Request, plan: Plan, budget: int) -> int:
        """Return how many tokens of a request are computed after the step."""
        known = request.num_tokens + len(request.drafts)
        most = request.num_computed_tokens + min(plan.chunk, budget)
        stop = min(known, self.setup.max_model_len, most)
        request.try_until(stop)
        return stop

    def _missing(self, request: Request, stop: int) -> list[int]:
        """Count, for each group, the blocks that a request lacks up to a token."""
        return [
            max(group.num_blocks(stop) - len(block_ids), 0)
            for group, block_ids in zip(self.setup.groups, request.block_ids, strict=True)
        ]

    def _num_missing(self, request: Request, stop: int) -> int:
        """Count the blocks of all groups that a request lacks up to a token."""
        return sum(self._missing(request, stop))

    def _take_blocks(self, request: Request, stop: int) -> tuple[list[int], ...]:
        """Give a request the blocks that it lacks up to a token, and return them."""
        missing = self._missing(request, stop)
        taken = tuple(self.blocks.take(group, number) for group, number in enumerate(missing))
        for block_ids, new in zip(request.block_ids, taken, strict=True):
            block_ids.extend(new)
        return taken

    def _note_scheduled(
        self, request: Request, stop: int, new_block_ids: tuple[list[int], ...]
    ) -> int:
        """Note that a request is computed up to a token; return how many tokens that is."""
        if request.sat_out:
            self._events.add(Event.COMES_BACK)
        if request.num_rejected:
            self._events.add(Event.WRITTEN_AGAIN)
        return self._notes.schedule(request, stop, new_block_ids)

    def _leave(self, request: Request) -> None:
        """Give a request's blocks back, the last ones first."""
        for block_ids in request.block_ids:
            self.blocks.give_back(block_ids[::-1])
        request.block_ids = []
        request.drafts = []
        request.num_shared_tokens = 0
        request.sat_out = False

    def _make_scene(self, admitted: list[Request]) -> Scene:
        """Write down what was decided."""
        num_scheduled = self._notes.num_scheduled_tokens
        scheduled = [r for r in self.running if r.request_id in num_scheduled]
        step = self._notes.make_step(scheduled, admitted)
        for request in admitted:
            request.is_preempted = False
        turns = {r.request_id: r.turn(num_scheduled[r.request_id]) for r in scheduled}
        self.story += [f"step {step.index}:", *(f"  {turn.told}" for turn in turns.values())]
        others = tuple(r.turn(0) for r in self.running if r.request_id not in turns)
        return Scene(step, turns, others, self.blocks.free)
