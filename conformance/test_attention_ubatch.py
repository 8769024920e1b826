"""Attention of micro-batches, run one after the other, equals that of the whole batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import reference
from conformance.checks.poisoned_cache import PoisonedCache, attention_law, joined
from conformance.execution.invocations import Invocation
from conformance.laws.access import as_reference
from conformance.strategies.attention import IN_ANY_STEP, Example, of_layer
from conformance.strategies.attention_calls import cut_layers, scheduled_layers, sliced_layers
from conformance.strategies.dense_layer import Layer
from conformance.targets.target import Target
from conformance.values.call import Call


def _attend_in_turn(
    layer: Layer, slices: Sequence[reference.UBatchSlice], parts: Sequence[Any]
) -> None:
    """Run micro-batches in order, each over the tokens written so far."""
    cache = PoisonedCache.with_context(layer)
    states = []
    for ubatch, part in zip(slices, map(as_reference, parts), strict=True):
        cache.write(layer.batch, part.slot_mapping, ubatch.token_slice)
        states.append(cache.attend(part, ubatch.token_slice))
    if states:
        layer.assert_close_to_dense(joined(states), range(slices[-1].token_slice.stop))


def _slices(example: Example) -> list[reference.UBatchSlice]:
    slices: list[reference.UBatchSlice] = example.call["ubatch_slices"]
    return slices


def _pieces(example: Example) -> int:
    """Return the largest number of micro-batches that a request is in."""
    batch = example.batch
    edges = [
        (batch.starts[i], batch.starts[i + 1]) for i, q in enumerate(batch.query_lens) if q > 0
    ]
    counts = [
        sum(s.token_slice.start < end and s.token_slice.stop > start for s in _slices(example))
        for start, end in edges
    ]
    return max(counts, default=0)


@attention_law(
    "split_attn_metadata",
    cut_layers,
    goals={
        **of_layer(*IN_ANY_STEP),
        "attention: two micro-batches": lambda example: len(_slices(example)) == 2,
        "attention: three micro-batches or more": lambda example: len(_slices(example)) > 2,
        "attention: a request in two": lambda example: _pieces(example) == 2,
        "attention: a request in three or more": lambda example: _pieces(example) > 2,
        "attention: one of padding alone": lambda example: any(
            s.token_slice.start >= example.batch.num_tokens for s in _slices(example)
        ),
        "attention: not causal, cut between requests": lambda example: (
            not example.batch.causal and len(_slices(example)) > 1
        ),
    },
)
def test_micro_batches_concatenate(twin: Target, example: Example) -> None:
    """The attention of micro-batches, run in order, equals that of the whole batch."""
    parts = Invocation(twin, example.call).answer()
    _attend_in_turn(example.layer, _slices(example), parts)


@attention_law(
    "create_ubatch_slices",
    scheduled_layers,
    goals={
        "attention: cut into its own slices": lambda example: (
            bool(example.call["split_points"]) and example.layer.reads_context
        ),
        "attention: cut into three of its own slices or more": lambda example: (
            len(example.call["split_points"]) > 1 and example.layer.reads_context
        ),
    },
)
def test_its_slices_concatenate(twin: Target, example: Example) -> None:
    """The created slices cover all tokens, and splitting at them keeps the batch's attention."""
    num_tokens = example.batch.num_tokens
    if not num_tokens:
        return
    metadata = example.batch.metadata()
    with twin.running(checked=True):
        made = Invocation(twin, example.call).run()
        slices = [reference.UBatchSlice(s.request_slice, s.token_slice) for s in made]
        arguments = {"ubatch_slices": slices, "common_attn_metadata": metadata}
        parts = Invocation(twin, Call("split_attn_metadata", arguments)).run()
    assert num_tokens == slices[-1].token_slice.stop
    _attend_in_turn(example.layer, slices, parts)


def _tokens(example: Example) -> tuple[int, int]:
    """Return the first token of a slice, and the one after its last."""
    ubatch = example.call["ubatch_slice"]
    return (ubatch.token_slice.start, ubatch.token_slice.stop) if ubatch else (0, 0)


@attention_law(
    "_make_metadata_with_slice",
    sliced_layers,
    goals={
        **of_layer("a context in scattered blocks"),
        "attention: tokens before the slice": lambda example: (
            0 < _tokens(example)[0] < example.batch.num_tokens
        ),
        "attention: tokens after the slice": lambda example: (
            0 < _tokens(example)[1] < example.batch.num_tokens
        ),
    },
)
def test_a_slice_attends_to_what_came_before(twin: Target, example: Example) -> None:
    """A micro-batch attends to the tokens before it and its own; later ones are not written."""
    layer, (first, stop) = example.layer, _tokens(example)
    if not stop:
        return
    part = as_reference(Invocation(twin, example.call).answer())
    cache = PoisonedCache.with_context(layer)
    cache.write(layer.batch, layer.batch.slot_mapping(), slice(0, first))
    cache.write(layer.batch, part.slot_mapping, slice(first, stop))
    layer.assert_close_to_dense(cache.attend(part, slice(first, stop)), range(first, stop))
