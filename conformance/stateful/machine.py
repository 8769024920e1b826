"""The state machine: Hypothesis draws arrivals and plans, and each step is checked."""

from __future__ import annotations

import copy
from collections.abc import Mapping

from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from conformance.coverage.goals import COVERAGE
from conformance.execution.crashes import RERUN
from conformance.model_runner.runner import Runner
from conformance.model_runner.twins import Mismatch, Twins
from conformance.stateful import same_reads
from conformance.stateful.coverage import of_setup, of_step
from conformance.stateful.invariants import (
    check_blocks,
    check_order,
    check_reads,
    check_rows,
    check_writes,
)
from conformance.stateful.model_cache import ModelCache
from conformance.stateful.plan import Plan
from conformance.stateful.scheduler import PlannedScheduler
from conformance.stateful.setup import Setup
from conformance.stateful.snapshot import Snapshot
from conformance.stateful.strategies import Scale, arrivals, new_token_counts, plans, setups
from conformance.stateful.view import view_of
from conformance.strategies import cached as st
from conformance.targets.progress import PROGRESS
from conformance.targets.target import STATEFUL_TEST, Target

MAX_UNFINISHED = 7
"""The most requests that wait or run: with more, the last ones would never be admitted."""


class StatefulMismatchError(AssertionError):
    """The first failure of a stateful test, with a log of what happened before it."""


def _setups() -> st.SearchStrategy[Setup]:
    return st.runner().flatmap(lambda machine: setups(machine.scale))


def _plans() -> st.SearchStrategy[Plan]:
    return st.runner().flatmap(lambda machine: plans(machine.scale))


