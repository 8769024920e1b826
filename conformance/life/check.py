"""The check of a runner's life, of which the conformance run makes tests as of any other."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable
from typing import cast

from hypothesis import seed
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from conformance.absent import Absent
from conformance.checks import Check
from conformance.gpu_context import noticing_lost_context
from conformance.life.machine import NAME, LifeMachine
from conformance.life.situations import SITUATIONS
from conformance.life.strategies import SCALES
from conformance.profiles import Kind, Profile
from conformance.situations import LEDGER
from conformance.targets import RAISED, Target, counting_launches


@dataclasses.dataclass(frozen=True)
class LifeCheck(Check):
    """The statement that both twins live the same life, and a right one."""

    def bind(
        self, target: Target, profile: Profile, size: str, *, shrink: bool = True
    ) -> Callable[[], None]:
        """Return a test of lives on a target, a function of no arguments.

        Args:
            target: What is under test.
            profile: How many lives the test spends.
            size: `minimal` or `real`; of the latter there are fewer.
            shrink: Whether a failing life is made short.

        Returns:
            The test, which raises where a life goes wrong: `Absent` where it does as declared.
        """
        name = f"{self.kind.name}_{size}"
        options = profile.life_settings(
            simulated=target.is_simulated, large=size == "real", shrink=shrink
        )

        def factory() -> LifeMachine:
            return LifeMachine(target, SCALES[size])

        if profile.seed is not None:
            factory = seed(zlib.crc32(f"{profile.seed} {name}".encode()))(factory)

        def test() -> None:
            __tracebackhide__ = True
            machine = cast("type[LifeMachine]", factory)  # whatever makes one will do
            with counting_launches(lambda: LEDGER.launches.update([self.function])):
                try:
                    with noticing_lost_context(target.device):
                        run_state_machine_as_test(machine, settings=options)
                except RAISED as error:
                    declared = target.under_test.deviations if target.under_test else ()
                    known = next((one for one in declared if one.explains(error)), None)
                    if known is None:
                        raise
                    # No step after it says anything: what it answered is what came of it.
                    raise Absent(f"{known.function} deviates (declared)") from error

        test.__name__ = test.__qualname__ = name
        test.__doc__ = self.description
        return test


def life_check() -> LifeCheck:
    """Return the check that a target's runner and `reference`'s live the same life, step by step.

    After each step all results agree; and of each runner by itself it is true that no block is two
    requests' but for a common prefix, that no slot is written twice, that what is free is left
    alone, and that each token reads the keys of its own sequence.
    """

    def lives(_target: Target, _example: object) -> None:
        raise NotImplementedError("a life has no examples; bind the check")

    return LifeCheck(
        function=NAME,
        kind=Kind.LIFE,
        examples=lambda _: st.nothing(),
        body=lives,
        description="Two runners that are told the same steps live the same life, and a right one.",
        expects=SITUATIONS,
        has_kernel=True,
    )
