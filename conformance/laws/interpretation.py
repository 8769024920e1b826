"""Interpretations: how the arguments and results of a function describe a batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from hypothesis.strategies import SearchStrategy

import reference
from conformance.coverage.presets import Preset
from conformance.execution.invocations import Invocation
from conformance.laws.access import Access, Half
from conformance.laws.changes import Change
from conformance.strategies.batch import Batch, Layout
from conformance.targets.target import Target
from conformance.values.call import Call


@dataclasses.dataclass(frozen=True)
class Reader:
    """Calls a target and reads the result as an access relation.

    Attributes:
        target: The target.
        half: The half of the relation to read; the other is left empty.
    """

    target: Target
    half: Half = Half.BOTH

    def answer(self, call: Call) -> Any:
        """Return the result of a call on the target, in checked mode."""
        return Invocation(self.target, call).answer()

    def access(self, metadata: Any, layout: Layout) -> Access:
        """Return the access relation of a metadata object of the target or of `reference`."""
        return Access.of(metadata, layout, self.half)


Parts = Callable[[Reader, Call], Iterable[Access]]


@dataclasses.dataclass(frozen=True)
class Interpretation:
    """How the arguments and results of a function describe a batch.

    Attributes:
        parts: The access relation of each part of the result (micro-batch, group, program; or the
            whole result if it has no parts), with the batch's token numbers and key positions.
        with_change: Returns the same call for a changed batch.
        shows: The half of the relation that the result determines.
        calls: The calls that laws are tested with, if they differ from the contract's.
        groups: The batch of each KV cache group, if the parts of a result are groups with a cache
            each. Otherwise the call's source is the batch.
        selects: The part of the batch's relation that the result must have: all of it if the
            function rewrites the batch, that of some tokens if it takes a slice.
    """

    parts: Parts
    with_change: Callable[[Call, Change], Call]
    shows: Half = Half.BOTH
    calls: Callable[[Preset], SearchStrategy[Call]] | None = None
    groups: Callable[[Call], Sequence[Batch]] | None = None
    selects: Callable[[Call, Access], Access] = lambda _, access: access


def with_batch(call: Call, batch: Batch, /, **arguments: Any) -> Call:
    """Return a call about another batch, with some arguments replaced."""
    return dataclasses.replace(call.replacing(**arguments), source=batch)


def changing(**arguments: Callable[[Batch], Any]) -> Callable[[Call, Change], Call]:
    """Return a `with_change` that replaces some arguments by functions of the changed batch.

    >>> rebuild = changing(num_reqs=lambda batch: batch.num_reqs)
    >>> from conformance.laws.changes import Padded
    >>> rebuild(
    ...     Call("f", {"num_reqs": 1}, Batch((4,), (0,), Layout(2), ((5, 9),))), Padded((0,), 0)
    ... )
    f(num_reqs=2)
    """

    def with_change(call: Call, change: Change) -> Call:
        batch = change(call.source)
        return with_batch(call, batch, **{name: make(batch) for name, make in arguments.items()})

    return with_change


def positions_of(batch: Batch) -> dict[int, int]:
    """Return the position of each token in the sequence of its request.

    >>> positions_of(Batch((2, 0, 1), (5, 3, 0), Layout(2), ((5, 9, 4, 6), (7, 3), (8,))))
    {0: 5, 1: 6, 2: 0}
    """
    requests = zip(batch.num_computed_tokens, batch.query_lens, strict=True)
    return dict(enumerate(computed + j for computed, count in requests for j in range(count)))


def requests_of(
    metadata: reference.CommonAttentionMetadata,
    requests: slice,
    query_start_loc: Any,
    tokens: slice,
) -> reference.CommonAttentionMetadata:
    """Return the metadata of some consecutive requests, from their starts and tokens.

    Args:
        metadata: The batch.
        requests: The slice of the requests.
        query_start_loc: Their starts, relative to the first one.
        tokens: The slice of their tokens.
    """
    return dataclasses.replace(
        metadata,
        query_start_loc=query_start_loc,
        query_start_loc_cpu=query_start_loc,
        seq_lens=metadata.seq_lens[requests],
        seq_lens_cpu=metadata.seq_lens_cpu[requests],
        num_computed_tokens_cpu=metadata.num_computed_tokens_cpu[requests],
        num_reqs=requests.stop - requests.start,
        num_actual_tokens=tokens.stop - tokens.start,
        block_table_tensor=metadata.block_table_tensor[requests],
        slot_mapping=metadata.slot_mapping[tokens],
        logits_indices_padded=None,
        num_logits_indices=None,
        encoder_seq_lens=None,
        dcp_local_seq_lens=None,
    )
