"""Every known-bad implementation is caught, and none for a wrong reason."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from known_bad import ENTRIES, KnownBad
from known_bad.edits import edited
from known_bad.judge import all_checks, judge

from conformance.laws import LAWS
from conformance.profiles import PROFILES, Profile
from fast.kernels import block_table

BAD = [entry for entry in ENTRIES if entry.bug is not None]
HONEST = [entry for entry in ENTRIES if entry.bug is None]

FEWER = Profile("fewer", 20, 6)
"""Enough for the honest ones: a bug that takes more examples is caught by its own check."""


def parametrized(entries: list[KnownBad]) -> pytest.MarkDecorator:
    """Return the parameters of a test of entries."""
    return pytest.mark.parametrize("entry", entries, ids=[entry.name for entry in entries])


@parametrized(HONEST)
def test_honest_ones_pass(entry: KnownBad) -> None:
    """Each function written anew passes: its planted bugs are caught for nothing else in it."""
    found = judge(entry, FEWER)
    assert found is None, f"{found}"


@parametrized(BAD)
def test_bad_ones_are_caught(
    entry: KnownBad, record_property: Callable[[str, object], None]
) -> None:
    """The default run's checks of a function, without shrinking, fail for a bad one."""
    found = judge(entry, PROFILES["default"], likeliest_first=True)
    assert found is not None, f"not caught: {entry.name}. {entry.why}"
    record_property("caught by", f"{found.check.kind.value}: {found.check.description}")
    record_property("examples", found.drawn)
    assert found.is_verdict, f"{type(found.error).__name__}: {found.error}"
    if entry.seen_by in LAWS:
        assert entry.seen_by == found.check.law


def test_a_bug_that_cannot_be_planted_is_told() -> None:
    """A kernel that was rewritten may no longer have the line to break: that fails by name."""
    with pytest.raises(ValueError, match=r"^'no such line' stands 0 times in move_row, expected 1"):
        edited(block_table, "move_row", "no such line", "")


def test_there_are_enough() -> None:
    """There are at least 25 bad ones, some of every function, each with a name of its own."""
    assert len(BAD) >= 25
    functions = {stated.check.function for stated in all_checks()}
    assert {entry.function for entry in BAD} == functions
    assert len({entry.name for entry in ENTRIES}) == len(ENTRIES)
    assert all(entry.why.endswith(".") for entry in ENTRIES)
