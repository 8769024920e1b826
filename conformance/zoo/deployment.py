"""A model deployed in an implementation: caches and their views, backends, builders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from conformance.targets.target import Answer, Target
from conformance.values.differences import Difference
from conformance.values.views import first_view_difference
from conformance.zoo.backends import Backends
from conformance.zoo.groups import CacheGroup, make_groups, make_kv_cache_config
from conformance.zoo.models import CROSS, ENCODER_ONLY, MAMBA, Layer, Model

_TYPES = {CROSS: "ENCODER_DECODER", ENCODER_ONLY: "ENCODER_ONLY"}
"""The names in `AttentionType` of kinds other than decoder attention."""


@dataclass
class StateLayer:
    """A stub of a Mamba layer or similar: not an attention layer, since it has no `attn_type`."""

    backend: Any  # the class that computes it
    kv_cache: list[Any] = field(default_factory=list)  # what is bound to it

    def get_attn_backend(self) -> Answer:
        """Return the class that computes it."""
        return self.backend


@dataclass(kw_only=True)
class AttentionLayer(StateLayer):
    """A stub of an attention layer, with the attributes that functions read."""

    attn_type: str  # one of the implementation's `AttentionType`
    num_kv_heads: int
    head_size: int
    sliding_window: int | None
    kv_sharing_target_layer_name: str | None


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """What an engine has after it has started."""

    model: Model
    groups: tuple[CacheGroup, ...]
    vllm_config: Answer
    kv_cache_config: Answer
    layers: dict[str, StateLayer]  # the forward context, with caches bound
    attn_groups: list[list[Answer]]  # one in the list of each KV cache group
    attn_backends: dict[str, Answer]  # by layer
    builders: list[Answer]  # one for each KV cache group
    kernel_block_sizes: list[int]  # of each KV cache group that is not encoder-only
    runner_kv_caches: list[Answer]  # in the order of layers

    @property
    def kv_caches(self) -> dict[str, Answer]:
        """The cache that is bound to each layer that has one."""
        return {name: layer.kv_cache[0] for name, layer in self.layers.items() if layer.kv_cache}


def make_vllm_config(
    target: Target,
    model: Model,
    *,
    parallel: Mapping[str, Answer] = MappingProxyType({}),
    scheduler: Mapping[str, Answer] = MappingProxyType({}),
    compilation: Mapping[str, Answer] = MappingProxyType({}),
) -> Answer:
    """Return the engine's `VllmConfig`; keywords override or add fields of three of its parts."""
    return target.call(
        "VllmConfig",
        model_config=target.call("ModelConfig", max_model_len=model.max_model_len),
        cache_config=target.call(
            "CacheConfig",
            block_size=model.block_size,
            **({"mamba_cache_mode": "none"} if model.is_hybrid else {}),
        ),
        parallel_config=target.call("ParallelConfig", **parallel),
        scheduler_config=target.call(
            "SchedulerConfig",
            max_num_batched_tokens=model.max_num_batched_tokens,
            max_num_seqs=model.max_num_seqs,
            **{"max_num_encoder_input_tokens": model.encoder_tokens, **scheduler},
        ),
        compilation_config=target.call("CompilationConfig", **compilation),
        speculative_config=target.call(
            "SpeculativeConfig", num_speculative_tokens=model.num_speculative_tokens
        ),
    )


