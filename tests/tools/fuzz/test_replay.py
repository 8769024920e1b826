"""Findings are replayed by the next night, and by `--replay`."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from conformance.cases.compared import case_of_call
from conformance.cases.corpus import add_to_corpus
from conformance.encoding import Json
from conformance.values.call import Call
from kvtwin.fuzz.cases.case import Input, run_case
from kvtwin.fuzz.cases.properties import Subject, properties_of
from kvtwin.fuzz.command_line import main
from kvtwin.fuzz.findings import replay
from kvtwin.fuzz.findings.failures import failure_of_case
from kvtwin.fuzz.findings.forked_draws import CASE_SECONDS, HANG_SECONDS
from kvtwin.fuzz.findings.minimize import TRIES
from kvtwin.fuzz.findings.records import Findings
from kvtwin.fuzz.findings.replay import ReplayJob, ReplayResult, passes_to_be_fixed
from tests.tools.fuzz import nights
from tests.tools.fuzz.contexts import KeepingContext
from tests.tools.fuzz.nights import PLANTED


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
    """A rare failure must pass often to count as fixed; one failing try keeps it open."""
    left = iter(outcomes)
    monkeypatch.setattr(replay, "_fails", lambda *_: next(left))
    monkeypatch.setattr(ReplayJob, "_attempt", lambda _: lambda: None)
    passes = passes_to_be_fixed(*before)
    job = ReplayJob(Subject(), "a property", "id", "same answer", "host", b"", passes=passes)
    assert ReplayResult("id", fails, tries, is_fixed) == job.run(KeepingContext())
    assert not list(left)


def test_without_time_a_flaky_one_stays_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A flaky failure that did not pass often enough is not fixed."""
    monkeypatch.setattr(replay, "_fails", lambda *_: False)
    monkeypatch.setattr(replay, "SECONDS", 0.0)
    monkeypatch.setattr(ReplayJob, "_attempt", lambda _: lambda: None)
    job = ReplayJob(Subject(), "a property", "id", "same answer", "host", b"", passes=35)
    assert ReplayResult("id", 0, 1, is_fixed=False) == job.run(KeepingContext())


@pytest.mark.parametrize(("kind", "is_short"), [("hang", True), ("crash", False), ("law", False)])
def test_only_a_hang_has_little_time(
    kind: str, is_short: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a hang is tried with a short limit: a stateful test takes seconds."""
    given = []
    monkeypatch.setattr(replay, "_fails", lambda _, seconds, __: bool(given.append(seconds)))
    monkeypatch.setattr(ReplayJob, "_attempt", lambda _: lambda: None)
    ReplayJob(Subject(), "a property", "id", kind, "host", b"").run(KeepingContext())
    assert {HANG_SECONDS if is_short else CASE_SECONDS} == set(given)
    assert HANG_SECONDS < CASE_SECONDS


SLOTS: Final = Subject(target="host", functions="compute_slot_mapping")


def test_a_stored_call_needs_no_property() -> None:
    """A call is replayed on its target even if the check that found it has another name now."""
    case = case_of_call(Call("compute_slot_mapping", slot_arguments()), "it was wrong")
    job = ReplayJob(SLOTS, "renamed@host", "id", "same answer", "host", b"", case)
    assert ReplayResult("id", 0, TRIES, is_fixed=True) == job.run(KeepingContext())


@pytest.mark.parametrize(
    ("target", "case", "obstacle"),
    [
        ("host", None, "this run has no property renamed@host"),
        ("sim", {"kind": "call"}, "this run has no target sim"),
    ],
)
def test_what_cannot_be_replayed_says_why(target: str, case: Json, obstacle: str) -> None:
    """Without its property or its target, a failure is not tried, and neither fails nor passes."""
    job = ReplayJob(SLOTS, "renamed@host", "id", "law", target, b'["renamed@host", 0, []]', case)
    assert ReplayResult("id", 0, 0, obstacle=obstacle) == job.run(KeepingContext())


def slot_arguments() -> dict[str, Any]:
    """Return the arguments of a call with one request of one token."""
    return {
        "query_start_loc": np.array([0, 1], np.int32),
        "positions": np.array([0], np.int64),
        "block_table": np.array([[1]], np.int32),
        "block_size": 4,
    }


def stored_input(folder: Path) -> Path:
    """Store an input that shows a planted bug, not minimized; return its path."""
    properties = properties_of(Subject((str(PLANTED),), functions="map_to_kernel_blocks"))
    name = next(one for one in properties if one.endswith("map_to_kernel_blocks@host"))
    cases = (run_case(properties[name], Input(name, seed)) for seed in itertools.count())
    failure = failure_of_case(properties[name], next(case for case in cases if case.error))
    findings = Findings(folder)
    findings.add(failure)
    return findings.case_path(failure.id)


@pytest.mark.usefixtures("fuzz_profile")
def test_an_input_is_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--replay` draws an input again, and prints how it fails, or that nothing differs."""
    arguments = ["--replay", str(stored_input(tmp_path)), "--impl", str(PLANTED)]
    assert 1 == main(arguments)
    assert capsys.readouterr().out.startswith("Mismatch: map_to_kernel_blocks on host: ")
    status, out = nights.ended(nights.start(*arguments, PLANTED_BUGS="none"))
    assert (0, "no difference\n") == (status, out)


@pytest.mark.usefixtures("fuzz_profile")
def test_what_was_not_drawn_is_for_the_harness(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--replay` of a call names the command that replays it."""
    path = add_to_corpus(case_of_call(Call("map_to_kernel_blocks", {}), "?"), tmp_path)
    with pytest.raises(SystemExit):
        main(["--replay", str(path)])
    assert f"python -m conformance --replay {path}" in capsys.readouterr().err
