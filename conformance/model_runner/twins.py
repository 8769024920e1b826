"""Two runners side by side: that of `reference`, and the one under test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from conformance.engine.scheduler_output import SchedulerOutput
from conformance.engine.settings import EngineSettings
from conformance.model_runner.locate import describe, locate
from conformance.model_runner.runner import Runner
from conformance.targets.target import RAISED, REFERENCE, Answer, Target
from conformance.values.comparison import first_difference
from conformance.values.differences import Difference, Verdict, raised
from conformance.zoo.deployment import Deployment, first_memory_difference
from conformance.zoo.groups import CacheGroup


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


class RecordingTarget(Target):
    """A target that records the name of its last call, for the report when it raises."""

    last_call = ""

    def _run(self, name: str, function: Callable[..., Answer], *args: Any, **kwargs: Any) -> Answer:
        object.__setattr__(self, "last_call", name)
        return function(*args, **kwargs)


class Twins:
    """Runs the same steps in `reference` and in another implementation, and compares all results.

    Args:
        target: The target to compare with `reference`.
        settings: The settings of the engine.
        groups: The KV cache groups of the model to serve.
        deploy: Deploys it, at the first step.

    Attributes:
        expected: The runner of `reference`.
        actual: The runner of the target.
    """

    def __init__(
        self,
        target: Target,
        *,
        settings: EngineSettings,
        groups: tuple[CacheGroup, ...],
        deploy: Callable[[Target], Deployment],
    ) -> None:
        self._device = target.device or "cpu"
        self._has_compared_memory = False
        self._targets = [RecordingTarget(**vars(twin)) for twin in (REFERENCE, target)]
        self.expected, self.actual = (
            Runner(one, settings=settings, groups=groups, deploy=deploy) for one in self._targets
        )

    def execute(self, step: SchedulerOutput) -> Mismatch | None:
        """Run the scheduler's next step in both, and return the first difference, or None."""
        expected_error = _execute(self.expected, step)
        actual_error = _execute(self.actual, step)
        if self._device != "cpu":
            torch.cuda.synchronize(self._device)
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
        raising = self._targets[0 if actual is None else 1]
        got = "returned a result" if actual is None else raised(actual)
        expected_outcome = "return a result" if expected is None else f"raise {expected!r}"
        if type(expected) is type(actual):
            got, expected_outcome = f"{got} in both twins", "return a result"
        return Difference(Verdict.OUTCOME, raising.last_call, None, got, expected_outcome)


def _execute(runner: Runner, step: SchedulerOutput) -> BaseException | None:
    """Run a step, and return the exception that it raises, or None."""
    try:
        runner.execute(step)
    except RAISED as error:  # whatever it raises is compared
        return error
    return None
