"""A model's attention layers, as the functions of `fast` expect them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import fast
from tools.runner.attention import PagedAttentionImpl
from tools.runner.backends import PagedBackend, make_chunked_backend

FAST_PREFILL_PREFIX = "FastPrefill"


class AttentionLayer:
    """An attention layer: an entry of the forward context.

    Args:
        name: The layer's name.
        attention: The module of the model.
        target: The layer whose cache it reads; None if it has its own.

    Attributes:
        attn_type, num_kv_heads, head_size, sliding_window, attention_chunk_size: The parameters of
            its cache; the last two are None if it sees the whole sequence.
        kv_sharing_target_layer_name: The layer whose cache it reads, or None.
        impl: Its attention.
        kv_cache: A list with its cache, once it is bound.
    """

    def __init__(self, name: str, attention: nn.Module, target: str | None) -> None:
        config: Any = attention.config
        layer_types = getattr(config, "layer_types", None)  # absent if all layers are alike
        layer_type = layer_types[attention.layer_idx] if layer_types else "full_attention"
        is_sliding = layer_type == "sliding_attention"
        is_chunked = layer_type == "chunked_attention"
        self.name = name
        self.attn_type = fast.AttentionType.DECODER
        self.num_kv_heads = config.num_key_value_heads
        self.head_size = attention.head_dim
        self.sliding_window = config.sliding_window if is_sliding else None
        self.attention_chunk_size = config.attention_chunk_size if is_chunked else None
        self.kv_sharing_target_layer_name = target
        self.impl = PagedAttentionImpl(attention.scaling, self.sliding_window)
        self.kv_cache: list[torch.Tensor] = []

    def get_attn_backend(self) -> type[Any]:
        """Return the backend: chunked layers and those that share a cache have their own."""
        backend: type[Any] = PagedBackend
        if self.attention_chunk_size is not None:
            backend = make_chunked_backend(self.attention_chunk_size)
        if self.kv_sharing_target_layer_name is not None:
            backend = fast.create_fast_prefill_custom_backend(FAST_PREFILL_PREFIX, backend)
        return backend


def layer_name(layer_index: int) -> str:
    """Return the name of a layer.

    Args:
        layer_index: Its number in the model.

    Example:
        >>> layer_name(3)
        'model.layers.3.self_attn.attn'
    """
    return f"model.layers.{layer_index}.self_attn.attn"


def find_layers(model: nn.Module) -> dict[str, AttentionLayer]:
    """Find the attention layers of a model.

    Args:
        model: A text model of `transformers`.

    Returns:
        The forward context: the layers by name. A layer that shares a cache reads that of the last
        layer of its type that has one.
    """
    layers: dict[str, AttentionLayer] = {}
    owners: dict[str, str] = {}
    for index, decoder_layer in enumerate(model.model.layers):
        attention = decoder_layer.self_attn
        name = layer_name(index)
        layer_type = getattr(attention, "layer_type", None) or "full_attention"
        if getattr(attention, "is_kv_shared_layer", False):
            target = owners[layer_type]
        else:
            target = None
            owners[layer_type] = name
        layers[name] = AttentionLayer(name, attention, target)
    return layers
