"""Runs the checks of the conformance run on a planted bug, in this process."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import conformance
from conformance.checks import FAILURES, Check, checks_in
from conformance.comparison import Verdict
from conformance.laws.law_checks import Broken
from conformance.profiles import Profile
from conformance.report import Mismatch
from conformance.situations import LEDGER
from conformance.targets import TARGETS
from tools.bugs.catalogue import Bug

PATCH_ERRORS = ("NameError", "UnboundLocalError", "ImportError", "SyntaxError", "AttributeError")
"""What is raised when a patch is not the bug that it was meant to be."""


class NamedCheck(NamedTuple):
    """A check, and where it is defined.

    Attributes:
        module: The module of the conformance run.
        name: Its name there.
        check: The check.
    """

    module: str
    name: str
    check: Check

    def test(self, target: str, size: str) -> str:
        """Return the name of the test that the conformance run makes of it.

        Args:
            target: The name of the target.
            size: `minimal` or `real`.
        """
        label = "-".join(filter(None, (target, size, self.check.law)))
        return f"{self.module}::{self.name}[{label}]"

    def catches(self, bug: Bug) -> bool:
        """Tell whether it is a check that must catch a bug."""
        return bug.caught_by in {self.check.kind.value, self.check.body.__name__}


@dataclasses.dataclass(frozen=True)
class Catch:
    """The first failure.

    Attributes:
        test: The test that failed, as pytest names it.
        check: Its check.
        number: The number of the example that failed, in that test, counted from 1.
        drawn: Likewise, with all examples of the tests that passed before.
        error: What was raised.
    """

    test: str
    check: Check
    number: int
    drawn: int
    error: Exception

    @property
    def is_finding(self) -> bool:
        """Whether the harness found a difference; otherwise the patch itself is broken."""
        return is_finding(self.error)


@functools.cache
def all_checks() -> Sequence[NamedCheck]:
    """Return the checks of the conformance run, in its order.

    All modules are imported, the plugin too: Hypothesis draws constants of the modules there are,
    and a check shall draw the examples that it draws in the run.
    """
    importlib.import_module("conformance.conftest")
    folder = Path(conformance.__file__).parent
    stems = sorted(path.stem for path in folder.glob("test_*.py"))
    modules = {stem: importlib.import_module(f"conformance.{stem}") for stem in stems}
    return [
        NamedCheck(stem, name, check)
        for stem, module in modules.items()
        for name, check in checks_in(vars(module))
    ]


def checks_of(function: str, target: str) -> list[NamedCheck]:
    """Return the checks of a function on a target, those of the function's own module first.

    Args:
        function: The function, as its checks name it.
        target: The name of the target.

    Raises:
        ValueError: There is none.
    """
    found = [
        named
        for named in all_checks()
        if named.check.function == function and named.check.runs_on(TARGETS[target])
    ]
    if not found:
        raise ValueError(f"{function} has no check on {target}")
    own = {named.module for named in found if named.check.kind.value == "same answer"}
    return sorted(found, key=lambda named: named.module not in own)


def checks_that_catch(bug: Bug) -> list[NamedCheck]:
    """Return the checks that must catch a bug.

    Args:
        bug: The bug.

    Raises:
        ValueError: There is none.
    """
    found = [named for named in checks_of(bug.function, bug.target) if named.catches(bug)]
    if not found:
        raise ValueError(f"{bug.function} has no check {bug.caught_by!r} on {bug.target}")
    return found


def first_failure(checks: Iterable[NamedCheck], target: str, profile: Profile) -> Catch | None:
    """Run checks without shrinking until one fails.

    Args:
        checks: The checks, all of one function.
        target: The name of the target.
        profile: How many examples each test draws.

    Returns:
        The failure; None where all tests pass.
    """
    start = None
    for named in checks:
        key = named.check.function, target
        start = LEDGER.examples[key] if start is None else start
        for size in named.check.sizes(TARGETS[target]):
            before = LEDGER.examples[key]
            FAILURES.clear()
            try:
                named.check.bind(TARGETS[target], profile, size, shrink=False)()
            except Exception as error:  # noqa: BLE001  # the caller decides what it shows
                # Hypothesis runs the example that failed again, to report it.
                again = len(FAILURES) - 1 if FAILURES else 2
                last = LEDGER.examples[key] - again
                test = named.test(target, size)
                return Catch(test, named.check, last - before, last - start, error)
            finally:
                FAILURES.clear()
    return None


def is_finding(error: Exception) -> bool:
    """Tell whether a failure is a difference that the harness found, and not a broken patch.

    Args:
        error: What a check raised.
    """
    if isinstance(error, Broken):
        return not re.search(rf"^ +raised ({'|'.join(PATCH_ERRORS)}):", str(error), re.MULTILINE)
    if isinstance(error, Mismatch) and error.difference.verdict is Verdict.OUTCOME:
        return not re.match(rf"(raised )?({'|'.join(PATCH_ERRORS)}):", str(error.difference.got))
    # In a law the target's own errors come through, and the simulator's, which name the kernel.
    is_of_target = isinstance(error, TypeError | ValueError | KeyError | IndexError)
    return isinstance(error, AssertionError) or is_of_target or str(error).startswith("kernel ")
