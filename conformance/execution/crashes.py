"""Turns calls that end the process, or never return, into ordinary failures.

`supervision` runs tests in a forked child. If a test ends the child, it runs again in a new one.
That one first tries each example in another forked child, beginning with the one that crashed. So
the crash becomes an exception, which Hypothesis shrinks, and which is stored and reported like any
other.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import os
import re
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from conformance import FOLDER
from conformance.execution.forked_calls import HANG, run_in_child
from conformance.messages.mismatch import Mismatch
from conformance.targets.progress import PROGRESS
from conformance.values.call import Call, calls_in
from conformance.values.differences import Difference, Verdict

if TYPE_CHECKING:
    from conformance.targets.target import Target

Check: TypeAlias = Any
"""A `conformance.contracts.check.Check`: that module imports this one."""

AGAIN_SECONDS: Final = 3.0
"""In a rerun of a test that hung, a call that takes longer than this counts as hanging."""

MAX_FRAMES: Final = 3
"""How many lines of a stack a report shows."""

FRAME: Final = re.compile(r'  File "(.*)", line (\d+) in (.*)')
"""A line of a stack as `faulthandler` writes it."""


class Stack:
    """The file to which a process that crashes or is killed writes its stack."""

    def __init__(self) -> None:
        self._file, name = tempfile.mkstemp()
        Path(name).unlink()

    def enable(self) -> None:
        """Let this process and those that it forks write to the file."""
        faulthandler.enable(self._file, all_threads=False)
        faulthandler.register(signal.SIGUSR1, self._file, all_threads=True)

    def clear(self) -> None:
        """Empty the file."""
        os.lseek(self._file, 0, os.SEEK_SET)
        os.ftruncate(self._file, 0)

    def place(self) -> str:
        """Return the innermost frames outside the harness: `mine.py:3 in f, mine.py:9 in g`."""
        text = os.pread(self._file, os.fstat(self._file).st_size, 0).decode(errors="replace")
        found = [_inner_frames(thread) for thread in text.split("\n\n")]
        return ", ".join(next(filter(None, found), ()))


def _inner_frames(stack: str) -> list[str]:
    """Return the innermost frames of a stack, up to the first of the harness; none without one."""
    frames: list[str] = []
    for file, line, function in FRAME.findall(stack):
        if Path(file).is_relative_to(FOLDER):
            return frames[:MAX_FRAMES]
        path = Path(file)
        name = f"{path.parent.name}/{path.name}" if path.stem == "__init__" else path.name
        frames.append(f"{name}:{line} in {function}")
    return []


STACK: Final = Stack()
"""The stack of this process and of those that it forked."""


class Crash(Mismatch):
    """A call that ended the process, or that never returned."""


class NotTriedError(BaseException):  # no check may catch it, and Hypothesis must not shrink
    """Ends a rerun at the example that hung, which is not shrunk."""


@dataclasses.dataclass
class ProcessEnd:
    """The end of a process that ran a test.

    Attributes:
        how: How it ended: `SIGSEGV`, `exit 3`, `hang`.
        example: The number of the example that it was at; 0 if it had not begun one.
        seconds: How long a call may take.
        place: The innermost frames outside the harness.
        is_known: Whether the function hung in another test, so that this one is not shrunk.
    """

    how: str
    example: int
    seconds: float
    place: str = dataclasses.field(default_factory=STACK.place)
    is_known: bool = False

    @property
    def is_hang(self) -> bool:
        """Whether it was killed because a call did not return."""
        return self.how == HANG

    @property
    def words(self) -> str:
        """How the process ended, and where: `crashed with SIGSEGV (Segmentation fault), at ...`."""
        return f"{describe_end(self.how, self.seconds)}{self.place and f', at {self.place}'}"


def describe_end(how: str, seconds: float) -> str:
    """Describe how a process ended.

    >>> describe_end("SIGSEGV", 60)
    'crashed with SIGSEGV (Segmentation fault)'
    >>> describe_end("exit 0", 60), describe_end("hang", 60)
    ('ended the process with exit status 0', 'did not return within 60 s')
    """
    if how == HANG:
        return f"did not return within {seconds:g} s"
    if how.startswith("SIG"):
        about = signal.strsignal(signal.Signals[how]) or ""
        hint = ", possibly out of memory" if how == "SIGKILL" else ""
        return f"crashed with {how} ({about}{hint})"
    kind, _, status = how.partition(" ")
    return f"ended the process with exit status {status}" if kind == "exit" else f"crashed: {how}"


def properties_of_end(process_end: ProcessEnd) -> list[tuple[str, object]]:
    """Return the properties of a test that ended its process, for the summary."""
    return [("crash", "HANGS" if process_end.is_hang else "CRASHES")]


class Rerun:
    """The rerun of a test that ended its process; there is at most one in a process.

    Attributes:
        process_end: How the process ended; None while tests run for the first time.
        first: The first example that is tried in a forked child.
        suspect: The check, the target and the example that crashed at first.
        line: A description of the last crash on one line; empty if there was none.
    """

    def __init__(self) -> None:
        self.begin(None, 0)

    def begin(self, process_end: ProcessEnd | None, first: int) -> None:
        """Begin a test, which is a rerun if its process had ended."""
        self.process_end, self.first = process_end, first
        self.suspect: tuple[Check, Target, Any] | None = None
        self.line = ""

    def examine(self, check: Check, target: Target, example: Any) -> bool:
        """Try an example in a forked child, if this is a rerun.

        Returns:
            Whether the example is done. After a crash this process makes no more calls itself, so
            that the same example crashes again even if that depends on earlier calls.

        Raises:
            Crash: The child died.
            NotTriedError: It is the example that hung, as others of this function did.
        """
        __tracebackhide__ = True
        PROGRESS.examples += 1
        if self.process_end is None:
            return False
        if PROGRESS.examples == self.process_end.example:
            self.suspect = check, target, example
            if self.process_end.is_known:
                raise NotTriedError
        has_crashed = bool(self.line)
        words = self.try_in_child(lambda: check.body(target, example))
        if words:
            raise crash_of(check, target, example, words)
        return has_crashed

    def try_in_child(self, act: Callable[[], object]) -> str:
        """Return how a function ends a forked child; empty if it does not, or is not tried."""
        if self.process_end is None or PROGRESS.examples < self.first:
            return ""
        STACK.clear()
        patience = AGAIN_SECONDS if self.process_end.is_hang else 4 * AGAIN_SECONDS
        seconds = min(self.process_end.seconds, patience)
        how = run_in_child(lambda: self._alone(act), seconds, lambda: PROGRESS.calls)
        is_same = (how == HANG) is self.process_end.is_hang
        if not how or not is_same:
            return ""
        words = ProcessEnd(how, PROGRESS.examples, seconds).words
        self.line = f"the call of {PROGRESS.function.decode()} {words}, but should return a result"
        return words

    def _alone(self, act: Callable[[], object]) -> None:
        """Run a function without output, in a child process that ends after it."""
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        act()

    def unexplained(self) -> tuple[Check, Any, Crash] | None:
        """Return the crash that was not tried or did not occur again; None if this is no rerun."""
        if self.suspect is None or self.process_end is None:
            return None
        check, target, example = self.suspect
        words = self.process_end.words + (
            "" if self.process_end.is_known else ", in the first run but not in the rerun"
        )
        return check, example, crash_of(check, target, example, words)


RERUN: Final = Rerun()
"""The rerun of this process."""


def crash_of(check: Check, target: Target, example: Any, words: str) -> Crash:
    """Return the crash of an example, with the call that was in progress, if it is known."""
    calls = list(calls_in(example))
    call = next((one for one in calls if id(one) == PROGRESS.call_id), None)
    function = PROGRESS.function.decode()
    if call is None:
        call = next(iter(calls), Call(function or check.function, {}))
    where = f"of {function} " if function not in {"", call.function} else ""
    ways = getattr(example, "ways", ())
    invalid = next((invalid for invalid, bad in ways if bad is call), None)
    expected = "return a result" if invalid is None else invalid.expected
    difference = Difference(Verdict.OUTCOME, "the call", None, f"{where}{words}", expected)
    return Crash(call, target.name, difference)
