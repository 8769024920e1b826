"""KV caches of models: groups of layers of every kind over shared memory, and their backends."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

import reference
from conformance.coverage.presets import Preset
from conformance.strategies import cached as st
from conformance.strategies.backends import Backend, backends
from conformance.strategies.block_size import divisors
from conformance.strategies.kv_binding import forward_contexts, layer_names, shuffled
from conformance.strategies.kv_cache_spec import kind_of
from conformance.strategies.kv_plans import (
    CACHED,
    LAYERS_OF_A_UNIFORM_GROUP,
    Plan,
    plan_of_one_page,
    plan_of_uniform_groups,
)
from conformance.strategies.repeated import MAX_DRAWN
from conformance.targets.factories import DEVICE
from conformance.values.call import Arguments, Call


@dataclasses.dataclass(frozen=True)
class Layer:
    """A layer that has a cache.

    Attributes:
        name: Its name.
        spec: Its KV cache spec.
        tensor: The index of its tensor.
        group: The index of its group, without encoder-only groups.
        has_own_spec: Whether its group has a spec for it; else it has that of its target.
    """

    name: str
    spec: Any
    tensor: int
    group: int
    has_own_spec: bool = True

    @property
    def is_mamba(self) -> bool:
        """Whether it is a Mamba layer."""
        return isinstance(self.spec, reference.MambaSpec)


@dataclasses.dataclass(frozen=True)
class Cache:
    """The KV cache of a model.

    Attributes:
        config: Its configuration.
        layers: The layers that have a cache, in the order of groups.
        backends: The backend of each layer that has one.
        kernel_block_sizes: The size for each group that is not encoder-only; None: the specs' own.
        num_attn_module: Attention modules in a layer, for `extract_layer_index`.
    """

    config: reference.KVCacheConfig
    layers: tuple[Layer, ...]
    backends: dict[str, Backend]
    kernel_block_sizes: list[int] | None
    num_attn_module: int

    @property
    def has_mamba(self) -> bool:
        """Whether it has Mamba layers, so that every block must fill its own page."""
        return any(layer.is_mamba for layer in self.layers)

    @property
    def attention_layers(self) -> list[Layer]:
        """The layers that have a backend."""
        return [layer for layer in self.layers if not layer.is_mamba]

    @property
    def moves_blocks(self) -> bool:
        """Whether the block dimension of some layer must be moved outermost."""
        return self.has_mamba and any(
            self.backends[layer.name].order[0] != self.block_dimension(layer)
            and self.num_blocks(layer) > 1
            for layer in self.attention_layers
        )

    def block_dimension(self, layer: Layer) -> int:
        """Return the dimension of a layer's shape that contains the blocks."""
        shape = self.backends[layer.name].shape
        return next(d for d, axes in enumerate(shape) if "blocks" in axes)

    def num_blocks(self, layer: Layer) -> int:
        """Return the number of blocks in a layer's tensor."""
        return int(self.config.kv_cache_tensors[layer.tensor].size // layer.spec.page_size_bytes)

    def kernel_blocks(self, layer: Layer) -> tuple[int, int]:
        """Return the number of kernel blocks of a layer, and their size."""
        size = layer.spec.block_size
        kernel = self.kernel_block_sizes[layer.group] if self.kernel_block_sizes else size
        return self.num_blocks(layer) * (size // kernel), kernel

    def shape(self, layer: Layer) -> tuple[int, ...]:
        """Return the logical shape of an attention layer's cache."""
        spec, numbers = layer.spec, self.kernel_blocks(layer)
        keyword = getattr(spec, "cache_dtype_str", None)
        keyword = "auto" if keyword is None else keyword
        backend = self.backends[layer.name]
        return tuple(
            map(int, backend.shape_of(*numbers, spec.num_kv_heads, spec.head_size, keyword))
        )


KINDS_OF_GROUPS = ("one page", "one page", "hybrid", "hybrid", "Mamba", "uniform", "uniform")


@st.composite
def caches(draw: st.DrawFn, preset: Preset, *, is_viewed: bool = True) -> Cache:
    """Draw KV caches: attention, hybrid, Mamba-only and uniform groups, or none.

    Without `is_viewed`, a cache has no backends.
    """
    is_uniform = preset.axis == LAYERS_OF_A_UNIFORM_GROUP
    large = ("uniform",) if is_uniform else ("one page", "hybrid")
    kind = draw(st.sampled_from(large if preset.axis else KINDS_OF_GROUPS))
    attention = st.sampled_from(CACHED)
    if kind == "uniform":
        plan = plan_of_uniform_groups(draw, preset)
    else:
        kinds = {
            "one page": draw(st.lists(attention, min_size=int(bool(preset.axis)), max_size=3)),
            "hybrid": shuffled(draw, ["MambaSpec", draw(attention), draw(attention)]),
            "Mamba": ["MambaSpec"] * draw(st.integers(1, 2)),
        }
        plan = plan_of_one_page(draw, preset, tuple(kinds[kind]))
    num_layers = sum(map(len, plan.groups))
    names, num_attn_module = layer_names(draw, preset, num_layers + 1)
    *names, encoder_name = names
    groups, layers = _named_groups(plan, names)
    if draw(st.SOMETIMES):
        spec = _encoder_only(draw, encoder_name)
        group = reference.KVCacheGroupSpec([encoder_name], spec)
        groups.insert(draw(st.integers(0, len(groups))), group)
    shared_by: list[list[str]] = [[] for _ in plan.sizes]
    for layer in shuffled(draw, layers):
        shared_by[layer.tensor].append(layer.name)
    order = shuffled(draw, range(len(plan.sizes)))
    tensors = [reference.KVCacheTensor(plan.sizes[t], shared_by[t]) for t in order]
    places = {t: place for place, t in enumerate(order)}
    layers = [dataclasses.replace(layer, tensor=places[layer.tensor]) for layer in layers]
    config = reference.KVCacheConfig(draw(st.integers(0, 3)), tensors, groups)
    if not is_viewed:
        return Cache(config, tuple(layers), {}, None, num_attn_module)
    sizes = _kernel_block_sizes(draw, groups) if draw(st.booleans()) else None
    drawn = _backends(draw, layers)
    if draw(st.booleans()):
        drawn[encoder_name] = Backend()
    return Cache(config, tuple(layers), drawn, sizes, num_attn_module)


def _named_groups(
    plan: Plan, names: list[str]
) -> tuple[list[reference.KVCacheGroupSpec], list[Layer]]:
    """Return the groups and the layers of a plan, with names."""
    groups, layers = [], []
    rest = iter(names)
    for g, (members, spec) in enumerate(zip(plan.groups, plan.specs, strict=True)):
        own = [Layer(next(rest), inner, t, g, has_own) for t, inner, has_own in members]
        whole = spec
        if isinstance(spec, int):
            inner_specs = {layer.name: layer.spec for layer in own if layer.has_own_spec}
            whole = reference.UniformTypeKVCacheSpecs(spec, inner_specs)
        groups.append(reference.KVCacheGroupSpec([layer.name for layer in own], whole))
        layers += own
    return groups, layers


def _encoder_only(draw: st.DrawFn, name: str) -> Any:
    spec = reference.EncoderOnlyAttentionSpec(draw(st.integers(1, 4)), 1, 2, np.float16)
    if draw(st.booleans()):
        return reference.UniformTypeKVCacheSpecs(spec.block_size, {name: spec})
    return spec


def is_encoder_only(spec: Any) -> bool:
    """Return whether a group is encoder-only, so that its layers have no cache."""
    return kind_of(spec) == "EncoderOnlyAttentionSpec"


def _kernel_block_sizes(draw: st.DrawFn, groups: list[reference.KVCacheGroupSpec]) -> list[int]:
    """Draw a kernel block size for each group with a cache: a divisor, or any for Mamba only."""
    found = []
    turns = draw(st.lists(st.integers(0, 59), min_size=1, max_size=MAX_DRAWN))
    for g, group in enumerate(groups):
        turn = turns[g % len(turns)]
        spec: Any = group.kv_cache_spec
        inner = list(getattr(spec, "kv_cache_specs", {"": spec}).values())
        are_mamba = {isinstance(one, reference.MambaSpec) for one in inner}
        if is_encoder_only(spec):
            continue
        if are_mamba == {True}:
            found.append(1 + turn % 7)
        elif isinstance(inner[0], reference.MambaSpec):
            found.append(spec.block_size)
        else:
            known = divisors(spec.block_size)
            found.append(known[turn % len(known)])
    return found


def _backends(draw: st.DrawFn, layers: list[Layer]) -> dict[str, Backend]:
    """Draw the backend of each layer; similar layers of a group may share one."""
    found: dict[str, Backend] = {}
    has_needless = draw(st.booleans())
    made: dict[tuple[int, bool, bool], Backend] = {}
    for layer in layers:
        if layer.is_mamba:
            if has_needless:
                found[layer.name] = Backend(name="MAMBA")
            continue
        has_kv = not isinstance(layer.spec, reference.MLAAttentionSpec)
        knows_dtype = getattr(layer.spec, "cache_dtype_str", None) is not None
        key = layer.group % MAX_DRAWN, has_kv, knows_dtype
        if key not in made or (len(found) < MAX_DRAWN and draw(st.SOMETIMES)):
            backend = draw(backends(has_kv=has_kv))
            made[key] = dataclasses.replace(backend, knows_dtype=knows_dtype)
        found[layer.name] = made[key]
    return found


@st.composite
def allocate_calls(draw: st.DrawFn, preset: Preset) -> Call:
    """Draw calls of `_allocate_kv_cache`."""
    cache = draw(caches(preset, is_viewed=False))
    arguments: Arguments = {"kv_cache_config": cache.config, "device": DEVICE}
    return Call("_allocate_kv_cache", arguments, cache)


@st.composite
def init_calls(draw: st.DrawFn, preset: Preset) -> Call:
    """Draw calls of `init_kv_cache`."""
    cache = draw(caches(preset))
    arguments: Arguments = {
        "runner_kv_caches": [],
        "forward_context": forward_contexts(draw, preset, [one.name for one in cache.layers]),
        "kv_cache_config": cache.config,
        "attn_backends": cache.backends,
        "device": DEVICE,
    }
    if cache.kernel_block_sizes is not None or draw(st.booleans()):
        arguments["kernel_block_sizes"] = cache.kernel_block_sizes
    if cache.num_attn_module != 1 or draw(st.booleans()):
        arguments["num_attn_module"] = cache.num_attn_module
    return Call("init_kv_cache", arguments, cache)
