"""Calls of `make_kv_sharing_fast_prefill_common_attn_metadata`: batches and tokens with logits."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from conformance.arrays.guard_bands import guarded
from conformance.coverage.presets import Preset
from conformance.strategies import cached as st
from conformance.strategies.batch import Batch
from conformance.strategies.batches import FILLERS, batches
from conformance.values.call import Arguments, Call

PADDING = "padding of the logits indices"

FIELD_NAMES = ["logits_indices_padded", "num_logits_indices"]
"""The fields of metadata made for fast prefill."""

LOGITS_CHOICES = ("last of each", "last of some", "ends", "several", "several", "all", "none")
"""Which tokens of a request have logits."""

KINDS = (None, None, "decode", "mixed", "extend", "prefill", "none")
"""Kinds of batches; batches with only decodes are returned unchanged."""


def logits_tokens(batch: Batch, which: str, seed: int) -> list[int]:
    """Return the tokens of a batch that have logits; `which` is one of `LOGITS_CHOICES`."""
    rng = np.random.default_rng(seed)
    found: list[int] = []
    for start, length in zip(batch.starts, batch.query_lens, strict=False):
        few: list[int] = list(range(length))  # counted from the last token
        if which == "ends":
            few = few[: rng.integers(length + 1)]
        elif which == "several":
            few = [back for back in few if rng.random() < 0.4]
        elif which != "all":
            maximum = {"none": 0, "last of some": int(rng.integers(2))}.get(which, 1)
            few = few[:maximum]
        found += [start + length - 1 - back for back in reversed(few)]
    return found


@st.composite
def fast_prefill_calls(
    draw: st.DrawFn, preset: Preset, *, which: str | None = None, is_causal: bool | None = None
) -> Call:
    """Draw calls of `make_kv_sharing_fast_prefill_common_attn_metadata`; the source is a `Batch`.

    `which` is one of `LOGITS_CHOICES`; some metadata have no logits indices.
    """
    batch = draw(batches(preset, kind=draw(st.sampled_from(KINDS))))
    if is_causal is not None:
        batch = dataclasses.replace(batch, causal=is_causal)
    metadata, hints = batch.metadata(), {}
    if draw(st.RARELY):
        metadata = dataclasses.replace(
            metadata,
            encoder_seq_lens=guarded(batch.seq_lens, np.int32, batch.stride),
            dcp_local_seq_lens=guarded([s // 2 for s in batch.seq_lens], np.int32, batch.stride),
        )
    if which is not None or preset.axis or draw(st.integers(0, 5)):
        which = draw(st.sampled_from(LOGITS_CHOICES)) if which is None else which
        indices = logits_tokens(batch, which, draw(st.integers(0, 2**16)))
        number: Any = np.int32 if batch.has_numpy_ints else int
        metadata = dataclasses.replace(
            metadata,
            logits_indices_padded=draw(_padded(preset, indices)),
            num_logits_indices=number(len(indices)),
        )
        if draw(st.booleans()):
            hints["logits_indices_cpu"] = draw(_padded(preset, indices))
    arguments: Arguments = {"common_attn_metadata": metadata}
    name = "make_kv_sharing_fast_prefill_common_attn_metadata"
    return Call(name, arguments, batch, hints)


@st.composite
def _padded(draw: st.DrawFn, preset: Preset, indices: list[int]) -> Any:
    """Draw a vector of indices with other values after them."""
    padding = [draw(st.sampled_from(FILLERS))] * draw(
        preset.sizes(PADDING, st.sampled_from((0, 1, 4)))
    )
    dtype: Any = draw(st.sampled_from((np.int32, np.int64)))
    return guarded(indices + padding, dtype, draw(st.sampled_from((1, 2))))
