"""The attention layers of a model: what each keeps in the cache, and their backends."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np

from reference._checks import (
    check_dtype,
    check_int,
    check_list,
    check_mapping,
    check_not_empty,
    check_strs,
    check_type,
    is_kind,
    show,
)
from reference.kv_cache_spec import FullAttentionSpec, KVCacheSpec, SlidingWindowSpec

LayerT = TypeVar("LayerT")


class AttentionType:
    """What the tokens of a layer attend to: the values of a layer's `attn_type`.

    Attributes:
        DECODER: Earlier tokens of its own sequence, from the cache.
        ENCODER: All tokens of the encoder's sequence, in an encoder-decoder model.
        ENCODER_ONLY: All tokens of its own sequence; nothing is cached.
        ENCODER_DECODER: The encoder's tokens, in a decoder layer: cross attention.

    Example:
        >>> AttentionType.ENCODER_ONLY
        'encoder_only'

    Source: the definition is kvtwin's own; the names are vLLM's.
    """

    DECODER = "decoder"
    ENCODER = "encoder"
    ENCODER_ONLY = "encoder_only"
    ENCODER_DECODER = "encoder_decoder"


def get_layers_from_vllm_config(
    vllm_config: Any, layer_type: type[LayerT], layer_names: list[str] | None = None
) -> dict[str, LayerT]:
    """Return the layers of a type.

    Args:
        vllm_config: Its `compilation_config.static_forward_context` is read: the layers by name.
        layer_type: The class to look for.
        layer_names: Which layers to look at; None: all, in the order of the context.

    Returns:
        The layers by name, in the order of `layer_names`, without those of another type.

    Raises:
        TypeError: A `layer_type` that is not a class, names that are not a list of strs.
        KeyError: A name that the context lacks.
        AttributeError: A configuration that lacks an attribute that is read.

    Example:
        >>> from reference.config import CompilationConfig, VllmConfig
        >>> layers = {"layers.0": 7, "layers.1": "mixer", "layers.2": 9}
        >>> config = VllmConfig(compilation_config=CompilationConfig(static_forward_context=layers))
        >>> get_layers_from_vllm_config(config, int, ["layers.2", "layers.1"])
        {'layers.2': 9}

    Source: the definition is kvtwin's own; the name is vLLM's.
    """
    check_type("layer_type", layer_type, type)
    context = _read_context(vllm_config)
    if layer_names is None:
        layer_names = list(context)
    for i, layer_name in enumerate(check_strs("layer_names", layer_names)):
        if layer_name not in context:
            raise KeyError(
                f"layer_names[{i}] is {layer_name!r}, which static_forward_context lacks"
            )
    return {
        layer_name: context[layer_name]
        for layer_name in layer_names
        if isinstance(context[layer_name], layer_type)
    }


def get_kv_cache_spec(
    vllm_config: Any, kv_cache_dtype: np.dtype[Any] | type[np.generic]
) -> dict[str, KVCacheSpec]:
    """Return what each attention layer of a model keeps in the cache.

    For each layer, in this order: if its `kv_sharing_target_layer_name` exists and is not None, it
    shares another layer's cache, is left out, and nothing else of it is read. If it has no
    `attn_type` (an MoE layer, a Mamba mixer), it is not an attention layer and is left out.
    Otherwise its `attn_type` must be `AttentionType.DECODER`; it keeps a window of tokens if
    `sliding_window` is not None, else all tokens.

    Args:
        vllm_config: `compilation_config.static_forward_context`, the layers by name, and
            `cache_config.block_size` are read, the latter even if there are no layers.
        kv_cache_dtype: The dtype of the cache; it is checked first.

    Returns:
        A `SlidingWindowSpec` or `FullAttentionSpec` for each attention layer that has its own
        cache, by name, in the context's order.

    Raises:
        TypeError: A `kv_cache_dtype` that is not a supported dtype; a size that is not an int.
        ValueError: A layer with another `attn_type`, a size below 1.
        AttributeError: A layer or a configuration that lacks an attribute that is read.

    Example:
        >>> import numpy as np
        >>> from types import SimpleNamespace
        >>> from reference.config import CacheConfig, CompilationConfig, VllmConfig
        >>> layer = SimpleNamespace(
        ...     attn_type=AttentionType.DECODER, num_kv_heads=8, head_size=64, sliding_window=128
        ... )
        >>> layers = {"layers.0.attn": layer, "layers.0.mlp": SimpleNamespace()}
        >>> config = VllmConfig(
        ...     cache_config=CacheConfig(block_size=16),
        ...     compilation_config=CompilationConfig(static_forward_context=layers),
        ... )
        >>> specs = get_kv_cache_spec(config, np.float16)
        >>> list(specs), specs["layers.0.attn"].sliding_window
        (['layers.0.attn'], 128)

    Source: the definition is kvtwin's own; the name is vLLM's.
    """
    dtype = check_dtype("kv_cache_dtype", kv_cache_dtype)
    block_size = vllm_config.cache_config.block_size
    specs: dict[str, KVCacheSpec] = {}
    for layer_name, layer in vllm_config.compilation_config.static_forward_context.items():
        if getattr(layer, "kv_sharing_target_layer_name", None) is not None:
            continue
        if not hasattr(layer, "attn_type"):
            continue
        if layer.attn_type != AttentionType.DECODER:
            raise ValueError(
                f"layer {layer_name!r} has attn_type {layer.attn_type!r}, "
                f"expected {AttentionType.DECODER!r}"
            )
        num_kv_heads = check_int(f"num_kv_heads of layer {layer_name!r}", layer.num_kv_heads, 1)
        head_size = check_int(f"head_size of layer {layer_name!r}", layer.head_size, 1)
        if layer.sliding_window is None:
            specs[layer_name] = FullAttentionSpec(block_size, num_kv_heads, head_size, dtype)
        else:
            window = check_int(f"sliding_window of layer {layer_name!r}", layer.sliding_window, 1)
            specs[layer_name] = SlidingWindowSpec(
                block_size, num_kv_heads, head_size, dtype, window
            )
    return specs


def init_attn_backend(
    kv_cache_config: Any, vllm_config: Any, device: object
) -> tuple[dict[str, Any], list[Any]]:
    """Find the backend of each layer, and make a builder for each KV cache group.

    The backend of a group is the result of `get_attn_backend()` of its first layer; its other
    layers must return the same class (`is`). The builder is called with positional arguments,
    `get_builder_cls()(spec, layer_names, vllm_config, device)`: the group's own list of names and
    its spec. If that is a `UniformTypeKVCacheSpecs`, the builder gets the inner spec of the group's
    layers instead, which must be the same for all layers that have one. Groups of encoder-only
    layers have a backend and a builder too. All groups are checked before the first builder is
    made.

    Builders share one workspace if their backend's `get_name()` contains `FLASHINFER` and they have
    both methods: `_get_workspace_buffer()` of the first is called once, even if it is the only one,
    and its result is passed to `set_workspace_buffer(buffer)` of each later one.

    Args:
        kv_cache_config: Its list `kv_cache_groups` is read, and each group's `layer_names` and
            `kv_cache_spec`.
        vllm_config: `compilation_config.static_forward_context` is read, the layers by name; the
            builders get it.
        device: Passed to the builders.

    Returns:
        The backend of each layer by name, in the order of groups and their layers; and the
        builders, one for each group.

    Raises:
        TypeError: Groups or names that are not a list, a name that is not a str.
        KeyError: A layer that the context lacks; a group with a `UniformTypeKVCacheSpecs` that has
            a spec for none of its layers.
        ValueError: A group that has no layers, or whose layers have different backends, or
            different inner specs in its `UniformTypeKVCacheSpecs`.
        AttributeError: A layer, a backend or a configuration that lacks an attribute that is read.

    Example:
        >>> from types import SimpleNamespace
        >>> from reference.config import CompilationConfig, VllmConfig
        >>> class Plain:
        ...     get_name = staticmethod(lambda: "PLAIN")
        ...     get_builder_cls = staticmethod(lambda: lambda *args: f"builder of {args[1]}")
        >>> layers = {"layers.0": SimpleNamespace(get_attn_backend=lambda: Plain)}
        >>> config = VllmConfig(compilation_config=CompilationConfig(static_forward_context=layers))
        >>> group = SimpleNamespace(layer_names=["layers.0"], kv_cache_spec=None)
        >>> backends, builders = init_attn_backend(
        ...     SimpleNamespace(kv_cache_groups=[group]), config, None
        ... )
        >>> backends["layers.0"].get_name(), builders
        ('PLAIN', ["builder of ['layers.0']"])

    Source: the definition is kvtwin's own; the name is vLLM's.
    """
    groups = check_list("kv_cache_config.kv_cache_groups", kv_cache_config.kv_cache_groups)
    context = _read_context(vllm_config)
    plans = []
    for i, group in enumerate(groups):
        name = f"kv_cache_groups[{i}]"
        backend = _get_backend_of_group(name, group, context)
        plans.append((group, backend, _get_spec_for_builder(name, group)))
    builder_classes = [backend.get_builder_cls() for _, backend, _ in plans]
    backend_names = [backend.get_name() for _, backend, _ in plans]

    attn_backends: dict[str, Any] = {}
    builders: list[Any] = []
    for i, (group, backend, spec) in enumerate(plans):
        for layer_name in group.layer_names:
            attn_backends[layer_name] = backend
        builders.append(builder_classes[i](spec, group.layer_names, vllm_config, device))
    _share_workspace(builders, backend_names)
    return attn_backends, builders


def _get_backend_of_group(name: str, group: Any, context: Any) -> Any:
    """Return the backend that all layers of a group have."""
    layer_names = check_strs(f"{name}.layer_names", group.layer_names)
    check_not_empty(f"{name}.layer_names", layer_names, "layer")
    backends = []
    for i, layer_name in enumerate(layer_names):
        if layer_name not in context:
            raise KeyError(
                f"{name}.layer_names[{i}] is {layer_name!r}, which static_forward_context lacks"
            )
        backends.append(context[layer_name].get_attn_backend())
    for layer_name, backend in zip(layer_names, backends, strict=True):
        if backend is not backends[0]:
            raise ValueError(
                f"{name}.layer_names has layers of different backends: {layer_names[0]!r} has "
                f"{backends[0]!r}, {layer_name!r} has {backend!r}"
            )
    return backends[0]


def _get_spec_for_builder(name: str, group: Any) -> Any:
    """Return the spec of a group; for a `UniformTypeKVCacheSpecs`, the inner spec of its layers."""
    if not is_kind(group.kv_cache_spec, "UniformTypeKVCacheSpecs"):
        return group.kv_cache_spec
    specs = group.kv_cache_spec.kv_cache_specs
    owners = [layer_name for layer_name in group.layer_names if layer_name in specs]
    if not owners:
        raise KeyError(
            f"{name}.kv_cache_spec has no spec of any of the group's layers {group.layer_names}"
        )
    for layer_name in owners:
        if specs[layer_name] != specs[owners[0]]:
            raise ValueError(
                f"{name}.kv_cache_spec has several specs, but its layers have one builder: "
                f"{owners[0]!r} has {show(specs[owners[0]])}, "
                f"{layer_name!r} has {show(specs[layer_name])}"
            )
    return specs[owners[0]]


def _share_workspace(builders: list[Any], backend_names: list[str]) -> None:
    """Pass the workspace of the first builder of a FLASHINFER backend to the later ones."""
    sharing = [
        builder
        for builder, backend_name in zip(builders, backend_names, strict=True)
        if "FLASHINFER" in backend_name
        and hasattr(builder, "_get_workspace_buffer")
        and hasattr(builder, "set_workspace_buffer")
    ]
    if not sharing:
        return
    workspace = sharing[0]._get_workspace_buffer()  # noqa: SLF001  # so the field's code calls it
    for builder in sharing[1:]:
        builder.set_workspace_buffer(workspace)


def _read_context(vllm_config: Any) -> Any:
    """Return the layers by name."""
    context = vllm_config.compilation_config.static_forward_context
    check_mapping("static_forward_context", context)
    return context
