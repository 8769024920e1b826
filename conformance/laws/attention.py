"""The law of attention: over a paged cache, as a result says, it is the attention of the batch.

Keys and values are written only by slot, those of the context too. They are read only through a
block table, by `reference.paged_attention`, for one request at a time: whatever was not written for
that request is NaN. If slots, tables and lengths are right, the output is dense attention; if not,
it is NaN, or it depends on wrong tokens of the request.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Final

import numpy as np
from hypothesis import strategies as st

import reference
from conformance.laws.access import Half, as_reference
from conformance.laws.batch_laws import Array, Part, Reading, law, on_rank
from conformance.laws.batches import Batch

WINDOWS: Final = st.sampled_from((None, None, 1, 2, 5))
"""The latest positions that a token attends to; None for all."""


@law(choices=lambda _: WINDOWS)
def attention_is_dense(reading: Reading) -> None:
    """Attention over each rank's cache, NaN where a request may not read, merges to dense one."""
    batch = _in_a_small_cache(reading.batch)
    chunk = reading.description.chunk(reading.arguments(batch))
    is_causal = batch.causal or chunk is not None
    window = reading.case.choice if is_causal else None
    rng = np.random.default_rng(batch.num_tokens)
    blocks, size = _blocks(batch), batch.layout.virtual_block_size
    # By block, so that requests that share a block have the same keys and values there.
    contents = rng.normal(size=(2, blocks.max(initial=0) + 1, size, 1, 2))
    queries = rng.normal(size=(batch.num_actual_tokens, 2, 2))
    padding = range(batch.num_tokens, batch.num_actual_tokens)
    queries[padding] = np.nan
    ranks = range(batch.layout.cp_world_size)
    states = [
        _attention(reading, on_rank(batch, rank), contents, queries, window) for rank in ranks
    ]
    output, _ = reference.merge_attention_states(*map(np.stack, zip(*states, strict=True)))
    for token in set(reading.tokens(batch)) - set(padding):
        request, position = batch.owners[token], batch.places[token]
        keys = np.arange(position + 1 if is_causal else batch.seq_lens[request])
        if chunk is not None:
            keys = keys[keys // chunk == position // chunk]
        keys = keys if window is None else keys[keys > position - window]
        held = contents[:, blocks[request, keys // size], keys % size]
        mask = np.ones((1, len(keys)), np.bool_)
        [expected], _ = reference.dense_attention(queries[[token]], held[0], held[1], mask)
        assert np.allclose(output[token], expected, rtol=0, atol=1e-12), (
            f"the attention of token {token} (request {request}, position {position}) is "
            f"{output[token].tolist()} over the cache, expected {expected.tolist()}"
        )


def _in_a_small_cache(batch: Batch) -> Batch:
    """Return a batch whose blocks are scattered over a cache of no others; shared ones stay so."""
    pieces, columns = batch.layout.blocks_per_kv_block, np.arange(batch.block_table.shape[1])
    table = batch.block_table.copy()
    rows, needed = table[: batch.num_reqs], _num_blocks(batch) * pieces
    is_used = columns < needed[:, None]
    known, at = np.unique(rows[is_used] // pieces, return_inverse=True)
    ids = 1 + np.random.default_rng(len(known)).permutation(len(known))
    rows[is_used] = ids[at] * pieces + rows[is_used] % pieces
    return dataclasses.replace(batch, block_table=table)


def _num_blocks(batch: Batch) -> Array:
    found: Array = -(-batch.seq_lens // batch.layout.virtual_block_size)
    return found


def _blocks(batch: Batch) -> Array:
    pieces = batch.layout.blocks_per_kv_block
    found = batch.block_table[: batch.num_reqs, ::pieces] // pieces
    return np.where(np.arange(found.shape[1]) < _num_blocks(batch)[:, None], found, 0)


def _earlier(batch: Batch) -> Batch:
    """Return a step that writes the whole context."""
    none = np.zeros_like(batch.query_lens)
    return dataclasses.replace(
        batch,
        query_lens=batch.num_computed_tokens,
        num_computed_tokens=none,
        num_padding_tokens=0,
        optional={},
    )


def _attention(
    reading: Reading, batch: Batch, contents: Array, queries: Array, window: int | None
) -> tuple[Array, Array]:
    """Write the context and the batch as the target says; return the attention of its tokens."""
    layout, earlier, shows = batch.layout, _earlier(batch), reading.description.shows
    kernel_block_size = layout.kernel_block_size or layout.block_size
    keywords = layout.keywords() | {"sliding_window": window}
    del keywords["kernel_block_size"]
    blocks, size, num_reqs = _blocks(batch), layout.virtual_block_size, batch.num_reqs
    may_read = np.zeros((num_reqs, contents.shape[1]), np.bool_)
    may_read[np.arange(num_reqs)[:, None], blocks] = True
    # The cache as each request may read it.
    caches = np.full((num_reqs, 2, contents.shape[1] * layout.block_size, 1, 2), np.nan)

    def write(step: Batch, tokens: Array, slots: Array) -> None:
        tokens, slots = (array[slots != reference.PAD_SLOT_ID] for array in (tokens, slots))
        assert slots.max(initial=0) < caches.shape[2], f"slot {slots.max()} is outside the cache"
        caches[:, :, slots] = np.nan  # the keys of padding
        tokens, slots = (array[tokens < step.num_tokens] for array in (tokens, slots))
        block = blocks[step.owners[tokens], step.places[tokens] // size]
        keys = contents[:, block, step.places[tokens] % size]
        caches[:, :, slots] = np.where(may_read[:, None, block, None, None], keys, np.nan)

    parts: list[Any] = [*reading.parts(batch)]
    [context] = reading.parts(earlier) if shows is Half.WRITES else [Part(earlier.metadata())]
    write(earlier, np.arange(earlier.num_tokens), _slots(context)[: earlier.num_tokens])
    before = np.arange(batch.num_tokens)
    if Half.WRITES in shows:
        before = before[: parts[0].first if parts else 0]
    write(batch, before, batch.slot_mapping()[: len(before)])

    owners = np.append(batch.owners, np.full(batch.num_padding_tokens, -1))
    output, lse = np.zeros((batch.num_actual_tokens, 2, 2)), np.full((len(owners), 2), -np.inf)
    for part in parts:
        metadata = as_reference(part.metadata)
        rows = np.arange(part.first, part.first + metadata.num_actual_tokens)
        rows = rows if part.tokens is None else np.array(part.tokens, np.int64)
        if Half.WRITES in shows:
            write(batch, rows, metadata.slot_mapping[: len(rows)])
        for request in {*owners[rows].tolist()} - {-1}:
            cache = caches[request].reshape(2, -1, kernel_block_size, 1, 2)
            found = reference.paged_attention(queries[rows], cache, metadata, **keywords)
            mine = owners[rows] == request
            output[rows[mine]], lse[rows[mine]] = (state[mine] for state in found)
            assert np.isneginf(found[1][owners[rows] < 0]).all(), "padding attends to keys"
    return output, lse


def _slots(part: Any) -> Array:
    return as_reference(part.metadata).slot_mapping
