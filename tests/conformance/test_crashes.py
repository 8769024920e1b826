"""A function that crashes the process, or never returns, fails like any other.

The run reports the call, stores its case, and goes on.
"""

from __future__ import annotations

import dataclasses
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from small_runs import HEAD, Runner

from conformance.execution import forked_calls
from conformance.execution.crashes import STACK
from conformance.execution.forked_calls import run_in_child
from conformance.generation.profiles import PROFILES

pytest_plugins = ["pytester"]
TOY = (
    """
import collections, ctypes, faulthandler, itertools, os, pathlib, signal, sys, threading, time
"""
    + HEAD
    + """
calls = []

@property_check("before", digits, goals={{"even": lambda n: n % 2 == 0, "odd": lambda n: n % 2}})
def test_before(target, n):
    "Shows nothing."

@property_check("crashing", digits)
def test_crashing(target, n):
    "Crashes."
    calls.append(n)
    {body}

@property_check("after", digits, goals={{"even": lambda n: n % 2 == 0}})
def test_after(target, n):
    "Shows nothing."
"""
)
"""A module with one check to fill in; the goals of the others must be counted."""

AT_3 = "if n >= 3: "

BODIES = {
    "segmentation fault": (f"{AT_3}ctypes.string_at(1)", "crashed with SIGSEGV", "CRASHES"),
    "abort": (f"{AT_3}os.abort()", "crashed with SIGABRT (Aborted)", "CRASHES"),
    "exit": (f"{AT_3}os._exit(0)", "ended the process with exit status 0", "CRASHES"),
    "kill": (
        f"{AT_3}os.kill(os.getpid(), signal.SIGKILL)",
        "crashed with SIGKILL (Killed, possibly out of memory)",
        "CRASHES",
    ),
    "stack overflow": (
        f"{AT_3}sys.setrecursionlimit(10**7); (f := lambda: max([0], key=lambda _: f()))()",
        "crashed with SIGSEGV",
        "CRASHES",
    ),
    "sleep": (f"{AT_3}time.sleep(1e9)", "did not return within 1 s", "HANGS"),
    "endless loop in C": (
        f"{AT_3}collections.deque(itertools.count(), 0)",
        "did not return within 1 s",
        "HANGS",
    ),
    "deadlock": (
        f"{AT_3}lock = threading.Lock(); lock.acquire(); lock.acquire()",
        "did not return within 1 s",
        "HANGS",
    ),
}


