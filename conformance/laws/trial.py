"""One call, of which a law is to be true: a target's answer, read as an access relation."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from conformance.calls import Call
from conformance.laws.access import About, Access
from conformance.laws.changes import Change
from conformance.laws.meaning import Meaning, Reader, positions_of
from conformance.strategies.batches import Batch, Layout
from conformance.targets import Target


@dataclasses.dataclass(frozen=True)
class Trial:
    """One call, of which a law is to be true.

    Attributes:
        target: Who answers it.
        call: The call.
        meaning: How calls and answers speak of a batch.
        about: The half of the relation that the law looks at, and the answer tells.
        choice: What the law chose at random besides.
    """

    target: Target
    call: Call
    meaning: Meaning
    about: About = About.BOTH
    choice: Any = None

    @property
    def batches(self) -> Sequence[Batch]:
        """Return the batch, as each KV cache group sees it where there are groups."""
        return [self.call.facts] if self.meaning.groups is None else self.meaning.groups(self.call)

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
        return sum(1 for _ in self.meaning.parts(Reader(self.target, About(0)), self.call))

    def means(self, change: Change | None = None) -> list[Access]:
        """Return what the answer means, part by part; to the call about a changed batch, if any.

        Either way the tokens are those of the batch as it is.
        """
        reader = Reader(self.target, self.about & self.meaning.tells)
        call = self.call if change is None else self.meaning.on(self.call, change)
        parts = self._by_cache(self.meaning.parts(reader, call))
        return parts if change is None else [p.renamed(change.names(self.batch)) for p in parts]

    def meant(self) -> list[Access]:
        """Return what the batch means before the call, for each KV cache group."""
        return self._by_cache(
            Access.of(batch.metadata(), batch.layout, self.about) for batch in self.batches
        )

    def _by_cache(self, parts: Iterable[Access]) -> list[Access]:
        if self.meaning.groups is None:
            return list(parts)
        return [part.in_cache(group) for group, part in enumerate(parts)]

    def kept(self) -> Access:
        """Return what of the batch's relation the answer is to mean."""
        kept = self.meaning.keeps(self.call, Access.union(self.meant()))
        return kept.only(self.about & self.meaning.tells)
