"""Interpretation of the metadata of KV-sharing fast prefill."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from conformance.calls import Call
from conformance.invalid_inputs.fast_prefill import comes_back
from conformance.laws.access import Access, Half
from conformance.laws.changes import Change
from conformance.laws.interpretation import Interpretation, Reader, with_batch
from conformance.strategies import cached as st
from conformance.strategies.arrays import guarded
from conformance.strategies.fast_prefill import fast_prefill_calls
from conformance.strategies.presets import Preset


def metadata_of(call: Call) -> Any:
    """Return the metadata argument of a call."""
    return call["common_attn_metadata"]


def logits_indices_of(call: Call) -> list[int]:
    """Return the logits indices; empty if the function returns the metadata unchanged."""
    metadata = metadata_of(call)
    if comes_back(call):
        return []
    found: list[int] = metadata.logits_indices_padded[: metadata.num_logits_indices].tolist()
    return found


def _calls_at_ends(preset: Preset) -> st.SearchStrategy[Call]:
    """Return calls whose logits indices are the last tokens of their requests."""
    return fast_prefill_calls(preset, which="ends", is_causal=True)


def _tokens(call: Call) -> list[int]:
    """Return the tokens of the batch that are in the result."""
    return list(range(call.facts.num_tokens)) if comes_back(call) else logits_indices_of(call)


def _logits_tokens(reader: Reader, call: Call) -> Iterator[Access]:
    access = reader.access(reader.answer(call), call.facts.layout)
    yield access.renamed(dict(enumerate(_tokens(call))))


def _with_change(call: Call, change: Change) -> Call:
    """Return the call with logits indices of the same tokens of a changed batch."""
    batch, old = change(call.facts), metadata_of(call)
    metadata = batch.metadata()
    if old.logits_indices_padded is None:
        return with_batch(call, batch, common_attn_metadata=metadata)
    indexed = set(old.logits_indices_padded[: old.num_logits_indices].tolist())
    names = change.names(call.facts)
    indices = guarded(sorted(new for new, name in names.items() if name in indexed), np.int64)
    metadata = dataclasses.replace(
        metadata, logits_indices_padded=indices, num_logits_indices=len(indices)
    )
    hints = dict.fromkeys(call.hints, indices)
    return with_batch(call, batch, common_attn_metadata=metadata).hinting(**hints)


LOGITS_TOKENS = Interpretation(
    _logits_tokens,
    _with_change,
    shows=Half.READS,
    calls=_calls_at_ends,
    selects=lambda call, access: access.of_tokens(_tokens(call)),
)
"""Of the metadata of fast prefill: the tokens with logits, or all if it is returned unchanged."""
