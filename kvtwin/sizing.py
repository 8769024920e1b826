"""The size of a deployment of a zoo model: its blocks, and the requests that fit."""

from __future__ import annotations

import bisect
import dataclasses
from typing import Any

from conformance.targets import TARGETS, Target
from conformance.zoo.backends import Backends
from conformance.zoo.cache_config import block_bytes, make_kv_cache_config, make_vllm_config
from conformance.zoo.catalogue import get_backend, suits
from conformance.zoo.groups import CacheGroup, make_groups
from conformance.zoo.layer import ENCODER_ONLY, MAMBA
from conformance.zoo.serving import Serving

GIB = 2**30


@dataclasses.dataclass(frozen=True)
class GroupPlan:
    """The size of a KV cache group; the docstring of `kvtwin.plan` describes the fields."""

    kind: str
    num_layers: int
    num_sharing_layers: int
    block_size: int
    kernel_block_size: int | None
    page_size_bytes: int
    blocks_per_request: int
    share: float


@dataclasses.dataclass(frozen=True)
class Plan:
    """The size of a deployment; the docstring of `kvtwin.plan` describes the fields."""

    model: str
    published_as: str
    tensor_parallel_size: int
    formats: list[str]
    max_model_len: int
    max_num_batched_tokens: int
    memory_bytes: int
    used_bytes: int
    block_bytes: int
    num_blocks: int
    blocks_per_request: int
    requests: float
    tokens: int
    longest_request_tokens: int
    backends: list[dict[str, Any]]
    groups: list[GroupPlan]


def make_plan(serving: Serving, memory_bytes: int) -> Plan:
    """Plan a deployment.

    Args:
        serving: The model, and how it is served.
        memory_bytes: The KV cache memory of each device.

    Returns:
        The plan.

    Raises:
        ValueError: Not even one token fits, or the backends have no common block size.

    Example:
        >>> from conformance.zoo.models import get_model
        >>> plan = make_plan(Serving(model=get_model("llama-3.1-8b")), 16 * GIB)
        >>> plan.num_blocks, plan.blocks_per_request, plan.longest_request_tokens
        (8192, 8192, 131056)
    """
    target = TARGETS["host"]
    groups = make_groups(target, serving)
    if memory_bytes < (one_block := block_bytes(target, groups)):
        raise ValueError(
            f"{memory_bytes / GIB:.3g} GiB cannot hold a block of {serving.model.name}, which "
            f"takes {one_block / GIB:.3g} GiB"
        )
    config = make_kv_cache_config(target, serving, groups, memory_bytes)
    blocks = _blocks_of_a_request(target, serving, config, serving.max_model_len)
    usable = config.num_blocks - 1  # the null block is never allocated
    requests = usable / sum(blocks)
    longest = bisect.bisect_right(
        range(1, serving.max_model_len + 1),
        usable,
        key=lambda length: sum(_blocks_of_a_request(target, serving, config, length)),
    )
    if longest == 0:
        needed = sum(_blocks_of_a_request(target, serving, config, 1))
        raise ValueError(
            f"{memory_bytes / GIB:.3g} GiB cannot hold a request of {serving.model.name}: its "
            f"first token needs {needed} blocks, and {usable} are usable"
        )
    return Plan(
        model=serving.model.name,
        published_as=serving.model.published_as,
        tensor_parallel_size=serving.tensor_parallel_size,
        formats=_formats(serving),
        max_model_len=serving.max_model_len,
        max_num_batched_tokens=serving.max_num_batched_tokens,
        memory_bytes=memory_bytes,
        used_bytes=sum(tensor.size for tensor in config.kv_cache_tensors),
        block_bytes=one_block,
        num_blocks=config.num_blocks,
        blocks_per_request=sum(blocks),
        requests=requests,
        tokens=int(requests * serving.max_model_len) if requests >= 1 else longest,
        longest_request_tokens=longest,
        backends=_describe_backends(serving),
        groups=_plan_groups(target, serving, groups, config, blocks),
    )


def _formats(serving: Serving) -> list[str]:
    """Return the formats of the caches: dtypes, or names of special formats."""
    found: dict[str, None] = {}
    for layer in serving.layers:
        if layer.has_kv_cache:
            own = [str(state.dtype) for state in layer.states]
            found |= dict.fromkeys(own or [layer.cache_dtype_str or str(layer.dtype)])
    return list(found)


def _blocks_of_a_request(target: Target, serving: Serving, config: Any, length: int) -> list[int]:  # noqa: ANN401  # an implementation's own
    """Return the largest number of blocks that a request of a length needs, for each group."""
    shorter = dataclasses.replace(serving, requested_max_model_len=length)
    vllm_config = make_vllm_config(target, shorter)
    specs = [group.kv_cache_spec for group in config.kv_cache_groups]
    return [spec.max_memory_usage_bytes(vllm_config) // spec.page_size_bytes for spec in specs]


def _plan_groups(
    target: Target,
    serving: Serving,
    groups: tuple[CacheGroup, ...],
    config: Any,  # noqa: ANN401  # an implementation's own
    blocks: list[int],
) -> list[GroupPlan]:
    """Return the size of each group."""
    backends = Backends(target)
    attn_groups = [
        [
            target.call(
                "AttentionGroup", backends.get(name, group.kind), [], group.layer_names, None
            )
            for name in _backends_of(serving, group)
        ]
        for group in groups
    ]
    try:
        sizes = iter(target.call("prepare_kernel_block_sizes", config, attn_groups))
    except ValueError as error:
        paged = [group for group in groups if group.kind not in (MAMBA, ENCODER_ONLY)]
        names = [name for group in paged for name in _backends_of(serving, group)]
        raise ValueError(
            f"backends {', '.join(dict.fromkeys(names))} have no common kernel block size for "
            f"blocks of {paged[0].block_size} tokens: {error}"
        ) from error
    return [
        GroupPlan(
            kind=group.kind,
            num_layers=len(group.layers),
            num_sharing_layers=len(of_config.layer_names) - len(group.layers),
            block_size=group.block_size,
            kernel_block_size=_kernel_block_size(group, sizes),
            page_size_bytes=of_config.kv_cache_spec.page_size_bytes,
            blocks_per_request=num_blocks,
            share=num_blocks / sum(blocks),
        )
        for group, of_config, num_blocks in zip(groups, config.kv_cache_groups, blocks, strict=True)
    ]


def _kernel_block_size(group: CacheGroup, sizes: Any) -> int | None:  # noqa: ANN401  # an iterator
    """Return the next kernel block size, or None for a group without kernel blocks."""
    if group.kind == ENCODER_ONLY:
        return None
    size: int = next(sizes)
    return None if group.kind == MAMBA else size


def _backends_of(serving: Serving, group: CacheGroup) -> list[str]:
    """Return the backends that need a common kernel block size: those named, or the layers' own."""
    named = [
        name
        for name in serving.backends
        if any(suits(get_backend(name), layer) for layer in group.layers)
    ]
    own = [layer.backend for layer in group.layers if layer.backend not in named]
    computed = {get_backend(name).computes for name in named}
    return list(
        dict.fromkeys([*named, *(n for n in own if get_backend(n).computes not in computed)])
    )


def _describe_backends(serving: Serving) -> list[dict[str, Any]]:
    """Return the block sizes that the backends support."""
    names = dict.fromkeys([*serving.backends, *(layer.backend for layer in serving.layers)])
    found = [get_backend(name) for name in names]
    return [
        {
            "name": facts.name,
            "kernel_block_sizes": list(facts.kernel_block_sizes),
            "multiples_of": list(facts.multiples_of),
        }
        for facts in found
        if facts.axes
    ]
