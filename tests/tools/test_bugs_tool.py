"""`python -m tools.bugs`, on a few bugs and on toys."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from conformance.contracts.check import Check
from conformance.contracts.evaluation import outcome
from conformance.coverage.goals import COVERAGE
from conformance.generation.profiles import Kind
from conformance.messages.mismatch import Mismatch
from conformance.stateful.machine import EngineStateMachine
from conformance.targets.target import Target
from conformance.values.call import Call
from tools.bugs import by_target, command_line, evaluation
from tools.bugs.catalogue import Bug, read_catalogue
from tools.bugs.outcomes import Outcome

FUNCTION = "get_kv_cache_layout"
BUGS = list(read_catalogue())
SOME = [bug for bug in BUGS if bug.function == FUNCTION]


def make_bug(old: str, new: str) -> Bug:
    """Return a bug in the layout module."""
    return Bug(
        function=FUNCTION, what="a toy", why="A toy.", module="fast.kv_layout", old=old, new=new
    )


HARMLESS = make_bug("return layout", "return layout + ''")


def run(*arguments: str, bugs: list[Bug]) -> int:
    """Run the command line on some bugs."""
    return command_line.main(arguments, bugs)


def test_each_is_reported_with_the_test_that_catches_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The table has the failing test of each bug, and all bugs are caught."""
    assert run("--functions", FUNCTION, bugs=BUGS) == 0
    printed = capsys.readouterr().out
    for bug in SOME:
        assert bug.what[:30] in printed
    assert len(SOME) <= printed.count("test_kv_layout::test_")
    assert f"caught: {len(SOME)} of {len(SOME)}" in printed


