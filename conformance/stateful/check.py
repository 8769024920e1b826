"""The stateful test as a `Check`, which the conformance run treats like any other."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from hypothesis.stateful import get_state_machine_test

from conformance.contracts.check import Check, database_key, seeded
from conformance.generation.profiles import Kind, Profile
from conformance.stateful.coverage import GOALS
from conformance.stateful.machine import EngineStateMachine
from conformance.stateful.strategies import SCALES
from conformance.strategies import cached as st
from conformance.targets.implementations import Absent
from conformance.targets.target import RAISED, STATEFUL_TEST, Target, explains


@dataclasses.dataclass(frozen=True)
class StatefulCheck(Check):
    """The check that runners of both twins agree after each step, and keep the invariants."""

    def bind(
        self, target: Target, profile: Profile, size: str, *, shrink: bool = True
    ) -> Callable[[], None]:
        """Return a test of the state machine, with fewer large examples; see `Check.bind`.

        The test raises `Absent` if the first failure is a declared deviation.
        """
        name = f"{self.kind.name}_{size}"
        options = profile.stateful_settings(
            simulated=target.is_simulated, large=size == "real", shrink=shrink
        )

        def factory() -> EngineStateMachine:
            return EngineStateMachine(target, SCALES[size])

        machine: type[EngineStateMachine] = seeded(profile, name)(factory)
        run: Any = get_state_machine_test(machine, settings=options)
        run._hypothesis_internal_database_key = database_key(target, name)  # noqa: SLF001

        def test() -> None:
            __tracebackhide__ = True
            try:
                with self.watching(target):
                    run()
            except RAISED as error:
                declared = target.implementation.deviations
                known = next((one for one in declared if explains(one, error)), None)
                if known is None:
                    raise
                # Steps after it depend on its result, so they are not compared.
                raise Absent(f"{known.function} deviates (declared)") from error

        test.__name__ = test.__qualname__ = name
        test.__doc__ = self.description
        return test


def stateful_check() -> StatefulCheck:
    """Return the check that a target's runner and `reference`'s agree after each step.

    All results are equal. In addition each runner by itself keeps the invariants: no block belongs
    to two requests except for a common prefix, no slot is written twice, free blocks are not
    written, and each token reads the keys of its own sequence.
    """

    def run(_target: Target, _example: object) -> None:
        raise NotImplementedError("a stateful test draws its steps; bind the check")

    return StatefulCheck(
        function=STATEFUL_TEST,
        kind=Kind.STATEFUL,
        examples=lambda _: st.nothing(),
        body=run,
        description="The runners of both twins agree after each step, and keep all invariants.",
        goals=GOALS,
        has_kernel=True,
    )
