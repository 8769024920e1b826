"""Interpretation of the programs of a causal convolution: the tokens that each writes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

import reference
from conformance.calls import Call
from conformance.invocations import Invocation
from conformance.laws.access import Access, Half
from conformance.laws.changes import Change
from conformance.laws.interpretation import Interpretation, Reader, with_batch
from conformance.laws.statements import BLOCK_M
from conformance.strategies import cached as st
from conformance.strategies.batches import Batch, Layout
from conformance.strategies.causal_conv1d import compute_conv1d_calls
from conformance.strategies.presets import Preset
from conformance.targets import Target


def _of_batches(preset: Preset) -> st.SearchStrategy[Call]:
    """Return calls whose facts are a batch of new sequences."""

    def of_batch(call: Call) -> Call:
        rows = tuple((1,) * -(-length // BLOCK_M) for length in call.facts)
        batch = Batch(call.facts, (0,) * len(call.facts), Layout(BLOCK_M), rows)
        return with_batch(call, batch)

    return compute_conv1d_calls(preset).map(of_batch)


def _runs_of_batch(reader: Reader, call: Call) -> Iterator[Access]:
    """Yield the writes of each program: its tokens, each to one slot."""
    for run in runs_of(reader.target, with_batch(call, call.facts.query_lens)):
        yield Access(writes=frozenset((token, 0) for token in run))


def _with_change(call: Call, change: Change) -> Call:
    """Return the call about a changed batch, with its hint."""
    batch = change(call.facts)
    starts = batch.query_start_loc()
    call = call.hinting(**dict.fromkeys(call.hints, starts))
    return with_batch(call, batch, query_start_loc_p=starts)


def listed(target: Target, call: Call, seed: int = 0) -> tuple[list[int], list[int]]:
    """Return the sequences and offsets of a target's programs, with padding."""
    _, sequences, offsets = Invocation(target, call).answer(seed=seed)
    return sequences.tolist(), offsets.tolist()


def runs_of(target: Target, call: Call) -> list[range]:
    """Return the tokens of each program, as a kernel computes them."""
    starts = [0, *accumulate(call.facts)]
    found = []
    for sequence, offset in zip(*listed(target, call), strict=True):
        if sequence != reference.PAD_SLOT_ID:
            first = starts[sequence] + BLOCK_M * offset
            found.append(range(first, min(first + BLOCK_M, starts[sequence + 1])))
    return found


PROGRAMS = Interpretation(_runs_of_batch, _with_change, shows=Half.WRITES, calls=_of_batches)
"""Of `compute_causal_conv1d_metadata`: a part for each program."""
