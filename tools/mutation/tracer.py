"""Find which lines of a package run, those of compiled loops too."""

from __future__ import annotations

import importlib
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TypeAlias

Follower: TypeAlias = Callable[..., Any]
"""What Python calls for each line of a call that is followed."""


class Tracer:
    """A block in which the lines of some files that run are noted.

    Args:
        files: By name.
    """

    def __init__(self, files: Mapping[str, Path]) -> None:
        self._names = {str(path): name for name, path in files.items()}
        self._reached: defaultdict[str, set[int]] = defaultdict(set)

    def __enter__(self) -> None:
        sys.settrace(self._follow)

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

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

    def follow_loops(self, package: str) -> None:
        """Note the compiled loops of a package too, all of their lines, for good."""
        try:
            compiler: Any = importlib.import_module(f"{package}._native.compiler")
        except ModuleNotFoundError:  # it has none
            return
        for loop in compiler.COMPILED:
            self._follow_loop(compiler, loop)

    def _follow_loop(self, compiler: Any, loop: Any) -> None:  # noqa: ANN401  # untyped here
        """Note a loop whenever its machine code, of either mode, is called."""

        def follow(compile_code: Callable[[], Callable[..., object]]) -> Callable[..., object]:
            code = cache(compile_code)

            def run(*args: object) -> object:
                self._note(loop)
                return code()(*args)

            return run

        loop._machine_code = follow(lambda: compiler._entry_point(loop._compile()))  # noqa: SLF001
        loop._bounds_checked = follow(  # noqa: SLF001
            lambda: loop._compile("_bounds_checked", boundscheck=True)  # noqa: SLF001
        )

    def _note(self, loop: Any) -> None:  # noqa: ANN401  # or an inlined part
        """Note all lines of a loop, and of the parts that are inlined in it."""
        function = loop.py_func
        if function.__code__.co_filename in self._names:
            self._reached[function.__code__.co_filename] |= _lines(function.__code__)
        for name in function.__code__.co_names:
            part = function.__globals__.get(name)
            if type(part).__name__ == "Inlined":
                self._note(part)

    def lines(self) -> dict[str, frozenset[int]]:
        """Return the lines that ran, by name."""
        return {self._names[file]: frozenset(lines) for file, lines in self._reached.items()}


def _lines(code: CodeType) -> set[int]:
    """Return all lines of a code, and of those inside it."""
    inner = [_lines(constant) for constant in code.co_consts if isinstance(constant, CodeType)]
    return {line for *_, line in code.co_lines() if line is not None}.union(*inner)