@pytest.fixture
def runner(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Runner:
    """Return a maker of small conformance runs, which do not wait long for calls that hang."""
    quick = dataclasses.replace(PROFILES["dev"], shrink_seconds=1)
    monkeypatch.setitem(PROFILES, "dev", quick)
    monkeypatch.setattr(forked_calls, "STACK_SECONDS", 0.1)
    return Runner(
        pytester,
        monkeypatch,
        "--failures=scripts",
        "--target=host",
        "--hang-seconds=1",
        "--profile=dev",
    )


def summary(text: str) -> list[str]:
    """Return the lines of a run's table, without the times."""
    return re.findall(r"^(?:before|crashing|after) .*\S(?= +\d+ s$)", text, re.MULTILINE)


@pytest.mark.parametrize("name", BODIES)
def test_a_crash_is_a_failure(runner: Runner, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A crash is reported with its smallest example; the other functions' results are complete."""
    body, words, state = BODIES[name]
    if state == "CRASHES":  # each takes a moment, which may be long on a busy machine
        patient = dataclasses.replace(PROFILES["dev"], shrink_seconds=60)
        monkeypatch.setitem(PROFILES, "dev", patient)
    runner.pytester.makepyfile(test_toy=TOY.format(body=body))
    result = runner.run()
    text = result.stdout.str()
    assert {"passed": 4, "failed": 2} == result.parseoutcomes()
    assert f"the call {words}" in text
    assert re.search("example = [3-9]\n" if state == "HANGS" else "example = 3\n", text)
    expected = ["after conforms (50) 1/1", f"crashing {state} 0/0", "before conforms (50) 2/2"]
    assert sorted(expected) == sorted(" ".join(line.split()) for line in summary(text))
    assert 1 == result.ret
    assert f"FAILS: crashing on host: the call {words}" in text


@pytest.mark.parametrize(
    "options",
    [(), ("-n0",), ("-p", "no:xdist"), ("-n2",), ("-n1", "--max-worker-restart=0")],
    ids=" ".join,
)
def test_each_way_to_run_goes_on(runner: Runner, options: tuple[str, ...]) -> None:
    """With pytest-xdist and without, a crash loses no result and no worker."""
    body = f"{AT_3}ctypes.string_at(1)"
    runner.pytester.makepyfile(test_toy=TOY.format(body=body))
    result = runner.pytester.runpytest_subprocess(*runner.options, *options)
    text = result.stdout.str()
    assert {"passed": 4, "failed": 2} == result.parseoutcomes()
    assert "test_toy.py:" in text.partition("the call crashed with SIGSEGV")[2]
    assert "node down" not in text
    assert 3 == len(summary(text))
    assert 1 == result.ret


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (
            "if len(calls) > 6: os.abort()",
            r"crashed with SIGABRT \(Aborted\), at .* in test_crashing, but",
        ),
        (
            "p = pathlib.Path('once')\n    if n == 3 and not p.exists(): p.touch(); os.abort()",
            r"crashed with SIGABRT \(Aborted\), at .*, in the first run but not in the rerun",
        ),
    ],
    ids=["after other calls", "once"],
)
def test_a_crash_that_depends_on_more_than_the_call(runner: Runner, body: str, words: str) -> None:
    """A rerun repeats the calls before it, too; a crash that does not recur is reported."""
    runner.pytester.makepyfile(test_toy=TOY.format(body=body))
    text = runner.run().stdout.str()
    assert re.search(f"FAILS: crashing on host: the call {words}", text)
    assert "example = " in text
    # No stored case: it must not import a check from outside of conformance.
    assert "python -m conformance 'test_toy.py::test_crashing[host-minimal]' --target host" in text
    assert any(re.match("crashing +CRASHES", line) for line in summary(text))


def test_a_crash_outside_of_examples(runner: Runner) -> None:
    """A crash outside of examples fails its test without a call, and later tests run."""
    runner.pytester.makepyfile(
        test_toy="import os, sys\ndef test_dies(): sys.stderr.write('last words'); os.abort()\n"
        "def test_lives(): pass\n"
    )
    result = runner.run("-s")
    assert {"passed": 1, "failed": 1} == result.parseoutcomes()
    result = runner.run()
    assert {"passed": 1, "failed": 1} == result.parseoutcomes()
    assert "test_dies crashed with SIGABRT (Aborted)" in result.stdout.str()
    assert "last words" in result.stdout.str()


def test_what_is_not_supervised(runner: Runner) -> None:
    """An implementation whose import starts threads cannot be forked, and the header says so."""
    source = "import threading, time, fast\nfrom fast import *\n"
    source += "threading.Thread(target=time.sleep, args=(9,), daemon=True).start()\n"
    runner.pytester.makepyfile(threaded=source, test_toy=TOY.format(body="pass"))
    text = runner.run("--impl=threaded.py").stdout.str()
    assert "a function that crashes ends this run: importing the implementation started" in text
    text = runner.run("--in-process").stdout.str()
    assert "a function that crashes ends this run: --in-process" in text


def test_ctrl_c_ends_the_child(runner: Runner) -> None:
    """Ctrl-C leaves no hanging process behind."""
    body = "pathlib.Path('pid').write_text(str(os.getpid())); time.sleep(1e9)"
    runner.pytester.makepyfile(test_toy=TOY.format(body=body))
    command = [sys.executable, "-m", "pytest", *runner.options[:-1], "-p", "no:cacheprovider"]
    pid = Path("pid")
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:  # noqa: S603  # our own
        while not (pid.exists() and pid.read_text()):
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        assert pytest.ExitCode.INTERRUPTED == process.wait()
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def test_a_stack_names_the_frames_outside_the_harness() -> None:
    """The reported stack omits the frames of the harness."""

    def act() -> None:
        STACK.enable()
        os.abort()

    STACK.clear()
    assert "SIGABRT" == run_in_child(act, 60)
    name = Path(__file__).name
    assert re.fullmatch(rf"{name}:\d+ in act", STACK.place())
    STACK.clear()
    assert "" == STACK.place()
