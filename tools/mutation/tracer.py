"""Find which lines of a package run, those of compiled loops too."""

from __future__ import annotations

import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TypeAlias

Follower: TypeAlias = Callable[..., Any]
"""What Python calls for each line of a call that is followed."""


class Tracer:
    """A block in which the lines of some files that run are noted, also in threads started there.

    Args:
        files: By name.
    """

    def __init__(self, files: Mapping[str, Path]) -> None:
        self._names = {str(path): name for name, path in files.items()}
        self._reached: defaultdict[str, set[int]] = defaultdict(set)
        self._loops: list[tuple[Any, tuple[Any, Any], tuple[Any, Any]]] = []
        self._called: set[Any] = set()

    def __enter__(self) -> None:
        for loop, _, noted in self._loops:
            loop._machine_code, loop._bounds_checked = noted  # noqa: SLF001
        self._before = sys.gettrace(), threading.gettrace()
        sys.settrace(self._follow)
        threading.settrace(self._follow)

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before[0])
        threading.settrace(self._before[1])
        for loop, codes, _ in self._loops:
            loop._machine_code, loop._bounds_checked = codes  # noqa: SLF001

    def _follow(self, frame: FrameType, event: str, argument: object) -> Follower | None:
        """Follow a call, if it is one of these files'."""
        del event, argument
        code = frame.f_code
        if code.co_filename not in self._names:
            return None
        reached = self._reached[code.co_filename]
        reached.add(code.co_firstlineno)

        def step(frame: FrameType, event: str, argument: object) -> Follower:
            del event, argument
            reached.add(frame.f_lineno)
            return step

        return step

    def follow_loops(self, loops: Iterable[Any]) -> None:
        """Compile loops, and note them in each block too: all lines of a loop that is called."""
        for loop in loops:
            codes = loop.warm_up(), loop._compile_bounds_checked()  # noqa: SLF001
            noted = self._noting(loop, codes[0]), self._noting(loop, codes[1])
            self._loops.append((loop, codes, noted))

    def _noting(self, loop: Any, code: Callable[..., object]) -> Callable[..., object]:  # noqa: ANN401
        def run(*args: object) -> object:
            self._called.add(loop)
            return code(*args)

        return run

    def _note(self, loop: Any) -> None:  # noqa: ANN401  # or an inlined part
        """Note all lines of a loop, and of the parts that are inlined in it."""
        function = loop.py_func
        if function.__code__.co_filename in self._names:
            self._reached[function.__code__.co_filename] |= _lines(function.__code__)
        for name in function.__code__.co_names:
            part = function.__globals__.get(name)
            if type(part).__name__ == "Inlined":
                self._note(part)

    def take_lines(self) -> dict[str, frozenset[int]]:
        """Return the lines that ran since the last call of this, by name."""
        for loop in self._called:
            self._note(loop)
        found = {self._names[file]: frozenset(lines) for file, lines in self._reached.items()}
        self._called.clear()
        self._reached.clear()
        return found


def _lines(code: CodeType) -> set[int]:
    """Return all lines of a code, and of those inside it."""
    inner = [_lines(constant) for constant in code.co_consts if isinstance(constant, CodeType)]
    return {line for *_, line in code.co_lines() if line is not None}.union(*inner)
