"""Branch coverage: the Python branches that cases take in the implementation and in `reference`.

Compiled loops cannot be observed; the branches of `reference` are a proxy for theirs.
"""

from __future__ import annotations

import math
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import CodeType
from typing import Any, Final

from kvtwin.fuzz.cases.coverage import Event, Source, short_path
from kvtwin.fuzz.cases.instrumentation import Instrumentation


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

    def begin(self, prop: str) -> None:
        """Begin a slice."""
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
        return f"{short_path(code.co_filename)}:{code.co_qualname}"

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


def branch_source(folders: Iterable[Path], *, is_sampled: bool) -> Branches | Instrumentation:
    """Return the fastest source of branch coverage that this Python has.

    Args:
        folders: The folders whose code is observed.
        is_sampled: Whether it may miss branches to save time.
    """
    if hasattr(sys, "monitoring"):
        return Branches(folders, is_sampled=is_sampled)
    return Instrumentation(folders)


def observer_of_branches() -> str:
    """Return what observes branches here, for the report."""
    return "sys.monitoring" if hasattr(sys, "monitoring") else "instrumented statements"
