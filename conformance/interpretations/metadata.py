"""What a metadata without its padding means."""

from __future__ import annotations

from collections.abc import Iterator

from conformance.calls import Call
from conformance.laws.access import Access
from conformance.laws.changes import Change, Unpadded
from conformance.laws.interpretation import Interpretation, Reader, about
from conformance.strategies.batches import Batch


def _kept(call: Call, access: Access) -> Access:
    """Return what the kept requests read, and the kept tokens write."""
    tokens = call.facts.starts[call.arguments["num_actual_reqs"]]
    writes = access.of_tokens(range(call.arguments["num_actual_tokens"])).writes
    return Access(access.of_tokens(range(tokens)).reads, writes)


def _unpadding(call: Call, change: Change) -> Call:
    """Return the call that takes off all of a changed batch's padding, and no more."""
    batch = change.of(call.facts)
    counts = {"num_actual_tokens": batch.num_tokens, "num_actual_reqs": _num_busy(batch)}
    return about(call, batch, self=batch.metadata(), **counts)


def _num_busy(batch: Batch) -> int:
    """Return the number of requests up to the last one with tokens."""
    return Unpadded().of(batch).num_reqs


def _kept_requests(reader: Reader, call: Call) -> Iterator[Access]:
    yield reader.access(reader.answer(call), call.facts.layout)


KEPT_REQUESTS = Interpretation(_kept_requests, _unpadding, keeps=_kept)
"""Of `CommonAttentionMetadata.unpadded`: the requests and tokens that are kept."""
