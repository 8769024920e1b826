"""Judges known-bad implementations by the checks of the conformance run, in one process."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

import conformance
from conformance.checks import FAILURES, Check, checks_in
from conformance.comparison import Verdict
from conformance.laws import Broken
from conformance.profiles import Kind, Profile
from conformance.report import Mismatch
from conformance.situations import LEDGER
from conformance.targets import TARGETS
from known_bad.entries import KnownBad

BROKEN = ("NameError", "UnboundLocalError", "ImportError", "SyntaxError", "AttributeError")
"""What a target raises where the bad implementation itself is not what it was meant to be."""


class Stated(NamedTuple):
    """A check, and where it stands.

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


@dataclasses.dataclass(frozen=True)
class Catch:
    """How a bad implementation was caught.

    Attributes:
        test: The test that failed, as pytest names it.
        check: What it states.
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
    def is_verdict(self) -> bool:
        """Whether it is the harness' verdict, and not a breakdown of what is planted."""
        return is_verdict(self.error)


@functools.cache
def all_checks() -> Sequence[Stated]:
    """Return the checks of the conformance run, in its order.

    All modules are imported, the plugin too: Hypothesis draws constants of the modules there are,
    and a check shall see the examples that it sees in the run.
    """
    importlib.import_module("conformance.conftest")
    folder = Path(conformance.__file__).parent
    stems = sorted(path.stem for path in folder.glob("test_*.py"))
    modules = {stem: importlib.import_module(f"conformance.{stem}") for stem in stems}
    return [
        Stated(stem, name, check)
        for stem, module in modules.items()
        for name, check in checks_in(vars(module))
    ]


def checks_of(entry: KnownBad, *, likeliest_first: bool = False) -> list[Stated]:
    """Return the checks of an entry's function that run on its target.

    Args:
        entry: The implementation.
        likeliest_first: Whether the check that is to see it comes first; otherwise those of the
            function's own module do, where its answers are compared, in the order of the run.

    Raises:
        ValueError: There is no check of it, or not the one that is to see it.
    """
    target = TARGETS[entry.target]
    found = [
        stated
        for stated in all_checks()
        if stated.check.function == entry.function and stated.check.runs_on(target)
    ]
    meant = [stated for stated in found if _is_seen_by(entry, stated.check)]
    if not found or (entry.bug is not None and not meant):
        raise ValueError(f"{entry.function} has no check {entry.seen_by} on {entry.target}")
    if likeliest_first:
        return sorted(found, key=lambda stated: stated not in meant)
    own = {stated.module for stated in found if stated.check.kind is Kind.SAME_ANSWER}
    return sorted(found, key=lambda stated: stated.module not in own)


def _is_seen_by(entry: KnownBad, check: Check) -> bool:
    return entry.seen_by in {check.kind, check.body.__name__}


def judge(entry: KnownBad, profile: Profile, *, likeliest_first: bool = False) -> Catch | None:
    """Run the checks of an implementation's function without shrinking, until one fails.

    Args:
        entry: The implementation, which is put in its place meanwhile.
        profile: How many examples each test draws.
        likeliest_first: As for `checks_of`.

    Returns:
        How it was caught; None where all tests pass.
    """
    target = TARGETS[entry.target]
    key = entry.function, entry.target
    before_all = LEDGER.examples[key]
    with pytest.MonkeyPatch.context() as patch:
        entry.install(patch)
        for stated in checks_of(entry, likeliest_first=likeliest_first):
            for size in stated.check.sizes(target):
                before = LEDGER.examples[key]
                FAILURES.clear()
                try:
                    stated.check.bind(target, profile, size, shrink=False)()
                except Exception as error:  # noqa: BLE001  # judged by the caller
                    # Hypothesis runs the example that failed again, to report it: a life twice.
                    again = len(FAILURES) - 1 if FAILURES else 2
                    last = LEDGER.examples[key] - again
                    test = stated.test(entry.target, size)
                    return Catch(test, stated.check, last - before, last - before_all, error)
                finally:
                    FAILURES.clear()
    return None


def is_verdict(error: Exception) -> bool:
    """Tell whether a failure is the harness' verdict, and not a breakdown of what is planted.

    Args:
        error: What a check raised.
    """
    if isinstance(error, Broken):
        return not re.search(rf"^ +raised ({'|'.join(BROKEN)}):", str(error), re.MULTILINE)
    if isinstance(error, Mismatch) and error.difference.verdict is Verdict.OUTCOME:
        return not re.match(rf"(raised )?({'|'.join(BROKEN)}):", str(error.difference.got))
    # In a law the target's own errors come through, and the simulator's, which name the kernel.
    is_the_targets = isinstance(error, TypeError | ValueError | KeyError | IndexError)
    return isinstance(error, AssertionError) or is_the_targets or str(error).startswith("kernel ")
