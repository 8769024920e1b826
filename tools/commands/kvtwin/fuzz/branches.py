"""Which branches of Python code cases take: of the implementation, and of `reference`.

`reference` is in place of compiled loops, which cannot be observed.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import CodeType
from typing import Any, Final

from kvtwin.fuzz.coverage import Event, Source


class Branches(Source):
    """Branches of Python code, by `sys.monitoring`: a location costs nothing once both are taken.

    Args:
        folders: Whose code is observed.
    """

    def __init__(self, folders: Iterable[Path]) -> None:
        self._folders = tuple(f"{folder}/" for folder in folders)
        self._taken: dict[tuple[CodeType, int], set[int]] = {}
        self._ever: defaultdict[str, set[tuple[CodeType, int, int]]] = defaultdict(set)
        self._known: set[tuple[CodeType, int, int]] = set()
        self._is_new = False
        self._monitoring: Any = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
        self._tool = next(n for n in (4, 3, 1) if self._monitoring.get_tool(n) is None)
        self._monitoring.use_tool_id(self._tool, "kvtwin-fuzz")
        event = self._monitoring.events.BRANCH
        self._monitoring.register_callback(self._tool, event, self._on_branch)

    def begin(self, prop: str, *, is_simulated: bool) -> None:
        """Begin a slice."""
        del is_simulated
        self._taken.clear()
        self._known = self._ever[prop]
        self._monitoring.set_events(self._tool, self._monitoring.events.BRANCH)
        self._monitoring.restart_events()

    def see(self, function: str, goals: Sequence[str], example: Any) -> bool:
        """Return whether the case took a branch that none of its property took before."""
        del function, goals, example
        is_new, self._is_new = self._is_new, False
        return is_new

    def end(self) -> Counter[Event]:
        """Return the branches that were taken in the slice."""
        self._monitoring.set_events(self._tool, 0)
        return Counter(
            ("branch", f"{_short(code.co_filename)}:{code.co_qualname}", f"{start}>{stop}")
            for (code, start), stops in self._taken.items()
            for stop in stops
        )

    def _on_branch(self, code: CodeType, start: int, stop: int) -> object:
        if not code.co_filename.startswith(self._folders):
            return self._monitoring.DISABLE
        taken = self._taken.setdefault((code, start), set())
        taken.add(stop)
        if (code, start, stop) not in self._known:
            self._known.add((code, start, stop))
            self._is_new = True
        return self._monitoring.DISABLE if len(taken) > 1 else None


class TracedArcs(Source):
    """Branches as pairs of lines, by coverage.py's tracer, where there is no `sys.monitoring`.

    Tracing makes a case slower by a tenth, so that only some are traced: the first of each slice,
    and those that vary an input.

    Args:
        folders: Whose code is observed.
    """

    CASES: Final = 8
    """Cases at the beginning of a slice that are traced."""

    def __init__(self, folders: Iterable[Path]) -> None:
        from coverage import Coverage  # noqa: PLC0415  # needed only before Python 3.12

        # To observe greenlets costs several times as much.
        self._tracers = {
            is_simulated: Coverage(
                data_file=None,
                config_file=False,
                branch=True,
                include=[f"{folder}/*" for folder in folders],
                concurrency="greenlet" if is_simulated else "thread",
            )
            for is_simulated in (False, True)
        }
        self._tracer = self._tracers[False]
        self._ever: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
        self._prop = ""
        self._num_taken = 0
        self._cases = 0

    def begin(self, prop: str, *, is_simulated: bool) -> None:
        """Begin a slice."""
        self._prop = prop
        self._tracer = self._tracers[is_simulated]
        for arcs in self._taken.values():
            arcs.clear()
        self._num_taken = self._cases = 0

    @contextlib.contextmanager
    def watching(self, *, is_varied: bool) -> Iterator[None]:
        """Observe what is called inside, unless the case is one of many."""
        self._cases += 1
        if sys.gettrace() is not None or not (is_varied or self._cases <= self.CASES):
            yield
            return
        self._tracer.start()
        try:
            yield
        finally:
            self._tracer.stop()

    def see(self, function: str, goals: Sequence[str], example: Any) -> bool:
        """Return whether the case took a branch that none of its property took before."""
        del function, goals, example
        before, self._num_taken = self._num_taken, sum(map(len, self._taken.values()))
        if before == self._num_taken:
            return False
        is_new = False
        for file, arcs in self._taken.items():
            known = self._ever[self._prop, file]
            is_new |= not arcs <= known
            known |= arcs
        return is_new

    def end(self) -> Counter[Event]:
        """Return the branches that were taken by the observed cases."""
        return Counter(
            ("branch", _short(file), f"{arc:x}")
            for file, arcs in self._taken.items()
            for arc in arcs
        )

    @property
    def _taken(self) -> dict[str, set[int]]:
        """The branches of each file: two lines in one number, as the tracer packs them."""
        collector: Any = self._tracer._collector  # noqa: SLF001  # its data are public after a save
        return collector.data if collector is not None else {}


@functools.cache
def _short(file: str) -> str:
    """Return a path without the folders above its package.

    >>> _short("/home/me/fast/slots.py")
    'fast/slots.py'
    """
    return "/".join(Path(file).parts[-2:])


def branch_source(folders: Iterable[Path]) -> Branches | TracedArcs:
    """Return what observes branches of the code of folders most cheaply in this Python."""
    return Branches(folders) if hasattr(sys, "monitoring") else TracedArcs(folders)


def observer_of_branches() -> str:
    """Return what observes branches here, for the report."""
    if hasattr(sys, "monitoring"):
        return "sys.monitoring"
    return "coverage.py, in some cases"