def deploy(
    target: Target,
    model: Model,
    memory_bytes: int,
    groups: tuple[CacheGroup, ...] | None = None,
) -> Deployment:
    """Deploy a model: call the functions that an engine calls when it starts.

    Args:
        target: The implementation.
        model: The model.
        memory_bytes: The memory for its caches.
        groups: Its KV cache groups; None for those of `make_groups`.

    Example:
        >>> from conformance.targets.target import REFERENCE
        >>> from conformance.zoo.models import MODELS
        >>> deployment = deploy(REFERENCE, MODELS["gpt-oss-20b"], 2**23)
        >>> deployment.kv_caches["model.layers.0.self_attn.attn"].shape
        (21, 2, 16, 8, 64)
    """
    backends = Backends(target)
    layers = {
        layer.name: _make_layer(target, layer, backends.get(layer.backend, layer.kind))
        for layer in model.layers
    }
    compilation = {"static_forward_context": layers}
    vllm_config = make_vllm_config(target, model, compilation=compilation)
    groups = make_groups(target, model) if groups is None else groups
    kv_cache_config = make_kv_cache_config(target, model, groups, memory_bytes)
    attn_groups = [
        [
            target.call(
                "AttentionGroup.create_with_metadata_builders",
                layers[group_spec.layer_names[0]].get_attn_backend(),
                list(group_spec.layer_names),
                group_spec.kv_cache_spec,
                vllm_config,
                target.device,
            )
        ]
        for group_spec in kv_cache_config.kv_cache_groups
    ]
    attn_backends, builders = target.call(
        "init_attn_backend", kv_cache_config, vllm_config, target.device
    )
    kernel_block_sizes = target.call("prepare_kernel_block_sizes", kv_cache_config, attn_groups)
    runner_kv_caches: list[Answer] = []
    target.call(
        "init_kv_cache",
        runner_kv_caches,
        layers,
        kv_cache_config,
        attn_backends,
        target.device,
        kernel_block_sizes=kernel_block_sizes,
        num_attn_module=model.num_attn_module,
    )
    return Deployment(
        model=model,
        groups=groups,
        vllm_config=vllm_config,
        kv_cache_config=kv_cache_config,
        layers=layers,
        attn_groups=attn_groups,
        attn_backends=attn_backends,
        builders=builders,
        kernel_block_sizes=kernel_block_sizes,
        runner_kv_caches=runner_kv_caches,
    )


def observe(target: Target, deployment: Deployment) -> dict[str, Answer]:
    """Return the values of a deployment by name, without the bytes in its caches."""
    config = deployment.kv_cache_config
    specs = [group.kv_cache_spec for group in config.kv_cache_groups]
    return {
        "kv_cache_config": config,
        "max_memory_usage_bytes": [
            target.method(spec, "max_memory_usage_bytes", deployment.vllm_config) for spec in specs
        ],
        "page_size_bytes": [target.attribute(spec, "page_size_bytes") for spec in specs],
        "attn_backends": deployment.attn_backends,
        "attn_groups": deployment.attn_groups,
        "builders": deployment.builders,
        "kernel_block_sizes": deployment.kernel_block_sizes,
        "caches": {
            name: [
                (tuple(view.shape), view.dtype)
                for view in (cache if isinstance(cache, list) else [cache])  # states, or keys
            ]
            for name, cache in deployment.kv_caches.items()
        },
    }


def first_memory_difference(expected: Deployment, actual: Deployment) -> Difference | None:
    """Return the first difference in the memory layout of two deployments with equal values.

    The layout consists of the strides and offsets of caches, which caches share memory or are the
    same object, and which lists and workspaces builders and groups share.
    """
    names = ("kv_caches", "runner_kv_caches", "kv_cache_config", "attn_groups", "builders")
    expected_parts, actual_parts = (
        {name: getattr(deployment, name) for name in names} for deployment in (expected, actual)
    )
    return first_view_difference(expected_parts, actual_parts, {}, {})


def _make_layer(target: Target, layer: Layer, backend: Answer) -> StateLayer:
    if layer.kind == MAMBA:
        return StateLayer(backend)
    return AttentionLayer(
        backend=backend,
        attn_type=target.find(f"AttentionType.{_TYPES.get(layer.kind, 'DECODER')}"),
        num_kv_heads=layer.num_kv_heads,
        head_size=layer.head_size,
        sliding_window=layer.sliding_window,
        kv_sharing_target_layer_name=layer.kv_sharing_target,
    )
