"""The size axes of a KV cache, for the functions that allocate, view and bind it."""

from __future__ import annotations

from typing import Any

from conformance.coverage.size_axes import Axes, Axis, of_objects
from conformance.strategies.kv_cache import Layer
from conformance.strategies.kv_plans import (
    BLOCKS,
    GROUPS,
    LAYERS_OF_A_UNIFORM_GROUP,
    TENSORS,
)
from conformance.values.call import Call


def tensors_of(call: Call) -> list[Any]:
    """Return the tensors of the cache's configuration."""
    tensors: list[Any] = call.source.config.kv_cache_tensors
    return tensors


def _num_blocks(call: Call) -> int:
    return min(map(call.source.num_blocks, call.source.layers), default=0)


def _is_of_uniform_group(call: Call, layer: Layer) -> bool:
    return any(
        layer.name in getattr(group.kv_cache_spec, "kv_cache_specs", {})
        for group in call.source.config.kv_cache_groups
    )


AXES: Axes = {
    GROUPS: of_objects(lambda call: len({layer.group for layer in call.source.layers}), last=257),
    TENSORS: of_objects(lambda call: len(tensors_of(call)), 1, last=257),
    LAYERS_OF_A_UNIFORM_GROUP: of_objects(
        lambda call: len([one for one in call.source.layers if _is_of_uniform_group(call, one)]),
        1,
        last=257,
    ),
    BLOCKS: Axis(_num_blocks, 4097, "all bytes are compared"),
}
"""The axes, for calls whose source is a `Cache`."""
