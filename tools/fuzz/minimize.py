"""Minimize failing inputs with Hypothesis' shrinker.

An input that raises is tried in the worker itself. One that crashes or hangs is tried in a forked
child each time: the worker draws the input, and the child checks it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import resource
import select
import signal
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from hypothesis import Phase, settings
from hypothesis.internal.conjecture import engine
from hypothesis.internal.conjecture.choice import ChoiceT
from hypothesis.internal.conjecture.data import ConjectureData
from hypothesis.internal.conjecture.engine import ConjectureRunner, RunIsComplete
from hypothesis.internal.escalation import InterestingOrigin

from conformance.drawing import AnewProvider
from tools.fuzz.cases import Case, Input, Status, run_case, run_data
from tools.fuzz.failures import Failure, key_of, with_artefacts
from tools.fuzz.jobs import WorkerContext
from tools.fuzz.properties import Property, Subject, properties_of, uses_gpu
from tools.fuzz.slices import failure_of_case

TRIES: Final = 5
"""How often an input is tried to learn whether it always fails."""

DRAWN_SHORTER: Final = 200
"""How many shorter inputs are drawn before what is there is made small."""

FEW_CHOICES: Final = 64
"""An input of no more choices is short enough for Hypothesis' shrinker."""

HANG_SECONDS: Final = 3.0
"""A try that takes longer counts as a hang; the input hung for much longer before."""

MEMORY_EXIT: Final = 77
"""The exit status of a child that ran out of memory."""

Key = tuple[str, str, str]


class ProcessDiedError(Exception):
    """A case that ended its process, or did not end.

    Args:
        how: `SIGSEGV`, `exit 3`, `hang`.
    """

    def __init__(self, how: str) -> None:
        super().__init__("the call hangs" if how == "hang" else f"the process died: {how}")
        self.how = how


@dataclasses.dataclass(frozen=True)
class MinimizeJob:
    """Make a failing input small, find out whether it always fails, and write its script.

    Attributes:
        subject: What is fuzzed.
        input: The input, as `Input.to_bytes` writes it.
        key: The key of the failure; None for a crash or a hang.
        seconds: How long to try.
        died: How the worker died of the input: `signal SIGSEGV`, `hang`; empty if it did not.
        stacks: What it was doing then.
        finding_id: The finding that the failure is of.
    """

    subject: Subject
    input: bytes
    key: Key | None
    seconds: float
    died: str = ""
    stacks: str = ""
    finding_id: str = ""

    @property
    def name(self) -> str:
        """The property, with what is done to it."""
        return f"minimize {Input.from_bytes(self.input).property_name}"

    @property
    def needs_gpu(self) -> bool:
        """Whether the target is a GPU."""
        return uses_gpu(self.subject, Input.from_bytes(self.input).property_name)

    def run(self, worker: WorkerContext) -> Failure | None:
        """Return the smallest failure found; None if the input did not fail again."""
        if self.died:
            return self._run_isolated(worker, time.monotonic() + self.seconds)
        return self._run_here(worker)

    def _run_here(self, worker: WorkerContext) -> Failure | None:
        prop, wanted = _property_of(self), Input.from_bytes(self.input)
        cases = [run_case(prop, wanted, worker.note_input) for _ in range(TRIES)]
        failing = [case for case in cases if _key(prop, case) == self.key]
        if not failing:
            return None
        case = failing[0]
        if len(failing) == TRIES:

            def is_same(data: ConjectureData) -> bool:
                return _key(prop, run_data(prop, data, worker.note_input)) == self.key

            # By its own time: on a busy machine an input should not stay larger.
            deadline = time.process_time() + self.seconds
            clock = time.process_time
            choices = minimize(case.choices, is_same, deadline, worker.is_over, clock)
            again = run_case(prop, Input(prop.name, 0, choices), worker.note_input)
            case = again if _key(prop, again) == self.key else case
        found = failure_of_case(
            prop, case, is_minimal=len(failing) == TRIES, fails=len(failing), tries=TRIES
        )
        return with_artefacts(found, prop.check, prop.target, prop.where, case.example, case.raised)

    def _run_isolated(self, worker: WorkerContext, deadline: float) -> Failure | None:
        prop, wanted = _property_of(self), Input.from_bytes(self.input)
        drawn: list[Any] = []

        def how_it_dies(data: ConjectureData) -> str:
            worker.note_input(self.input)  # this worker is alive; the child has a time of its own
            isolated = _Isolated(prop)
            case = run_data(isolated.property, data)
            drawn.append(case.example)
            return isolated.how if case.status is Status.FAILED else ""

        def dies(data: ConjectureData) -> bool:
            return bool(how_it_dies(data))

        first = ConjectureData(
            random=random.Random(wanted.seed),  # noqa: S311  # no secret
            prefix=wanted.prefix,
        )
        how = how_it_dies(first)
        if not how:
            return None
        choices = tuple(first.choices)
        fails = 1 + sum(dies(_replay(choices)) for _ in range(1 if how == "hang" else TRIES - 1))
        tries = 2 if how == "hang" else TRIES
        is_minimal = fails == tries and not prop.is_stateful
        if is_minimal:
            choices = minimize(choices, dies, deadline, worker.is_over)
        how = how_it_dies(_replay(choices)) or how
        error = ProcessDiedError(how)
        case = Case(Status.FAILED, choices, drawn[-1], (), error)
        found = failure_of_case(
            prop,
            case,
            kind="hang" if how == "hang" else "crash",
            message=f"{error}\n{self.stacks}",
            is_minimal=is_minimal,
            fails=fails,
            tries=tries,
        )
        found = dataclasses.replace(found, error=how, line=str(error))
        return with_artefacts(
            found, prop.check, prop.target, prop.where, drawn[-1], error, is_safe=False
        )


