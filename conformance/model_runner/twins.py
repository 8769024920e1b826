"""Two runners side by side: that of `reference`, and the one under test."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from conformance.engine.scheduler_output import SchedulerOutput
from conformance.model_runner.layers import deploy_small
from conformance.model_runner.locate import describe, locate
from conformance.model_runner.runner import Runner
from conformance.targets.target import RAISED, REFERENCE, TARGETS, Answer, Target
from conformance.traffic.settings import Settings
from conformance.values.comparison import first_difference
from conformance.values.differences import Difference, Verdict, raised
from conformance.zoo.deployment import Deployment
from conformance.zoo.groups import CacheGroup
from conformance.zoo.models import Model
from conformance.zoo.observation import first_memory_difference
from conformance.zoo.serving import Serving


@dataclass(frozen=True)
class Mismatch:
    """The first difference of a step, and the requests that it concerns.

    Attributes:
        step_index: The step's number.
        difference: The field, with the actual and the expected value.
        req_ids: The requests that it concerns: one, if it is in a single request's row or token.
    """

    step_index: int
    difference: Difference
    req_ids: list[str]

    @property
    def line(self) -> str:
        """The mismatch in one line."""
        return f"step {self.step_index}: {self.difference.line} (of {describe(self.req_ids)})"


@dataclass
class Calls:
    """The calls that were made.

    Attributes:
        last: The name of the last one, for the report when it raises.
        seconds: The time spent in them.
    """

    last: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class TimedTarget(Target):
    """A target that records its last call, and the time that all calls took.

    >>> target = TimedTarget(**vars(REFERENCE))
    >>> target.call("extract_layer_index", "layers.3.attn"), target.calls.last
    (3, 'extract_layer_index')
    """

    calls: Calls = field(default_factory=Calls, compare=False)

    def _run(self, name: str, function: Callable[..., Answer], *args: Any, **kwargs: Any) -> Answer:
        self.calls.last = name
        started = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            self.calls.seconds += time.perf_counter() - started


class Twins:
    """Runs the same steps in `reference` and in another implementation, and compares all results.

    Args:
        model: The model to serve.
        settings: The settings of the engine.
        target: The target to compare with `reference`.
        groups: KV cache groups that take blocks, in place of the model's own.
        deploy: Deploys the model at the first step.

    Attributes:
        expected: The runner of `reference`.
        actual: The runner of the target.
        seconds: For each step that was run, the time spent in the functions of the two.

    Example:
        >>> from conformance.traffic.engine import TraceEngine
        >>> from conformance.traffic.settings import Settings
        >>> from conformance.traffic.trace import TraceRequest
        >>> from conformance.zoo.models import get_model
        >>> model, settings = get_model("llama-3.1-8b"), Settings(max_model_len=64)
        >>> twins = Twins(model, settings)
        >>> steps = TraceEngine([TraceRequest(0.0, 5, 2)], model, settings)
        >>> [twins.execute(step) for step in steps]
        [None, None]
    """

    def __init__(
        self,
        model: Model,
        settings: Settings,
        *,
        target: Target = TARGETS["host"],
        groups: tuple[CacheGroup, ...] | None = None,
        deploy: Callable[[Target, Serving], Deployment] = deploy_small,
    ) -> None:
        self.seconds: list[tuple[float, float]] = []
        self._device = target.device or "cpu"
        self._has_compared_memory = False
        self._timed = [TimedTarget(**vars(twin)) for twin in (REFERENCE, target)]
        self.expected, self.actual = (
            Runner(timed, model, settings=settings, groups=groups, deploy=deploy)
            for timed in self._timed
        )

    def execute(self, step: SchedulerOutput) -> Mismatch | None:
        """Run the scheduler's next step in both, and return the first difference, or None."""
        before = [timed.calls.seconds for timed in self._timed]
        expected_error = _execute(self.expected, step)
        actual_error = _execute(self.actual, step)
        if self._device != "cpu":
            torch.cuda.synchronize(self._device)
        after = [timed.calls.seconds for timed in self._timed]
        self.seconds.append((after[0] - before[0], after[1] - before[1]))
        difference = self._first_difference() or self._first_difference_of_memory()
        if difference is None:
            difference = self._difference_of_outcomes(expected_error, actual_error)
        if difference is None:
            return None
        coordinates = self.expected.coordinates(self.expected.results)
        req_ids = locate(difference.path, difference.index, coordinates)
        return Mismatch(step.step_index, difference, req_ids)

    def _first_difference(self) -> Difference | None:
        """Compare result by result, in the order in which they were computed."""
        for name, expected in self.expected.results.items():
            if name not in self.actual.results:
                return None  # an exception came first
            difference = first_difference(
                expected, self.actual.results[name], name, torch.device(self._device).type
            )
            if difference is not None:
                return difference
        return None

    def _first_difference_of_memory(self) -> Difference | None:
        """Compare the memory of the caches, once they are allocated."""
        expected, actual = self.expected.deployment, self.actual.deployment
        if self._has_compared_memory or expected is None or actual is None:
            return None
        self._has_compared_memory = True
        return first_memory_difference(expected, actual)

    def _difference_of_outcomes(
        self, expected: BaseException | None, actual: BaseException | None
    ) -> Difference | None:
        """Compare the exceptions; a scheduler's steps are valid, so there should be none."""
        if expected is None and actual is None:
            return None
        raising = self._timed[0 if actual is None else 1]
        got = "returned a result" if actual is None else raised(actual)
        expected_outcome = "return a result" if expected is None else f"raise {expected!r}"
        if type(expected) is type(actual):
            got, expected_outcome = f"{got} in both twins", "return a result"
        return Difference(Verdict.OUTCOME, raising.calls.last, None, got, expected_outcome)


def _execute(runner: Runner, step: SchedulerOutput) -> BaseException | None:
    """Run a step, and return the exception that it raises, or None."""
    try:
        runner.execute(step)
    except RAISED as error:  # whatever it raises is compared
        return error
    return None
