"""The conformance run itself: options, exit status, coverage goals and terminal output."""

from __future__ import annotations

import dataclasses
import re

import pytest
import torch
from small_runs import HEAD, Runner

from conformance.contracts.check import Check
from conformance.generation.profiles import PROFILES

pytest_plugins = ["pytester"]
TOY = (
    HEAD
    + """
@property_check("toy", digits, goals={"even": lambda n: n % 2 == 0, "odd": lambda n: n % 2})
def test_first(target, n):
    "Shows nothing."

@property_check("toy", digits, goals={"small": lambda n: n < 5})
def test_second(target, n):
    "Shows nothing."
"""
)

IMPOSSIBLE = (
    HEAD
    + """
@property_check("other", digits, goals={"even": lambda n: n % 2 == 0, "huge": lambda n: n > 99})
def test_impossible(target, n):
    "Shows nothing."
"""
)


@pytest.fixture
def runner(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Runner:
    """Return a runner of small conformance runs."""
    return Runner(pytester, monkeypatch, "--failures=scripts")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("--target=nonsense", "target 'nonsense' is unknown; there are host, sim, native, cuda"),
        (
            "--profile=nonsense",
            "--profile 'nonsense' is unknown; there are brief, dev, default, nightly",
        ),
        ("--functions=slot_mapping", "function 'slot_mapping' is unknown; * compute_slot_mapping*"),
        ("--target=host,cuda", "target 'cuda' needs a GPU, but torch finds none"),
        ("--trace nowhere.csv", "--trace nowhere.csv: *No such file*"),
        ("--failures=test_toy.py", "--failures test_toy.py is not a folder"),
        ("--failures=test_toy.py/x", "--failures test_toy.py/x: Not a directory"),
        ("--failures=/proc/x", "--failures /proc/x: No such file or directory"),
        (
            "--profile=nightly --hypothesis-seed=x",
            "--hypothesis-seed must be an integer, got 'x'",
        ),
    ],
)
def test_wrong_options_end_the_run(runner: Runner, arguments: str, line: str) -> None:
    """A name or a file that is not there is a usage error, in one line, before anything runs."""
    runner.monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    runner.pytester.makepyfile(test_toy=TOY)
    result = runner.run(*arguments.split())
    assert pytest.ExitCode.USAGE_ERROR == result.ret
    result.stderr.fnmatch_lines([f"ERROR: {line}"])


def test_a_run_that_skipped_everything_fails(runner: Runner) -> None:
    """A run fails if every check was skipped, and passes if one ran."""
    head = "from conformance.targets.implementations import Absent\n"
    lacking = TOY.replace('"Shows nothing."', "raise Absent('needs more')")
    runner.pytester.makepyfile(test_lacking=head + lacking)
    result = runner.run("--target", "host")
    assert {"skipped"} == result.parseoutcomes().keys()
    assert pytest.ExitCode.TESTS_FAILED == result.ret
    result.stdout.fnmatch_lines(["nothing was checked: all 4 checks were skipped"])
    runner.pytester.makepyfile(test_running=TOY.replace('"toy"', '"other"'))
    assert pytest.ExitCode.OK == runner.run("--target", "host").ret


def test_a_green_run_says_what_it_ran(runner: Runner) -> None:
    """The header names implementation, targets and profile; a table of functions ends the run."""
    runner.pytester.makepyfile(TOY)
    result = runner.run("--target", "host")
    assert pytest.ExitCode.OK == result.ret
    result.stdout.fnmatch_lines(
        [
            "conformance: fast on host; profile default; seed derandomized; trace *",
            "function  host                    goals  time",
            "toy       conforms (200)            3/3  * s",
        ]
    )


def test_targets_that_say_nothing_new_are_left_out(runner: Runner) -> None:
    """A check without a kernel is not run in the simulator again."""
    runner.pytester.makepyfile(TOY)
    result = runner.run("--target", "host,sim", "--collect-only", "-q")
    result.stdout.no_fnmatch_line("*sim*]*")
    result.stdout.fnmatch_lines(["*test_first[[]host*"])


def test_an_unreachable_goal_fails_the_run(runner: Runner) -> None:
    """A coverage goal that no example reached fails the run, with its name."""
    runner.pytester.makepyfile(IMPOSSIBLE)
    result = runner.run()
    assert result.parseoutcomes().keys() == {"passed"}
    assert pytest.ExitCode.TESTS_FAILED == result.ret
    result.stdout.fnmatch_lines(["coverage goal not reached: other: huge"])
    result.stdout.no_fnmatch_line("*goal not reached*even*")


