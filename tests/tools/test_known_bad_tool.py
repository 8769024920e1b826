"""`python -m tools.known_bad`, on a few implementations and on toys."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

import fast
from conformance.checks import Check
from conformance.life.machine import LifeMachine
from conformance.profiles import Kind
from conformance.situations import LEDGER
from conformance.targets import Target
from tools import known_bad
from tools.known_bad import Outcome

ENTRIES = known_bad.project_entries()  # makes what stands beside the tests importable

from known_bad import KnownBad, judge  # noqa: E402

FUNCTION = "get_kv_cache_layout"
SOME = [entry for entry in ENTRIES if entry.function == FUNCTION]


def ignore(_: pytest.MonkeyPatch) -> None:
    """Leave everything as it is."""


def wrong(patch: pytest.MonkeyPatch) -> None:
    """Answer nothing."""
    patch.setattr(fast, FUNCTION, lambda *_args, **_keywords: None)


def undefined(patch: pytest.MonkeyPatch) -> None:
    """Use a name that is not there."""
    patch.setattr(fast, FUNCTION, lambda *_args, **_keywords: no_such_name)  # noqa: F821


def gone(_: pytest.MonkeyPatch) -> None:
    """Fail to put anything in its place."""
    raise ValueError("'no such line' stands 0 times in move_row, expected 1")


def run(*arguments: str, entries: list[KnownBad]) -> int:
    """Run the command line on some implementations."""
    return known_bad.main(arguments, entries)


def test_each_is_told_with_the_test_that_catches_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table and the file say which test failed, at which example, and all are caught."""
    path = tmp_path / "found.json"
    assert run("--functions", FUNCTION, "--json", str(path), entries=ENTRIES) == 0
    found = json.loads(path.read_text())
    assert found["schema_version"] == 1
    assert found["caught"] == found["bad"] == sum(entry.bug is not None for entry in SOME)
    assert found["honest"] == sum(entry.bug is None for entry in SOME)
    assert [entry.bug for entry in SOME] == [one["bug"] for one in found["implementations"]]
    for one in found["implementations"]:
        if one["bug"] is None:
            assert ("passes", "", 0) == (one["verdict"], one["test"], one["example"])
        else:
            assert one["verdict"] == "caught"
            assert one["test"].startswith("test_kv_layout::")
            assert f"[{one['target']}-" in one["test"]
            assert 1 <= one["example"] <= one["drawn"]
            assert one["error"]
    printed = capsys.readouterr().out
    for one in found["implementations"]:
        assert (one["bug"] or "honest on host: passes")[:30] in printed
    assert f"caught: {found['caught']} of {found['bad']}; honest, and pass: 1 of 1" in printed


def test_the_slowest_are_printed_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """`--slowest 1` prints the one that took the most examples, and the counts of all."""
    options = known_bad._make_parser().parse_args(["--slowest", "1"])
    outcomes = [Outcome("f", f"bug {n}", "host", "caught", "t", "law", n, n) for n in (2, 9, 4)]
    assert known_bad.tell(outcomes, options, is_whole=True) == 0
    printed = capsys.readouterr().out
    assert "bug 9" in printed
    assert "bug 2" not in printed
    assert "caught: 3 of 3" in printed


