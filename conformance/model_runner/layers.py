"""A runner's deployed model, and the attention metadata of its layers in a step."""

from __future__ import annotations

from dataclasses import dataclass

from conformance.model_runner.buffers import Buffers
from conformance.targets.target import Answer, Target
from conformance.zoo.cache_config import block_bytes, shared_kv_cache_layers
from conformance.zoo.deployment import Deployment, build_metadata, deploy
from conformance.zoo.groups import make_groups
from conformance.zoo.serving import Serving

ALLOCATED_BLOCKS = 2
"""Blocks of each cache. No step reads them, so a few suffice to check the memory layout."""


def deploy_small(target: Target, serving: Serving) -> Deployment:
    """Deploy a model with a few blocks."""
    one_block = block_bytes(target, make_groups(target, serving))
    return deploy(target, serving, ALLOCATED_BLOCKS * one_block)


def build_for_layers(
    target: Target, deployment: Deployment, buffers: Buffers, metadata: list[Answer]
) -> tuple[list[Answer], dict[str, int]]:
    """Build the attention metadata of the model's layers for a step.

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


@dataclass(frozen=True)
class FastPrefill:
    """Layers with backends for fast prefill.

    Attributes:
        attn_groups: An `AttentionGroup` of such layers, by the number of their KV cache group.
        is_real: Whether they read other layers' caches. In a model without such layers, the groups
            take turns in being treated as if theirs did.
    """

    attn_groups: dict[int, Answer]
    is_real: bool

    def groups_of_step(self, number: int) -> dict[int, Answer]:
        """Return the groups of a step in which the KV cache group `number` has its turn."""
        return self.attn_groups if self.is_real else {number: self.attn_groups[number]}


def make_fast_prefill(target: Target, deployment: Deployment) -> FastPrefill:
    """Make backends and builders for fast prefill from a model's own.

    There is one for each KV cache group whose layers read other layers' caches. In a model without
    such layers, there is one for each group, for the layers of one backend and spec.

    Example:
        >>> from conformance.targets.target import REFERENCE
        >>> from conformance.zoo.deployment import deploy
        >>> from conformance.zoo.models import get_model
        >>> from conformance.zoo.serving import Serving
        >>> target = REFERENCE
        >>> serving = Serving(model=get_model("gemma-3n-e4b"), requested_max_model_len=64)
        >>> made = make_fast_prefill(target, deploy(target, serving, 2**20))
        >>> [(n, g.backend.__name__, len(g.layer_names)) for n, g in made.attn_groups.items()]
        [(3, 'FastPrefillTritonAttentionBackend', 12), (4, 'FastPrefillTritonAttentionBackend', 3)]
    """
    shared = shared_kv_cache_layers(deployment.serving)
    made: dict[int, Answer] = {}
    for number, group in enumerate(deployment.groups):
        for own in deployment.attn_groups[number] if group.has_kv_cache else ():
            names = [name for name in own.layer_names if name in shared or not shared]
            if names and number not in made:
                made[number] = target.call(
                    "AttentionGroup.create_with_metadata_builders",
                    target.call("create_fast_prefill_custom_backend", "FastPrefill", own.backend),
                    names,
                    own.kv_cache_spec,
                    deployment.vllm_config,
                    target.device,
                )
    return FastPrefill(made, is_real=bool(shared))
