"""Attention through the results of the batch functions, computed in float64 and compared.

An earlier step writes each context, through slots, into a cache that is NaN everywhere else. The
current step writes its tokens, and attention reads through the metadata under test. This module
covers the functions that rewrite a batch; `test_attention_slots`, `test_attention_ubatch`,
`test_attention_tables` and `test_attention_groups` cover the others.
"""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np

import reference
from conformance.checks.poisoned_cache import PoisonedCache, as_numpy, attention_law, joined
from conformance.execution.invocations import Invocation
from conformance.laws.access import as_reference
from conformance.strategies.attention import Example, of_layer
from conformance.strategies.attention_calls import (
    chunked_layers,
    fast_prefill_layers,
    misordered_layers,
    unpadded_layers,
)
from conformance.strategies.batch import Batch
from conformance.strategies.dense_layer import State
from conformance.targets.target import Target
from conformance.values.call import Call


def _chunks(example: Example) -> list[tuple[int, int]]:
    """Return the indices of the first and the last chunk of each request with tokens."""
    chunk, batch = example.layer.chunk or 1, example.batch
    pairs = zip(batch.num_computed_tokens, batch.query_lens, strict=True)
    return [(c // chunk, (c + q - 1) // chunk) for c, q in pairs if q]


@attention_law(
    "make_local_attention_virtual_batches",
    chunked_layers,
    goals={
        **of_layer("a context in scattered blocks", "a prefix in shared blocks", "padded tokens"),
        "attention: queries in several chunks": lambda example: any(
            first < last for first, last in _chunks(example)
        ),
        "attention: a whole chunk before the first query": lambda example: any(
            first > 0 for first, _ in _chunks(example)
        ),
    },
)
def test_virtual_batches_attend_in_chunks(twin: Target, example: Example) -> None:
    """Plain attention of the virtual requests equals attention with a chunk mask."""
    virtual = as_reference(Invocation(twin, example.call).answer())
    cache = PoisonedCache.with_context(example.layer)
    cache.write(example.batch, virtual.slot_mapping)
    example.layer.assert_close_to_dense(cache.attend(virtual))


@attention_law(
    "CommonAttentionMetadata.unpadded",
    unpadded_layers,
    goals={
        "attention: padding taken off": lambda example: (
            example.call["num_actual_tokens"] == example.batch.num_tokens
            and example.batch.num_actual_tokens > example.batch.num_tokens > 0
        ),
        "attention: requests taken off": lambda example: (
            example.batch.starts[example.call["num_actual_reqs"]] < example.batch.num_tokens
        ),
    },
)
def test_unpadded_attends_alike(twin: Target, example: Example) -> None:
    """Actual tokens attend to the same keys as in the padded batch; padding attends to none."""
    layer = example.layer
    num_tokens = layer.batch.starts[example.call["num_actual_reqs"]]
    part = as_reference(Invocation(twin, example.call).answer())
    cache = PoisonedCache.with_context(layer)
    cache.write(layer.batch, part.slot_mapping[:num_tokens], slice(0, num_tokens))
    output, lse = cache.attend(part)
    layer.assert_close_to_dense((output[:num_tokens], lse[:num_tokens]), range(num_tokens))
    assert not output[num_tokens:].any()
    assert np.isneginf(lse[num_tokens:]).all()


def _num_logits(example: Example) -> list[tuple[int, int]]:
    """Return the number of logits and of tokens of each request."""
    batch = example.batch
    edges = itertools.pairwise(batch.starts)
    return [(sum(a <= token < b for token in example.logits_tokens), b - a) for a, b in edges]


@attention_law(
    "make_kv_sharing_fast_prefill_common_attn_metadata",
    fast_prefill_layers,
    goals={
        **of_layer("a context", "a prefix in shared blocks", "a sliding window that hides keys"),
        "attention: several rows of a request, not all": lambda example: any(
            1 < logits_tokens < tokens for logits_tokens, tokens in _num_logits(example)
        ),
        "attention: no row of a request before one with some": lambda example: any(
            not logits_tokens and tokens and any(more for more, _ in _num_logits(example)[i:])
            for i, (logits_tokens, tokens) in enumerate(_num_logits(example))
        ),
        "attention: all rows, by a metadata that comes back": lambda example: (
            example.call["common_attn_metadata"].logits_indices_padded is None
        ),
    },
    has_kernel=True,
)
def test_fast_prefill_gives_its_rows(twin: Target, example: Example) -> None:
    """For a KV-sharing layer, the rows of the tokens with logits equal those of the whole batch."""
    layer, logits_tokens = example.layer, list(example.logits_tokens)
    made = as_reference(Invocation(twin, example.call).answer())
    cache = PoisonedCache.with_context(layer)
    cache.write(layer.batch, made.slot_mapping)
    layer.assert_close_to_dense(cache.attend(made, logits_tokens), logits_tokens)


def _regions(batch: Batch, threshold: int) -> list[int]:
    """Return the region of each request: 0 for a decode, 1 for an extend, 2 for a prefill."""
    pairs = zip(batch.query_lens, batch.num_computed_tokens, strict=True)
    return [0 if q <= threshold else 1 if c else 2 for q, c in pairs]


def _is_out_of_order(example: Example) -> bool:
    is_long = [r > 0 for r in _regions(example.batch, example.call["decode_threshold"])]
    return is_long != sorted(is_long)


def _is_near_threshold(example: Example) -> bool:
    """Return whether a decode at the threshold, of several tokens, follows a longer request."""
    threshold, lens = example.call["decode_threshold"], example.batch.query_lens
    return any(q == threshold > 1 and max(lens[:i], default=0) > q for i, q in enumerate(lens))


def _has_prefills_first(example: Example) -> bool:
    regions = _regions(example.batch, example.call["decode_threshold"])
    return 1 in regions and 2 in regions[: max(i for i, r in enumerate(regions) if r == 1)]


@attention_law(
    "reorder_batch_to_split_decodes_and_prefills",
    misordered_layers,
    goals={
        **of_layer("a context in scattered blocks", "padded tokens"),
        "attention: decodes after others": _is_out_of_order,
        "attention: extends after prefills": _has_prefills_first,
        "attention: a decode of as many tokens as one may have, after others": _is_near_threshold,
        "attention: decodes after others, of one prefix": lambda example: (
            _is_out_of_order(example) and any(example.layer.shared)
        ),
    },
)
def test_reordering_permutes_rows(twin: Target, example: Example) -> None:
    """After reordering, with decodes run separately, each request's attention is unchanged."""
    layer, before = example.layer, example.batch
    threshold = example.call["decode_threshold"]
    reordering = Invocation(twin, example.call)
    reordering.answer()
    moved = reordering.arguments["input_batch"]
    order = [int(name[1:]) for name in moved.req_ids]
    after = dataclasses.replace(
        before,
        query_lens=tuple(before.query_lens[i] for i in order),
        num_computed_tokens=tuple(as_numpy(moved.num_computed_tokens_cpu).tolist()),
        rows=tuple(before.rows[i] for i in order),
    )
    tokens = [before.starts[i] + j for i in order for j in range(before.query_lens[i])]
    tokens += range(before.num_tokens, before.num_actual_tokens)
    arguments = {"common_attn_metadata": after.metadata(), "decode_threshold": threshold}
    with twin.running(checked=True):
        decodes, _, decode_tokens, _ = Invocation(
            twin, Call("split_decodes_and_prefills", arguments)
        ).run()
    regions = _regions(after, threshold)
    assert sorted(regions) == regions
    assert regions.count(0) == decodes
    cache = PoisonedCache.with_context(layer)
    cache.write(before, after.slot_mapping(), tokens)
    layer.assert_close_to_dense(
        _attend_by_kind(cache, after, decodes, decode_tokens, tokens), tokens
    )


def _attend_by_kind(
    cache: PoisonedCache, batch: Batch, decodes: int, decode_tokens: int, tokens: list[int]
) -> State:
    """Return the attention of the decodes and of the other requests, computed separately."""
    whole = batch.metadata()
    first = cache.attend(whole.unpadded(decode_tokens, decodes), tokens[:decode_tokens])
    if decodes == batch.num_reqs:
        return first
    others = slice(decodes, batch.num_reqs), slice(decode_tokens, batch.num_actual_tokens)
    rest = reference._make_metadata_with_slice(  # noqa: SLF001  # public
        reference.UBatchSlice(*others), whole
    )
    return joined([first, cache.attend(rest, tokens[decode_tokens:])])
