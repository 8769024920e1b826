"""Kinds of coverage: what a case did that can be new.

An event is a tuple whose first element is its kind. `situation` and `pair` events come from the
harness' own coverage goals; `size` events from the batch of a case, in bands of powers of two;
`branch` events from the code of the implementation and of `reference`, which stands for compiled
loops: these cannot be observed. A further kind is a class with `begin`, `see` and `end`.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import CodeType
from typing import Any, Final, Protocol

from conformance.strategies.batches import Batch

Event = tuple[str, ...]


class Source(Protocol):
    """Observes a slice of cases of one property."""

    def begin(self) -> None:
        """Begin to observe: a slice starts."""

    def see(self, function: str, situations: Sequence[str], example: Any) -> bool:
        """Observe a case that ran, by its example and the situations that this met.

        Returns:
            Whether the case did something that no case did before in this process, where the source
            knows that of single cases; such an input is worth varying.
        """

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

    def see(self, function: str, situations: Sequence[str], example: Any) -> bool:
        """Count what a case met."""
        del example
        self._met[function, frozenset(situations)] += 1
        return False

    def end(self) -> Counter[Event]:
        """Return the events of the slice."""
        found: Counter[Event] = Counter()
        for (function, names), number in self._met.items():
            for name in names:
                found["situation", function, name] += number
            for first, second in itertools.combinations(sorted(names), 2):
                found["pair", function, first, second] += number
        return found


class Sizes:
    """Bands of sizes of the batches that cases were made of."""

    def __init__(self) -> None:
        self._met: Counter[Event] = Counter()

    def begin(self) -> None:
        """Begin a slice."""
        self._met.clear()

    def see(self, function: str, situations: Sequence[str], example: Any) -> bool:
        """Count the sizes of a case's batch, if it has one."""
        del situations
        batch = batch_of(example)
        if batch is not None:
            for axis, size in sizes_of(batch).items():
                self._met["size", function, f"{axis} {band(size)}"] += 1
        return False

    def end(self) -> Counter[Event]:
        """Return the events of the slice."""
        return Counter(self._met)


def batch_of(example: Any, depth: int = 0) -> Batch | None:
    """Return the batch that an example was made of, the largest if there are several."""
    found = example if isinstance(example, Batch) else getattr(example, "facts", None)
    if isinstance(found, Batch):
        return found
    inner: list[Any] = []
    if depth < 3 and dataclasses.is_dataclass(example) and not isinstance(example, type):
        inner = list(vars(example).values())
    batches = filter(None, (batch_of(value, depth + 1) for value in inner))
    return max(batches, key=lambda batch: batch.num_reqs, default=None)


def sizes_of(batch: Batch) -> dict[str, int]:
    """Return how large a batch is, by axis."""
    return {
        "requests": batch.num_reqs,
        "tokens": batch.num_tokens,
        "longest query": max(batch.query_lens, default=0),
        "longest context": max(batch.num_computed_tokens, default=0),
        "widest row": max(map(len, batch.rows), default=0),
        "block size": batch.layout.block_size,
    }


def band(size: int) -> str:
    """Return the band of powers of two that a size lies in.

    >>> [band(size) for size in (0, 1, 2, 3, 4, 1000)]
    ['0', '1', '2..3', '2..3', '4..7', '512..1023']
    """
    least = 1 << (size.bit_length() - 1) if size else 0
    return f"{least}..{2 * least - 1}" if least > 1 else str(least)


class Branches:
    """Branches of Python code, by `sys.monitoring`: a location costs nothing once both are taken.

    Args:
        folders: Whose code is observed.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = tuple(f"{folder}/" for folder in folders)
        self._taken: dict[tuple[CodeType, int], set[int]] = {}
        self._ever: set[tuple[CodeType, int, int]] = set()
        self._is_new = False
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

    def see(self, function: str, situations: Sequence[str], example: Any) -> bool:
        """Return whether the case took a branch that none took before."""
        del function, situations, example
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
        if (code, start, stop) not in self._ever:
            self._ever.add((code, start, stop))
            self._is_new = True
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

    def see(self, function: str, situations: Sequence[str], example: Any) -> bool:
        """Stop after enough cases."""
        del function, situations, example
        self._left -= 1
        if not self._left:
            self._coverage.stop()
        return False

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
