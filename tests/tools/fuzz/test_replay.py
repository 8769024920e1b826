"""A finding is tried again until it is known whether it is fixed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.tools.fuzz.contexts import KeepingContext
from tools.fuzz import replay
from tools.fuzz.child import CASE_SECONDS, HANG_SECONDS
from tools.fuzz.minimize import TRIES
from tools.fuzz.properties import Subject
from tools.fuzz.replay import ReplayJob, ReplayResult, passes_to_be_fixed


@pytest.mark.parametrize(
    ("before", "outcomes", "fails", "tries", "is_fixed"),
    [
        ((5, 5), [True] * 5, 5, TRIES, False),
        ((5, 5), [False] * 5, 0, TRIES, True),
        ((5, 5), [False, False, True, False, False], 1, TRIES, False),
        ((1, 8), [False] * 35, 0, 35, True),
        ((1, 8), [*[False] * 20, True], 1, 21, False),
    ],
    ids=["it fails", "it passes", "it has become flaky", "a flaky one passes", "a flaky one fails"],
)
def test_it_is_tried_until_that_is_known(
    before: tuple[int, int],
    outcomes: Sequence[bool],
    fails: int,
    tries: int,
    is_fixed: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What failed seldom must pass often; what fails is still there."""
    left = iter(outcomes)
    monkeypatch.setattr(replay, "properties_of", lambda _: {"a property": "it"})
    monkeypatch.setattr(replay, "_fails", lambda *_: next(left))
    monkeypatch.setattr(ReplayJob, "_try", lambda *_: None)
    passes = passes_to_be_fixed(*before)
    job = ReplayJob(Subject(), "id", "a property", "same answer", b"", passes=passes)
    assert ReplayResult("id", fails, tries, is_fixed) == job.run(KeepingContext())
    assert not list(left)


def test_without_time_a_flaky_one_stays_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It did not pass often enough to say that it is fixed."""
    monkeypatch.setattr(replay, "properties_of", lambda _: {"a property": "it"})
    monkeypatch.setattr(replay, "_fails", lambda *_: False)
    monkeypatch.setattr(replay, "SECONDS", 0.0)
    monkeypatch.setattr(ReplayJob, "_try", lambda *_: None)
    job = ReplayJob(Subject(), "id", "a property", "same answer", b"", passes=35)
    assert ReplayResult("id", 0, 1, is_fixed=False) == job.run(KeepingContext())


@pytest.mark.parametrize(("kind", "is_short"), [("hang", True), ("crash", False), ("law", False)])
def test_only_a_hang_has_little_time(
    kind: str, is_short: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stateful test takes seconds: that is no hang."""
    given = []
    monkeypatch.setattr(replay, "properties_of", lambda _: {"a property": "it"})
    monkeypatch.setattr(replay, "_fails", lambda _, seconds: bool(given.append(seconds)))
    monkeypatch.setattr(ReplayJob, "_try", lambda *_: None)
    ReplayJob(Subject(), "id", "a property", kind, b"").run(KeepingContext())
    assert {HANG_SECONDS if is_short else CASE_SECONDS} == set(given)
    assert HANG_SECONDS < CASE_SECONDS
