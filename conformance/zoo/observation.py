"""The compared parts of a deployment: its values, and its memory layout."""

from __future__ import annotations

from conformance.targets.target import Answer, Target
from conformance.values.differences import Difference
from conformance.values.views import first_view_difference
from conformance.zoo.deployment import Deployment


def observe(target: Target, deployment: Deployment) -> dict[str, Answer]:
    """Return the values of a deployment by name, without the bytes in its caches."""
    config = deployment.kv_cache_config
    return {
        "kv_cache_config": config,
        "max_memory_usage_bytes": [
            target.method(group.kv_cache_spec, "max_memory_usage_bytes", deployment.vllm_config)
            for group in config.kv_cache_groups
        ],
        "page_size_bytes": [
            target.attribute(group.kv_cache_spec, "page_size_bytes")
            for group in config.kv_cache_groups
        ],
        "attn_backends": deployment.attn_backends,
        "attn_groups": deployment.attn_groups,
        "builders": deployment.builders,
        "kernel_block_sizes": deployment.kernel_block_sizes,
        "parameters": deployment.parameters,
        "caches": {
            name: [(tuple(view.shape), view.dtype) for view in _views(cache)]
            for name, cache in deployment.kv_caches.items()
        },
    }


def first_memory_difference(expected: Deployment, actual: Deployment) -> Difference | None:
    """Return the first difference in the memory layout of two deployments with equal values.

    The layout consists of the strides and offsets of caches, which caches share memory or are the
    same object, and which lists and workspaces builders and groups share.

    Example:
        >>> from conformance.targets.target import REFERENCE, TARGETS
        >>> from conformance.zoo.deployment import deploy
        >>> from conformance.zoo.models import get_model
        >>> from conformance.zoo.serving import Serving
        >>> serving = Serving(model=get_model("gpt-oss-20b"), tensor_parallel_size=8)
        >>> expected = deploy(REFERENCE, serving, 2**20)
        >>> first_memory_difference(expected, deploy(TARGETS["host"], serving, 2**20)) is None
        True
    """
    return first_view_difference(_memory(expected), _memory(actual), {}, {})


def _memory(deployment: Deployment) -> dict[str, Answer]:
    """Return the parts of a deployment whose memory layout is compared."""
    return {
        "kv_caches": deployment.kv_caches,
        "runner_kv_caches": deployment.runner_kv_caches,
        "kv_cache_config": deployment.kv_cache_config,
        "attn_groups": deployment.attn_groups,
        "builders": deployment.builders,
    }


def _views(cache: Answer) -> list[Answer]:
    """Return the views of a layer's cache: several of states, otherwise one."""
    return cache if isinstance(cache, list) else [cache]
