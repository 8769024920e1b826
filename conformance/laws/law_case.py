"""One call for which a law must hold: a target's result, read as an access relation."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from conformance.calls import Call
from conformance.laws.access import Access, Half
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
        half: The half of the relation that the law is about.
        choice: What the law drew in addition to the call.
    """

    target: Target
    call: Call
    interpretation: Interpretation
    half: Half = Half.BOTH
    choice: Any = None

    @property
    def batches(self) -> Sequence[Batch]:
        """The batch of each KV cache group, or one batch if the call has no groups."""
        return (
            [self.call.facts]
            if self.interpretation.groups is None
            else self.interpretation.groups(self.call)
        )

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
