"""KV caches allocated and viewed, as one writes them in a hurry."""

# ruff: noqa: C901, PLR0911  # a branch, or an answer, for each bug

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

import fast
from known_bad.entries import rewritten

REAL_ALLOCATE = fast._allocate_kv_cache
REAL_RESHAPE = fast._reshape_kv_cache
REAL_INIT = fast.init_kv_cache


def _make_allocate(bug: str | None) -> Callable[[Any, Any], dict[str, torch.Tensor]]:
    def allocate(kv_cache_config: Any, device: Any) -> dict[str, torch.Tensor]:  # noqa: ANN401  # any
        if bug == "layers that no group has pass" and kv_cache_config is not None:
            grouped = {n for g in kv_cache_config.kv_cache_groups for n in g.layer_names}
            tensors = kv_cache_config.kv_cache_tensors
            if all(isinstance(getattr(tensor, "shared_by", None), list) for tensor in tensors):
                tensors = [
                    dataclasses.replace(
                        fast.KVCacheTensor(tensor.size, tensor.shared_by),
                        shared_by=[name for name in tensor.shared_by if name in grouped],
                    )
                    for tensor in tensors
                ]
                kv_cache_config = fast.KVCacheConfig(0, tensors, kv_cache_config.kv_cache_groups)
        if bug == "encoder-only layers need a tensor" and any(
            kind_of(group.kv_cache_spec) == "EncoderOnlyAttentionSpec"
            for group in kv_cache_config.kv_cache_groups
        ):
            raise ValueError("kv_cache_tensors lack encoder-only layers")
        found = REAL_ALLOCATE(kv_cache_config, device)
        if bug == "a tensor for each layer":
            return {name: raw.clone() for name, raw in found.items()}
        if bug == "a view for each layer":
            return {name: raw[:] for name, raw in found.items()}
        if bug == "not zeroed":
            return _each(found, lambda raw: torch.full_like(raw, -1))
        if bug == "bytes without a sign":
            return _each(found, lambda raw: raw.view(torch.uint8))
        if bug == "tensors cut from one":
            whole = torch.zeros(sum(tensor.numel() for tensor in found.values()), dtype=torch.int8)
            return _each(found, lambda raw: whole[: raw.numel()])
        if bug == "in the order of groups":
            groups = kv_cache_config.kv_cache_groups
            return {n: found[n] for g in groups for n in g.layer_names if n in found}
        return found

    allocate.__name__ = "_allocate_kv_cache"
    return allocate


def _each(
    tensors: dict[str, torch.Tensor], change: Callable[[torch.Tensor], torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Return changed tensors, one for those that were one."""
    changed = {id(raw): change(raw) for raw in tensors.values()}
    return {name: changed[id(raw)] for name, raw in tensors.items()}


def kind_of(spec: Any) -> str:  # noqa: ANN401  # a spec
    """Return the kind of a group, by its first spec."""
    inner = next(iter(getattr(spec, "kv_cache_specs", {"": spec}).values()))
    return type(inner).__name__


ENCODER = "EncoderOnlyAttentionSpec"


def _make_init(bug: str | None) -> Callable[..., None]:
    def init_kv_cache(  # the field's
        runner_kv_caches: Any,  # noqa: ANN401  # any
        forward_context: Any,  # noqa: ANN401  # any
        kv_cache_config: Any,  # noqa: ANN401  # any
        attn_backends: Any,  # noqa: ANN401  # any
        device: Any,  # noqa: ANN401  # any
        *,
        kernel_block_sizes: Any = None,  # noqa: ANN401  # any
        num_attn_module: Any = 1,  # noqa: ANN401  # any
    ) -> None:
        if bug == "bound before it is viewed" and isinstance(forward_context, dict):
            for layer in forward_context.values():
                layer.kv_cache = [None]
        raws = REAL_ALLOCATE(kv_cache_config, device)
        sizes = None if bug == "kernel sizes are forgotten" else kernel_block_sizes
        modules = 1 if bug == "modules are forgotten" else num_attn_module
        if bug == "each layer has its own memory":
            raws = {name: raw.clone() for name, raw in raws.items()}
        views = REAL_RESHAPE(kv_cache_config, raws, attn_backends, sizes)
        if bug == "layers are in the order of tensors":
            views = {name: views[name] for name in raws}
        fast.bind_kv_cache(views, forward_context, runner_kv_caches, modules)

    return init_kv_cache


KV_CACHE = [
    *rewritten(
        "_allocate_kv_cache",
        _make_allocate,
        answers={
            "a tensor for each layer": "Twice the memory, and hybrid models forget.",
            "a view for each layer": "The same memory, but a layer's tensor `is` no other's.",
            "not zeroed": "`empty`: stale bytes are NaN, some day.",
            "bytes without a sign": "uint8: the views are right.",
            "tensors cut from one": "One allocation, and every tensor at its start.",
            "in the order of groups": "The order of a dict.",
            "encoder-only layers need a tensor": "They are in a group, like all layers.",
        },
        refusals={"layers that no group has pass": "Memory that nobody uses."},
    ),
    *rewritten(
        "init_kv_cache",
        _make_init,
        answers={
            "kernel sizes are forgotten": "Right where kernels take the manager's blocks.",
            "modules are forgotten": "Right with one attention module.",
            "each layer has its own memory": "Layers that share no longer do.",
            "layers are in the order of tensors": "Those of one index change places.",
        },
        refusals={"bound before it is viewed": "After an error layers have caches of None."},
    ),
]
