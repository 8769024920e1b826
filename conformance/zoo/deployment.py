"""A model deployed in an implementation: caches and their views, backends, builders, parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from conformance.targets.target import Answer, Target
from conformance.zoo.backends import Backends
from conformance.zoo.cache_config import (
    make_kv_cache_config,
    make_vllm_config,
)
from conformance.zoo.context import AttentionImpl, AttentionLayer, StateLayer, make_forward_context
from conformance.zoo.groups import CacheGroup, make_groups
from conformance.zoo.serving import Serving


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """What an engine has after it has started.

    Attributes:
        serving: The model, and how it is served.
        groups: Its KV cache groups.
        vllm_config: The `VllmConfig`.
        kv_cache_config: The `KVCacheConfig`.
        layers: The forward context, with caches bound to its layers.
        attn_groups: For each KV cache group, the `AttentionGroup`s: layers of one backend and spec.
        attn_backends: The backend of each layer.
        builders: For each round of `build_metadata`, a builder for each KV cache group.
        kernel_block_sizes: Of each KV cache group that is not encoder-only.
        runner_kv_caches: The caches, in the order of layers.
        parameters: For each KV cache group with attention layers, the parameters of each layer, and
            those that all have in common.
    """

    serving: Serving
    groups: tuple[CacheGroup, ...]
    vllm_config: Answer
    kv_cache_config: Answer
    layers: dict[str, AttentionLayer | StateLayer]
    attn_groups: list[list[Answer]]
    attn_backends: dict[str, Answer]
    builders: list[list[Answer]]
    kernel_block_sizes: list[int]
    runner_kv_caches: list[Answer]
    parameters: list[tuple[dict[str, Answer], Answer]]

    @property
    def kv_caches(self) -> dict[str, Answer]:
        """The cache that is bound to each layer that has one."""
        return {name: layer.kv_cache[0] for name, layer in self.layers.items() if layer.kv_cache}


def deploy(
    target: Target,
    serving: Serving,
    memory_bytes: int,
    groups: tuple[CacheGroup, ...] | None = None,
) -> Deployment:
    """Deploy a model: call the functions that an engine calls when it starts.

    Args:
        target: The implementation.
        serving: The model, and how it is served.
        memory_bytes: The memory of each device for its caches.
        groups: Its KV cache groups; None for those of `make_groups`.

    Raises:
        ValueError: The memory is too small for a block, or backends cannot work on its blocks.

    Example:
        >>> from conformance.targets.target import REFERENCE
        >>> from conformance.zoo.models import get_model
        >>> serving = Serving(model=get_model("gpt-oss-20b"), tensor_parallel_size=8)
        >>> deployment = deploy(REFERENCE, serving, 2**20)
        >>> deployment.kv_cache_config.num_blocks
        21
        >>> deployment.kv_caches["model.layers.0.self_attn.attn"].shape
        (21, 2, 16, 1, 64)
    """
    backends = Backends(target)
    layers = make_forward_context(target, serving, backends.get)
    compilation = {"static_forward_context": layers}
    vllm_config = make_vllm_config(target, serving, compilation=compilation)
    groups = make_groups(target, serving) if groups is None else groups
    kv_cache_config = make_kv_cache_config(target, serving, groups, memory_bytes)
    attn_groups = [
        _make_attn_groups(target, group_spec, vllm_config, layers)
        for group_spec in kv_cache_config.kv_cache_groups
    ]
    attn_backends, builders = _make_builders(target, kv_cache_config, vllm_config, attn_groups)
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
        num_attn_module=serving.model.num_attn_module,
    )
    return Deployment(
        serving=serving,
        groups=groups,
        vllm_config=vllm_config,
        kv_cache_config=kv_cache_config,
        layers=layers,
        attn_groups=attn_groups,
        attn_backends=attn_backends,
        builders=builders,
        kernel_block_sizes=kernel_block_sizes,
        runner_kv_caches=runner_kv_caches,
        parameters=_parameters(target, kv_cache_config, vllm_config, layers),
    )


def build_metadata(
    target: Target,
    deployment: Deployment,
    *,
    num_reqs: int,
    num_tokens: int,
    query_start_loc: Answer,
    seq_lens: Answer,
    num_computed_tokens_cpu: Answer,
    block_tables: Sequence[Answer],
    slot_mappings: Sequence[Answer],
) -> dict[str, Answer]:
    """Build the metadata of a step for each layer, by name.

    `build_attn_metadata` takes one builder for each KV cache group. If a group has several
    `AttentionGroup`s, it is called in rounds, the `i`-th with the `i`-th builder of each group.

    Args:
        target: The implementation.
        deployment: The model.
        num_reqs: Requests.
        num_tokens: Tokens.
        query_start_loc: A buffer of int32[at least num_reqs + 1].
        seq_lens: A buffer of int32[at least num_reqs].
        num_computed_tokens_cpu: int32[at least num_reqs].
        block_tables: int32[at least num_reqs, max_blocks_per_req] for each KV cache group.
        slot_mappings: int64[at least num_tokens] for each KV cache group.
    """
    rounds: list[dict[str, Answer]] = [
        target.call(
            "build_attn_metadata",
            builders,
            num_reqs,
            num_tokens,
            query_start_loc,
            seq_lens,
            num_computed_tokens_cpu,
            list(block_tables),
            list(slot_mappings),
            deployment.kv_cache_config,
        )
        for builders in deployment.builders
    ]
    if len(rounds) == 1:
        return rounds[0]
    return {
        name: built[name]
        for number, built in enumerate(rounds)
        for attn_groups in deployment.attn_groups
        if number < len(attn_groups)
        for name in attn_groups[number].layer_names
    }


def _make_attn_groups(
    target: Target,
    group_spec: Answer,
    vllm_config: Answer,
    layers: dict[str, AttentionLayer | StateLayer],
) -> list[Answer]:
    """Sort the layers of a KV cache group by backend and spec, and make builders for each."""
    inner = getattr(group_spec.kv_cache_spec, "kv_cache_specs", {})
    sorted_layers: dict[tuple[Answer, Answer], list[str]] = {}
    for name in group_spec.layer_names:
        key = layers[name].get_attn_backend(), inner.get(name, group_spec.kv_cache_spec)
        sorted_layers.setdefault(key, []).append(name)
    return [
        target.call(
            "AttentionGroup.create_with_metadata_builders",
            backend,
            names,
            spec,
            vllm_config,
            target.device,
        )
        for (backend, spec), names in sorted_layers.items()
    ]


def _make_builders(
    target: Target,
    kv_cache_config: Answer,
    vllm_config: Answer,
    attn_groups: list[list[Answer]],
) -> tuple[dict[str, Answer], list[list[Answer]]]:
    """Return the backend of each layer, and the builders of each round."""
    num_rounds = max(len(groups) for groups in attn_groups)
    if num_rounds == 1:
        attn_backends, builders = target.call(
            "init_attn_backend", kv_cache_config, vllm_config, target.device
        )
        return attn_backends, [builders]
    attn_backends = {
        name: group.backend
        for groups in attn_groups
        for group in groups
        for name in group.layer_names
    }
    return attn_backends, [
        [
            target.method(groups[min(number, len(groups) - 1)], "get_metadata_builder")
            for groups in attn_groups
        ]
        for number in range(num_rounds)
    ]


def _parameters(
    target: Target,
    kv_cache_config: Answer,
    vllm_config: Answer,
    layers: dict[str, AttentionLayer | StateLayer],
) -> list[tuple[dict[str, Answer], Answer]]:
    """Return the parameters of each group's attention layers, and those that all have in common."""
    found = []
    for group in kv_cache_config.kv_cache_groups:
        names = [name for name in group.layer_names if isinstance(layers[name], AttentionLayer)]
        if names:
            by_layer = target.call("get_per_layer_parameters", vllm_config, names, AttentionImpl)
            found.append((by_layer, target.call("infer_global_hyperparameters", by_layer)))
    return found
