"""A model's KV caches: KV cache groups that share one pool of blocks, their backends and builders.

A block has the same number of bytes in every group, and the k-th layers of all groups share one
tensor: a block of the pool belongs to the group that took it.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch

import fast
from tools.runner.layers import AttentionLayer
from tools.runner.settings import Settings


@dataclass(frozen=True)
class Caches:
    """A model's KV cache groups, with their block sizes and builders.

    Attributes:
        config: The `KVCacheConfig`, with the kernels' block sizes; layers that share the cache of
            another are in its group.
        block_sizes: Tokens in a block of each group's kernels.
        blocks_per_kv_block: For each group, how many of these form a block of the scheduler.
        builders: For whole batches, one for each group.
        attn_groups: For micro-batches, one `AttentionGroup` for each group.
        fast_prefill_groups: The layers of each group that share the cache of another, by the
            group's number.
    """

    config: fast.KVCacheConfig
    block_sizes: list[int]
    blocks_per_kv_block: list[int]
    builders: list[Any]
    attn_groups: list[fast.AttentionGroup]
    fast_prefill_groups: dict[int, fast.AttentionGroup]


def make_caches(
    layers: dict[str, AttentionLayer], settings: Settings, device: torch.device
) -> Caches:
    """Make a model's caches, and bind them to its layers.

    Args:
        layers: The layers of the model, by name.
        settings: The settings of the engine.
        device: The device of the caches.

    Returns:
        The caches.
    """
    vllm_config = _make_vllm_config(layers, settings)
    specs = _make_specs(layers, vllm_config)
    names_of_groups = _group_names(specs)
    config = _make_config(specs, names_of_groups, settings)

    # Kernel blocks are smaller; the total number of bytes is the same.
    backends = [layers[names[0]].get_attn_backend() for names in names_of_groups]
    block_sizes = fast.prepare_kernel_block_sizes(
        config,
        [
            [fast.AttentionGroup(backend, [], group.layer_names, group.kv_cache_spec)]
            for backend, group in zip(backends, config.kv_cache_groups, strict=True)
        ],
    )
    # Builders get the layers, and specs with the block sizes of the kernels.
    kernel_config = dataclasses.replace(
        config,
        kv_cache_groups=[
            fast.KVCacheGroupSpec(
                list(group.layer_names), group.kv_cache_spec.copy_with_new_block_size(block_size)
            )
            for group, block_size in zip(config.kv_cache_groups, block_sizes, strict=True)
        ],
    )
    attn_backends, builders = fast.init_attn_backend(kernel_config, vllm_config, device)

    def make_attn_group(
        number: int, names: list[str], backend: type[Any], num_builders: int
    ) -> fast.AttentionGroup:
        spec = kernel_config.kv_cache_groups[number].kv_cache_spec
        return fast.AttentionGroup.create_with_metadata_builders(
            backend, names, spec, vllm_config, device, num_builders
        )

    num_builders = settings.micro_batches
    attn_groups = [
        make_attn_group(number, names, backends[number], num_builders)
        for number, names in enumerate(names_of_groups)
    ]

    fast.init_kv_cache([], layers, config, attn_backends, device, kernel_block_sizes=block_sizes)
    sharing = _share_caches(layers, kernel_config)
    return Caches(
        config=kernel_config,
        block_sizes=block_sizes,
        blocks_per_kv_block=[settings.block_size // block_size for block_size in block_sizes],
        builders=builders,
        attn_groups=attn_groups,
        fast_prefill_groups={
            number: make_attn_group(
                number, names, layers[names[0]].get_attn_backend(), num_builders
            )
            for number, names in sharing.items()
        },
    )


def _make_vllm_config(layers: dict[str, AttentionLayer], settings: Settings) -> fast.VllmConfig:
    """Make the configuration of the engine for `fast`."""
    return fast.VllmConfig(
        model_config=fast.ModelConfig(max_model_len=settings.max_model_len),
        cache_config=fast.CacheConfig(block_size=settings.block_size),
        parallel_config=fast.ParallelConfig(),
        scheduler_config=fast.SchedulerConfig(
            max_num_batched_tokens=settings.token_budget, max_num_seqs=settings.max_num_seqs
        ),
        compilation_config=fast.CompilationConfig(static_forward_context=dict(layers)),
    )


def _make_specs(
    layers: dict[str, AttentionLayer], vllm_config: fast.VllmConfig
) -> dict[str, fast.KVCacheSpec]:
    """Make the spec of each layer that has a cache of its own."""
    specs = fast.get_kv_cache_spec(vllm_config, torch.float32)
    # It covers full attention and sliding windows, but not chunked layers.
    for name, spec in specs.items():
        chunk_size = layers[name].attention_chunk_size
        if chunk_size is not None:
            specs[name] = fast.ChunkedLocalAttentionSpec(
                spec.block_size, spec.num_kv_heads, spec.head_size, spec.dtype, chunk_size
            )
    return specs


def _group_names(specs: dict[str, fast.KVCacheSpec]) -> list[list[str]]:
    """Divide layers into groups of one spec, of at most as many layers as the rarest spec has.

    A spec with more layers has several groups.
    """
    by_spec: dict[fast.KVCacheSpec, list[str]] = {}
    for name, spec in specs.items():
        by_spec.setdefault(spec, []).append(name)
    size = min(len(names) for names in by_spec.values())
    return [
        names[first : first + size]
        for names in by_spec.values()
        for first in range(0, len(names), size)
    ]


def _make_config(
    specs: dict[str, fast.KVCacheSpec], names_of_groups: list[list[str]], settings: Settings
) -> fast.KVCacheConfig:
    """Assign layers to tensors: the k-th layers of all groups share one."""
    num_blocks = settings.pool_blocks(len(names_of_groups))
    num_tensors = max(len(names) for names in names_of_groups)
    page_size = specs[names_of_groups[0][0]].page_size_bytes
    return fast.KVCacheConfig(
        num_blocks=num_blocks,
        kv_cache_tensors=[
            fast.KVCacheTensor(
                size=num_blocks * page_size,
                shared_by=[names[k] for names in names_of_groups if k < len(names)],
            )
            for k in range(num_tensors)
        ],
        kv_cache_groups=[
            fast.KVCacheGroupSpec(names, type(specs[names[0]]).merge([specs[n] for n in names]))
            for names in names_of_groups
        ],
    )


def _share_caches(
    layers: dict[str, AttentionLayer], config: fast.KVCacheConfig
) -> dict[int, list[str]]:
    """Bind layers that share a cache to the target's, and add them to its group.

    Returns:
        These layers, by the number of their group.
    """
    targets = {
        name: layer.kv_sharing_target_layer_name
        for name, layer in layers.items()
        if layer.kv_sharing_target_layer_name is not None
    }
    kv_caches = {name: layer.kv_cache[0] for name, layer in layers.items() if name not in targets}
    fast.initialize_kv_cache_for_kv_sharing(targets, config.kv_cache_groups, kv_caches)
    fast.bind_kv_cache({name: kv_caches[name] for name in targets}, layers, [])
    sharing = {
        number: [name for name in group.layer_names if name in targets]
        for number, group in enumerate(config.kv_cache_groups)
    }
    return {number: names for number, names in sharing.items() if names}
