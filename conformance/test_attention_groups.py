"""Attention of several KV cache groups, with blocks from one pool and shared memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from conformance.checks.poisoned_cache import PoisonedCache, attention_law
from conformance.execution.invocations import Invocation
from conformance.laws.access import as_reference
from conformance.strategies.attention_groups import (
    OF_GROUPS,
    GroupedStep,
    Model,
    grouped_steps,
    in_order_of_axes,
    models,
)
from conformance.strategies.dense_layer import Array
from conformance.targets.target import Target


def _given_to(built: Any) -> Any:
    """Return the metadata that a builder was given."""
    return built.keywords["common_attn_metadata"]


@attention_law("build_attn_metadata", grouped_steps, goals=OF_GROUPS)
def test_each_group_attends_to_its_own(twin: Target, step: GroupedStep) -> None:
    """Each layer attends over its group's cache through the metadata built for it."""
    built = Invocation(twin, step.call).answer()
    for g, layer in enumerate(step.layers):
        metadata = as_reference(_given_to(built[f"layers.{g}.attn"]))
        cache = PoisonedCache.with_context(layer)
        cache.write(layer.batch, metadata.slot_mapping)
        layer.assert_close_to_dense(cache.attend(metadata))


@contextlib.contextmanager
def _host(view: Any) -> Iterator[Array]:
    """Yield a twin's view of a cache as a NumPy array, and write changes back on exit."""
    if isinstance(view, np.ndarray):
        yield view
        return
    host = view.cpu()
    yield host.numpy()
    if host.device != view.device:
        view.copy_(host)


class _ModelCaches:
    """A twin's caches of a model, filled with NaN except for the context."""

    def __init__(self, twin: Target, model: Model) -> None:
        self.model = model
        made = Invocation(twin, model.call)
        made.answer()
        context = made.arguments["forward_context"]
        self.groups = made.arguments["kv_cache_config"].kv_cache_groups
        self.views = {name: context[name].kv_cache[0] for name in model.call["attn_backends"]}
        self.may_read: dict[str, Array] = {}
        for view in self.views.values():
            with _host(view) as array:
                array[...] = np.nan
        for name in self.views:
            with self.cache(name) as cache:
                cache.remember()

    @contextlib.contextmanager
    def cache(self, name: str) -> Iterator[PoisonedCache]:
        """Yield the cache that a layer uses: its own, or that of its sharing target."""
        owner = self.model.shared.get(name, name)
        backend = self.model.call["attn_backends"][owner]
        with _host(self.views[name]) as array:
            memory = in_order_of_axes(array, backend)
            cache = PoisonedCache(self.model.layers[name], memory, self.may_read.get(owner))
            self.may_read[owner] = cache.may_read
            yield cache

    def write(self, name: str) -> None:
        """Write a layer's keys and values of the step's tokens."""
        batch = self.model.layers[name].batch
        with self.cache(name) as cache:
            cache.write(batch, batch.slot_mapping())

    def attend(self, name: str) -> None:
        """Check a layer's attention."""
        layer = self.model.layers[name]
        with self.cache(name) as cache:
            layer.assert_close_to_dense(cache.attend(layer.batch.metadata()))


def _reads_context(model: Model) -> bool:
    return any(layer.reads_context for layer in model.layers.values())


def _splits_blocks(model: Model) -> bool:
    return any(
        layer.batch.layout.blocks_per_kv_block > 1 and layer.reads_context
        for layer in model.layers.values()
    )


def _orders_memory(model: Model) -> bool:
    backends = model.call["attn_backends"].values()
    return any(backend.is_three_cycle for backend in backends) and _reads_context(model)


@attention_law(
    "init_kv_cache",
    models,
    goals={
        "attention: two groups in one tensor": lambda model: (
            model.is_one_tensor and _reads_context(model)
        ),
        "attention: layers that have tensors of their own": lambda model: not model.is_one_tensor,
        "attention: kernel blocks in the cache": _splits_blocks,
        "attention: memory in another order than the shape": _orders_memory,
    },
)
def test_layers_attend_over_shared_memory(twin: Target, model: Model) -> None:
    """Layers of two groups, over one tensor or two, read back what they wrote to their views."""
    run = _ModelCaches(twin, model)
    for name in run.views:
        run.write(name)
    for name in run.views:
        run.attend(name)


@attention_law(
    "initialize_kv_cache_for_kv_sharing",
    models,
    goals={
        "attention: a layer that reads another's cache": lambda model: (
            bool(model.shared) and model.batch.num_tokens > 0
        ),
        "attention: layers that read one cache": lambda model: (
            len(set(model.shared.values())) < len(model.shared)
        ),
    },
)
def test_sharing_layers_read_their_targets(twin: Target, model: Model) -> None:
    """A layer without its own cache attends over the keys and values that its target wrote."""
    run = _ModelCaches(twin, model)
    arguments = {
        "shared_kv_cache_layers": dict(model.shared),
        "kv_cache_groups": run.groups,
        "kv_caches": run.views,
    }
    with twin.running(checked=True):
        twin.lookup("initialize_kv_cache_for_kv_sharing")(**arguments)
    for name, owner in model.shared.items():
        run.write(owner)
        run.attend(name)
        [group] = [group for group in run.groups if owner in group.layer_names]
        assert name in group.layer_names
