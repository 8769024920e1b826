"""Kinds of coverage: what a case did that can be new.

An event is a tuple whose first element is its kind. `situation` and `pair` events come from the
harness' own coverage goals, and `size` events from the batch of a case, in bands of powers of two.
`branch` events come from the code of the implementation, and from that of `reference` in place of
compiled loops, which cannot be observed. A new kind is another `Source`.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final, Protocol

from conformance.strategies.batches import Batch
from conformance.values import children, is_object

Event = tuple[str, ...]

PLURALS: Final = {
    "situation": "situations",
    "pair": "pairs of situations",
    "size": "sizes",
    "branch": "branches",
}
"""The kinds of coverage as the reports call them."""


class Source(Protocol):
    """Observes a slice of cases of one property."""

    def begin(self) -> None:
        """Begin to observe: a slice starts."""

    def watching(self, *, is_varied: bool) -> AbstractContextManager[None]:
        """Return a context in which a case is checked; here one that does nothing.

        Args:
            is_varied: Whether its input is like one that covered something new.
        """
        del is_varied
        return contextlib.nullcontext()

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


class Situations(Source):
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


class Sizes(Source):
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
    inner = children(example) if depth < 3 and is_object(example) else {}
    batches = filter(None, (batch_of(value, depth + 1) for value in inner.values()))
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


class Branches(Source):
    """Branches of Python code, by `sys.monitoring`: a location costs nothing once both are taken.

    Args:
        folders: Whose code is observed.
    """

    def __init__(self, folders: Iterable[Path]) -> None:
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


class TracedArcs(Source):
    """Branches as pairs of lines, by `sys.settrace`, where there is no `sys.monitoring`.

    Tracing makes a case slower by a tenth to a half, so that only some are traced: the first of
    each slice, and those that vary an input.

    Args:
        folders: Whose code is observed.
    """

    CASES: Final = 8
    """Cases at the beginning of a slice that are traced."""

    def __init__(self, folders: Iterable[Path]) -> None:
        self._folders = tuple(f"{folder}/" for folder in folders)
        self._is_wanted: dict[CodeType, bool] = {}
        self._taken: set[tuple[CodeType, int, int]] = set()
        self._ever: set[tuple[CodeType, int, int]] = set()
        self._is_new = False
        self._cases = 0

    def begin(self) -> None:
        """Begin a slice."""
        self._taken.clear()
        self._cases = 0

    @contextlib.contextmanager
    def watching(self, *, is_varied: bool) -> Iterator[None]:
        """Observe what is called inside, unless the case is one of many."""
        self._cases += 1
        before = sys.gettrace()
        if before is None and (is_varied or self._cases <= self.CASES):
            sys.settrace(self._on_call)
        try:
            yield
        finally:
            sys.settrace(before)

    def see(self, function: str, situations: Sequence[str], example: Any) -> bool:
        """Return whether the case took a branch that none took before."""
        del function, situations, example
        is_new, self._is_new = self._is_new, False
        return is_new

    def end(self) -> Counter[Event]:
        """Return the branches that were taken by the observed cases."""
        return Counter(
            ("branch", f"{_short(code.co_filename)}:{code.co_qualname}", f"{start}>{stop}")
            for code, start, stop in self._taken
        )

    def _on_call(self, frame: FrameType, event: str, arg: object) -> Any:
        del event, arg
        code = frame.f_code
        is_wanted = self._is_wanted.get(code)
        if is_wanted is None:
            is_wanted = self._is_wanted[code] = code.co_filename.startswith(self._folders)
        if not is_wanted:
            return None
        last, taken = frame.f_lineno, self._taken

        def on_line(frame: FrameType, event: str, arg: object) -> Any:
            del arg
            nonlocal last
            if event == "line":
                arc, last = (code, last, frame.f_lineno), frame.f_lineno
                if arc not in taken:
                    self._add(arc)
            return on_line

        return on_line

    def _add(self, arc: tuple[CodeType, int, int]) -> None:
        self._taken.add(arc)
        if arc not in self._ever:
            self._ever.add(arc)
            self._is_new = True


def _short(file: str) -> str:
    """Return a file with the name of its package alone.

    >>> _short("/home/me/fast/slots.py")
    'fast/slots.py'
    """
    return "/".join(Path(file).parts[-2:])


def branch_source(folders: Iterable[Path]) -> Branches | TracedArcs:
    """Return what observes branches most cheaply in this Python.

    Args:
        folders: Whose code is observed.
    """
    return Branches(folders) if hasattr(sys, "monitoring") else TracedArcs(folders)


def observer_of_branches() -> str:
    """Return what observes branches here, for the report."""
    if hasattr(sys, "monitoring"):
        return "sys.monitoring"
    return "sys.settrace, in some cases"
