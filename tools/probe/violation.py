"""The violations that a case can find."""

from __future__ import annotations

import dataclasses
import re
import traceback
from types import TracebackType

Finding = tuple[str, str, str]
"""The kind of a violation, where it is, and what happened."""


@dataclasses.dataclass(frozen=True)
class Violation:
    """A promise that a call broke.

    Attributes:
        function: The function that was called.
        seed: The seed of the run.
        case: The number of the case.
        kind: The kind of violation, in a few words.
        where: The innermost frame in `fast`, or the path of the difference.
        detail: What happened.
        call: The call, cut to a line.
    """

    function: str
    seed: int
    case: int
    kind: str
    where: str
    detail: str
    call: str

    @property
    def key(self) -> tuple[str, str, str]:
        """The deduplication key: one violation with each key is printed."""
        return self.function, self.kind, self.where

    @property
    def replay(self) -> str:
        """The argument of `--replay`."""
        return f"{self.function}:{self.seed}:{self.case}"


def innermost_frame(trace: TracebackType | None) -> str:
    """Return the last frame in `fast` of a traceback, or the last one: `file:line function`."""
    frames = traceback.extract_tb(trace)
    ours = [frame for frame in frames if "/fast/" in frame.filename]
    if not frames:
        return "no frame"
    last = (ours or frames)[-1]
    return f"{'/'.join(last.filename.split('/')[-2:])}:{last.lineno} {last.name}"


def innermost_dumped(dump: str) -> str:
    r"""Return the innermost frame in `fast` from a dump of `faulthandler`.

    >>> innermost_dumped('  File "/a/numpy/b.py", line 3 in g\n  File "/a/fast/x.py", line 2 in f')
    'fast/x.py:2 f'
    """
    frames = re.findall(r'File "([^"]*)", line (\d+) in (\S+)', dump)
    ours = [frame for frame in frames if "/fast/" in frame[0]]
    if not frames:
        return "no frame"
    path, line, name = (ours or frames)[0]
    return f"{'/'.join(path.split('/')[-2:])}:{line} {name}"
