"""Calls of the functions that find layers, and make their specs and metadata builders."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Final

import ml_dtypes
import numpy as np
from hypothesis.strategies import SearchStrategy

import reference
from conformance.coverage.presets import Preset
from conformance.strategies import cached as st
from conformance.strategies.kv_binding import shuffled
from conformance.strategies.repeated import lists, repeated
from conformance.strategies.stub_factories import (
    WORKSPACE_METHODS,
    BackendClass,
    BuilderClass,
    Own,
    OwnClass,
)
from conformance.targets.factories import DEVICE
from conformance.values.call import Call

LAYERS: Final = "layers"
GROUPS: Final = "groups"
LAYERS_OF_A_GROUP: Final = "layers of a group"
BLOCK_SIZE: Final = "block size"
HEADS: Final = "heads"
HEAD_SIZE: Final = "head size"
WINDOW: Final = "window"

ATTENTION = OwnClass("Attention")
MLA_ATTENTION = OwnClass("MLAAttention", ATTENTION)
MIXER = OwnClass("MambaMixer")
MOE = OwnClass("FusedMoE")

ENGINE_CONFIG = OwnClass("EngineConfig")

DTYPES = (
    *(np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.uint8)),
    *(np.dtype(ml_dtypes.bfloat16), np.dtype(ml_dtypes.float8_e4m3fn), np.float16),
)
"""Dtypes of a cache; the last is a NumPy scalar type."""


def own_config(**parts: Any) -> Own:
    """Return an engine's own configuration, which has these parts and nothing else."""
    return Own(ENGINE_CONFIG, "the engine's", parts)


def config_of(context: Mapping[str, Any], *, is_own: bool, **parts: Any) -> Any:
    """Return a configuration with these layers.

    Args:
        context: The layers by name.
        is_own: Whether it is an engine's own, without other attributes.
        **parts: Its other parts, objects of `reference`.
    """
    if not is_own:
        compilation = reference.CompilationConfig(static_forward_context=dict(context))
        return reference.VllmConfig(compilation_config=compilation, **parts)
    compilation_config = own_config(static_forward_context=dict(context))
    own_parts = {name: own_config(**vars(part)) for name, part in parts.items()}
    return own_config(compilation_config=compilation_config, **own_parts)


def context_of(config: Any) -> dict[str, Any]:
    """Return the layers of a configuration that `config_of` made."""
    for part in ("compilation_config", "static_forward_context"):
        config = (config.attributes if isinstance(config, Own) else vars(config))[part]
    return dict(config)


def number(draw: st.DrawFn, values: SearchStrategy[int]) -> Any:
    """Draw a Python or NumPy int."""
    value = draw(values)
    kind = draw(st.sampled_from((int, int, np.int32, np.int64)))
    return kind(value) if value < 2**31 else value


def full_spec(block_size: int = 16, num_kv_heads: int = 2) -> reference.FullAttentionSpec:
    """Return the KV cache spec of a full-attention layer."""
    return reference.FullAttentionSpec(block_size, num_kv_heads, 8, np.dtype(np.float16))


@st.composite
def builder_classes(draw: st.DrawFn, *, methods: Sequence[str] = ()) -> BuilderClass:
    """Draw builder classes: subclasses of `AttentionMetadataBuilder`, and an engine's own."""
    return BuilderClass(draw(st.booleans()), tuple(methods))


@st.composite
def get_layers_calls(draw: st.DrawFn, preset: Preset) -> Call:
    """Draw calls of `get_layers_from_vllm_config`: layers of all kinds, some of them named."""
    known = st.sampled_from((ATTENTION, MLA_ATTENTION, MIXER, MOE))
    kinds = lists(draw, preset, LAYERS, known, max_size=min(preset.max_num_reqs, 6))
    names = [f"layers.{i}" for i in shuffled(draw, range(len(kinds)))]
    context = {name: Own(cls, name) for name, cls in zip(names, kinds, strict=True)}
    arguments: dict[str, Any] = {
        "vllm_config": config_of(context, is_own=draw(st.booleans())),
        "layer_type": draw(st.sampled_from((ATTENTION, ATTENTION, MLA_ATTENTION, MIXER))),
    }
    how = draw(st.sampled_from(("omitted", "None", "some", "some", "others")))
    if how == "None":
        arguments["layer_names"] = None
    elif how != "omitted":
        few = draw(st.one_of(st.integers(0, len(names)), st.just(len(names))))
        arguments["layer_names"] = shuffled(draw, names)[:few]
    return Call("get_layers_from_vllm_config", arguments, context)


