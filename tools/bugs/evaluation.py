"""Run the checks of the conformance run on a planted bug, in this process."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from conformance.checks.contract_checks import checks_in
from conformance.checks.law_checks import LawViolation
from conformance.contracts.check import FAILURES, Check
from conformance.coverage.goals import COVERAGE
from conformance.generation.profiles import Profile
from conformance.messages.mismatch import Mismatch
from conformance.targets.target import TARGETS
from conformance.values.differences import Verdict
from tools.bugs.catalogue import Bug

PATCH_ERRORS = ("NameError", "UnboundLocalError", "ImportError", "SyntaxError", "AttributeError")
"""Exceptions that a broken patch raises, in place of the bug that it should plant."""


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
        """Return the name of its test in the conformance run.

        Args:
            target: The name of the target.
            size: `minimal` or `real`.
        """
        label = "-".join(filter(None, (target, size, self.check.law)))
        return f"{self.module}::{self.name}[{label}]"

    def catches(self, bug: Bug) -> bool:
        """Return whether this check must catch a bug."""
        return bug.caught_by in {self.check.kind.value, self.check.body.__name__}


@dataclasses.dataclass(frozen=True)
class Catch:
    """The first failure.

    Attributes:
        test: The test that failed, as pytest names it.
        number: The number of the example that failed, in that test, counted from 1.
        drawn: The same number, plus all examples of the tests that passed before.
        error: The exception.
    """

    test: str
    number: int
    drawn: int
    error: Exception

    def shows(self, bug: Bug) -> bool:
        """Return whether the harness found the bug; otherwise the patch itself is broken.

        If a broken patch could raise the same exception, the bug's `message` must match it.
        """
        raised = patch_error_of(self.error)
        if raised:
            return bool(bug.message) and re.search(bug.message, raised) is not None
        # A report wraps a long difference.
        line = self.error.difference.line if isinstance(self.error, Mismatch) else ""
        return re.search(bug.message, f"{line}\n{self.error}", re.MULTILINE) is not None


@functools.cache
def all_checks(package: str = "conformance") -> Sequence[NamedCheck]:
    """Return the checks of the conformance run, in its order.

    All modules are imported, and the plugin: Hypothesis draws constants of the imported modules,
    and a check must draw the same examples as in the run.

    Args:
        package: Its modules named `test_...` have the checks.
    """
    importlib.import_module("conformance.conftest")
    folder = Path(str(importlib.import_module(package).__file__)).parent
    stems = sorted(path.stem for path in folder.glob("test_*.py"))
    modules = {stem: importlib.import_module(f"{package}.{stem}") for stem in stems}
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


def find(bug: Bug, profile: Profile, *, by_any_check: bool = False) -> Catch | None:
    """Plant a bug, and run the checks that must catch it until one fails.

    Args:
        bug: The bug.
        profile: How many examples each test draws.
        by_any_check: Whether to run all checks of the function, not only the declared ones.

    Returns:
        The failure; None if there is none.

    Raises:
        ValueError: The patch does not apply, or there is no check.
    """
    checks = checks_of(bug.function, bug.target) if by_any_check else checks_that_catch(bug)
    with bug.planted():
        return first_failure(checks, bug.target, profile)


def first_failure(checks: Iterable[NamedCheck], target: str, profile: Profile) -> Catch | None:
    """Run checks without shrinking until one fails.

    Args:
        checks: The checks, all of one function.
        target: The name of the target.
        profile: How many examples each test draws.

    Returns:
        The failure; None if all tests pass.
    """
    start = None
    for named in checks:
        key = named.check.function, target
        start = COVERAGE.examples[key] if start is None else start
        for size in named.check.sizes(TARGETS[target]):
            before = COVERAGE.examples[key]
            FAILURES.clear()
            try:
                named.check.bind(TARGETS[target], profile, size, shrink=False)()
            except Exception as error:  # noqa: BLE001  # the caller decides what it shows
                # Hypothesis runs the example that failed again, to report it.
                again = len(FAILURES) - 1 if FAILURES else 2
                last = COVERAGE.examples[key] - again
                test = named.test(target, size)
                return Catch(test, last - before, last - start, error)
            finally:
                FAILURES.clear()
    return None


def patch_error_of(error: Exception) -> str:
    """Return the exception if the patch may be broken; empty if the harness found a difference.

    Args:
        error: The exception of a check.

    >>> patch_error_of(NameError("name 'total' is not defined"))
    "NameError: name 'total' is not defined"
    >>> patch_error_of(AssertionError("1 != 2"))
    ''
    """
    names = "|".join(PATCH_ERRORS)
    if isinstance(error, LawViolation):
        found = re.search(rf"^ +raised ((?:{names}):.*)", str(error), re.MULTILINE)
        return found[1] if found else ""
    if isinstance(error, Mismatch) and error.difference.verdict is Verdict.OUTCOME:
        found = re.match(rf"(?:raised )?((?:{names}):.*)", str(error.difference.got), re.DOTALL)
        return found[1] if found else ""
    # A law passes on errors of the target, and of the simulator, which name the kernel.
    is_of_target = isinstance(error, TypeError | ValueError | KeyError | IndexError)
    if isinstance(error, AssertionError) or is_of_target or str(error).startswith("kernel "):
        return ""
    return f"{type(error).__name__}: {error}"
