"""Interpretation of the metadata that the builder of each KV cache group gets."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from conformance.calls import Call
from conformance.laws.access import Access
from conformance.laws.changes import Change
from conformance.laws.interpretation import Interpretation, Reader
from conformance.strategies.arrays import guarded
from conformance.strategies.attn_metadata import BOUNDS, Buffer


def given_to(built: Any) -> Any:
    """Return the metadata that a builder got."""
    return built.keywords["common_attn_metadata"]


def _groups(reader: Reader, call: Call) -> Iterator[Access]:
    found = reader.answer(call)
    for batch, names in zip(call.facts.batches, call.facts.names, strict=True):
        yield reader.access(given_to(found[names[0]]), batch.layout)


def _with_change(call: Call, change: Change) -> Call:
    """Return the call of the next step in the same buffers, with changed batches."""
    batches = tuple(change(batch) for batch in call.facts.batches)
    batch, tails = change(call.facts.batch), call.facts.tail

    def buffer(name: str, values: tuple[int, ...]) -> Buffer:
        return Buffer(name, *(guarded((*values, *tail), np.int32) for tail in tails))

    call = call.replacing(
        num_reqs=batch.num_reqs,
        num_tokens=batch.num_actual_tokens,
        query_start_loc=buffer("query_start_loc", batch.starts),
        seq_lens=buffer("seq_lens", batch.seq_lens),
        num_computed_tokens_cpu=guarded(batch.reported_computed_tokens(), np.int32),
        block_tables=[group.block_table() for group in batches],
        slot_mappings=[group.slot_mapping() for group in batches],
        **dict.fromkeys(BOUNDS),  # the changed batch has other maxima
    )
    step = dataclasses.replace(call.facts, batches=batches, batch=batch)
    return dataclasses.replace(call, facts=step)


GROUPS = Interpretation(_groups, _with_change, groups=lambda call: call.facts.batches)
"""Of `build_attn_metadata`: a part for each KV cache group."""
