"""One twin's batch of a step as plain values, to check it on its own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

import reference
from conformance.stateful.snapshot import Snapshot
from conformance.targets import Answer
from conformance.traffic.batch import Batch
from conformance.traffic.runner import Runner
from conformance.zoo.groups import CacheGroup

Reads: TypeAlias = set[tuple[int, int, int]]
"""Of (token, key position, slot)."""
Writes: TypeAlias = set[tuple[int, int]]
"""Of (token, slot)."""


class BrokenInvariantError(AssertionError):
    """What must be true of a step, and is not."""


def as_reference(metadata: Answer) -> reference.CommonAttentionMetadata:
    """Return an implementation's metadata as `reference` holds it.

    Args:
        metadata: Of arrays or of tensors.

    Returns:
        Of arrays; these may be views of the tensors.
    """
    names = reference.CommonAttentionMetadata.__dataclass_fields__
    values = {name: getattr(metadata, name) for name in names}
    return reference.CommonAttentionMetadata(
        **{n: v.cpu().numpy() if hasattr(v, "cpu") else v for n, v in values.items()}
    )


@dataclass
class View:
    """A step as a runner has put it together.

    Attributes:
        snapshot: What it was given.
        batch: What it made of that.
        results: Of all functions.
        tokens: Of each token of the batch, without padding, its request and its position.
        metadata: Of each KV cache group, in arrays.
        reads: What each group's batch reads.
        writes: What each group's batch writes.
    """

    snapshot: Snapshot
    batch: Batch
    results: dict[str, Answer]
    tokens: list[tuple[str, int]] = field(init=False)
    metadata: list[reference.CommonAttentionMetadata] = field(init=False)
    reads: list[Reads] = field(init=False)
    writes: list[Writes] = field(init=False)

    def __post_init__(self) -> None:
        requests = self.snapshot.requests
        self.tokens = [
            (req_id, position)
            for req_id in self.batch.req_ids
            for position in range(requests[req_id].start, requests[req_id].stop)
        ]
        self.metadata = [as_reference(metadata) for metadata in self.batch.metadata]
        pairs = list(zip(self.metadata, self.groups, strict=True))
        self.reads = [self.reads_of(m, group.block_size) for m, group in pairs]
        self.writes = [self.writes_of(metadata) for metadata, _ in pairs]

    @property
    def groups(self) -> tuple[CacheGroup, ...]:
        """The KV cache groups."""
        return self.batch.groups

    def reads_of(
        self, metadata: reference.CommonAttentionMetadata, block_size: int, **layout: int
    ) -> Reads:
        """Return what a batch reads, by `kv_reads`; one that means nothing breaks an invariant."""
        try:
            return reference.kv_reads(metadata, block_size, **layout)
        except (TypeError, ValueError) as error:
            raise BrokenInvariantError(f"the batch is not valid: {error}") from error

    def writes_of(self, metadata: reference.CommonAttentionMetadata) -> Writes:
        """Return what a batch writes; one that means nothing breaks an invariant."""
        try:
            return reference.kv_writes(metadata)
        except (TypeError, ValueError) as error:
            raise BrokenInvariantError(f"the batch is not valid: {error}") from error

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
    """Look at what a runner has made of a step.

    Args:
        runner: After the step.
        snapshot: The step.

    Returns:
        Its batch as plain values.

    Raises:
        BrokenInvariantError: A batch that means nothing or has other requests than the step, or no
            batch.
    """
    if runner.batch is None:
        raise BrokenInvariantError("there is no batch")
    expected, got = sorted(snapshot.requests), sorted(runner.batch.req_ids)
    if expected != got:
        raise BrokenInvariantError(f"the batch has {got}, but the step has {expected}")
    return View(snapshot, runner.batch, runner.results)
