"""Attention layers of several KV cache groups in one step, and the caches that they share."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

import reference
from conformance.coverage.presets import Preset
from conformance.strategies import cached as st
from conformance.strategies.attention import HEADS, in_pool, layers, pool_size, shuffled_ids
from conformance.strategies.attn_metadata import regrouped, step_arguments
from conformance.strategies.backends import SPLIT, Backend
from conformance.strategies.batch import Batch, Layout
from conformance.strategies.dense_layer import Layer
from conformance.strategies.kv_binding import forward_contexts, shuffled
from conformance.strategies.stub_factories import BuilderClass
from conformance.targets.factories import DEVICE
from conformance.values.call import Arguments, Call


@st.composite
def groups(draw: st.DrawFn, preset: Preset) -> tuple[Layer, ...]:
    """Draw a step of several KV cache groups, with blocks of different sizes from one pool.

    Some groups have sliding windows, and some of those have freed the blocks before the window.
    """
    count = draw(st.sampled_from((2, 2, 3, 1)))
    first = draw(layers(preset, is_causal=True))
    sizes = [draw(st.sampled_from((2, 3, 4, 6))) for _ in range(count - 1)]
    heads = [first.heads, *(draw(st.sampled_from(HEADS)) for _ in sizes)]
    return _in_one_pool(draw, first, sizes, heads)


def _in_one_pool(
    draw: st.DrawFn, first: Layer, sizes: list[int], heads: list[tuple[int, int, int]]
) -> tuple[Layer, ...]:
    """Draw a layer for each group of a step; `sizes` are the block sizes after the first."""
    layouts = map(Layout, sizes)
    seen = [
        first.batch,
        *(regrouped(first.batch, g, layout) for g, layout in enumerate(layouts, 1)),
    ]
    total = sum(map(pool_size, seen))
    ids = shuffled_ids(total, first.seed)
    found = []
    for g, batch in enumerate(seen):
        window = first.window if g == 0 else draw(st.sampled_from((None, 1, 2, 5)))
        layer = Layer(in_pool(batch, ids), total + 1, heads[g], first.seed + 2 * g, window)
        gives_up = window is not None and not any(layer.shared) and draw(st.booleans())
        found.append(_without_old_blocks(layer) if gives_up else layer)
    return tuple(found)


def _without_old_blocks(layer: Layer) -> Layer:
    """Return a layer with null blocks in place of those before the window of all its tokens."""
    batch, size = layer.batch, layer.batch.layout.block_size
    window = layer.window or 1
    counts = [max(c - window + 1, 0) // size for c in batch.num_computed_tokens]
    rows = tuple(
        (reference.NULL_BLOCK_ID,) * count + row[count:]
        for count, row in zip(counts, batch.rows, strict=True)
    )
    num_freed_tokens = tuple(count * size for count in counts)
    return dataclasses.replace(
        layer, batch=dataclasses.replace(batch, rows=rows), num_freed_tokens=num_freed_tokens
    )


@dataclasses.dataclass(frozen=True)
class MovedLayers:
    """A step of several KV cache groups, with the rows of its requests in a runner's tables.

    Attributes:
        layers: The layer of each KV cache group.
        slots: The request slot of each request.
        max_num_reqs: How many request slots there are.
        has_old_blocks: Whether the rows contain blocks of earlier requests.
        moves: Pairs of request slots to move between the context and the step: swapped if both
            are occupied, else the first is moved to the second.
    """

    layers: tuple[Layer, ...]
    slots: tuple[int, ...]
    max_num_reqs: int
    has_old_blocks: bool
    moves: tuple[tuple[int, int], ...]

    @property
    def batch(self) -> Batch:
        """Return the step with the blocks of the first group."""
        return self.layers[0].batch


@st.composite
def moved_layers(draw: st.DrawFn, preset: Preset) -> MovedLayers:
    """Draw a step of several groups with its requests in any rows of the block tables."""
    seen = draw(groups(preset))
    num_reqs = seen[0].batch.num_reqs
    maximum = num_reqs + draw(st.integers(0, 2))
    slot = st.integers(0, max(maximum - 1, 0))
    moves = draw(st.lists(st.tuples(slot, slot), max_size=2)) if num_reqs else []
    slots = draw(st.permutations(range(maximum)))[:num_reqs]
    return MovedLayers(seen, tuple(slots), max(maximum, 1), draw(st.booleans()), tuple(moves))


@dataclasses.dataclass(frozen=True)
class GroupedStep:
    """A call of `build_attn_metadata`, with one attention layer for each group.

    Attributes:
        layers: The layer of each KV cache group.
        call: The call.
    """

    layers: tuple[Layer, ...]
    call: Call

    @property
    def batch(self) -> Batch:
        """Return the step with the blocks of the first group."""
        return self.layers[0].batch


@st.composite
def grouped_steps(draw: st.DrawFn, preset: Preset) -> GroupedStep:
    """Draw calls of `build_attn_metadata`."""
    seen = draw(groups(preset))
    batch = seen[0].batch
    old = draw(st.sampled_from(((), (2**30,))))
    cls = BuilderClass(is_own=draw(st.booleans()))
    names = [[f"layers.{g}.attn"] for g in range(len(seen))]
    arguments = step_arguments(batch, [layer.batch for layer in seen], names, cls, (old, old))
    return GroupedStep(seen, Call("build_attn_metadata", arguments, batch))


@dataclasses.dataclass(frozen=True)
class Model:
    """Layers of several groups over shared tensors, and layers that share others' caches.

    Attributes:
        layers: The layers by name; a sharing layer has its own queries, and the keys and values of
            its target.
        call: The call of `init_kv_cache`.
        shared: The target of each sharing layer.
        is_one_tensor: Whether layers of two groups lie in one tensor.
    """

    layers: dict[str, Layer]
    call: Call
    shared: dict[str, str]
    is_one_tensor: bool

    @property
    def batch(self) -> Batch:
        """Return the step with the blocks of the first group."""
        return next(iter(self.layers.values())).batch


PAGES = (((2, 2), (4, 1)), ((4, 2), (2, 4)), ((4, 1), (4, 1)), ((6, 1), (2, 3)))
"""Block sizes and KV heads of two groups with pages of the same size in bytes."""


@st.composite
def models(draw: st.DrawFn, preset: Preset) -> Model:
    """Draw calls of `init_kv_cache`: two groups, whose k-th layers lie in one tensor or apart."""
    (block_size, kv_heads), other = draw(st.sampled_from(PAGES))
    size = draw(st.sampled_from((1, 2, 3)))
    first = draw(layers(preset, layout=Layout(block_size), is_causal=True))
    heads = [(2 * h, h, size) for h in (kv_heads, other[1])]
    seen = _in_one_pool(draw, dataclasses.replace(first, heads=heads[0]), [other[0]], heads)
    kernel_sizes = [draw(st.sampled_from((s, 2))) for s in (block_size, other[0])]
    is_one_tensor = draw(st.MOSTLY)
    found: dict[str, Layer] = {}
    tensors: dict[str, list[str]] = {}
    config_groups = []
    depth = draw(st.sampled_from((2, 2, 1)))
    for g, layer in enumerate(seen):
        names = [f"layers.{2 * k + g}.attn" for k in range(depth)]
        spec = reference.FullAttentionSpec(
            layer.batch.layout.block_size, layer.heads[1], size, np.dtype(np.float32)
        )
        config_groups.append(reference.KVCacheGroupSpec(names, spec))
        for k, name in enumerate(names):
            own = dataclasses.replace(layer, seed=layer.seed + 10 * (k + 1))
            found[name] = in_kernel_blocks(own, kernel_sizes[g])
            tensors.setdefault(f"{k}" if is_one_tensor else name, []).append(name)
    page_bytes = 2 * block_size * kv_heads * size * 4
    num_bytes = seen[0].num_blocks * page_bytes
    arguments: Arguments = {
        "runner_kv_caches": [],
        "forward_context": forward_contexts(draw, preset, list(found)),
        "kv_cache_config": reference.KVCacheConfig(
            seen[0].num_blocks,
            [reference.KVCacheTensor(num_bytes, shuffled(draw, n)) for n in tensors.values()],
            config_groups,
        ),
        "attn_backends": _backends(
            draw, [group.layer_names for group in config_groups], is_one_tensor=is_one_tensor
        ),
        "device": DEVICE,
        "kernel_block_sizes": kernel_sizes,
    }
    shared = _sharing(draw, list(found))
    for name, target in shared.items():
        found[name] = dataclasses.replace(found[target], query_seed=1)
    call = Call("init_kv_cache", arguments, first.batch)
    return Model(found, call, shared, is_one_tensor=is_one_tensor)


def in_kernel_blocks(layer: Layer, size: int) -> Layer:
    """Return a layer whose table lists kernel blocks of a size that divides the manager's."""
    batch = layer.batch
    n = batch.layout.block_size // size
    rows = tuple(tuple(block * n + k for block in row for k in range(n)) for row in batch.rows)
    layout = dataclasses.replace(batch.layout, kernel_block_size=size)
    return dataclasses.replace(layer, batch=dataclasses.replace(batch, layout=layout, rows=rows))


