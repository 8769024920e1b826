"""Run the cases of a function by number."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from random import Random
from typing import Final

from conformance.arrays.guarded_memory import GuardedMemory
from conformance.targets.implementations import Implementation
from tools.probe import bad_calls, sessions, transforms, valid_calls
from tools.probe.calling import POISONS, poison
from tools.probe.case import Case, describe_call
from tools.probe.pools import CASES_FOR_A_POOL, Pool
from tools.probe.subjects import make_subject
from tools.probe.target import ProbedTarget
from tools.probe.violation import Finding, Violation

KINDS: Final[dict[Callable[[Case], Iterator[Finding]], int]] = {
    valid_calls.valid: 18,
    bad_calls.bad_arrays: 28,
    bad_calls.bad_values: 25,
    transforms.transforms: 2,
    valid_calls.interrupted: 4,
    valid_calls.in_threads: 4,
    valid_calls.copied: 2,
    valid_calls.forked: 1,
}
"""The kinds of cases, and their weights."""


class Prober:
    """Runs the cases of one function, one after another.

    Args:
        name: The function.
        implementation: The implementation under test.
        seed: The seed of the run.

    Attributes:
        name: The function.
    """

    def __init__(self, name: str, implementation: Implementation, seed: int) -> None:
        self.name = name
        self._subject, self._seed = make_subject(name), seed
        self._memory = GuardedMemory()
        contract = self._subject.contract
        self._target = ProbedTarget(
            "probed",
            implementation,
            memory=self._memory,
            changes=contract.changes,
            may_span=contract.observe is None and not contract.compares_views,
        )
        self._pool_number = -1

    def run(self, number: int) -> list[Violation]:
        """Run a case and return its violations."""
        name, seed = self.name, self._seed
        if number // CASES_FOR_A_POOL != self._pool_number:
            self._pool_number = number // CASES_FOR_A_POOL
            self._pool = Pool(name, self._pool_number)
        random = Random(f"{name}:{seed}:{number}")  # noqa: S311  # no secret
        self._target.random.seed(random.random())
        self._memory.forget()
        poison(POISONS[0])
        case = Case(self._subject, self._target, self._pool, random)
        run = random.choices(list(KINDS), list(KINDS.values()))[0]
        if name == "BlockTables" and number % 10:
            run = sessions.session
        try:
            findings = list(run(case))
        except Exception:  # noqa: BLE001  # is reported like a violation, and the run goes on
            findings = [("the probe itself failed", "", traceback.format_exc()[-1500:])]
        text = describe_call(case.call)
        return [
            Violation(name, seed, number, kind, where, detail, text)
            for kind, where, detail in dict.fromkeys(findings)
        ]
