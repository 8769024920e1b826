"""What the wanted tokens of a batch mean."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
from hypothesis import strategies as st

from conformance.calls import Call
from conformance.invalid_inputs.fast_prefill import comes_back
from conformance.laws.access import About, Access
from conformance.laws.changes import Change
from conformance.laws.interpretation import Interpretation, Reader, about
from conformance.strategies.arrays import guarded
from conformance.strategies.fast_prefill import make_wanted_calls
from conformance.strategies.presets import Preset


def metadata_of(call: Call) -> Any:
    """Return the metadata that a call is about."""
    return call.arguments["common_attn_metadata"]


def wanted_of(call: Call) -> list[int]:
    """Return the wanted tokens; none where the metadata comes back as it is."""
    metadata = metadata_of(call)
    if comes_back(call):
        return []
    found: list[int] = metadata.logits_indices_padded[: metadata.num_logits_indices].tolist()
    return found


def _last_wanted(preset: Preset) -> st.SearchStrategy[Call]:
    """Return calls whose wanted tokens are the last of their requests."""
    return make_wanted_calls(preset, which="ends", is_causal=True)


def _tokens(call: Call) -> list[int]:
    """Return the tokens of the batch that the answer has."""
    return list(range(call.facts.num_tokens)) if comes_back(call) else wanted_of(call)


def _wanted_alone(reader: Reader, call: Call) -> Iterator[Access]:
    access = reader.access(reader.answer(call), call.facts.layout)
    yield access.renamed(dict(enumerate(_tokens(call))))


def _wanting(call: Call, change: Change) -> Call:
    """Return the call that wants the same tokens of a changed batch."""
    batch, old = change.of(call.facts), metadata_of(call)
    metadata = batch.metadata()
    if old.logits_indices_padded is None:
        return about(call, batch, common_attn_metadata=metadata)
    wanted = set(old.logits_indices_padded[: old.num_logits_indices].tolist())
    names = change.names(call.facts)
    indices = guarded(sorted(new for new, name in names.items() if name in wanted), np.int64)
    metadata = dataclasses.replace(
        metadata, logits_indices_padded=indices, num_logits_indices=len(indices)
    )
    hints = dict.fromkeys(call.hints, indices)
    return about(call, batch, common_attn_metadata=metadata).hinting(**hints)


WANTED_TOKENS = Interpretation(
    _wanted_alone,
    _wanting,
    tells=About.READS,
    calls=_last_wanted,
    keeps=lambda call, access: access.of_tokens(_tokens(call)),
)
"""Of the metadata of fast prefill: its tokens are the wanted ones, or all where it comes back."""
