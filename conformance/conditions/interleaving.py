"""Calls of several threads: at each line of one call, another thread makes another call.

A thread switches anywhere. So a call is stopped at each line of the implementation's Python code,
until another thread has made a whole call of the same function with other arguments. That shows
buffers and settings that calls share, every time. Two threads that run compiled code at the same
time are left to `check_parallel_calls`, which shows them in most runs.
"""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import CodeType, FrameType
from typing import Any

from conformance.actors import actors
from conformance.calls import Call
from conformance.conditions.known_answer import KnownAnswer
from conformance.contracts import Contract
from conformance.targets import Target

SECONDS_FOR_A_LOCK = 0.2
"""What the other call may take; after that it waits for a lock, and the first call goes on."""

NUM_PARALLEL = 20
"""Calls of each of two threads."""


def at_each_line(act: Callable[[], object], look: Callable[[], None], package: str) -> Any:
    """Return what a call returns, after looking at each line that it runs, the first time.

    Args:
        act: The call.
        look: Called before each line.
        package: The package whose lines are meant, such as `fast`.
    """
    seen: set[tuple[CodeType, int]] = set()

    def on_event(frame: FrameType, event: str, _: object) -> Any:
        name = str(frame.f_globals.get("__name__"))
        if name.partition(".")[0] != package:
            return None
        line = frame.f_code, frame.f_lineno
        if event == "line" and line not in seen:
            seen.add(line)
            look()
        return on_event

    before = sys.gettrace()
    sys.settrace(on_event)
    try:
        return act()
    finally:
        sys.settrace(before)


def check_interleaved_calls(contract: Contract, target: Target, call: Call, other: Call) -> None:
    """Raise `Mismatch` where another thread's call, between any two lines, changes an answer.

    The arguments are compared at each line, too: other threads may read them at any time.

    Args:
        contract: The contract of the function.
        target: What is called.
        call: A valid call.
        other: A valid call, which the other thread makes.
    """
    __tracebackhide__ = True
    first, second = (KnownAnswer.of(contract, one) for one in (call, other))
    mine, theirs = first.invocation(target), second.invocation(target)
    failures: list[BaseException] = []
    with actors(1) as (actor,):

        def call_other() -> None:
            made = second.invocation(target) if contract.changes else theirs
            second.check(made, "in another thread")

        def look() -> None:
            if failures:
                return
            try:
                mine.check_unchanged(contract.changes)
                actor.do(call_other, SECONDS_FOR_A_LOCK)
            except (AssertionError, queue.Empty) as error:  # not into the implementation
                failures.append(error)

        got = at_each_line(mine.run, look, package_of(target))
    for failure in failures:
        if isinstance(failure, AssertionError):
            raise failure
    first.compare(got, target, "while another thread makes another call")


def check_parallel_calls(contract: Contract, target: Target, call: Call, other: Call) -> None:
    """Raise `Mismatch` where calls of two threads at the same time change each other's answers.

    Args:
        contract: The contract of the function.
        target: What is called.
        call: A valid call.
        other: A valid call, which the other thread makes.
    """
    __tracebackhide__ = True
    start = threading.Barrier(2)

    def repeat(expected: KnownAnswer) -> None:
        made = [expected.invocation(target) for _ in range(NUM_PARALLEL)]
        start.wait()
        for invocation in made:
            expected.check(invocation, "while another thread calls it")

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(2) as pool:
            both = (KnownAnswer.of(contract, one) for one in (call, other))
            for done in [pool.submit(repeat, one) for one in both]:
                done.result()
    finally:
        sys.setswitchinterval(before)


def package_of(target: Target) -> str:
    """Return the name of the package that a target's functions come from."""
    return target.implementation.module.__name__.partition(".")[0]
