"""Calls of several threads: at each line of one call, another thread makes another call.

Python may switch threads anywhere. So a call is stopped at each line of the implementation's Python
code, until another thread has made a whole call of the same function with other arguments. This
always finds buffers and settings that calls share. Those that only compiled code shares are left to
`check_parallel_calls`, which finds them in most runs.
"""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable, Container, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from types import CodeType, FrameType
from typing import Any, Final

from conformance.conditions.known_answer import KnownAnswer
from conformance.conditions.scenarios import Scenario
from conformance.execution.actors import actors
from conformance.execution.invocations import Invocation
from conformance.targets.target import RAISED, Target

SECONDS_FOR_A_LOCK = 0.2
"""How long the first call waits for the other, which may itself wait for a lock of the first."""

NUM_PARALLEL = 10
"""Calls of each of two threads, in each mode."""

IN_THREADS: Final = "while another thread makes another call"
IN_PARALLEL: Final = "while another thread calls it"


def at_each_line(
    act: Callable[[], object],
    look: Callable[[], None],
    packages: Container[str],
    *,
    instructions: bool = False,
) -> Any:
    """Return what a call returns, and call a function before each line that it runs.

    A line that runs several times counts once.

    Args:
        act: The call.
        look: Called before each line.
        packages: The packages whose lines are traced, such as `fast`.
        instructions: Whether `look` is called before each instruction of a line.
    """
    seen: set[tuple[CodeType, int]] = set()
    looked_at = "opcode" if instructions else "line"

    def on_event(frame: FrameType, event: str, _: object) -> Any:
        name = str(frame.f_globals.get("__name__"))
        if name.partition(".")[0] not in packages:
            return None
        frame.f_trace_opcodes = instructions
        place = frame.f_code, frame.f_lasti if instructions else frame.f_lineno
        if event == looked_at and place not in seen:
            seen.add(place)
            look()
        return on_event

    before = sys.gettrace()
    sys.settrace(on_event)
    try:
        return act()
    finally:
        sys.settrace(before)


def thread_scenarios(expected: KnownAnswer, other: KnownAnswer) -> Iterator[Scenario]:
    """Yield the call, while another thread makes another between any two of its lines."""
    return _in_both_modes(IN_THREADS, partial(check_interleaved_calls, expected, other))


def parallel_scenarios(expected: KnownAnswer, other: KnownAnswer) -> Iterator[Scenario]:
    """Yield the call, made by two threads at the same time with different arguments."""
    return _in_both_modes(IN_PARALLEL, partial(check_parallel_calls, expected, other))


def _in_both_modes(name: str, check: Callable[[Target], None]) -> Iterator[Scenario]:
    for is_checked, goal in enumerate(names_in_both_modes(name)):

        def check_in_mode(target: Target, *, is_checked: int = is_checked) -> None:
            __tracebackhide__ = True
            with target.running(checked=bool(is_checked)):
                check(target)

        yield Scenario(goal, check_in_mode)


def names_in_both_modes(name: str) -> tuple[str, str]:
    """Return the names of a condition without and with checked mode."""
    return name, f"{name}, in checked mode"


def check_interleaved_calls(first: KnownAnswer, second: KnownAnswer, target: Target) -> None:
    """Raise `Mismatch` if another thread's call, between any two lines, changes an answer.

    The arguments are compared at each line, too: other threads may read them at any time.

    Args:
        first: A valid call, with its answer.
        second: One of the same function, which the other thread makes.
        target: The target under test.
    """
    __tracebackhide__ = True
    contract = first.contract
    mine, theirs = first.invocation(target), second.invocation(target)
    condition = IN_THREADS
    failures: list[BaseException] = []
    with actors(1) as (actor,):
        # The other thread inherits the checked mode. If each thread entered a block of its own,
        # they would not restore the mode of an implementation that has one for the process.
        context = copy_context()

        def call_other() -> None:
            made = second.invocation(target) if contract.changes else theirs
            second.check(made, "in another thread")

        def look() -> None:
            if failures:
                return
            try:
                mine.check_unchanged(contract.changes)
                actor.do(partial(context.run, call_other), SECONDS_FOR_A_LOCK)
            except RAISED as error:  # must not reach the implementation
                failures.append(error)

        packages = packages_of(target, contract.function)
        got = at_each_line(lambda: first.run(mine, condition), look, packages)
        for failure in failures:
            if not isinstance(failure, queue.Empty):
                raise failure
            actor.result()  # the other call goes on when the first has released its lock
    first.compare(got, mine, condition)


def check_parallel_calls(first: KnownAnswer, second: KnownAnswer, target: Target) -> None:
    """Raise `Mismatch` if calls of two threads at the same time change each other's answers.

    Args:
        first: A valid call, with its answer.
        second: One of the same function, which the other thread makes.
        target: The target under test.
    """
    __tracebackhide__ = True
    start = threading.Barrier(2)
    both = (first, second)
    # Not made in the threads: an exception there would leave the other at the barrier forever.
    invocations = [[one.invocation(target) for _ in range(NUM_PARALLEL)] for one in both]

    def repeat(expected: KnownAnswer, made: list[Invocation]) -> None:
        start.wait()
        for invocation in made:
            expected.check(invocation, IN_PARALLEL)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(2) as pool:
            calls = [partial(repeat, *one) for one in zip(both, invocations, strict=True)]
            for done in [pool.submit(copy_context().run, call) for call in calls]:
                done.result()
    finally:
        sys.setswitchinterval(before)


def packages_of(target: Target, function: str) -> frozenset[str]:
    """Return the packages of a target's module and of its function, which may be re-exported."""
    modules = (
        target.implementation.module.__name__,
        str(getattr(target.find(function), "__module__", "")),
    )
    return frozenset(module.partition(".")[0] for module in modules if module)
