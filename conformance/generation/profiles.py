"""Profiles: how many examples a run draws, and whether it draws the same ones each time.

`--profile NAME` selects one. The brief run shows whether everything works at all, as with another
version of Python. The default run draws the same examples every time, so that its result does not
change by chance; the nightly run draws new ones, from a seed that it prints.
"""

from __future__ import annotations

import dataclasses
import enum

import hypothesis
from hypothesis import HealthCheck, Phase

from conformance.generation.database import Examples
from conformance.generation.hypothesis_provider import FRESH, REPEATABLE


class Kind(enum.Enum):
    """The kind of a check."""

    SAME_ANSWER = "same answer"
    SAME_REFUSAL = "same refusal"
    OTHER_TENSORS = "other tensors"
    LAW = "law"
    LARGE = "large"
    MEMORY = "memory"
    CONDITIONS = "conditions"
    THREADS = "threads"
    STATEFUL = "stateful"


STATEFUL_STEPS = 30
"""Steps of a state machine's run, not counting its setup."""
SMALL_FOR_A_LARGE_ONE = 4
"""Small runs for each one with large blocks, which takes longer and finds little more."""


@dataclasses.dataclass(frozen=True)
class Profile:
    """The number of examples of a run, and whether they are the same each time.

    Attributes:
        name: Its name for `--profile`.
        same_answer_examples: Examples of each "same answer" check, except in the simulator.
        other_examples: Examples of every other check, and of every check in the simulator.
        refusal_examples: Examples of each check with other kinds of tensors, and of each check of
            refusals, each made invalid in every way; half as many refusals in the simulator.
        large_examples: Examples of each preset that is large along a size axis, for two sizes; in
            a random run, for each band of sizes.
        memory_examples: Examples of each check in any memory, each in several layouts.
        condition_examples: Examples of each check under conditions, each of up to a thousand calls.
        thread_examples: Examples of each check in threads, each with a call for each line.
        is_random: Whether each run draws new examples.
        seed: The seed of the draws of all checks; None for a new one each time.
        requires_coverage: Whether a coverage goal that no example reached fails the run.
        stateful_examples: Runs of the state machine, of small sizes.
        simulated_stateful_examples: Likewise, if kernels run in the simulator.
        shrink_seconds: The time for shrinking a function's failing tests, in a process.
        database: Where failing examples are stored, to be tried first in later runs.
    """

    name: str
    same_answer_examples: int
    other_examples: int
    is_random: bool = False
    requires_coverage: bool = True
    seed: int | None = 0
    refusal_examples: int = 25
    large_examples: int = 2
    memory_examples: int = 12
    condition_examples: int = 3
    thread_examples: int = 2
    stateful_examples: int = 20
    simulated_stateful_examples: int = 5
    shrink_seconds: float = 16
    database: Examples | None = None

    def settings(self, kind: Kind, *, simulated: bool, shrink: bool = True) -> hypothesis.settings:
        """Return Hypothesis' settings for one check.

        They do not depend on the machine's own Hypothesis profile or on `CI`. In the simulator,
        where a thread costs 50 us, there are fewer examples.
        """
        few, many = self.other_examples, self.same_answer_examples
        numbers = {
            Kind.SAME_ANSWER: few if simulated else many,
            Kind.SAME_REFUSAL: self.refusal_examples // (1 + simulated),
            Kind.OTHER_TENSORS: self.refusal_examples,
            Kind.LARGE: self.large_examples,
            Kind.MEMORY: 2 * self.condition_examples if simulated else self.memory_examples,
            Kind.CONDITIONS: self.condition_examples,
            Kind.THREADS: self.thread_examples,
        }
        return self._settings(numbers.get(kind, few), shrink=shrink)

    def stateful_settings(
        self, *, simulated: bool, large: bool, shrink: bool = True
    ) -> hypothesis.settings:
        """Return Hypothesis' settings for a state machine: its setup, and a number of steps.

        There are fewer runs in the simulator, and of large blocks, the sizes of engines.
        """
        number = self.simulated_stateful_examples if simulated else self.stateful_examples
        number = max(number // SMALL_FOR_A_LARGE_ONE, 1) if large else number
        return hypothesis.settings(
            self._settings(number, shrink=shrink), stateful_step_count=STATEFUL_STEPS + 1
        )

    def _settings(self, max_examples: int, *, shrink: bool) -> hypothesis.settings:
        """Return settings for a number of examples."""
        phases = [Phase.explicit, Phase.reuse, Phase.generate]
        if shrink:
            phases.append(Phase.shrink)
        return hypothesis.settings(
            max_examples=max_examples,
            backend=FRESH if self.is_random else REPEATABLE,
            derandomize=not self.is_random,
            database=self.database,
            deadline=None,
            phases=phases,
            print_blob=self.is_random,
            report_multiple_bugs=False,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        )


PROFILES = {
    profile.name: profile
    for profile in (
        Profile(
            "brief",
            8,
            8,
            refusal_examples=8,
            requires_coverage=False,
            large_examples=1,
            memory_examples=1,
            condition_examples=1,
            thread_examples=1,
            stateful_examples=1,
            simulated_stateful_examples=1,
        ),
        Profile(
            "dev",
            25,
            25,
            requires_coverage=False,
            large_examples=1,
            memory_examples=3,
            condition_examples=1,
            thread_examples=1,
            stateful_examples=3,
            simulated_stateful_examples=1,
        ),
        Profile("default", 200, 50),
        Profile(
            "nightly",
            400,
            100,
            refusal_examples=50,
            is_random=True,
            requires_coverage=False,
            seed=None,
            stateful_examples=40,
            simulated_stateful_examples=10,
            large_examples=4,
            memory_examples=24,
            condition_examples=6,
            thread_examples=4,
            shrink_seconds=60,
        ),
    )
}
