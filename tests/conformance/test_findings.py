"""Wrong answers, missing refusals and other differences: separate in every output.

Only wrong answers fail the run of an implementation, unless it is strict, as runs of `fast` are.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from small_runs import HEAD, Runner

import reference
from conformance.checks.contract_checks import InvalidExample, same_refusal
from conformance.checks.registry import contracts
from conformance.execution.crashes import crash_of
from conformance.targets.progress import PROGRESS
from conformance.targets.target import TARGETS
from conformance.values.call import Call
from conformance.values.differences import Difference, Finding, Verdict, finding_of

pytest_plugins = ["pytester"]

TOY = (
    HEAD
    + """
from conformance.values.call import Call
from conformance.values.differences import Difference, Verdict
from conformance.messages.mismatch import Mismatch

def differ(target, verdict, got, expected):
    path = "the call" if verdict is Verdict.OUTCOME else "result"
    raise Mismatch(Call("f", {}), target.name, Difference(verdict, path, None, got, expected))

@property_check("unrefused", digits)
def test_unrefused(target, n):
    "Refuses all but 0, and some as a TypeError."
    if n in {1, 2}:
        differ(target, Verdict.OUTCOME, "raised TypeError: no", "raise ValueError naming n (1)")
    if n > 2:
        differ(target, Verdict.OUTCOME, f"returned {n}", "raise ValueError naming n (3)")

@property_check("other", digits)
def test_other(target, n):
    "Returns a list."
    differ(target, Verdict.TYPE, "list", "tuple")
"""
)
"""Checks of which one fails in two ways."""

WRONG = """
@property_check("wrong", digits)
def test_wrong(target, n):
    "Is right for a few digits, and for others of the wrong type."
    if n > 7:
        differ(target, Verdict.VALUE, n, 7)
    if n > 1:
        differ(target, Verdict.DTYPE, "int64", "int32")
"""
"""A check whose wrong answers are rarer than its wrong dtypes."""


@pytest.fixture
def runner(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Runner:
    """Return a runner of small conformance runs."""
    pytester.makepyfile(engine="from fast import UBatchSlice\n")
    options = ("--failures=scripts", "--target=host", "--profile=dev", "-q")
    return Runner(pytester, monkeypatch, *options)


def test_findings_are_apart(runner: Runner) -> None:
    """The table, the lines, pytest's counts and the report each separate the findings."""
    runner.pytester.makepyfile(test_toy=TOY + WRONG)
    result = runner.run("--impl=engine.py", "--report=report")
    assert pytest.ExitCode.TESTS_FAILED == result.ret
    result.stdout.fnmatch_lines(
        [
            "other *other differences *",
            "unrefused *missing refusals *",
            "wrong *wrong answers *",
            "engine lacks * of * names: *",
            "other difference: other on host: result = list, but should be tuple",
            "missing refusal: unrefused on host: the call returned 3, but should raise *",
            "FAILS: wrong on host: result = 8, but should be 7",
            "functions: 1 with wrong answers, 1 with missing refusals, 1 with other differences; *",
        ]
    )
    assert "\n2 failed, 2 missing refusals, 2 other differences in " in result.stdout.str()
    record = json.loads(Path("report", "report.json").read_text())
    found = {function["name"]: function["cells"][0]["findings"] for function in record["functions"]}
    assert {"other": ["other difference"]}.items() <= found.items()
    assert {"unrefused": ["missing refusal"], "wrong": ["wrong answer"]}.items() <= found.items()


@pytest.mark.parametrize(
    ("options", "status"),
    [
        (("--impl=engine.py",), pytest.ExitCode.OK),
        (("--impl=engine.py", "-n2"), pytest.ExitCode.OK),
        (("--impl=engine.py", "--strict"), pytest.ExitCode.TESTS_FAILED),
        ((), pytest.ExitCode.TESTS_FAILED),
        # It may have missed a wrong answer.
        (("--impl=engine.py", "-x"), pytest.ExitCode.INTERRUPTED),
    ],
    ids=["of an engine", "in workers", "strict", "of fast", "stopped early"],
)
def test_exit_status_without_wrong_answers(
    runner: Runner, options: tuple[str, ...], status: pytest.ExitCode
) -> None:
    """Without wrong answers, a run that is not strict has exit status 0."""
    runner.pytester.makepyfile(test_toy=TOY)
    result = runner.run(*options)
    if status is pytest.ExitCode.INTERRUPTED:
        assert pytest.ExitCode.OK != result.ret
        return
    assert status == result.ret
    rule = "only wrong answers" if status is pytest.ExitCode.OK else "all of them"
    assert f"; {rule} fail the run" in result.stdout.str()


def test_a_failure_outside_of_checks_fails_the_run(runner: Runner) -> None:
    """A plain test has no finding."""
    runner.pytester.makepyfile(test_toy=TOY + "\ndef test_plain():\n    assert False\n")
    assert pytest.ExitCode.TESTS_FAILED == runner.run("--impl=engine.py").ret


def outcome(got: str, expected: str) -> Difference:
    """Return a difference of outcomes."""
    return Difference(Verdict.OUTCOME, "the call", None, got, expected)


@pytest.mark.parametrize(
    ("got", "expected", "finding"),
    [
        ("returned 3", "raise ValueError naming n", Finding.MISSING_REFUSAL),
        ("raised TypeError: n", "raise ValueError naming n", Finding.OTHER_DIFFERENCE),
        ("raised ValueError: n", "return a result", Finding.WRONG_ANSWER),
        ("crashed with SIGSEGV", "raise ValueError naming n", Finding.WRONG_ANSWER),
        ("did not return within 2 s", "return a result", Finding.WRONG_ANSWER),
        ("raised IndexError: kernel f", "stay inside its memory", Finding.WRONG_ANSWER),
    ],
)
def test_findings_of_outcomes(got: str, expected: str, finding: Finding) -> None:
    """A crash is a wrong answer, also in place of a refusal."""
    assert finding is outcome(got, expected).finding


def test_the_finding_of_an_error_depends_on_who_raised_it() -> None:
    """A `TypeError` of `reference` is about a result's type; one of an engine is a wrong answer."""
    with pytest.raises(TypeError) as of_reference:
        reference.get_dcp_local_seq_lens([1])  # type: ignore[arg-type]  # it must be an array
    with pytest.raises(TypeError) as of_engine:
        len(5)  # type: ignore[arg-type]
    assert Finding.OTHER_DIFFERENCE is finding_of(of_reference.value)
    assert Finding.WRONG_ANSWER is finding_of(of_engine.value)
    assert Finding.WRONG_ANSWER is finding_of(AssertionError())


def test_a_crash_in_place_of_a_refusal_names_the_refusal() -> None:
    """The report says which class of exception was expected, and why."""
    contract = contracts()["extract_layer_index"]
    call = Call(contract.function, {"layer_name": "a.b", "num_attn_module": 1})
    invalid = next(one for one in contract.invalid_inputs if one.change(call) is not None)
    bad = invalid.change(call)
    assert bad is not None
    example = InvalidExample(call, [(invalid, bad)])
    PROGRESS.call_id = id(bad)
    crash = crash_of(same_refusal(contract), TARGETS["host"], example, "crashed with SIGSEGV")
    assert crash.difference.line.endswith(f"but should {invalid.expected}")
    assert Finding.WRONG_ANSWER is crash.finding