def _backends(
    draw: st.DrawFn, names: list[list[str]], *, is_one_tensor: bool
) -> dict[str, Backend]:
    """Draw backends of any shape and stride order, usually one for each group.

    Over one tensor, the backends of all groups must place each block in the same bytes.
    """
    are_blocks_first = draw(st.booleans())
    found: dict[str, Backend] = {}
    for of_group in names:
        for k, name in enumerate(of_group):
            if k and not draw(st.RARELY):
                found[name] = found[of_group[0]]
                continue
            shape = draw(st.permutations(SPLIT))
            if not is_one_tensor:
                memory = draw(st.permutations(SPLIT))
            elif are_blocks_first:
                memory = [SPLIT[1], *draw(st.permutations((SPLIT[0], *SPLIT[2:])))]
            else:
                memory = [*SPLIT[:2], *draw(st.permutations(SPLIT[2:]))]
            order = tuple(shape.index(axis) for axis in memory)
            found[name] = Backend(shape=tuple(shape), stride_order=order)
    return found


def _sharing(draw: st.DrawFn, names: list[str]) -> dict[str, str]:
    """Draw layers without a cache, and the layers whose caches they share."""
    count = draw(st.sampled_from((1, 2, 0)))
    return {f"layers.{20 + i}.attn": draw(st.sampled_from(names)) for i in range(count)}


def in_order_of_axes(view: Any, backend: Backend) -> Any:
    """Return a backend's view of a cache with its axes in the order of `SPLIT`."""
    return view.transpose([backend.shape.index(axis) for axis in SPLIT])


OF_GROUPS: dict[str, Callable[[Any], bool]] = {
    "attention: groups with blocks of different sizes": lambda example: (
        len({layer.batch.layout.block_size for layer in example.layers}) > 1
        and example.layers[0].reads_context
    ),
    "attention: groups with unlike windows, that hide keys": lambda example: (
        len({layer.window for layer in example.layers}) > 1
        and any(layer.hides_keys for layer in example.layers)
    ),
    "attention: blocks given up after a window": lambda example: any(
        any(layer.num_freed_tokens) for layer in example.layers
    ),
    "attention: a group that shares a prefix": lambda example: any(
        any(layer.shared) for layer in example.layers
    ),
}
"""Coverage goals of a step of several groups."""
