"""Interpretation of metadata without padding."""

from __future__ import annotations

from collections.abc import Iterator

from conformance.calls import Call
from conformance.laws.access import Access
from conformance.laws.changes import Change, Unpadded
from conformance.laws.interpretation import Interpretation, Reader, with_batch
from conformance.strategies.batches import Batch


def _select_actual(call: Call, access: Access) -> Access:
    """Return the reads of the actual requests, and the writes of the actual tokens."""
    tokens = call.facts.starts[call["num_actual_reqs"]]
    writes = access.of_tokens(range(call["num_actual_tokens"])).writes
    return Access(access.of_tokens(range(tokens)).reads, writes)


def _with_change(call: Call, change: Change) -> Call:
    """Return the call that removes all padding of a changed batch, and nothing else."""
    batch = change(call.facts)
    counts = {"num_actual_tokens": batch.num_tokens, "num_actual_reqs": _num_busy(batch)}
    return with_batch(call, batch, self=batch.metadata(), **counts)


def _num_busy(batch: Batch) -> int:
    """Return the number of requests up to the last one with tokens."""
    return Unpadded()(batch).num_reqs


def _actual_requests(reader: Reader, call: Call) -> Iterator[Access]:
    yield reader.access(reader.answer(call), call.facts.layout)


ACTUAL_REQUESTS = Interpretation(_actual_requests, _with_change, selects=_select_actual)
"""Of `CommonAttentionMetadata.unpadded`: the actual requests and tokens."""
