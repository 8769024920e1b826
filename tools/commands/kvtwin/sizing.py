"""The size of a deployment of a model: its blocks, and the requests that fit."""

from __future__ import annotations

import bisect
import dataclasses
from typing import Any

from conformance.targets.target import TARGETS, Target
from conformance.zoo.backends import Backends
from conformance.zoo.cache_config import block_bytes, make_kv_cache_config
from conformance.zoo.catalogue import get_backend, suits
from conformance.zoo.groups import CacheGroup, make_groups
from conformance.zoo.layer import CROSS, ENCODER_ONLY, FULL, LATENT, MAMBA
from conformance.zoo.serving import Serving
from kvtwin.device_memory import GIB, DeviceMemory, kv_head_copies
from kvtwin.steady_state import (
    Capacity,
    Engine,
    make_capacity,
    steady_blocks,
    worst_case_blocks,
)

FOLLOWS = "vLLM 0.32"
"""The engine release whose groups, blocks and worst cases were compared with the plans."""


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
    steady_blocks: int
    share: float


@dataclasses.dataclass(frozen=True)
class Plan:
    """The size of a deployment; the docstring of `kvtwin.plan` describes the fields."""

    model: str
    published_as: str
    follows: str
    tensor_parallel_size: int
    engine: Engine
    num_devices: int
    kv_head_copies: int
    device_memory: DeviceMemory | None
    num_parameters: int
    uncounted_weights: tuple[str, ...]
    formats: list[str]
    max_model_len: int
    max_num_batched_tokens: int
    num_speculative_tokens: int
    prefix_caching: bool
    memory_bytes: int
    used_bytes: int
    block_bytes: int
    num_blocks: int
    bytes_per_token: int
    bytes_per_token_beyond_windows: int
    longest_request_tokens: int
    capacities: list[Capacity]
    backends: list[dict[str, Any]]
    groups: list[GroupPlan]


def make_plan(
    serving: Serving,
    memory: int | DeviceMemory,
    engine: Engine | None = None,
    request_tokens: int | None = None,
) -> Plan:
    """Plan a deployment.

    Args:
        serving: The model, and how it is served.
        memory: For each device, the bytes of its KV cache, or how its whole memory is divided.
        engine: How the engine schedules; None: the default.
        request_tokens: A typical length of requests, besides the longest.

    Returns:
        The plan.

    Raises:
        ValueError: Not even one token fits, the backends have no common block size, the layers
            cannot be divided as `engine` says, or typical requests are longer than the longest.

    Example:
        >>> from conformance.zoo.models import get_model
        >>> plan = make_plan(Serving(model=get_model("llama-3.1-8b")), 16 * GIB)
        >>> plan.num_blocks, plan.capacities[0].worst_case_blocks, plan.longest_request_tokens
        (8192, 8192, 131056)
    """
    engine = engine or Engine()
    memory_bytes = memory if isinstance(memory, int) else memory.cache_bytes
    if request_tokens is not None and request_tokens > serving.max_model_len:
        raise ValueError(
            f"request_tokens is {request_tokens}, but max_model_len is {serving.max_model_len}"
        )
    _check_context_parallel(serving, engine)
    target = TARGETS["host"]
    groups = make_groups(target, serving)
    if memory_bytes < (one_block := block_bytes(target, groups)):
        raise ValueError(
            f"{memory_bytes / GIB:.3g} GiB cannot hold a block of {serving.model.name}, which "
            f"takes {one_block / GIB:.3g} GiB"
        )
    config = make_kv_cache_config(target, serving, groups, memory_bytes)
    lengths = dict.fromkeys([serving.max_model_len, request_tokens or serving.max_model_len])
    return Plan(
        model=serving.model.name,
        published_as=serving.model.published_as,
        follows=FOLLOWS,
        tensor_parallel_size=serving.tensor_parallel_size,
        engine=engine,
        num_devices=serving.tensor_parallel_size
        * engine.prefill_context_parallel_size
        * engine.data_parallel_size,
        kv_head_copies=kv_head_copies(serving),
        device_memory=None if isinstance(memory, int) else memory,
        num_parameters=serving.model.weights.total(),
        uncounted_weights=serving.model.uncounted,
        formats=_formats(serving),
        max_model_len=serving.max_model_len,
        max_num_batched_tokens=serving.max_num_batched_tokens,
        num_speculative_tokens=serving.num_speculative_tokens,
        prefix_caching=serving.mamba_cache_mode != "none",
        memory_bytes=memory_bytes,
        used_bytes=sum(tensor.size for tensor in config.kv_cache_tensors),
        block_bytes=one_block,
        num_blocks=config.num_blocks,
        bytes_per_token=_bytes_per_token(engine, groups, one_block, bounded=True),
        bytes_per_token_beyond_windows=_bytes_per_token(engine, groups, one_block, bounded=False),
        longest_request_tokens=_longest_request(target, serving, engine, config),
        capacities=[
            make_capacity(target, serving, engine, groups, config, length) for length in lengths
        ],
        backends=_describe_backends(serving),
        groups=_plan_groups(target, serving, engine, groups, config),
    )


