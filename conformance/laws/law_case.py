"""One call for which a law must hold: a target's result, read as an access relation."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from conformance.calls import Call
from conformance.laws.access import About, Access
from conformance.laws.changes import Change
from conformance.laws.interpretation import Interpretation, Reader, positions_of
from conformance.strategies.batches import Batch, Layout
from conformance.targets import Target


@dataclasses.dataclass(frozen=True)
class LawCase:
    """One call for which a law must hold.

    Attributes:
        target: The target that is called.
        call: The call.
        interpretation: How arguments and results are read as a batch.
        about: The half of the relation that the law is about and the result shows.
        choice: What the law has drawn besides.
    """

    target: Target
    call: Call
    interpretation: Interpretation
    about: About = About.BOTH
    choice: Any = None

    @property
    def batches(self) -> Sequence[Batch]:
        """Return the batch, as each KV cache group sees it where there are groups."""
        return (
            [self.call.facts]
            if self.interpretation.groups is None
            else self.interpretation.groups(self.call)
        )

    @property
    def batch(self) -> Batch:
        """Return the batch, of which all groups have the requests; of no groups, one of none."""
        return self.batches[0] if self.batches else Batch((), (), Layout(1), ())

    @property
    def positions(self) -> dict[int, int]:
        """Return where each token stands in its request's sequence."""
        return positions_of(self.batch)

    @property
    def num_parts(self) -> int:
        """Return how many parts the answer has; nothing of them is read."""
        return sum(1 for _ in self.interpretation.parts(Reader(self.target, About(0)), self.call))

    def means(self, change: Change | None = None) -> list[Access]:
        """Return what the answer means, part by part; to the call about a changed batch, if any.

        Either way the tokens are those of the batch as it is.
        """
        reader = Reader(self.target, self.about & self.interpretation.tells)
        call = self.call if change is None else self.interpretation.on(self.call, change)
        parts = self._by_cache(self.interpretation.parts(reader, call))
        return parts if change is None else [p.renamed(change.names(self.batch)) for p in parts]

    def meant(self) -> list[Access]:
        """Return what the batch means before the call, for each KV cache group."""
        return self._by_cache(
            Access.of(batch.metadata(), batch.layout, self.about) for batch in self.batches
        )

    def _by_cache(self, parts: Iterable[Access]) -> list[Access]:
        if self.interpretation.groups is None:
            return list(parts)
        return [part.in_cache(group) for group, part in enumerate(parts)]

    def kept(self) -> Access:
        """Return what of the batch's relation the answer is to mean."""
        kept = self.interpretation.keeps(self.call, Access.union(self.meant()))
        return kept.only(self.about & self.interpretation.tells)
