"""A deployed model's layers in a step: their attention metadata, and backends for fast prefill."""

from __future__ import annotations

from conformance.model_runner.buffers import Buffers
from conformance.targets.target import Answer, Target
from conformance.zoo.deployment import Deployment


def build_for_layers(
    target: Target, deployment: Deployment, buffers: Buffers, metadata: list[Answer]
) -> tuple[list[Answer], dict[str, int]]:
    """Build the attention metadata of the model's layers for a step.

    Args:
        target: The implementation.
        deployment: The model.
        buffers: The buffers from which `metadata` was made.
        metadata: The `CommonAttentionMetadata` of each KV cache group.

    Returns:
        The distinct objects that were built, and the index of the one that each layer gets.
    """
    of_layers: dict[str, Answer] = target.call(
        "build_attn_metadata",
        deployment.builders,
        num_reqs=metadata[0].num_reqs,
        num_tokens=metadata[0].num_actual_tokens,
        query_start_loc=buffers.query_start_loc,
        seq_lens=buffers.seq_lens,
        num_computed_tokens_cpu=buffers.num_computed_tokens.cpu,
        block_tables=[of_group.block_table_tensor for of_group in metadata],
        slot_mappings=[of_group.slot_mapping for of_group in metadata],
        kv_cache_config=deployment.kv_cache_config,
    )
    numbers: dict[int, int] = {}
    built: list[Answer] = []
    for of_layer in of_layers.values():
        if id(of_layer) not in numbers:
            numbers[id(of_layer)] = len(built)
            built.append(of_layer)
    return built, {name: numbers[id(of_layer)] for name, of_layer in of_layers.items()}


def make_fast_prefill(target: Target, deployment: Deployment) -> list[Answer]:
    """Make backends and builders for fast prefill from those of each KV cache group."""
    return [
        target.call(
            "AttentionGroup.create_with_metadata_builders",
            target.call("create_fast_prefill_custom_backend", "FastPrefill", own.backend),
            own.layer_names,
            own.kv_cache_spec,
            deployment.vllm_config,
            target.device,
        )
        for [own] in deployment.attn_groups
    ]
