"""Trace which lines of a package run, including those of compiled loops."""

from __future__ import annotations

import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TypeAlias

Follower: TypeAlias = Callable[..., Any]
"""A local trace function, as in `sys.settrace`."""


class Tracer:
    """A context manager that records which lines of files run, also in threads started inside.

    Args:
        files: The files, by name.
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
        """Trace a call of a function of these files."""
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
        """Compile loops, and record their calls too: a call counts as all lines of the loop."""
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
        """Record all lines of a loop, and of the functions inlined in it."""
        function = loop.py_func
        if function.__code__.co_filename in self._names:
            self._reached[function.__code__.co_filename] |= _lines(function.__code__)
        for name in function.__code__.co_names:
            part = function.__globals__.get(name)
            if type(part).__name__ == "Inlined":
                self._note(part)

    def take_lines(self) -> dict[str, frozenset[int]]:
        """Return the lines that ran since the last `take_lines`, by name."""
        for loop in self._called:
            self._note(loop)
        found = {self._names[file]: frozenset(lines) for file, lines in self._reached.items()}
        self._called.clear()
        self._reached.clear()
        return found


def _lines(code: CodeType) -> set[int]:
    """Return all lines of a code object, and of those nested in it."""
    inner = [_lines(constant) for constant in code.co_consts if isinstance(constant, CodeType)]
    return {line for *_, line in code.co_lines() if line is not None}.union(*inner)