LAYER_KINDS = ("full", "window", "full", "window", "shares", "shares bare", "shares window")
OTHER_KINDS = ("no attention", "no attention, with a window")


VALUES = (BLOCK_SIZE, HEADS, HEAD_SIZE, WINDOW)
"""The axes that are values of a layer's spec."""


@st.composite
def _layers(draw: st.DrawFn, preset: Preset) -> tuple[str, Own]:
    """Draw a layer's kind, and the layer, without a name."""
    kinds = ("window",) if preset.axis in VALUES else (*LAYER_KINDS, *OTHER_KINDS)
    kind = draw(st.sampled_from(kinds))
    if kind == "shares bare":
        # No other attribute may be read.
        target = {"kv_sharing_target_layer_name": "layers.0", "attn_type": "encoder"}
        return kind, Own(ATTENTION, "", target)
    windows = preset.sizes(WINDOW, st.sampled_from((1, 4, 4096)))
    attributes = {
        "attn_type": reference.AttentionType.DECODER,
        "num_kv_heads": number(draw, preset.sizes(HEADS, st.sampled_from((1, 2, 8)))),
        "head_size": number(draw, preset.sizes(HEAD_SIZE, st.sampled_from((1, 64, 128)))),
        "sliding_window": number(draw, windows) if "window" in kind else None,
    }
    if kind.startswith("no attention"):
        del attributes["attn_type"]
        return kind, Own(MOE, "", attributes if "window" in kind else {})
    if kind.startswith("shares"):
        # An empty name is a name.
        attributes["kv_sharing_target_layer_name"] = draw(st.sampled_from(("layers.0", "")))
    elif draw(st.booleans()):
        attributes["kv_sharing_target_layer_name"] = None
    return kind, Own(ATTENTION, "", attributes)


@st.composite
def get_kv_cache_spec_calls(draw: st.DrawFn, preset: Preset) -> Call:
    """Draw calls of `get_kv_cache_spec`; the source is the kinds of the layers by name."""
    drawn = _layers(preset)
    layers = lists(draw, preset, LAYERS, drawn, max_size=min(preset.max_num_reqs, 6))
    if preset.axis in VALUES:
        layers.append(draw(drawn))
    named = [(f"layers.{i}", layer) for i, layer in enumerate(layers)]
    named = named[:: draw(st.sampled_from((1, -1)))]
    context = {name: dataclasses.replace(layer, name=name) for name, (_, layer) in named}
    block_sizes = preset.sizes(BLOCK_SIZE, st.sampled_from((1, *preset.block_sizes)))
    cache = reference.CacheConfig(block_size=draw(block_sizes))
    config = config_of(context, is_own=draw(st.booleans()), cache_config=cache)
    arguments = {"vllm_config": config, "kv_cache_dtype": draw(st.sampled_from(DTYPES))}
    return Call("get_kv_cache_spec", arguments, {name: kind for name, (kind, _) in named})


@dataclasses.dataclass(frozen=True)
class GroupPlan:
    """A KV cache group, and the backend of its layers.

    Attributes:
        names: Its layers.
        spec: Its spec.
        backend: The backend of each layer.
        workspace: A key of `WORKSPACES`.
        kind: A key of `SPECS`.
    """

    names: tuple[str, ...]
    spec: Any
    backend: BackendClass
    workspace: str
    kind: str