@pytest.mark.parametrize(
    ("bug", "line"),
    [
        (HARMLESS, f"not caught: {FUNCTION} on host: a toy"),
        (
            make_bug("return layout", "return no_such_name"),
            f"broken patch: {FUNCTION} on host: a toy: test_toy::test_layout[",
        ),
        (
            make_bug("no such line", ""),
            f"broken patch: {FUNCTION} on host: a toy: 'no such line' occurs 0 times in",
        ),
    ],
    ids=["a harmless one", "a name is missing", "it does not apply"],
)
def test_what_is_not_caught_fails(
    bug: Bug,
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A bug that is not caught, or whose patch is broken, has a line, and the exit status is 1."""

    def body(target: Target, _example: object) -> None:
        assert target.lookup(FUNCTION)() in {"NHD", "HND"}

    check = Check(FUNCTION, Kind.SAME_ANSWER, lambda _: st.integers(), body, "A toy.")
    monkeypatch.setattr(
        evaluation,
        "all_checks",
        lambda: [evaluation.NamedCheck("test_toy", "test_layout", check)],
    )
    assert run(bugs=[bug]) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith(line)


@pytest.mark.parametrize(
    ("message", "shows"), [("", False), ("should return a result", False), ("no .* 'uper'", True)]
)
def test_an_error_of_a_broken_patch_is_named(message: str, *, shows: bool) -> None:
    """The expected message must match the error of the patched code, not only the mismatch."""
    raised = "raised AttributeError: 'str' object has no attribute 'uper'"
    error = Mismatch(Call(FUNCTION, {}), "host", outcome(raised, "return a result"))
    bug = dataclasses.replace(make_bug("layout", "layout.uper()"), message=message)
    assert shows is evaluation.Catch("test_layout", 1, 1, error).shows(bug)


def test_a_late_median_fails(capsys: pytest.CaptureFixture[str]) -> None:
    """A median above 20 examples fails a full run, but not a partial one."""
    outcomes = [Outcome("f", str(n), "host", "caught", "t", n) for n in (1, 21, 22)]
    assert command_line.report(outcomes, is_whole=False) == 0
    assert command_line.report(outcomes, is_whole=True) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "the median is 21 examples, above 20"


def failing_from(number: int, name: str = "body") -> tuple[Check, list[Any]]:
    """Return a check that fails from an example on, and the list of its examples."""
    seen: list[Any] = []

    def body(_target: Target, example: object) -> None:
        if example not in seen:
            seen.append(example)
        assert seen.index(example) + 1 < number

    body.__name__ = name
    numbers = st.tuples(*[st.integers(0, 2**60)] * 8)  # all distinct
    return Check(FUNCTION, Kind.SAME_ANSWER, lambda _: numbers, body, "A toy."), seen


@pytest.mark.parametrize("number", [1, 2, 7, 200])
def test_the_number_is_of_the_example_that_failed(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number counts distinct examples from 1; those that Hypothesis repeats count once."""
    check, seen = failing_from(number)
    named = evaluation.NamedCheck("test_toy", "test_number", check)
    monkeypatch.setattr(evaluation, "all_checks", lambda: [named])
    outcome = command_line.evaluate(HARMLESS)
    assert len(seen) == number
    expected = ("caught", "test_toy::test_number[host-minimal]", number)
    assert expected == (outcome.verdict, outcome.test, outcome.example)


def test_runs_of_the_stateful_test_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run that Hypothesis repeats for its report is not counted again."""
    bug = "a moved row changes places with what was left in the hole"
    (entry,) = [one for one in BUGS if one.what == bug]
    begun: list[int] = []
    fail = EngineStateMachine._fail

    def failing(machine: EngineStateMachine, *args: Any) -> None:  # noqa: ANN401
        begun.append(COVERAGE.examples[entry.function, "host"] - before)
        fail(machine, *args)

    monkeypatch.setattr(EngineStateMachine, "_fail", failing)
    before = COVERAGE.examples[entry.function, "host"]
    outcome = command_line.evaluate(entry)
    assert begun[0] == outcome.example


def test_examples_of_tests_that_passed_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number counts only examples of the failing test."""
    passing, _ = failing_from(2**60, "passing")
    failing, _ = failing_from(3, "failing")
    checks = [evaluation.NamedCheck("test_toy", c.body.__name__, c) for c in (passing, failing)]
    monkeypatch.setattr(evaluation, "all_checks", lambda: checks)
    outcome = command_line.evaluate(HARMLESS)
    assert outcome.test == "test_toy::failing[host-minimal]"
    assert 3 == outcome.example


def test_a_functions_own_module_comes_first() -> None:
    """Tests of attention, which use many functions, come after those of the function alone."""
    modules = [named.module for named in evaluation.checks_of("compute_slot_mapping", "host")]
    assert ["test_slots", "test_attention_slots"] == list(dict.fromkeys(modules))


def test_processes_find_what_one_finds() -> None:
    """With two workers each bug is evaluated once, and the order is always the same."""
    command = [sys.executable, "-m", "tools.bugs", "--functions", FUNCTION, "--workers", "2"]
    root = Path(command_line.__file__).parents[2]
    done = subprocess.run(command, capture_output=True, text=True, cwd=root, check=False)  # noqa: S603
    assert done.returncode == 0, done.stdout + done.stderr
    places = [done.stdout.index(bug.what[:30]) for bug in SOME]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--functions", "get_cache_layout"], "; try get_kv_cache_layout"),
        (["--functions", "xyzzy"], "'xyzzy' has no bugs"),
        (["--workers", "0"], "must be an integer >= 1, got '0'"),
        (["--functions", " ,"], "argument --functions: ' ,' contains no name"),
        (["--targets", "native"], "--targets: 'native' has no bugs; there are host"),
    ],
)
def test_a_wrong_call_is_one_line(
    arguments: list[str], line: str, refusal: Callable[..., str]
) -> None:
    """The exit status is 2, and nothing was run."""
    assert line in refusal(lambda given: run(*given, bugs=SOME), arguments)


