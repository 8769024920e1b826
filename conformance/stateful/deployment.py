"""The deployment of an engine whose KV cache groups have blocks of unlike numbers of tokens."""

from __future__ import annotations

from conformance.stateful.setup import Setup
from conformance.zoo.backends import Backends
from conformance.zoo.cache_config import block_bytes, make_kv_cache_config, make_vllm_config
from conformance.zoo.calls import Calls
from conformance.zoo.context import make_forward_context
from conformance.zoo.deployment import Deployment
from conformance.zoo.serving import Serving


def deploy_setup(call: Calls, serving: Serving, setup: Setup) -> Deployment:
    """Do what an engine does when it starts, with all blocks of the pool.

    Args:
        call: The calls of an implementation.
        serving: The model of the setup, and how it is served.
        setup: Of the engine.

    Returns:
        What it comes to.

    Example:
        >>> import reference
        >>> setup = Setup(block_sizes=(2, 4), kinds=("full", "full"), max_model_len=8)
        >>> serving = setup.settings.serving(setup.model)
        >>> deployment = deploy_setup(Calls(reference), serving, setup)
        >>> [cache.shape for cache in deployment.kv_caches.values()]
        [(2, 11, 2, 1, 2), (2, 11, 4, 1, 1)]
    """
    layers = make_forward_context(call, serving, Backends(call).get)
    vllm_config = make_vllm_config(call, serving, layers)
    memory_bytes = setup.num_blocks * block_bytes(call, setup.groups)
    kv_cache_config = make_kv_cache_config(call, serving, setup.groups, memory_bytes)
    attn_groups = [
        [
            call(
                "AttentionGroup.create_with_metadata_builders",
                layers[group.layer_names[0]].get_attn_backend(),
                group.layer_names,
                group.kv_cache_spec,
                vllm_config,
                call.device,
            )
        ]
        for group in kv_cache_config.kv_cache_groups
    ]
    attn_backends, builders = call("init_attn_backend", kv_cache_config, vllm_config, call.device)
    kernel_block_sizes = call("prepare_kernel_block_sizes", kv_cache_config, attn_groups)
    runner_kv_caches: list[object] = []
    call(
        "init_kv_cache",
        runner_kv_caches,
        layers,
        kv_cache_config,
        attn_backends,
        call.device,
        kernel_block_sizes=kernel_block_sizes,
        num_attn_module=serving.model.num_attn_module,
    )
    return Deployment(
        serving=serving,
        groups=setup.groups,
        vllm_config=vllm_config,
        kv_cache_config=kv_cache_config,
        layers=layers,
        attn_groups=attn_groups,
        attn_backends=attn_backends,
        builders=[builders],
        kernel_block_sizes=kernel_block_sizes,
        runner_kv_caches=runner_kv_caches,
        parameters=[],
    )
