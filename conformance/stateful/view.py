"""One twin's batch of a step as plain values, to check it on its own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import reference
from conformance.laws.access import Access, as_reference
from conformance.model_runner.batch import Batch
from conformance.model_runner.runner import Runner
from conformance.stateful.snapshot import Snapshot
from conformance.strategies.batch import Layout
from conformance.targets.target import Answer
from conformance.zoo.groups import CacheGroup


class BrokenInvariantError(AssertionError):
    """An invariant of a step does not hold."""


@dataclass
class View:
    """A step as a runner executed it.

    Attributes:
        snapshot: The step.
        batch: The runner's batch.
        results: The results of all functions.
        tokens: The request and the position of each token of the batch, without padding.
        metadata: The metadata of each KV cache group, in arrays.
        access: The reads and writes of each group's batch.
    """

    snapshot: Snapshot
    batch: Batch
    results: dict[str, Answer]
    tokens: list[tuple[str, int]] = field(init=False)
    metadata: list[reference.CommonAttentionMetadata] = field(init=False)
    access: list[Access] = field(init=False)

    def __post_init__(self) -> None:
        requests = self.snapshot.requests
        self.tokens = [
            (req_id, position)
            for req_id in self.batch.req_ids
            for position in range(requests[req_id].start, requests[req_id].stop)
        ]
        self.metadata = [as_reference(metadata) for metadata in self.batch.metadata]
        self.access = [self.access_of(g, metadata) for g, metadata in enumerate(self.metadata)]

    @property
    def groups(self) -> tuple[CacheGroup, ...]:
        """The KV cache groups."""
        return self.batch.groups

    @property
    def positions(self) -> dict[int, int]:
        """The position of each token."""
        return {token: position for token, (_, position) in enumerate(self.tokens)}

    def access_of(self, group: int, metadata: Answer, **layout: int) -> Access:
        """Return the reads and writes of a group's batch, by `kv_reads` and `kv_writes`."""
        return Access.of(metadata, Layout(self.groups[group].block_size, **layout))

    def check_equal(
        self, group: int, what: str, parts: Iterable[Access], expected: Access | None = None
    ) -> None:
        """Check that parts have the expected reads and writes, each token in one part.

        Args:
            group: The number of their group.
            what: The name of the parts in the message.
            parts: The reads and writes of each part, by the tokens of the batch.
            expected: The expected reads and writes; None: those of the whole batch.
        """
        expected = self.access[group] if expected is None else expected
        try:
            got = Access.partition(list(parts))
            if got != expected:
                names = dict(enumerate(self.tokens))
                got.renamed(names).assert_equal(expected.renamed(names))
        except AssertionError as error:
            message = f"{self.group_name(group)}: in {what}, {error}"
            raise BrokenInvariantError(message) from error

    def group_name(self, number: int) -> str:
        """Name a group in a message."""
        return f"group {number} (blocks of {self.groups[number].block_size})"

    def token_name(self, token: int) -> str:
        """Name a token in a message."""
        if token >= len(self.tokens):
            return f"token {token} of the batch, which is padding,"
        req_id, position = self.tokens[token]
        return f"token {position} of {req_id}"


def view_of(runner: Runner, snapshot: Snapshot) -> View:
    """Return a step as a runner executed it.

    Raises:
        AssertionError: There is no batch, it is not valid, or it has other requests than the step.
    """
    if runner.batch is None:
        raise BrokenInvariantError("there is no batch")
    expected, got = sorted(snapshot.requests), sorted(runner.batch.req_ids)
    if expected != got:
        raise BrokenInvariantError(f"the batch has {got}, but the step has {expected}")
    return View(snapshot, runner.batch, runner.results)
