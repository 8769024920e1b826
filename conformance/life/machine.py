"""The state machine: what happens in a life, step by step, and whether it went well."""

from __future__ import annotations

from functools import partial

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from conformance.life import same_reads
from conformance.life.deployment import deploy_setup
from conformance.life.engine import Engine
from conformance.life.events import of_setup, of_step
from conformance.life.invariants import (
    check_blocks,
    check_order,
    check_reads,
    check_rows,
    check_writes,
)
from conformance.life.plan import Plan
from conformance.life.scene import Scene
from conformance.life.setup import Setup
from conformance.life.shadow import ShadowCache
from conformance.life.strategies import Scale, arrivals, plans, setups, wanted_tokens
from conformance.life.view import BrokenInvariantError, view_of
from conformance.situations import LEDGER
from conformance.targets import Target
from conformance.traffic.runner import Runner
from conformance.traffic.twins import Mismatch, Twins

NAME = "a runner's life"
"""What the closing table calls it."""

MOST_UNENDED = 7
"""Requests that wait or run: with more, none would ever be admitted."""


class LifeMismatchError(AssertionError):
    """What went wrong in a life, told with all that happened before it."""


def _setups() -> st.SearchStrategy[Setup]:
    return st.runner().flatmap(lambda machine: setups(machine.scale))


def _plans() -> st.SearchStrategy[Plan]:
    return st.runner().flatmap(lambda machine: plans(machine.scale))


class LifeMachine(RuleBasedStateMachine):
    """A life of two runners, `reference`'s and a target's.

    Each rule lets requests arrive, or none, and is followed by a step, whose plan says who leaves.

    Args:
        target: What is compared with `reference`.
        scale: The sizes.
    """

    engine: Engine
    twins: Twins

    def __init__(self, target: Target, scale: Scale) -> None:
        super().__init__()
        self.target, self.scale = target, scale
        self._shadows: dict[str, ShadowCache] = {}
        self._num_reqs_before = 0

    @initialize(setup=_setups())
    def set_up(self, setup: Setup) -> None:
        """Set the engine up."""
        LEDGER.count(NAME, self.target.name, (event.value for event in of_setup(setup)))
        self.engine = Engine(setup)
        self.engine.story.append(setup.told)
        self.twins = Twins(
            setup.model,
            setup.settings,
            implementation=self.target.implementation,
            device=self.target.device or "cpu",
            groups=setup.groups,
            deploy=partial(deploy_setup, setup=setup),
        )
        self._shadows = {
            name: ShadowCache(setup.block_sizes) for name in ("reference", self.target.name)
        }

    @rule(
        new=st.runner().flatmap(lambda machine: arrivals(machine.scale)),
        plan=_plans(),
    )
    def arrive(self, new: list[tuple[int, int]], plan: Plan) -> None:
        """Let requests arrive, with tokens of their own."""
        for length, num_more_tokens in new:
            self._arrive(self.engine.fresh_tokens(length), num_more_tokens)
        self._step(plan)

    @rule(
        which=st.integers(0, 7),
        sixths=st.sampled_from((6, 6, 5, 4, 3, 1)),
        num_own_tokens=st.integers(0, 4),
        num_more_tokens=wanted_tokens(),
        plan=_plans(),
    )
    def arrive_with_a_prefix(
        self, which: int, sixths: int, num_own_tokens: int, num_more_tokens: int, plan: Plan
    ) -> None:
        """Let a request arrive that begins as one before it, the latest ones first."""
        known = sorted(self.engine.requests, key=lambda r: -int(r.request_id.split("-")[1]))
        if known:
            tokens = known[which % len(known)].tokens
            self._arrive_like(tokens, sixths, num_own_tokens, num_more_tokens)
        self._step(plan)

    @rule(
        which=st.integers(0, 1),
        num_own_tokens=st.integers(0, 2),
        num_more_tokens=wanted_tokens(),
        plan=_plans(),
    )
    def fork(self, which: int, num_own_tokens: int, num_more_tokens: int, plan: Plan) -> None:
        """Let two requests arrive that begin as a running one, one with many computed tokens."""
        running = sorted(self.engine.running, key=lambda r: -r.num_computed_tokens)
        if running:
            tokens = running[which % len(running)].tokens
            for _ in range(2):
                self._arrive_like(tokens, 6, num_own_tokens, num_more_tokens)
        self._step(plan)

    @rule(plan=_plans())
    def go_on(self, plan: Plan) -> None:
        """Let nothing happen but a step."""
        self._step(plan)

    def _arrive_like(
        self, tokens: list[int], sixths: int, num_own_tokens: int, num_more_tokens: int
    ) -> None:
        """Let a request arrive that begins as another."""
        prefix = tokens[: max(len(tokens) * sixths // 6, 1)]
        self._arrive([*prefix, *self.engine.fresh_tokens(num_own_tokens)], num_more_tokens)

    def _arrive(self, prompt: list[int], num_more_tokens: int) -> None:
        """Let a request arrive, unless so many wait that none would ever be admitted."""
        if len(self.engine.running) + len(self.engine.waiting) < MOST_UNENDED:
            self.engine.arrive(prompt, num_more_tokens)

    def _step(self, plan: Plan) -> None:
        """Schedule a step, let both twins carry it out, and judge it."""
        __tracebackhide__ = True
        if not self.engine.running and not self.engine.waiting:
            for _ in range(2):  # a life in which nobody arrives says nothing
                self.engine.arrive(self.engine.fresh_tokens(self.scale.prompt_lens[0]), 3)
        scene = self.engine.schedule(plan)
        if scene is None:
            return
        setup = self.engine.setup
        with self.target.running(checked=setup.is_checked, seed=setup.seed + scene.step.index):
            mismatch = self.twins.execute(scene.step)
        sides = {"reference": self.twins.expected, self.target.name: self.twins.actual}
        broken = {
            name: self._judge(name, runner, scene, mismatch) for name, runner in sides.items()
        }
        if mismatch is not None or any(broken.values()):
            self._fail(scene, mismatch, broken)
        met = set(of_step(setup, scene, self.twins.expected, self._num_reqs_before))
        self._num_reqs_before = len(scene.turns)
        self.engine.settle(plan)
        met |= self.engine.take_events()
        LEDGER.met.update((NAME, event.value) for event in met)

    def _judge(
        self, name: str, runner: Runner, scene: Scene, mismatch: Mismatch | None
    ) -> str | None:
        """Return which invariant a runner's step breaks first, None where it breaks none."""
        shadow = self._shadows[name]
        try:
            view = view_of(runner, scene)
            check_blocks(view)
            check_writes(view, shadow, scene.step.index)
            check_reads(view, shadow)
            check_rows(view)
            check_order(view)
            for check in same_reads.CHECKS:
                check(view)
        except BrokenInvariantError as error:
            return str(error)
        except Exception:
            if mismatch is None:
                raise
            # What a wrong answer led to may be anything; that it was wrong is known already.
        return None

    def _fail(self, scene: Scene, mismatch: Mismatch | None, broken: dict[str, str | None]) -> None:
        """Raise what went wrong, with the story."""
        __tracebackhide__ = True
        index = scene.step.index
        lines = [f"{name}: step {index}: {why}" for name, why in broken.items() if why]
        if len(set(broken.values())) == 1 and lines:
            lines = [f"both twins: step {index}: {broken['reference']}"]
        if mismatch is not None:
            lines.insert(0, mismatch.line)
        told = [f"{NAME} on {self.target.name} goes wrong", *(f"    {line}" for line in lines)]
        told += ["  after", *(f"    {line}" for line in self.engine.story)]
        raise LifeMismatchError("\n".join(told))
