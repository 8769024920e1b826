"""Attention over slots: block tables read back what was written to them, on every rank."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

import reference
from conformance.checks.poisoned_cache import PoisonedCache, as_numpy, attention_law, merged
from conformance.execution.invocations import Invocation
from conformance.strategies.attention import (
    IN_ANY_STEP,
    layers_in_kernel_blocks,
    layers_on_ranks,
    of_layer,
    slots_call,
)
from conformance.strategies.batch import Batch
from conformance.strategies.dense_layer import Layer, State
from conformance.targets.target import Target
from conformance.values.call import Call


def _on_rank(step: Batch, rank: int) -> Batch:
    return dataclasses.replace(step, layout=dataclasses.replace(step.layout, cp_rank=rank))


def _slots(twin: Target, step: Batch) -> Any:
    """Return a step's slots, as a twin computes them."""
    return as_numpy(Invocation(twin, slots_call(step)).answer())


@attention_law(
    "compute_slot_mapping",
    layers_in_kernel_blocks,
    goals=of_layer(*IN_ANY_STEP, "kernel blocks", "not causal"),
    has_kernel=True,
)
def test_paged_attention_is_dense(twin: Target, layer: Layer) -> None:
    """Attention through the block table reads exactly the keys and values written to the slots."""
    cache = PoisonedCache(layer)
    for step in (layer.earlier, layer.batch):
        slots = _slots(twin, step)
        cache.write(step, slots)
    metadata = dataclasses.replace(layer.batch.metadata(), slot_mapping=slots)
    layer.assert_close_to_dense(cache.attend(metadata))


@attention_law(
    "compute_slot_mapping",
    layers_on_ranks,
    goals={
        "attention: several ranks": lambda layer: layer.reads_context,
        "attention: several ranks, an interleave of more than 1": lambda layer: (
            layer.batch.layout.cp_kv_cache_interleave_size > 1 and layer.reads_context
        ),
        "attention: several ranks, kernel blocks": lambda layer: (
            layer.batch.layout.blocks_per_kv_block > 1 and layer.reads_context
        ),
        "attention: several ranks, a prefix in shared blocks": lambda layer: any(layer.shared),
        "attention: several ranks, a sliding window that hides keys": lambda layer: (
            layer.hides_keys
        ),
    },
)
def test_attention_of_ranks_merges(twin: Target, layer: Layer) -> None:
    """The ranks' attention over their local keys, merged, equals attention over all keys."""
    layout = layer.batch.layout
    names = ("cp_world_size", "cp_kv_cache_interleave_size")
    world = {name: getattr(layout, name) for name in names}
    states = []
    for rank in range(layout.cp_world_size):
        cache = PoisonedCache(layer)
        for step in (layer.earlier, layer.batch):
            cache.write(step, _slots(twin, _on_rank(step, rank)))
        states.append(cache.attend(layer.batch.metadata(), cp_rank=rank, **world))
    layer.assert_close_to_dense(merged(states))


@attention_law(
    "map_to_kernel_blocks",
    layers_in_kernel_blocks,
    goals=of_layer("kernel blocks", "a context in scattered blocks", "padded tokens"),
)
def test_kernel_blocks_are_read_alike(twin: Target, layer: Layer) -> None:
    """A kernel with smaller blocks reads the manager's blocks through the mapped table."""
    n = layer.batch.layout.blocks_per_kv_block
    rows = tuple(tuple(block // n for block in row[::n]) for row in layer.batch.rows)
    layout = dataclasses.replace(layer.batch.layout, kernel_block_size=None)
    managers = dataclasses.replace(layer.batch, rows=rows, layout=layout, filler=0)
    cache = PoisonedCache.with_context(dataclasses.replace(layer, batch=managers))
    cache.write(managers, managers.slot_mapping())
    arguments = {"block_ids": managers.block_table(), "blocks_per_kv_block": n}
    table = as_numpy(Invocation(twin, Call("map_to_kernel_blocks", arguments)).answer())
    metadata = dataclasses.replace(managers.metadata(), block_table_tensor=table)
    layer.assert_close_to_dense(cache.in_blocks_of(layer).attend(metadata))


def _round(layer: Layer) -> int:
    layout = layer.batch.layout
    return layout.cp_world_size * layout.cp_kv_cache_interleave_size


@attention_law(
    "get_dcp_local_seq_lens",
    lambda preset: layers_on_ranks(preset, kind="decode"),
    goals={
        **of_layer("a context", "an interleave of more than 1"),
        "attention: a rank that holds nothing": lambda layer: any(
            q and s <= _round(layer) - layer.batch.layout.cp_kv_cache_interleave_size
            for q, s in zip(layer.batch.query_lens, layer.batch.seq_lens, strict=True)
        ),
        "attention: a round of the ranks begun": lambda layer: any(
            q and s > _round(layer) and s % _round(layer)
            for q, s in zip(layer.batch.query_lens, layer.batch.seq_lens, strict=True)
        ),
    },
)
def test_local_lengths_attend_to_all(twin: Target, layer: Layer) -> None:
    """Decode attention over the local lengths of all ranks, merged, covers all keys."""
    batch, layout = layer.batch, layer.batch.layout
    layer = dataclasses.replace(layer, window=None)  # a window counts positions of all ranks
    arguments = {
        "seq_lens": np.array(batch.seq_lens, np.int32),
        "dcp_size": layout.cp_world_size,
        "cp_kv_cache_interleave_size": layout.cp_kv_cache_interleave_size,
    }
    lengths = as_numpy(Invocation(twin, Call("get_dcp_local_seq_lens", arguments)).answer())
    states = []
    for rank in range(layout.cp_world_size):
        cache = PoisonedCache(layer)
        for step in (layer.earlier, batch):
            cache.write(step, _on_rank(step, rank).slot_mapping())
        states.append(_attend_locally(cache, lengths[:, rank].tolist()))
    layer.assert_close_to_dense(merged(states), range(batch.num_tokens))


def _attend_locally(cache: PoisonedCache, lengths: list[int]) -> State:
    """Return the attention of each request's single token over a rank's local keys."""
    batch = cache.layer.batch
    output = np.zeros((batch.num_tokens, *cache.layer.queries.shape[1:]))
    lse = np.full(output.shape[:2], -np.inf)
    for i, length in enumerate(lengths):
        if not batch.query_lens[i] or not length:
            continue
        token = batch.starts[i]
        size = cache.layer.kernel_block_size
        row = batch.block_table()[i, : -(-length // size)]
        keys, values = (
            half[row].reshape(-1, *cache.layer.heads[1:])[:length] for half in cache.as_read_by(i)
        )
        query, mask = cache.layer.queries[[token]], np.full((1, length), fill_value=True)
        output[[token]], lse[[token]] = reference.dense_attention(query, keys, values, mask)
    return output, lse