@pytest.mark.parametrize(
    "arguments",
    [
        *("--profile dev", "--target host", "--impl fast", "-k test_", "-k first", "test_toy.py"),
        *("--deselect test_toy.py::test_first[host-real]", "test_toy.py::test_second[host-real]"),
    ],
)
def test_runs_without_required_coverage(runner: Runner, arguments: str) -> None:
    """Only a run of everything requires coverage, and not with profile dev."""
    impossible = TOY.replace("n < 5", "n > 99")
    runner.pytester.makepyfile(test_toy=impossible)
    result = runner.run(*arguments.split())
    assert pytest.ExitCode.OK == result.ret
    result.stdout.no_fnmatch_line("*goal not reached*")


def test_control_characters_do_not_reach_the_terminal(runner: Runner) -> None:
    """Text of an implementation is escaped: of exceptions, skips, output, before a crash too."""
    evil = "\x1b[2J\r\x9b0m"
    runner.pytester.makepyfile(
        HEAD
        + f"""
import os
from conformance.adapters import Unsupported
from conformance.targets.implementations import Absent

def ends(target, error):
    print({evil!r}, flush=True)
    if error is None:
        os.kill(os.getpid(), 9)
    raise error

for name, error in {{
    "raises": AssertionError({evil!r}),
    "lacks": Absent({evil!r}),
    "crashes": None,
}}.items():
    def body(target, n, error=error):
        "Fails."
        ends(target, error)
    globals()[f"test_{{name}}"] = property_check(name, digits)(body)

def test_plain():
    ends(None, ValueError({evil!r}))
"""
    )
    printed = runner.run("--all-failures", "--report", "out").stdout.str()
    for word in ("raises", "lacks", "crashes", "test_plain"):
        assert word in printed
    assert printed.count(repr(evil)[1:-1]) >= 6
    assert not set("\x1b\r\x9b") & set(printed)


def test_failed_functions_need_no_coverage(runner: Runner) -> None:
    """A failed function is reported as failed, without its unreached goals."""
    runner.pytester.makepyfile(IMPOSSIBLE.replace('"Shows nothing."', "assert n != 3"))
    result = runner.run()
    assert pytest.ExitCode.TESTS_FAILED == result.ret
    result.stdout.fnmatch_lines(["other*wrong answers*"])
    result.stdout.no_fnmatch_line("*goal not reached*")


def test_a_check_without_examples_fails_the_run(runner: Runner) -> None:
    """A check that ran no example is no success."""
    runner.pytester.makepyfile(TOY)
    runner.monkeypatch.setattr(Check, "bind", lambda *_, **__: lambda: None)
    result = runner.run("--target", "host", "--profile", "dev")
    assert pytest.ExitCode.TESTS_FAILED == result.ret
    result.stdout.fnmatch_lines(["no example: toy on host"])


def test_workers_counts_are_joined(runner: Runner) -> None:
    """Under pytest-xdist a goal that one worker reached is reached; an unreachable one fails."""
    runner.pytester.makepyfile(test_toy=TOY, test_impossible=IMPOSSIBLE)
    result = runner.pytester.runpytest_subprocess("-n", "2")
    assert pytest.ExitCode.TESTS_FAILED == result.ret
    assert result.parseoutcomes().keys() == {"passed"}
    result.stdout.fnmatch_lines(["other*conforms*1/2*", "toy*conforms*3/3*"])
    result.stdout.fnmatch_lines(["coverage goal not reached: other: huge"])
    result.stdout.no_fnmatch_line("*goal not reached: toy*")


def test_nightly_prints_its_seed(runner: Runner) -> None:
    """A nightly run prints a seed, and with that seed it is the same run again."""
    few = dataclasses.replace(PROFILES["nightly"], same_answer_examples=20, other_examples=20)
    runner.monkeypatch.setitem(PROFILES, "nightly", few)
    body = 'with open("seen.txt", "a") as file: file.write(f"{n} ")'
    runner.pytester.makepyfile(
        HEAD.replace("(0, 9)", "(0, 2**64)")
        + f"""
@property_check("toy", digits)
def test_first(target, n):
    {body}
"""
    )
    seen = []
    seed: tuple[str, ...] = ()
    for _ in range(2):
        result = runner.run("--target", "host", "--profile", "nightly", *seed)
        assert pytest.ExitCode.OK == result.ret
        printed = set(re.findall(r"seed (\d+)", result.stdout.str()))
        assert len(printed) == 1
        seed = (f"--hypothesis-seed={printed.pop()}",)
        path = runner.pytester.path / "seen.txt"
        seen.append(path.read_text())
        path.unlink()
    assert seen[0] == seen[1]