WORKSPACES = {
    "none": ("PLAIN", ()),
    "shares": ("FLASHINFER", tuple(WORKSPACE_METHODS)),
    "shares under a longer name": ("MY_FLASHINFER_MLA", tuple(WORKSPACE_METHODS)),
    "cannot give": ("FLASHINFER", ("set_workspace_buffer",)),
    "cannot take": ("FLASHINFER", ("_get_workspace_buffer",)),
    "has both under another name": ("FLASH_ATTN", tuple(WORKSPACE_METHODS)),
    "has both under a name in small letters": ("flashinfer", tuple(WORKSPACE_METHODS)),
}
"""Backend names and builder methods, which decide whether builders share a workspace."""

SPECS = ("full", "encoder only", "uniform", "uniform, for some", "uniform, with others")


def _spec_of(kind: str, names: Sequence[str], block_size: int) -> Any:
    heads = (block_size, 2, 8, np.dtype(np.float16))
    if kind == "encoder only":
        return reference.EncoderOnlyAttentionSpec(*heads)
    if kind == "full":
        return reference.FullAttentionSpec(*heads)
    # Equal but distinct objects: specs compare by value.
    specs: dict[str, Any] = {n: reference.SlidingWindowSpec(*heads, 4) for n in names}
    if kind == "uniform, for some" and len(names) > 1:
        del specs[names[0]]
    if kind == "uniform, with others":
        specs = {"layers.99": reference.SlidingWindowSpec(block_size, 1, 8, heads[-1], 4), **specs}
    return reference.UniformTypeKVCacheSpecs(block_size, specs)


@st.composite
def init_attn_backend_calls(draw: st.DrawFn, preset: Preset) -> Call:
    """Draw calls of `init_attn_backend`; the source is the plans of the groups."""
    is_small = preset.axis not in {GROUPS, LAYERS_OF_A_GROUP}
    count = draw(st.sampled_from((0, 1, 2, 3, 3, 3) if is_small else (3, 1)))
    shares = st.sampled_from(("shares", "shares under a longer name"))
    workspace = st.one_of(shares, st.sampled_from(tuple(WORKSPACES)))
    drawn: list[tuple[int, str, BackendClass, str]] = []
    for _ in range(count):
        num_layers = draw(preset.sizes(LAYERS_OF_A_GROUP, st.integers(1, 3)))
        kind = draw(st.sampled_from(SPECS))
        use = draw(workspace)
        if not drawn and draw(st.RARELY):
            use = "none"  # the first that shares is not the first builder
        backend_name, methods = WORKSPACES[use]
        builder = draw(builder_classes(methods=methods))
        backend = BackendClass(backend_name, builder, draw(st.booleans()), draw(st.booleans()))
        if drawn and draw(st.sampled_from((True, False, False))):
            *_, backend, use = drawn[-1]
        drawn.append((num_layers, kind, backend, use))
    plans: list[GroupPlan] = []
    for g, (num_layers, kind, backend, use) in enumerate(repeated(draw, preset, GROUPS, drawn)):
        names = tuple(f"layers.{g}.{i}.attn" for i in range(num_layers))
        spec = _spec_of(kind, names, preset.block_sizes[-1])
        plans.append(GroupPlan(names, spec, backend, use, kind))
    context: dict[str, Any] = {"layers.98.moe": Own(MOE, "layers.98.moe")}
    cls = draw(st.sampled_from((ATTENTION, MIXER)))
    for plan in plans[:: draw(st.sampled_from((1, -1)))]:
        context |= {name: Own(cls, name, backend=plan.backend) for name in plan.names}
    groups = [reference.KVCacheGroupSpec(list(plan.names), plan.spec) for plan in plans]
    # Each builder holds the configuration, so comparing many full ones would be slow.
    is_own = preset.axis == GROUPS or draw(st.booleans())
    arguments = {
        "kv_cache_config": reference.KVCacheConfig(3, [], groups),
        "vllm_config": config_of(context, is_own=is_own),
        "device": DEVICE,
    }
    return Call("init_attn_backend", arguments, tuple(plans))
