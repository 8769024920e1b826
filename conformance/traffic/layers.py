"""A runner's layers: the model deployed at the start, and what its layers are given in a step."""

from __future__ import annotations

from conformance.targets import Answer, Target
from conformance.traffic.buffers import Buffers
from conformance.zoo.cache_config import block_bytes
from conformance.zoo.deployment import Deployment, build_metadata, deploy
from conformance.zoo.groups import make_groups
from conformance.zoo.serving import Serving

ALLOCATED_BLOCKS = 2
"""Of the caches, which no step reads: a few show how they lie, all would fill the memory."""


def deploy_small(target: Target, serving: Serving) -> Deployment:
    """Deploy a model with a few blocks."""
    one_block = block_bytes(target, make_groups(target, serving))
    return deploy(target, serving, ALLOCATED_BLOCKS * one_block)


def build_for_layers(
    target: Target, deployment: Deployment, buffers: Buffers, metadata: list[Answer]
) -> tuple[list[Answer], dict[str, int]]:
    """Let the model's builders build what its layers get in a step.

    Args:
        target: The implementation.
        deployment: The model.
        buffers: The buffers from which `metadata` was made.
        metadata: The `CommonAttentionMetadata` of each KV cache group that takes blocks.

    Returns:
        The distinct objects that were built, and the index of the one that each layer gets.
    """
    no_cache = [group for group in deployment.groups if not group.has_kv_cache]
    of_layers = build_metadata(
        target,
        deployment,
        num_reqs=metadata[0].num_reqs,
        num_tokens=metadata[0].num_actual_tokens,
        query_start_loc=buffers.query_start_loc,
        seq_lens=buffers.seq_lens,
        num_computed_tokens_cpu=buffers.num_computed_tokens.cpu,
        block_tables=[
            *(of_group.block_table_tensor for of_group in metadata),
            *(buffers.no_blocks for _ in no_cache),
        ],
        slot_mappings=[
            *(of_group.slot_mapping for of_group in metadata),
            *(buffers.no_slots for _ in no_cache),
        ],
    )
    numbers: dict[int, int] = {}
    built: list[Answer] = []
    for of_layer in of_layers.values():
        if id(of_layer) not in numbers:
            numbers[id(of_layer)] = len(built)
            built.append(of_layer)
    return built, {name: numbers[id(of_layer)] for name, of_layer in of_layers.items()}
