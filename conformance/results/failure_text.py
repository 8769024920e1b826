"""The text of a failed test: the difference, the call, and how to reproduce it.

Frames of the harness and notes of Hypothesis are left out; `--full-trace` shows them.
"""

from __future__ import annotations

import dataclasses
import textwrap
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

import hypothesis
from hypothesis.errors import Flaky

import conformance
import reference
from conformance.adapters import Unsupported
from conformance.checks.law_checks import LawViolation
from conformance.contracts.check import Check
from conformance.execution.crashes import RERUN
from conformance.execution.invocations import PLAIN, CallVariant
from conformance.generation.examples import PASSED_AGAIN
from conformance.messages.call_table import render
from conformance.messages.formatting import (
    INDENT,
    WIDTH,
    around_difference,
    first_line,
    shortened,
    value_lines,
)
from conformance.messages.mismatch import CALLED_WITH, Mismatch
from conformance.stateful.machine import StatefulMismatchError
from conformance.targets.target import RAISED, Target
from conformance.values.call import calls_in
from conformance.values.differences import Verdict, raised

MAX_LINES: Final = 60
"""Lines of a failed test: with what is printed about the run, less than two screens."""

NUM_FRAMES: Final = 4
"""How many frames of an implementation are shown for an exception."""

NUM_REPEATS, REPEAT_SECONDS = 50, 2.0
"""How often, and for how long, a flaky example is run again."""

NUM_FAILING: Final = 10
"""How many of its failing runs are listed."""

FULL: Final = (Mismatch, LawViolation, StatefulMismatchError)
"""Exceptions whose message is complete: function, target, difference and call."""

HARNESS: Final = tuple(
    str(Path(str(package.__file__)).parent) for package in (conformance, reference, hypothesis)
)
"""Folders whose frames say nothing about an implementation."""


def failure_text(
    check: Any,
    target: Target,
    failure: tuple[Check, Any, BaseException] | None,
    error: BaseException,
    again: list[str],
) -> str:
    """Return the report text of a failed test.

    Args:
        check: The check, or the stored case, that failed.
        target: The target under test.
        failure: The check, its shrunk example and the exception; None without examples.
        error: The exception of the test.
        again: The commands that show the failure again.
    """
    _, example, cause = failure or (check, None, error)
    lines: list[str] = []
    if is_flaky(error):
        inner = getattr(error, "exceptions", None)
        cause = cause if failure else inner[0] if inner else error
        lines += _flaky_lines(check, target, failure)
    found = _message_lines(check, target, example, cause)
    lines += found
    lines += [*_origin(cause)]
    lines = [part for line in lines for part in _fitted(line)]
    lines = shortened(lines, MAX_LINES - len(again) - 1)
    if again:
        lines += ["To reproduce:", *(f"{INDENT}{command}" for command in again)]
    return "\n".join(lines)


def text_of_other_test(name: str, statement: str, error: BaseException, again: str) -> str:
    """Return the report text of a failed test without examples, such as one of the zoo.

    Args:
        name: The test.
        statement: What it shows, in a sentence.
        error: Its exception.
        again: The command that runs it again.
    """
    lines = [f"{name} contradicts: {statement}", *_said(error), *_origin(error)]
    lines = [part for line in lines for part in _fitted(line)]
    return "\n".join([*shortened(lines, MAX_LINES), "To reproduce:", f"{INDENT}{again}"])


def is_flaky(error: BaseException) -> bool:
    """Return whether an example failed only in some of its runs."""
    return isinstance(error, Flaky) or PASSED_AGAIN in getattr(error, "__notes__", ())


def difference_of(error: BaseException, check: Any) -> str:
    """Describe the exception of a test in one line."""
    if is_flaky(error):
        return "different results for the same arguments"
    if isinstance(error, Mismatch):
        found = error.difference
        got, expected = around_difference(str(found.got), str(found.expected))
        line = dataclasses.replace(found, got=got, expected=expected).line
        about = error.title if found.verdict is Verdict.CHANGE else ""
        notes = ", ".join(filter(None, (about, error.condition)))
        return f"{line} ({notes})" if notes else line
    said = first_line(error, check.description)
    if isinstance(error, AssertionError) and str(error).startswith("assert "):
        # The values that pytest compared say little without the statement.
        said = f"contradicts: {' '.join(check.description.split())} ({str(error).splitlines()[0]})"
    return RERUN.line or said


