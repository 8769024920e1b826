"""The forward context of an engine: stub layers with the attributes that functions read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from conformance.targets.target import Answer, Target
from conformance.zoo.layer import CROSS, ENCODER_ONLY, MAMBA, Layer
from conformance.zoo.serving import Serving

_TYPES = {CROSS: "ENCODER_DECODER", ENCODER_ONLY: "ENCODER_ONLY"}
"""The names in `AttentionType` of kinds other than decoder attention."""


@dataclass(frozen=True)
class AttentionImpl:
    """The `impl` of an attention layer: the parameters that a backend computes it with.

    Attributes:
        scale: The factor of the scores.
        sliding_window: Keys to the left and to the right that a query attends to; -1: all.
        logits_soft_cap: The bound of the scores; None: none.
        sinks: float32[num_query_heads], the scores of the sinks; None: there are none.
    """

    scale: float
    sliding_window: tuple[int, int]
    logits_soft_cap: float | None
    sinks: Any


@dataclass
class AttentionLayer:
    """A stub of an attention layer.

    Attributes:
        attn_type: One of the implementation's `AttentionType`.
        num_kv_heads: Of each rank.
        head_size: Elements of a head.
        sliding_window: Keys that a query attends to, its own included; None: all.
        impl: The parameters of the computation.
        backend: The class that computes it.
        kv_sharing_target_layer_name: The layer whose cache it reads; None: its own.
        kv_cache: The caches that are bound to it.
    """

    attn_type: str
    num_kv_heads: int
    head_size: int
    sliding_window: int | None
    impl: AttentionImpl
    backend: Any
    kv_sharing_target_layer_name: str | None
    kv_cache: list[Any] = field(default_factory=list)

    def get_attn_backend(self) -> Answer:
        """Return the class that computes it."""
        return self.backend


@dataclass
class StateLayer:
    """A stub of a Mamba layer or similar: not an attention layer, since it has no `attn_type`.

    Attributes:
        backend: The class that computes it.
        kv_cache: The caches that are bound to it.
    """

    backend: Any
    kv_cache: list[Any] = field(default_factory=list)

    def get_attn_backend(self) -> Answer:
        """Return the class that computes it."""
        return self.backend


def make_forward_context(
    target: Target, serving: Serving, get_backend: Callable[[str, str], Answer]
) -> dict[str, AttentionLayer | StateLayer]:
    """Return the layers of a model by name, in the model's order.

    `get_backend` returns a backend, given its name and the kind of layers.

    Example:
        >>> from conformance.targets.target import REFERENCE
        >>> from conformance.zoo.models import get_model
        >>> serving = Serving(model=get_model("gemma-2-9b"))
        >>> layers = make_forward_context(REFERENCE, serving, lambda name, kind: name)
        >>> layers["model.layers.0.self_attn.attn"].impl.sliding_window
        (4095, 0)
    """
    return {
        layer.name: StateLayer(get_backend(layer.backend, layer.kind))
        if layer.kind == MAMBA
        else _make_attention_layer(target, layer, get_backend(layer.backend, layer.kind))
        for layer in serving.layers
    }


def _make_attention_layer(target: Target, layer: Layer, backend: Answer) -> AttentionLayer:
    """Make an attention layer."""
    window = (-1, -1) if layer.sliding_window is None else (layer.sliding_window - 1, 0)
    sinks = target.array(np.zeros(layer.num_query_heads, np.float32)) if layer.has_sinks else None
    return AttentionLayer(
        attn_type=target.find(f"AttentionType.{_TYPES.get(layer.kind, 'DECODER')}"),
        num_kv_heads=layer.num_kv_heads,
        head_size=layer.head_size,
        sliding_window=layer.sliding_window,
        impl=AttentionImpl(layer.scale, window, layer.logits_soft_cap, sinks),
        backend=backend,
        kv_sharing_target_layer_name=layer.kv_sharing_target,
    )
