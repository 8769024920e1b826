"""A runner's layers that read another layer's cache: they compute only the tokens with logits."""

from __future__ import annotations

from dataclasses import dataclass

from conformance.targets import Answer, Target
from conformance.zoo.cache_config import shared_kv_cache_layers
from conformance.zoo.deployment import Deployment

PREFIX = "FastPrefill"


@dataclass(frozen=True)
class FastPrefill:
    """Layers with backends for fast prefill.

    Attributes:
        attn_groups: An `AttentionGroup` of such layers, by the number of their KV cache group.
        is_real: Whether they read other layers' caches. Otherwise, in models without such layers,
            one group in turn does as if its layers did.
    """

    attn_groups: dict[int, Answer]
    is_real: bool

    def in_turn(self, number: int) -> dict[int, Answer]:
        """Return the groups of a step in which the KV cache group `number` has its turn."""
        return self.attn_groups if self.is_real else {number: self.attn_groups[number]}


def make_fast_prefill(target: Target, deployment: Deployment) -> FastPrefill:
    """Make backends and builders for fast prefill from a model's own.

    There is one for each KV cache group whose layers read other layers' caches. In a model without
    such layers, there is one for each group, for the layers of one backend and spec.

    Example:
        >>> from conformance.targets import REFERENCE
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
                    target.call("create_fast_prefill_custom_backend", PREFIX, own.backend),
                    names,
                    own.kv_cache_spec,
                    deployment.vllm_config,
                    target.device,
                )
    return FastPrefill(made, is_real=bool(shared))
