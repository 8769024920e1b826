"""Branch coverage: the Python branches that cases take in the implementation and in `reference`.

Compiled loops cannot be observed; the branches of `reference` are a proxy for theirs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import CodeType
from typing import Any, Final

from kvtwin.fuzz.cases.coverage import Event, Source


class Branches(Source):
    """Branches of Python code, by `sys.monitoring`.

    A location costs nothing once both of its branches were taken.

    Args:
        folders: The folders whose code is observed.
        is_sampled: Whether to stop observing a location in a slice after `MAX_HITS` times.
    """

    MAX_HITS: Final = 1024
    """Without it, a case takes a seventh longer: most locations only ever take one branch."""

    def __init__(self, folders: Iterable[Path], *, is_sampled: bool) -> None:
        self._folders = tuple(f"{folder}/" for folder in folders)
        self._max_hits: float = self.MAX_HITS if is_sampled else math.inf
        self._codes: dict[int, CodeType] = {}  # a code object's hash takes microseconds
        self._taken: defaultdict[tuple[int, int], set[int]] = defaultdict(set)
        self._hits: Counter[tuple[int, int]] = Counter()
        self._ever: defaultdict[str, set[tuple[int, int, int]]] = defaultdict(set)
        self._known: set[tuple[int, int, int]] = set()
        self._is_new = False
        self._is_slice = False
        self._monitoring: Any = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
        self._tool = next(n for n in (4, 3, 1) if self._monitoring.get_tool(n) is None)
        self._monitoring.use_tool_id(self._tool, "kvtwin-fuzz")
        events = self._monitoring.events
        self._monitoring.register_callback(self._tool, events.PY_START, self._on_start)
        self._monitoring.register_callback(self._tool, events.BRANCH, self._on_branch)
        # `_on_start` enables branch events for code of the folders, when it is first called.
        self._monitoring.set_events(self._tool, events.PY_START)

    def begin(self, prop: str, *, is_simulated: bool) -> None:
        """Begin a slice."""
        del is_simulated
        self._taken.clear()
        self._hits.clear()
        self._known = self._ever[prop]
        self._is_slice = True
        self._monitoring.restart_events()

    def see(self, function: str, goals: Sequence[str], example: Any) -> bool:
        """Return whether the case took a branch that no case of its property took before."""
        del function, goals, example
        is_new, self._is_new = self._is_new, False
        return is_new

    def end(self) -> Counter[Event]:
        """Return the branches that were taken in the slice."""
        self._is_slice = False
        return Counter(
            ("branch", self._name_of(code), f"{start}>{stop}")
            for (code, start), stops in self._taken.items()
            for stop in stops
        )

    def close(self) -> None:
        """Stop observing."""
        self._monitoring.set_events(self._tool, 0)
        self._monitoring.free_tool_id(self._tool)

    def _name_of(self, code_id: int) -> str:
        code = self._codes[code_id]
        return f"{_short(code.co_filename)}:{code.co_qualname}"

    def _on_start(self, code: CodeType, _: int) -> object:
        if code.co_filename.startswith(self._folders):
            self._codes[id(code)] = code
            self._monitoring.set_local_events(self._tool, code, self._monitoring.events.BRANCH)
        return self._monitoring.DISABLE

    def _on_branch(self, code: CodeType, start: int, stop: int) -> object:
        if not self._is_slice:
            return self._monitoring.DISABLE
        at = id(code), start
        taken = self._taken[at]
        if stop not in taken:
            taken.add(stop)
            if (*at, stop) not in self._known:
                self._known.add((*at, stop))
                self._is_new = True
        hits = self._hits[at] = self._hits[at] + 1
        is_done = len(taken) > 1 or hits >= self._max_hits
        return self._monitoring.DISABLE if is_done else None


@dataclasses.dataclass
class _Times:
    """The times of a property's traced and untraced cases, and of its slices, in seconds."""

    traced: float = 0.0
    others: float = 0.0
    slices: float = 0.0
    num_traced: int = 0
    num_others: int = 0

    def add(self, seconds: float, *, is_traced: bool) -> None:
        """Add a case."""
        if is_traced:
            self.traced += seconds
            self.num_traced += 1
        else:
            self.others += seconds
            self.num_others += 1

    def of_tracing(self) -> float:
        """Return the overhead of tracing: how much longer the cases took than as many untraced."""
        return self.traced - self.num_traced * self.others / max(self.num_others, 1)


class TracedArcs(Source):
    """Branches as pairs of lines, by coverage.py's tracer, for Pythons without `sys.monitoring`.

    Args:
        folders: The folders whose code is observed.
        is_sampled: Whether to trace only some cases: the first of a property, and as many cases
            that vary an input as take `MAX_SHARE` of the property's time.
    """

    MAX_SHARE: Final = 0.15
    """The share of time for tracing. For most properties it more than doubles a case's time."""

    def __init__(self, folders: Iterable[Path], *, is_sampled: bool) -> None:
        from coverage import Coverage  # noqa: PLC0415  # needed only before Python 3.12

        # Observing greenlets costs several times as much.
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
        self._is_sampled = is_sampled
        self._ever: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
        self._times: defaultdict[str, _Times] = defaultdict(_Times)
        self._prop = ""
        self._began = 0.0
        self._num_taken = 0
        self._is_traced = False

    def begin(self, prop: str, *, is_simulated: bool) -> None:
        """Begin a slice."""
        self._prop = prop
        self._began = time.perf_counter()
        self._tracer = self._tracers[is_simulated]
        for arcs in self._taken.values():
            arcs.clear()
        self._num_taken = 0

    @contextlib.contextmanager
    def watching(self, *, is_varied: bool) -> Iterator[None]:
        """Trace the calls inside, unless the case is not sampled."""
        times = self._times[self._prop]
        began = time.perf_counter()
        allowed = self.MAX_SHARE * (times.slices + began - self._began)
        is_chosen = not times.num_traced or (is_varied and times.of_tracing() <= allowed)
        self._is_traced = sys.gettrace() is None and (is_chosen or not self._is_sampled)
        if self._is_traced:
            self._tracer.start()
        try:
            yield
        finally:
            if self._is_traced:
                self._tracer.stop()
            times.add(time.perf_counter() - began, is_traced=self._is_traced)

    def see(self, function: str, goals: Sequence[str], example: Any) -> bool:
        """Return whether the case took a branch that no case of its property took before."""
        del function, goals, example
        if not self._is_traced:
            return False
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
        """Return the branches that the traced cases of the slice took."""
        self._times[self._prop].slices += time.perf_counter() - self._began
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


def branch_source(folders: Iterable[Path], *, is_sampled: bool) -> Branches | TracedArcs:
    """Return the fastest source of branch coverage that this Python has.

    Args:
        folders: The folders whose code is observed.
        is_sampled: Whether it may miss branches to save time.
    """
    source = Branches if hasattr(sys, "monitoring") else TracedArcs
    return source(folders, is_sampled=is_sampled)


def observer_of_branches() -> str:
    """Return the name of the branch tracer here, for the report."""
    if hasattr(sys, "monitoring"):
        return "sys.monitoring"
    return "coverage.py, in some cases"
