"""Interpretation of local sequence lengths: the keys that each rank reads."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from itertools import count, islice

import numpy as np

from conformance.calls import Call
from conformance.laws.access import Access, Half
from conformance.laws.interpretation import Interpretation, Reader, with_batch
from conformance.strategies import cached as st
from conformance.strategies.arrays import guarded
from conformance.strategies.batches import Batch, batches
from conformance.strategies.presets import Preset
from conformance.strategies.slots import layouts


@st.composite
def _on_ranks(draw: st.DrawFn, preset: Preset) -> Call:
    """Draw the local lengths of a batch whose blocks lie on several ranks.

    It is not causal: each token reads its whole sequence, so that a length that is too large shows.
    """
    batch = draw(batches(preset, layout=draw(layouts(preset))))
    whole = dataclasses.replace(batch, causal=False)
    return _lengths_of(Call("get_dcp_local_seq_lens", {}), whole)


def _lengths_of(call: Call, batch: Batch) -> Call:
    return with_batch(
        call,
        batch,
        seq_lens=guarded(batch.seq_lens, np.int32, batch.stride),
        dcp_size=batch.layout.cp_world_size,
        cp_kv_cache_interleave_size=batch.layout.cp_kv_cache_interleave_size,
    )


def _first_held(reader: Reader, call: Call) -> Iterator[Access]:
    """Yield the reads of a rank: the first positions that it holds, as many as its local length."""
    batch, layout = call.facts, call.facts.layout
    lengths = reader.answer(call)[:, layout.cp_rank].tolist()
    interleave = layout.cp_kv_cache_interleave_size
    reads = set()
    for request, length in enumerate(lengths):
        held = (p for p in count() if p // interleave % layout.cp_world_size == layout.cp_rank)
        keys = list(islice(held, length))
        for j in range(batch.query_lens[request]):
            token = batch.starts[request] + j
            reads |= {(token, key, 0) for key in keys}
    yield Access(frozenset(reads))


HELD_KEYS = Interpretation(
    _first_held,
    lambda call, change: _lengths_of(call, change(call.facts)),
    shows=Half.READS,
    calls=_on_ranks,
)
"""Of `get_dcp_local_seq_lens`: the keys of one rank; their slots are not defined."""
