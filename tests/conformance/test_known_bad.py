"""Every known-bad implementation is caught, and none for a wrong reason."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from known_bad import ENTRIES, KnownBad
from known_bad.edits import edited

import conformance
from conformance.checks import Check, checks_in
from conformance.comparison import Verdict
from conformance.laws import LAWS, Broken
from conformance.profiles import PROFILES, Profile
from conformance.report import Mismatch
from conformance.situations import LEDGER
from conformance.targets import TARGETS
from fast.kernels import block_table

BAD = [entry for entry in ENTRIES if entry.bug is not None]
HONEST = [entry for entry in ENTRIES if entry.bug is None]

BROKEN = ("NameError", "UnboundLocalError", "ImportError", "SyntaxError", "AttributeError")
"""What a target raises where the bad implementation itself is not what it was meant to be."""


MODULES = [
    importlib.import_module(f"conformance.{path.stem}")
    for path in sorted(Path(conformance.__file__).parent.glob("test_*.py"))
]
CHECKS = [check for module in MODULES for _, check in checks_in(vars(module))]

FEWER = Profile("fewer", 20, 6)
"""Enough for the honest ones: a bug that takes more examples is caught by its own check."""


def checks_of(entry: KnownBad, profile: Profile) -> list[tuple[Check, Callable[[], None]]]:
    """Return the checks of an entry's function, bound to its target, the likeliest first."""
    target = TARGETS[entry.target]
    found = [c for c in CHECKS if c.function == entry.function and c.runs_on(target)]
    found.sort(key=lambda check: entry.seen_by not in {check.kind, check.body.__name__})
    is_first = bool(found) and entry.seen_by in {found[0].kind, found[0].body.__name__}
    assert is_first or entry.bug is None, f"{entry.function} has no check {entry.seen_by}"
    return [
        (check, check.bind(target, profile, size, shrink=False))
        for check in found
        for size in check.sizes(target)
    ]


def caught(entry: KnownBad, profile: Profile) -> tuple[Check, Exception] | None:
    """Return the first check that fails, and how; None where all pass."""
    for check, run in checks_of(entry, profile):
        try:
            run()
        except Exception as error:  # noqa: BLE001  # judged by the caller
            return check, error
    return None


def parametrized(entries: list[KnownBad]) -> pytest.MarkDecorator:
    """Return the parameters of a test of entries."""
    return pytest.mark.parametrize("entry", entries, ids=[entry.name for entry in entries])


@parametrized(HONEST)
def test_honest_ones_pass(entry: KnownBad, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each function written anew passes: its planted bugs are caught for nothing else in it."""
    entry.install(monkeypatch)
    found = caught(entry, FEWER)
    assert found is None, f"{found}"


@parametrized(BAD)
def test_bad_ones_are_caught(
    entry: KnownBad,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    """The default run's checks of a function, without shrinking, fail for a bad one."""
    entry.install(monkeypatch)
    before = LEDGER.examples[entry.function, entry.target]
    found = caught(entry, PROFILES["default"])
    assert found is not None, f"not caught: {entry.name}. {entry.why}"
    check, error = found
    record_property("caught by", f"{check.kind.value}: {check.description}")
    record_property("examples", LEDGER.examples[entry.function, entry.target] - before)
    assert is_verdict(error), f"{type(error).__name__}: {error}"
    if entry.seen_by in LAWS:
        assert entry.seen_by == check.law


def is_verdict(error: Exception) -> bool:
    """Tell whether a failure is the harness' verdict, and not a breakdown of what is planted."""
    if isinstance(error, Broken):
        return not re.search(rf"^ +raised ({'|'.join(BROKEN)}):", str(error), re.MULTILINE)
    if isinstance(error, Mismatch) and error.difference.verdict is Verdict.OUTCOME:
        return not re.match(rf"(raised )?({'|'.join(BROKEN)}):", str(error.difference.got))
    # In a law the target's own errors come through, and the simulator's, which name the kernel.
    is_the_targets = isinstance(error, TypeError | ValueError | KeyError | IndexError)
    return isinstance(error, AssertionError) or is_the_targets or str(error).startswith("kernel ")


def test_a_bug_that_cannot_be_planted_is_told() -> None:
    """A kernel that was rewritten may no longer have the line to break: that fails by name."""
    with pytest.raises(ValueError, match=r"^'no such line' stands 0 times in move_row, expected 1"):
        edited(block_table, "move_row", "no such line", "")


def test_there_are_enough() -> None:
    """There are at least 25 bad ones, some of every function, each with a name of its own."""
    assert len(BAD) >= 25
    assert {entry.function for entry in BAD} == {check.function for check in CHECKS}
    assert len({entry.name for entry in ENTRIES}) == len(ENTRIES)
    assert all(entry.why.endswith(".") for entry in ENTRIES)