class EngineStateMachine(RuleBasedStateMachine):
    """A scheduler with two runners, `reference`'s and a target's.

    Each rule adds requests, or none, and runs a step, whose plan also decides which requests are
    preempted or finished.

    Args:
        target: The target to compare with `reference`.
        scale: The sizes.
    """

    scheduler: PlannedScheduler
    twins: Twins
    model_cache: ModelCache

    def __init__(self, target: Target, scale: Scale) -> None:
        super().__init__()
        self.target, self.scale = target, scale
        self._num_reqs_before = 0

    @initialize(setup=_setups())
    def set_up(self, setup: Setup) -> None:
        """Set the engine up."""
        PROGRESS.examples += 1
        COVERAGE.count(STATEFUL_TEST, self.target.name, (goal.value for goal in of_setup(setup)))
        self.scheduler = PlannedScheduler(setup)
        self.twins = Twins(
            self.target, settings=setup.settings, groups=setup.groups, deploy=setup.deploy
        )
        self.model_cache = ModelCache(setup.block_sizes)

    @rule(
        new=st.runner().flatmap(lambda machine: arrivals(machine.scale)),
        plan=_plans(),
    )
    def arrive(self, new: list[tuple[int, int]], plan: Plan) -> None:
        """Add requests, whose tokens no other request has, and run a step."""
        for length, max_new_tokens in new:
            self._arrive(self.scheduler.fresh_tokens(length), max_new_tokens)
        self._step(plan)

    @rule(
        which=st.integers(0, 7),
        sixths=st.sampled_from((6, 6, 5, 4, 3, 1)),
        num_own_tokens=st.integers(0, 4),
        max_new_tokens=new_token_counts(),
        plan=_plans(),
    )
    def arrive_with_a_prefix(
        self, which: int, sixths: int, num_own_tokens: int, max_new_tokens: int, plan: Plan
    ) -> None:
        """Add a request that shares a prefix with an earlier, preferably recent one."""
        known = sorted(self.scheduler.requests, key=lambda r: -int(r.request_id.split("-")[1]))
        if known:
            tokens = known[which % len(known)].token_ids
            self._arrive_like(tokens, sixths, num_own_tokens, max_new_tokens)
        self._step(plan)

    @rule(
        which=st.integers(0, 1),
        num_own_tokens=st.integers(0, 2),
        max_new_tokens=new_token_counts(),
        plan=_plans(),
    )
    def fork(self, which: int, num_own_tokens: int, max_new_tokens: int, plan: Plan) -> None:
        """Add two requests that begin with all tokens of one that has many computed ones."""
        running = sorted(self.scheduler.running, key=lambda r: -r.num_computed_tokens)
        if running:
            tokens = running[which % len(running)].token_ids
            for _ in range(2):
                self._arrive_like(tokens, 6, num_own_tokens, max_new_tokens)
        self._step(plan)

    @rule(plan=_plans())
    def run_step(self, plan: Plan) -> None:
        """Run a step without new requests."""
        self._step(plan)

    def _arrive_like(
        self, tokens: list[int], sixths: int, num_own_tokens: int, max_new_tokens: int
    ) -> None:
        """Add a request that begins like another."""
        prefix = tokens[: max(len(tokens) * sixths // 6, 1)]
        self._arrive([*prefix, *self.scheduler.fresh_tokens(num_own_tokens)], max_new_tokens)

    def _arrive(self, prompt: list[int], max_new_tokens: int) -> None:
        """Add a request, unless too many are unfinished."""
        if len(self.scheduler.running) + len(self.scheduler.waiting) < MAX_UNFINISHED:
            self.scheduler.arrive(prompt, max_new_tokens)

    def _step(self, plan: Plan) -> None:
        """Schedule a step, let both twins execute it, and check it."""
        __tracebackhide__ = True
        if not self.scheduler.running and not self.scheduler.waiting:
            for _ in range(2):  # without requests there is nothing to check
                self.scheduler.arrive(self.scheduler.fresh_tokens(self.scale.prompt_lens[0]), 3)
        snapshot = self.scheduler.start_step(plan)
        if snapshot is None:
            return
        setup = self.scheduler.setup
        with self.target.running(
            checked=setup.is_checked, seed=setup.seed + snapshot.step.step_index
        ):
            crash = RERUN.try_in_child(lambda: self.twins.execute(snapshot.step))
            if crash:
                line = f"{PROGRESS.function.decode()} {crash}"
                self._fail(snapshot, None, {"reference": None, self.target.name: line})
            mismatch = self.twins.execute(snapshot.step)
        runners = {"reference": self.twins.expected, self.target.name: self.twins.actual}
        if mismatch is None:  # equal results break the same invariants, so one runner is checked
            found = _find_broken_invariant(self.twins.expected, snapshot, None, self.model_cache)
            broken = dict.fromkeys(runners, found)
        else:
            broken = {
                name: _find_broken_invariant(
                    runner, snapshot, mismatch, copy.deepcopy(self.model_cache)
                )
                for name, runner in runners.items()
            }
        if mismatch is not None or any(broken.values()):
            self._fail(snapshot, mismatch, broken)
        reached = set(of_step(setup, snapshot, self.twins.expected, self._num_reqs_before))
        self._num_reqs_before = len(snapshot.requests)
        self.scheduler.finish_step(plan)
        reached |= self.scheduler.take_goals()
        COVERAGE.reached.update((STATEFUL_TEST, goal.value) for goal in reached)

    def _fail(
        self, snapshot: Snapshot, mismatch: Mismatch | None, broken: Mapping[str, str | None]
    ) -> None:
        """Raise the failure, with the log of what happened before it."""
        __tracebackhide__ = True
        index = snapshot.step.step_index
        lines = [f"{name}: step {index}: {why}" for name, why in broken.items() if why]
        if len(set(broken.values())) == 1 and lines:
            lines = [f"both twins: step {index}: {broken['reference']}"]
        if mismatch is not None:
            lines.insert(0, mismatch.line)
        report = [
            f"{STATEFUL_TEST} on {self.target.name} fails",
            *(f"    {line}" for line in lines),
        ]
        report += ["after", *(f"    {line}" for line in self.scheduler.log)]
        raise StatefulMismatchError("\n".join(report))


def _find_broken_invariant(
    runner: Runner, snapshot: Snapshot, mismatch: Mismatch | None, model: ModelCache
) -> str | None:
    """Return the message of the first invariant that a runner's step breaks, or None."""
    try:
        view = view_of(runner, snapshot)
        check_blocks(view)
        check_writes(view, model, snapshot.step.step_index)
        check_reads(view, model)
        check_rows(view)
        check_order(view)
        for check in same_reads.CHECKS:
            check(view)
    except AssertionError as error:
        return str(error)
    except Exception:
        if mismatch is None:
            raise
        # After a wrong result anything may be raised; the mismatch is reported.
    return None