@pytest.mark.parametrize(
    ("bug", "install", "line"),
    [
        ("none at all", ignore, f"not caught: {FUNCTION} on host: none at all"),
        (None, wrong, f"fails: {FUNCTION} on host: the honest one: test_toy::test_layout[host-"),
        ("broken", undefined, f"breaks down: {FUNCTION} on host: broken: test_toy::test_layout["),
        ("gone", gone, f"breaks down: {FUNCTION} on host: gone: 'no such line' stands 0 times"),
    ],
    ids=["a bad one passes", "an honest one fails", "a name is missing", "it cannot be planted"],
)
def test_what_is_not_as_it_should_be_fails(
    bug: str | None,
    install: Callable[[pytest.MonkeyPatch], None],
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The exit status is 1, and one line says what is wrong."""
    right = fast.get_kv_cache_layout

    def body(target: Target, _example: object) -> None:
        assert target.lookup(FUNCTION)() in {"NHD", "HND"}

    check = Check(FUNCTION, Kind.SAME_ANSWER, lambda _: st.integers(), body, "A toy.")
    monkeypatch.setattr(
        judge, "all_checks", lambda: [judge.Stated("test_toy", "test_layout", check)]
    )
    assert run(entries=[KnownBad(FUNCTION, bug, "A toy.", install)]) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith(line)
    assert fast.get_kv_cache_layout is right


def test_a_late_median_fails(capsys: pytest.CaptureFixture[str]) -> None:
    """Where half take more than 20 examples the whole fails, and a part of it does not."""
    options = known_bad._make_parser().parse_args([])
    outcomes = [Outcome("f", str(n), "host", "caught", "t", "law", n, n) for n in (1, 21, 22)]
    assert known_bad.tell(outcomes, options, is_whole=False) == 0
    assert known_bad.tell(outcomes, options, is_whole=True) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "the median is 21 examples, above 20"


def failing_from(number: int, name: str = "body") -> tuple[Check, list[Any]]:
    """Return a check that fails from an example on, and the examples that it has seen."""
    seen: list[Any] = []

    def body(_target: Target, example: object) -> None:
        if example not in seen:
            seen.append(example)
        assert seen.index(example) + 1 < number

    body.__name__ = name
    numbers = st.tuples(*[st.integers(0, 2**60)] * 8)  # no two of which are alike
    return Check(FUNCTION, Kind.SAME_ANSWER, lambda _: numbers, body, "A toy."), seen


@pytest.mark.parametrize("number", [1, 2, 7, 200])
def test_the_number_is_of_the_example_that_failed(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts from 1, once each, whatever Hypothesis runs again to report it."""
    check, seen = failing_from(number)
    stated = judge.Stated("test_toy", "test_number", check)
    monkeypatch.setattr(judge, "all_checks", lambda: [stated])
    outcome = known_bad.judge_one(KnownBad(FUNCTION, "a toy", "A toy.", ignore))
    assert len(seen) == number
    expected = ("caught", "test_toy::test_number[host-minimal]", number, number)
    assert expected == (outcome.verdict, outcome.test, outcome.example, outcome.drawn)


def test_the_number_is_of_the_life_that_went_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lives are counted likewise, and the one that is lived again to be told is not."""
    bug = "a moved row changes places with what was left in the hole"
    (entry,) = [one for one in ENTRIES if one.bug == bug]
    begun: list[int] = []
    fail = LifeMachine._fail

    def failing(machine: LifeMachine, *args: Any) -> None:  # noqa: ANN401
        begun.append(LEDGER.examples[entry.function, "host"] - before)
        fail(machine, *args)

    monkeypatch.setattr(LifeMachine, "_fail", failing)
    before = LEDGER.examples[entry.function, "host"]
    outcome = known_bad.judge_one(entry)
    assert begun[0] == outcome.example
    assert "a life" == outcome.kind


def test_examples_of_tests_that_passed_are_told_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the test that fails needed is one number, what was drawn in all another."""
    passing, _ = failing_from(2**60, "passing")
    failing, _ = failing_from(3, "failing")
    checks = [judge.Stated("test_toy", c.body.__name__, c) for c in (passing, failing)]
    monkeypatch.setattr(judge, "all_checks", lambda: checks)
    outcome = known_bad.judge_one(KnownBad(FUNCTION, "a toy", "A toy.", ignore))
    assert outcome.test == "test_toy::failing[host-minimal]"
    assert (3, 403) == (outcome.example, outcome.drawn)  # 200 small ones and 200 large ones


def test_a_functions_own_module_comes_first() -> None:
    """Tests of attention, which use many functions, come after those of the function alone."""
    (entry,) = [one for one in ENTRIES if one.name == "compute_slot_mapping: slots in int32"]
    modules = [stated.module for stated in judge.checks_of(entry)]
    assert ["test_slots", "test_attention_slots"] == list(dict.fromkeys(modules))


def test_processes_find_what_one_finds(tmp_path: Path) -> None:
    """With two workers each implementation is judged once, in an order that is always the same."""
    path = tmp_path / "found.json"
    options = ["--functions", FUNCTION, "--workers", "2", "--json", str(path)]
    command = [sys.executable, "-m", "tools.known_bad", *options]
    root = Path(known_bad.__file__).parents[1]
    done = subprocess.run(command, capture_output=True, text=True, cwd=root, check=False)  # noqa: S603
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(path.read_text())["implementations"]
    assert [entry.bug for entry in SOME] == [one["bug"] for one in found]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--functions", "get_cache_layout"], "; try get_kv_cache_layout"),
        (["--functions", "xyzzy"], "no 'xyzzy' is known to be bad"),
        (["--workers", "0"], "'0' is not a whole number of at least 1"),
        (["--functions", " ,"], "argument --functions: ' ,' names nothing"),
        (["--json", "/"], "--json /: is a folder"),
        (["--json", "/no/such/folder/found.json"], "there is no folder /no/such/folder"),
    ],
)
def test_a_wrong_call_is_told_in_one_line(
    arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit status is 2, and nothing was run."""
    with pytest.raises(SystemExit) as ended:
        run(*arguments, entries=SOME)
    assert ended.value.code == 2
    (told,) = capsys.readouterr().err.splitlines()
    assert line in told


@pytest.mark.parametrize(
    ("ending", "status", "line"),
    [
        (KeyboardInterrupt(), 130, "it was interrupted: 2 implementations were not judged"),
        (
            BrokenProcessPool(),
            1,
            "a worker crashed (try --workers 1): 2 implementations were not judged",
        ),
    ],
    ids=["Ctrl-C", "a crash"],
)
def test_what_is_found_until_then_is_told(
    ending: BaseException,
    status: int,
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A run that is ended prints what it has."""
    outcomes = iter([Outcome(FUNCTION, "the first", "host", "caught", "t", "law", 1, 1)])

    def judged(_: KnownBad) -> Outcome:
        try:
            return next(outcomes)
        except StopIteration:
            raise ending from None

    monkeypatch.setattr(known_bad, "judge_one", judged)
    three = [KnownBad(FUNCTION, str(number), "A toy.", ignore) for number in range(3)]
    assert run(entries=three) == status
    printed = capsys.readouterr().out
    assert "the first" in printed
    assert "caught: 1 of 1" in printed
    assert printed.splitlines()[-1] == line


def test_elsewhere_it_says_that_it_runs_in_the_repository(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tests are not installed: one line says so, with status 2."""
    monkeypatch.setattr(known_bad, "SET", tmp_path / "known_bad")
    with pytest.raises(SystemExit) as ended:
        known_bad.main([])
    assert ended.value.code == 2
    (told,) = capsys.readouterr().err.splitlines()
    assert told.startswith("python -m tools.known_bad: runs in the repository only")
