"""Laws, and their cases: a target's result of one call, read as an access relation."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from conformance.coverage.goals import Goals
from conformance.coverage.presets import Preset
from conformance.laws.access import Access, Half
from conformance.laws.changes import Change
from conformance.laws.interpretation import Interpretation, Reader, positions_of
from conformance.strategies import cached as st
from conformance.strategies.batch import Batch, Layout
from conformance.targets.target import Target
from conformance.values.call import Call


@dataclasses.dataclass(frozen=True)
class LawCase:
    """One call for which a law must hold.

    Attributes:
        target: The target that is called.
        call: The call.
        interpretation: How arguments and results are read as a batch.
        half: The half of the relation that the law is about.
        choice: The additional value that the law drew.
    """

    target: Target
    call: Call
    interpretation: Interpretation
    half: Half = Half.BOTH
    choice: Any = None

    @property
    def batches(self) -> Sequence[Batch]:
        """The batch of each KV cache group, or one batch if the call has no groups."""
        groups = self.interpretation.groups
        return [self.call.source] if groups is None else groups(self.call)

    @property
    def batch(self) -> Batch:
        """The batch of the first group; an empty one if there are no groups."""
        return self.batches[0] if self.batches else Batch((), (), Layout(1), ())

    @property
    def positions(self) -> dict[int, int]:
        """The position of each token in the sequence of its request."""
        return positions_of(self.batch)

    @property
    def num_parts(self) -> int:
        """The number of parts of the result."""
        return sum(1 for _ in self.interpretation.parts(Reader(self.target, Half(0)), self.call))

    def result_access(self, change: Change | None = None) -> list[Access]:
        """Return the access relation of each part of the result.

        Args:
            change: Changes the batch before the call; tokens keep their numbers in the old batch.
        """
        reader = Reader(self.target, self.half & self.interpretation.shows)
        call = self.call if change is None else self.interpretation.with_change(self.call, change)
        parts = self._by_cache(self.interpretation.parts(reader, call))
        return parts if change is None else [p.renamed(change.names(self.batch)) for p in parts]

    def batch_access(self) -> list[Access]:
        """Return the access relation of the batch before the call, for each KV cache group."""
        return self._by_cache(
            Access.of(batch.metadata(), batch.layout, self.half) for batch in self.batches
        )

    def _by_cache(self, parts: Iterable[Access]) -> list[Access]:
        if self.interpretation.groups is None:
            return list(parts)
        return [part.in_cache(group) for group, part in enumerate(parts)]

    def expected_access(self) -> Access:
        """Return the access relation that the result must have."""
        selected = self.interpretation.selects(self.call, Access.union(self.batch_access()))
        return selected.only(self.half & self.interpretation.shows)


Body: TypeAlias = Callable[[LawCase], None]


@dataclasses.dataclass(frozen=True)
class Law:
    """A property of the access relation, stated for several functions.

    Attributes:
        body: Raises if a law case contradicts it. Its name is the law's, by which contracts refer
            to it, and its docstring states the law in one sentence.
        half: The half of the relation that it is about.
        presets: The sizes of its examples. None for the target's own sizes, or for small ones if
            the law is about reads: large examples have millions of pairs of a token and a key.
        choices: The strategy of `LawCase.choice`.
        goals: The coverage goals of each function, as predicates on a law case.
        in_simulator: Whether it is also tested with kernels in the simulator.
    """

    body: Body
    half: Half = Half.BOTH
    presets: Sequence[Preset] | None = None
    choices: st.SearchStrategy[Any] = dataclasses.field(default_factory=st.none)
    goals: Goals = dataclasses.field(default_factory=dict)
    in_simulator: bool = True

    @property
    def name(self) -> str:
        """The name by which contracts refer to it."""
        return self.body.__name__

    @property
    def statement(self) -> str:
        """The law in one sentence."""
        return " ".join((self.body.__doc__ or "").split())


def law(*, goals: Goals, **options: Any) -> Callable[[Body], Law]:
    """Return a decorator that makes a `Law`, with the law's name as the prefix of its goals."""

    def declare(body: Body) -> Law:
        named = {f"{body.__name__}: {name}": holds for name, holds in goals.items()}
        return Law(body, goals=named, **options)

    return declare