@pytest.mark.parametrize(
    ("ending", "status", "line"),
    [
        (KeyboardInterrupt(), 130, "it was interrupted: 2 bugs were not evaluated"),
        (
            BrokenProcessPool(),
            1,
            "a worker crashed (try --workers 1): 2 bugs were not evaluated",
        ),
    ],
    ids=["Ctrl-C", "a crash"],
)
def test_what_is_found_until_then_is_reported(
    ending: BaseException,
    status: int,
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """An interrupted run reports the bugs that it has evaluated."""
    outcomes = iter([Outcome(FUNCTION, "the first", "host", "caught", "t", 1)])

    def evaluated(_: Bug) -> Outcome:
        try:
            return next(outcomes)
        except StopIteration:
            raise ending from None

    monkeypatch.setattr(command_line, "evaluate", evaluated)
    assert run(bugs=[HARMLESS] * 3) == status
    printed = capsys.readouterr().out
    assert "the first" in printed
    assert "caught: 1 of 1" in printed
    assert printed.splitlines()[-1] == line


def test_without_numba_cuda_bugs_of_machine_code_are_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bugs that need numba-cuda are reported as left out, and do not count as not caught."""
    monkeypatch.setattr(command_line, "find_spec", lambda _: None)
    left = command_line._read_catalogue()
    assert left
    assert "native" not in {bug.target for bug in left}
    number = len(list(read_catalogue())) - len(left)
    assert f"{number} bugs of machine code are left out: " in capsys.readouterr().err


def test_elsewhere_it_says_that_it_runs_in_the_repository(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, refusal: Callable[..., str]
) -> None:
    """Outside the repository, which has the tests, the tool ends with one line and status 2."""
    monkeypatch.setattr(command_line, "FOLDER", tmp_path / "bugs")
    line = refusal(command_line.main, [])
    assert line.startswith("python -m tools.bugs: runs in the repository only")


def test_each_bug_is_run_on_all_targets() -> None:
    """Bugs of the selected targets run on each; a pattern applies only to a bug's own target."""
    bugs = [
        dataclasses.replace(HARMLESS, what=target, target=target, message="kernel")
        for target in ("host", "sim", "native")
    ]
    assert [
        ("sim", "sim", "kernel"),
        ("sim", "native", ""),
        ("native", "sim", ""),
        ("native", "native", "kernel"),
    ] == [(bug.what, bug.target, bug.message) for bug in by_target.on_each(bugs, ["sim", "native"])]


@pytest.mark.parametrize(
    ("verdicts", "missed_by", "lines"),
    [
        (("caught", "caught"), {}, []),
        (("caught", "not caught"), {"native": "It wraps."}, []),
        (
            ("caught", "not caught"),
            {},
            ["native misses it, and `missed_by` does not say why: f: a toy"],
        ),
        (
            ("caught", "caught"),
            {"native": "It wraps."},
            ["native catches it, but `missed_by` says that it does not: f: a toy"],
        ),
        (
            ("not caught", "not caught"),
            {"sim": "A.", "native": "B."},
            ["no target catches it: f: a toy"],
        ),
        (("caught", "broken patch"), {}, ["broken patch: f on native: a toy"]),
    ],
)
def test_what_targets_miss_is_declared(
    verdicts: tuple[str, str],
    missed_by: dict[str, str],
    lines: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each bug is caught by a target, and its `missed_by` has each target that misses it."""
    bug = dataclasses.replace(HARMLESS, function="f", target="sim", missed_by=missed_by)
    native = dataclasses.replace(bug, what="another", target="native", missed_by={})

    def evaluated(one: Bug) -> Outcome:
        found = dict(zip(("sim", "native"), verdicts, strict=True))
        verdict = found[one.target] if one.what == "a toy" else "caught"
        return Outcome(one.function, one.what, one.target, verdict)

    monkeypatch.setattr(command_line, "evaluate", evaluated)
    assert int(bool(lines)) == run("--targets", "sim,native", bugs=[bug, native])
    printed = capsys.readouterr().out
    assert lines == printed.splitlines()[-len(lines) :] * bool(lines)
    assert f"sim catches {1 + (verdicts[0] == 'caught')} of 2" in printed