def _property_of(job: MinimizeJob) -> Property:
    return properties_of(job.subject)[Input.from_bytes(job.input).property_name]


def _key(prop: Property, case: Case) -> Key | None:
    return None if case.error is None else key_of(prop.check.function, case.error)


def _replay(choices: Sequence[ChoiceT]) -> ConjectureData:
    return ConjectureData(random=random.Random(0), prefix=tuple(choices))  # noqa: S311  # no secret


class _TimeIsOverError(KeyboardInterrupt):
    """Ends the shrinker in the middle: only Ctrl-C does, without it complaining."""


def minimize(
    choices: Sequence[ChoiceT],
    fails: Callable[[ConjectureData], bool],
    deadline: float,
    is_over: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[ChoiceT, ...]:
    """Return the smallest choices found that still fail.

    Args:
        choices: Choices that fail.
        fails: Draws from a record of choices and returns whether that fails likewise.
        deadline: When to stop, by `clock`.
        is_over: Whether to stop before.
        clock: Returns the time.
    """
    choices = _drawn_shorter(tuple(choices), fails, lambda: is_over() or clock() > deadline)
    origin = InterestingOrigin(AssertionError, "", 0, (), ())

    def test(data: ConjectureData) -> None:
        if clock() > deadline or is_over():
            raise _TimeIsOverError
        if fails(data) and not data.frozen:
            data.mark_interesting(origin)

    options = settings(
        database=None, phases=[Phase.shrink], max_examples=10**9, report_multiple_bugs=True
    )
    with _shrinking_for(10 * max(deadline - clock(), 0) + 60):
        runner = ConjectureRunner(test, settings=options, random=random.Random(0))  # noqa: S311
        with contextlib.suppress(RunIsComplete, _TimeIsOverError):
            runner.cached_test_function(tuple(choices))
            runner.shrink_interesting_test_cases()
        found = runner.interesting_test_cases.get(origin)
    return tuple(choices) if found is None else tuple(found.choices)


def _drawn_shorter(
    choices: tuple[ChoiceT, ...],
    fails: Callable[[ConjectureData], bool],
    is_over: Callable[[], bool],
) -> tuple[ChoiceT, ...]:
    """Return fewer choices that begin alike and fail, if a few random draws give some.

    Hypothesis' shrinker takes out one request of 300 at a time.
    """
    chance = random.Random(0)  # noqa: S311  # no secret
    for _ in range(DRAWN_SHORTER):
        if len(choices) <= FEW_CHOICES or is_over():
            break
        data = ConjectureData(
            random=chance,
            provider=AnewProvider,
            prefix=choices[: chance.randrange(FEW_CHOICES // 4)],
            max_choices=len(choices) - 1,
        )
        if fails(data) and not data.frozen:
            choices = tuple(data.choices)
    return choices


@contextlib.contextmanager
def _shrinking_for(seconds: float) -> Iterator[None]:
    """Let Hypothesis shrink for longer than we do: `minimize` has its own deadline."""
    before = engine.MAX_SHRINKING_SECONDS
    engine.MAX_SHRINKING_SECONDS = int(seconds)
    try:
        yield
    finally:
        engine.MAX_SHRINKING_SECONDS = before


class _Isolated:
    """A property whose cases are checked in a forked child.

    Args:
        prop: The property.

    Attributes:
        property: The property to draw from; it raises `ProcessDiedError` where the child dies.
        how: How the last child died; empty if it did not.
    """

    def __init__(self, prop: Property) -> None:
        self.how = ""
        self._prop = prop
        check = dataclasses.replace(prop.check, body=self._run)
        self.property = prop if prop.is_stateful else dataclasses.replace(prop, check=check)
        self.property.__dict__["strategy"] = prop.strategy

    def _run(self, _target: object, example: Any) -> None:
        self.how = run_in_child(lambda: self._prop.run(example))
        if self.how:
            raise ProcessDiedError(self.how)


def run_in_child(call: Callable[[], None], seconds: float = HANG_SECONDS) -> str:
    """Call a function in a forked child.

    Args:
        call: The function; exceptions are its own affair.
        seconds: How long it may take.

    Returns:
        How the child died; empty if it came to its end.

    >>> run_in_child(lambda: None), run_in_child(lambda: os.kill(os.getpid(), signal.SIGKILL))
    ('', 'SIGKILL')
    """
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads, of which ours only waits
        pid = os.fork()
    if pid == 0:
        limit = int(seconds) + 2  # of processor time, should this process not be there to kill it
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
        try:
            call()
        except MemoryError:
            os._exit(MEMORY_EXIT)
        except BaseException:  # noqa: BLE001  # a failure of another kind, found without a child
            os._exit(0)
        os._exit(0)
    os.close(writer)
    try:
        ready, _, _ = select.select([reader], [], [], seconds)  # it closes when the child ends
    finally:
        os.close(reader)
    if not ready:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return "hang"
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return signal.Signals(os.WTERMSIG(status)).name
    code = os.WEXITSTATUS(status)
    return "" if code == 0 else "out of memory" if code == MEMORY_EXIT else f"exit {code}"