def _message_lines(check: Any, target: Target, example: Any, error: BaseException) -> list[str]:
    message = str(error).splitlines()
    if isinstance(error, FULL):
        of_example: CallVariant = getattr(example, "variant", PLAIN)
        chosen: CallVariant = getattr(error, "variant", None) or of_example
        variant = chosen.supported_by(target).goals
        hows = [name.removeprefix("called ") for name in variant]
        how = f"called {', '.join(hows)}:" if variant else CALLED_WITH
        lines = [how if line == CALLED_WITH else line for line in message]
        if isinstance(error, Mismatch) and error.explain is not None:
            at = lines.index(how) if how in lines else len(lines)
            lines[at:at] = error.explain()
        has_call = not isinstance(error, Mismatch) or error.call.arguments
        return lines if has_call else [*lines, *_example_lines(example)]
    about = " ".join(check.description.split())
    lines = [f"{check.function} on {target.name} contradicts: {about}"]
    lines += _said(error)
    call = next(calls_in(example), None)
    if call is not None:
        named = CALLED_WITH if call.function == check.function else f"{call.function} {CALLED_WITH}"
        return [*lines, named, *render(call).splitlines()]
    return [*lines, *_example_lines(example)]


def _example_lines(example: Any) -> list[str]:
    """Return the lines of an example that contains no call."""
    if example == set():  # of what is given
        return ["called without arguments"]
    lines = [] if example is None else value_lines("example = ", example, width=WIDTH - 4)
    return [f"{INDENT}{line}" for line in lines]


def _said(error: BaseException) -> list[str]:
    """Return the message of an exception, with its class unless it is an `AssertionError`."""
    message = str(error) if isinstance(error, AssertionError) else raised(error)
    return [f"{INDENT}{line}" for line in shortened(message.splitlines(), 12, 3)]


def _origin(error: BaseException) -> Iterator[str]:
    """Yield where an exception was raised, in the code of the implementation."""
    while error.__cause__ is not None:
        error = error.__cause__
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, FULL):
        return
    within = takewhile(lambda frame: not frame.filename.startswith(HARNESS), reversed(frames))
    outside = [*within][:NUM_FRAMES][::-1]
    if outside:
        yield "Raised in"
    for frame in outside:
        yield f"{INDENT}{frame.filename}:{frame.lineno}, {frame.name}: {frame.line}"


def _flaky_lines(
    check: Any, target: Target, failure: tuple[Check, Any, BaseException] | None
) -> Iterator[str]:
    """Yield lines about how often a flaky example fails."""
    yield f"{check.function} on {target.name}: different results for the same arguments"
    if failure is None or not isinstance(check, Check) or RERUN.process_end is not None:
        yield f"{INDENT}it failed once, and passed when the same example ran again; the failure:"
        return
    outcomes = [*_outcomes(check, target, failure[1])]
    failing = [number for number, outcome in enumerate(outcomes, 1) if outcome]
    wrong = Counter(filter(None, outcomes))
    times = f"repeated {len(outcomes)} times, fails {len(failing)} times"
    which = ", ".join(map(str, failing[:NUM_FAILING])) + ", ..." * (len(failing) > NUM_FAILING)
    yield f"{INDENT}the same call, {times}{': number ' * bool(failing)}{which}"
    if not wrong:
        yield f"{INDENT}it may depend on earlier calls"
    for line, count in wrong.most_common(3):
        yield f"{INDENT}{count} times: {line}"
    yield "One of the failures:"


def _outcomes(check: Check, target: Target, example: Any) -> Iterator[str]:
    """Run an example again and again; yield each difference, or an empty text if it passes."""
    end = time.perf_counter() + REPEAT_SECONDS
    for _ in range(NUM_REPEATS):
        if time.perf_counter() > end:
            return
        try:
            with check.watching(target):
                check.body(target, example)
        except RAISED as error:
            yield difference_of(error, check)
        except Unsupported:
            return
        else:
            yield ""


def _fitted(line: str) -> list[str]:
    """Return a line of text, on several if it is wider than a terminal."""
    if len(line) <= WIDTH:
        return [line]
    indent = line[: len(line) - len(line.lstrip())] + INDENT
    found = textwrap.wrap(line, WIDTH, subsequent_indent=indent, break_on_hyphens=False)
    return shortened(found, 8, 2)
