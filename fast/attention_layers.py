"""Find the attention layers of a model, their KV cache specs, and their backends."""

from typing import Any, Final, TypeVar

import torch

from fast._checks import (
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
from fast.kv_cache_spec import FullAttentionSpec, KVCacheSpec, SlidingWindowSpec

T = TypeVar("T")


class AttentionType:
    """The types of attention: the values of a layer's `attn_type`.

    Definition: `reference.AttentionType`.
    """

    DECODER: Final = "decoder"
    ENCODER: Final = "encoder"
    ENCODER_ONLY: Final = "encoder_only"
    ENCODER_DECODER: Final = "encoder_decoder"


def get_layers_from_vllm_config(
    vllm_config: Any, layer_type: type[T], layer_names: list[str] | None = None
) -> dict[str, T]:
    """Return the layers of a type.

    Definition: `reference.get_layers_from_vllm_config`.
    """
    check_type("layer_type", layer_type, type, "a class")
    context = read_context(vllm_config)
    if layer_names is None:
        layer_names = list(context)
    layers = get_layers("layer_names", context, layer_names)
    return {name: layer for name, layer in layers.items() if isinstance(layer, layer_type)}


def get_layers(where: str, context: Any, layer_names: list[str]) -> dict[str, Any]:
    """Return layers of the forward context by name; `where` names their list in messages."""
    check_strs(where, layer_names)
    for i, name in enumerate(layer_names):
        if name not in context:
            raise KeyError(f"{where}[{i}] is {name!r}, which static_forward_context lacks")
    return {name: context[name] for name in layer_names}


def read_context(vllm_config: Any) -> Any:
    """Return the mapping of layers by name."""
    context = vllm_config.compilation_config.static_forward_context
    check_mapping("static_forward_context", context)
    return context


def get_kv_cache_spec(vllm_config: Any, kv_cache_dtype: torch.dtype) -> dict[str, KVCacheSpec]:
    """Return the KV cache spec of each attention layer of a model.

    `kv_cache_dtype` is a torch dtype.

    Definition: `reference.get_kv_cache_spec`.
    """
    dtype = check_dtype("kv_cache_dtype", kv_cache_dtype)
    block_size = vllm_config.cache_config.block_size
    specs = {}
    for name, layer in vllm_config.compilation_config.static_forward_context.items():
        if getattr(layer, "kv_sharing_target_layer_name", None) is not None:
            continue
        if not hasattr(layer, "attn_type"):
            continue
        if layer.attn_type != AttentionType.DECODER:
            raise ValueError(
                f"layer {name!r} has attn_type {layer.attn_type!r}, expected"
                f" {AttentionType.DECODER!r}"
            )
        specs[name] = _make_spec(name, layer, block_size, dtype)
    return specs


def _make_spec(name: str, layer: Any, block_size: int, dtype: torch.dtype) -> KVCacheSpec:
    num_kv_heads = check_int(f"num_kv_heads of layer {name!r}", layer.num_kv_heads, 1, None)
    head_size = check_int(f"head_size of layer {name!r}", layer.head_size, 1, None)
    if layer.sliding_window is None:
        return FullAttentionSpec(block_size, num_kv_heads, head_size, dtype)
    window = check_int(f"sliding_window of layer {name!r}", layer.sliding_window, 1, None)
    return SlidingWindowSpec(block_size, num_kv_heads, head_size, dtype, window)


def init_attn_backend(
    kv_cache_config: Any, vllm_config: Any, device: Any
) -> tuple[dict[str, Any], list[Any]]:
    """Find the backend of each layer, and make a builder for each KV cache group.

    Definition: `reference.init_attn_backend`.
    """
    groups = kv_cache_config.kv_cache_groups
    check_list("kv_cache_config.kv_cache_groups", groups)
    context = read_context(vllm_config)
    attn_backends: dict[str, Any] = {}
    plans = []
    for i, group in enumerate(groups):
        backend = _common_backend(f"kv_cache_groups[{i}].layer_names", group.layer_names, context)
        attn_backends.update(dict.fromkeys(group.layer_names, backend))
        shares_workspace = "FLASHINFER" in backend.get_name()
        plans.append((backend.get_builder_cls(), _common_spec(i, group), shares_workspace))

    builders, sharing = [], []
    for (builder_cls, spec, shares_workspace), group in zip(plans, groups, strict=True):
        builder = builder_cls(spec, group.layer_names, vllm_config, device)
        builders.append(builder)
        if shares_workspace:
            sharing.append(builder)
    _share_workspace(sharing)
    return attn_backends, builders


def _common_backend(where: str, layer_names: list[str], context: Any) -> Any:
    layers = get_layers(where, context, layer_names)
    check_not_empty(where, layer_names, "layer")
    backends = [layers[name].get_attn_backend() for name in layer_names]
    for name, backend in zip(layer_names, backends, strict=True):
        if backend is not backends[0]:
            raise ValueError(
                f"{where} has layers of different backends: {layer_names[0]!r} has {backends[0]!r},"
                f" {name!r} has {backend!r}"
            )
    return backends[0]


def _common_spec(index: int, group: Any) -> Any:
    spec = group.kv_cache_spec
    if not is_kind(spec, "UniformTypeKVCacheSpecs"):
        return spec
    specs = spec.kv_cache_specs
    named = [name for name in group.layer_names if name in specs]
    if not named:
        raise KeyError(
            f"kv_cache_groups[{index}].kv_cache_spec has no spec of any of the group's layers"
            f" {group.layer_names}"
        )
    for name in named:
        if specs[name] != specs[named[0]]:
            raise ValueError(
                f"kv_cache_groups[{index}].kv_cache_spec has several specs, but its layers have one"
                f" builder: {named[0]!r} has {show(specs[named[0]])}, {name!r} has"
                f" {show(specs[name])}"
            )
    return specs[named[0]]


def _share_workspace(builders: list[Any]) -> None:
    """Pass the workspace of the first builder that has one to the later ones."""
    sharing = [
        builder
        for builder in builders
        if hasattr(builder, "_get_workspace_buffer") and hasattr(builder, "set_workspace_buffer")
    ]
    if not sharing:
        return
    workspace = sharing[0]._get_workspace_buffer()  # noqa: SLF001  (the field's own name)
    for builder in sharing[1:]:
        builder.set_workspace_buffer(workspace)
