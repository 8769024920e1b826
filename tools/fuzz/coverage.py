"""Kinds of coverage: what a case did that can be new.

An event is a tuple whose first element is its kind. `situation` and `pair` events come from the
harness' own coverage goals; `branch` events from the code of the implementation and of `reference`,
which stands for the compiled loops that cannot be observed. A further kind is a class with `begin`,
`end` and, if it looks at single cases, `see`.
"""

from __future__ import annotations

import importlib.util
import itertools
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import CodeType
from typing import Any, Final, Protocol

Event = tuple[str, ...]

KINDS: Final = ("situation", "pair", "branch")


class Source(Protocol):
    """Observes a slice of cases of one property."""

    def begin(self) -> None:
        """Begin to observe: a slice starts."""

    def see(self, function: str, situations: Sequence[str]) -> None:
        """Observe a case that ran, by the situations that it met."""

    def end(self) -> Counter[Event]:
        """Return the events of the slice, with the number of cases in which each occurred.

        A kind that does not look at single cases counts 1 for a slice.
        """


class Situations:
    """Situations that cases met, and pairs of them that one case met."""

    def __init__(self) -> None:
        self._met: Counter[tuple[str, frozenset[str]]] = Counter()

    def begin(self) -> None:
        """Begin a slice."""
        self._met.clear()

    def see(self, function: str, situations: Sequence[str]) -> None:
        """Count what a case met."""
        self._met[function, frozenset(situations)] += 1

    def end(self) -> Counter[Event]:
        """Return the events of the slice."""
        found: Counter[Event] = Counter()
        for (function, names), number in self._met.items():
            for name in names:
                found["situation", function, name] += number
            for first, second in itertools.combinations(sorted(names), 2):
                found["pair", function, first, second] += number
        return found


class Branches:
    """Branches of Python code, by `sys.monitoring`: a location costs nothing once both are taken.

    Args:
        folders: Whose code is observed.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = tuple(f"{folder}/" for folder in folders)
        self._taken: dict[tuple[CodeType, int], set[int]] = {}
        self._monitoring: Any = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
        self._tool = next(n for n in (4, 3, 1) if self._monitoring.get_tool(n) is None)
        self._monitoring.use_tool_id(self._tool, "kvtwin-fuzz")
        event = self._monitoring.events.BRANCH
        self._monitoring.register_callback(self._tool, event, self._on_branch)

    def begin(self) -> None:
        """Begin a slice."""
        self._taken.clear()
        self._monitoring.set_events(self._tool, self._monitoring.events.BRANCH)
        self._monitoring.restart_events()

    def see(self, function: str, situations: Sequence[str]) -> None:
        """Do nothing: single cases are not observed."""

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
        return self._monitoring.DISABLE if len(taken) > 1 else None


class SampledArcs:
    """Branches by coverage.py, where there is no `sys.monitoring`: of the first cases of a slice.

    Args:
        folders: Whose code is observed.
    """

    CASES: Final = 8
    """Cases of a slice that are observed; its tracer makes them slower."""

    def __init__(self, folders: Sequence[Path]) -> None:
        from coverage import Coverage  # noqa: PLC0415  # of the extra `fuzz`

        self._coverage = Coverage(
            data_file=None,
            branch=True,
            config_file=False,
            messages=False,
            include=[f"{folder}/*" for folder in folders],
        )
        self._coverage.set_option("run:disable_warnings", ["no-data-collected"])
        self._left = 0

    def begin(self) -> None:
        """Begin a slice."""
        self._left = self.CASES
        self._coverage.erase()
        self._coverage.start()

    def see(self, function: str, situations: Sequence[str]) -> None:
        """Stop after enough cases."""
        del function, situations
        self._left -= 1
        if not self._left:
            self._coverage.stop()

    def end(self) -> Counter[Event]:
        """Return the arcs between lines that were taken by the observed cases."""
        if self._left > 0:
            self._coverage.stop()
        self._left = 0
        data = self._coverage.get_data()
        return Counter(
            ("branch", _short(file), f"{start}>{stop}")
            for file in data.measured_files()
            for start, stop in data.arcs(file) or ()
        )


def _short(file: str) -> str:
    """Return a file with the name of its package alone.

    >>> _short("/home/me/fast/slots.py")
    'fast/slots.py'
    """
    return "/".join(Path(file).parts[-2:])


def branch_source(folders: Iterable[Path]) -> Source | None:
    """Return what observes branches cheaply in this Python, None if nothing is installed.

    Args:
        folders: Whose code is observed.
    """
    folders = list(folders)
    if hasattr(sys, "monitoring"):
        return Branches(folders)
    return SampledArcs(folders) if importlib.util.find_spec("coverage") else None


def observer_of_branches() -> str:
    """Return what observes branches here, for the report."""
    if hasattr(sys, "monitoring"):
        return "sys.monitoring"
    if importlib.util.find_spec("coverage"):
        return f"coverage.py, in {SampledArcs.CASES} cases of each slice"
    return "nothing: coverage is not installed"