def _check_context_parallel(serving: Serving, engine: Engine) -> None:
    """Check that decode context parallelism divides the number of copies of each KV head."""
    dcp, ranks = engine.decode_context_parallel_size, serving.tensor_parallel_size
    copies = min(
        ranks if layer.kind == LATENT else ranks * layer.num_kv_heads // own.num_kv_heads
        for layer, own in zip(serving.layers, serving.model.layers, strict=True)
        if layer.kind not in (MAMBA, ENCODER_ONLY)
    )
    if copies % dcp != 0:
        raise ValueError(
            f"decode_context_parallel_size is {dcp}, but each KV head of {serving.model.name} is "
            f"on {copies} of {ranks} ranks, which must be a multiple of it"
        )


def _longest_request(target: Target, serving: Serving, engine: Engine, config: Any) -> int:  # noqa: ANN401  # an implementation's own
    """Return the length of the longest request that fits on its own."""
    usable = config.num_blocks - 1  # the null block is never allocated
    longest = bisect.bisect_right(
        range(1, serving.max_model_len + 1),
        usable,
        key=lambda length: sum(worst_case_blocks(target, serving, engine, config, length)),
    )
    if longest == 0:
        needed = sum(worst_case_blocks(target, serving, engine, config, 1))
        raise ValueError(
            f"the KV cache cannot hold a request of {serving.model.name}: its first token needs "
            f"{needed} blocks, and {usable} are usable"
        )
    return longest


def _bytes_per_token(
    engine: Engine, groups: tuple[CacheGroup, ...], one_block: int, *, bounded: bool
) -> int:
    """Return the bytes of a token on each device, padding layers included."""
    growing = [
        group
        for group in groups
        if group.kind in (FULL, LATENT)
        or (bounded and group.kind not in (MAMBA, CROSS, ENCODER_ONLY))
    ]
    tokens = engine.context_parallel_size
    return sum(one_block // (group.block_size * tokens) for group in growing)


def _formats(serving: Serving) -> list[str]:
    """Return the formats of the caches: dtypes, or names of special formats."""
    found: dict[str, None] = {}
    for layer in serving.layers:
        if layer.has_kv_cache:
            own = [str(state.dtype) for state in layer.states]
            found |= dict.fromkeys(own or [layer.cache_dtype_str or str(layer.dtype)])
    return list(found)


def _plan_groups(
    target: Target,
    serving: Serving,
    engine: Engine,
    groups: tuple[CacheGroup, ...],
    config: Any,  # noqa: ANN401  # an implementation's own
) -> list[GroupPlan]:
    """Return the size of each group."""
    blocks = worst_case_blocks(target, serving, engine, config, serving.max_model_len)
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
            steady_blocks=steady_blocks(serving, engine, group, serving.max_model_len),
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
    """Return the backends that need a common kernel block size: selected, or the layers' own."""
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
