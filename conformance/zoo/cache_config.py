"""The `KVCacheConfig` and `VllmConfig` of a served model, made with an implementation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from conformance.targets.target import Answer, Target
from conformance.zoo.groups import CacheGroup, make_group_spec
from conformance.zoo.serving import Serving


def make_kv_cache_config(
    target: Target, serving: Serving, groups: Sequence[CacheGroup], memory_bytes: int
) -> Answer:
    """Return a `KVCacheConfig` with as many blocks as fit into `memory_bytes` of each device.

    Layers that share the cache of another are in its group, and in its tensor.

    Raises:
        ValueError: Not even one block fits.

    Example:
        >>> from conformance.targets.target import REFERENCE
        >>> from conformance.zoo.groups import make_groups
        >>> from conformance.zoo.models import get_model
        >>> target, serving = REFERENCE, Serving(model=get_model("llama-3.1-8b"))
        >>> config = make_kv_cache_config(target, serving, make_groups(target, serving), 2**30)
        >>> config.num_blocks, config.kv_cache_tensors[0].size
        (512, 33554432)
    """
    specs = [make_group_spec(target, group) for group in groups]
    group_specs = [
        target.call("KVCacheGroupSpec", group.layer_names, spec)
        for group, spec in zip(groups, specs, strict=True)
    ]
    tensors = _page_sizes_by_tensor(target, groups, specs)
    block_bytes = sum(page_size for page_size, _ in tensors)
    num_blocks = memory_bytes // block_bytes
    if num_blocks < 1:
        raise ValueError(
            f"memory_bytes is {memory_bytes}, but one block of {serving.model.name} takes "
            f"{block_bytes}"
        )
    shared = shared_kv_cache_layers(serving)
    target.call("add_kv_sharing_layers_to_kv_cache_groups", shared, group_specs)
    return target.call(
        "KVCacheConfig",
        num_blocks=num_blocks,
        kv_cache_tensors=[
            target.call(
                "KVCacheTensor",
                size=num_blocks * page_size,
                shared_by=[*names, *(layer for layer, own in shared.items() if own in names)],
            )
            for page_size, names in tensors
        ],
        kv_cache_groups=group_specs,
    )


def shared_kv_cache_layers(serving: Serving) -> dict[str, str]:
    """Map the name of each layer that reads another's cache to the name of that other layer.

    Example:
        >>> from conformance.zoo.models import get_model
        >>> shared = shared_kv_cache_layers(Serving(model=get_model("gemma-3n-e4b")))
        >>> {name.split(".")[3]: target.split(".")[3] for name, target in shared.items()}["34"]
        '19'
    """
    return {
        layer.name: layer.kv_sharing_target
        for layer in serving.layers
        if layer.kv_sharing_target is not None
    }


def block_bytes(target: Target, groups: Sequence[CacheGroup]) -> int:
    """Return the bytes of one block in all tensors."""
    specs = [make_group_spec(target, group) for group in groups]
    return sum(page_size for page_size, _ in _page_sizes_by_tensor(target, groups, specs))


def _page_sizes_by_tensor(
    target: Target, groups: Sequence[CacheGroup], specs: Sequence[Answer]
) -> list[tuple[int, list[str]]]:
    """Return the bytes of a page in each tensor, and the layers that own it."""
    caching = [(g, s) for g, s in zip(groups, specs, strict=True) if g.has_kv_cache]
    if len(caching) == 1:
        [(group, spec)] = caching
        inner = getattr(spec, "kv_cache_specs", dict.fromkeys(group.layer_names, spec))
        return [(target.attribute(inner[name], "page_size_bytes"), [name]) for name in inner]
    page_size = target.attribute(caching[0][1], "page_size_bytes")
    maximum = max(len(group.layers) for group, _ in caching)
    return [
        (page_size, [g.layer_names[i] for g, _ in caching if i < len(g.layers)])
        for i in range(maximum)
    ]


def make_vllm_config(
    target: Target,
    serving: Serving,
    *,
    parallel: Mapping[str, Answer] = MappingProxyType({}),
    scheduler: Mapping[str, Answer] = MappingProxyType({}),
    compilation: Mapping[str, Answer] = MappingProxyType({}),
) -> Answer:
    """Return the engine's `VllmConfig`; keywords override or add fields of three of its parts."""
    cache: dict[str, Answer] = {"block_size": serving.block_size}
    if serving.is_hybrid:
        cache["mamba_cache_mode"] = serving.mamba_cache_mode
    return target.call(
        "VllmConfig",
        model_config=target.call("ModelConfig", max_model_len=serving.max_model_len),
        cache_config=target.call("CacheConfig", **cache),
        parallel_config=target.call(
            "ParallelConfig",
            **{"tensor_parallel_size": serving.tensor_parallel_size, **parallel},
        ),
        scheduler_config=target.call(
            "SchedulerConfig",
            max_num_batched_tokens=serving.max_num_batched_tokens,
            max_num_seqs=serving.max_num_seqs,
            **{"max_num_encoder_input_tokens": serving.model.encoder_tokens, **scheduler},
        ),
        compilation_config=target.call("CompilationConfig", **compilation),
        speculative_config=target.call(
            "SpeculativeConfig", num_speculative_tokens=serving.num_speculative_tokens
        ),
    )
