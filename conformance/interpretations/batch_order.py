"""Interpretations of the functions that split a batch by kind, or reorder it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from conformance.calls import Call
from conformance.invocations import Invocation
from conformance.laws.access import Access
from conformance.laws.changes import Change, in_order, names_in_order
from conformance.laws.interpretation import (
    Interpretation,
    Reader,
    changing,
    requests_of,
    with_batch,
)
from conformance.strategies.batch_order import (
    InputBatch,
    SchedulerOutput,
    reordered_batches,
)
from conformance.targets import Target


def _kinds_of_batch(reader: Reader, call: Call) -> Iterator[Access]:
    """Yield the access relation of the requests of each kind: the batch, cut at the counts."""
    answer, metadata = reader.answer(call), call.facts.metadata()
    middle = len(answer) // 2
    request = token = 0
    for num_reqs, num_tokens in zip(answer[:middle], answer[middle:], strict=True):
        requests, tokens = slice(request, request + num_reqs), slice(token, token + num_tokens)
        starts = metadata.query_start_loc[request : requests.stop + 1]
        starts = starts - starts[0]  # a wrong token count shows as wrong slots
        piece = requests_of(metadata, requests, starts, tokens)
        yield reader.access(piece, call.facts.layout).shifted(token)
        request, token = requests.stop, tokens.stop


KINDS = Interpretation(
    _kinds_of_batch, changing(common_attn_metadata=lambda batch: batch.metadata())
)
"""Of the functions that split a batch by kind: a part for each kind."""


def made_order(target: Target, call: Call) -> list[int]:
    """Return the old index of each request, in the order that a target brings them to."""
    return _order_of(_reorder(target, call))


def _reorder(target: Target, call: Call) -> InputBatch:
    """Return the input batch after a target has reordered it."""
    invocation = Invocation(target, call)
    with target.running(checked=True):
        invocation.run()
    batch: InputBatch = invocation.arguments["input_batch"]
    return batch


def _order_of(batch: InputBatch) -> list[int]:
    return [int(name[1:]) for name in batch.req_ids]


def _reordered(reader: Reader, call: Call) -> Iterator[Access]:
    """Yield the access relation of the reordered batch, with the old token numbers.

    Tokens and blocks follow the request ID; the context is what the reordered arrays say.
    """
    after = _reorder(reader.target, call)
    order = _order_of(after)
    batch = in_order(call.facts, order)
    computed = after.num_computed_tokens_cpu[: len(order)].tolist()
    lens = [c + q for c, q in zip(computed, batch.query_lens, strict=True)]
    seq_lens = np.array(lens, np.int32)
    metadata = dataclasses.replace(
        batch.metadata(),
        seq_lens=seq_lens,
        seq_lens_cpu=seq_lens,
        max_seq_len=max(lens, default=0),
    )
    access = reader.access(metadata, batch.layout)
    yield access.renamed(names_in_order(call.facts, order))


def _to_reorder(call: Call, change: Change) -> Call:
    """Return the call that reorders a changed batch."""
    batch = change(call.facts)
    ids = [f"r{i}" for i in range(batch.num_reqs)]
    computed = np.array(batch.num_computed_tokens, np.int32)
    return with_batch(
        call,
        batch,
        input_batch=InputBatch(ids, computed, np.zeros_like(computed)),
        scheduler_output=SchedulerOutput(dict(zip(ids, batch.query_lens, strict=True))),
    )


REORDERED = Interpretation(_reordered, _to_reorder, calls=reordered_batches)
"""Of the function that reorders a batch: the reordered batch."""
