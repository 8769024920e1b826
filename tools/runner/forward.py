"""A model's forward pass over a batch: how attention is plugged into `transformers`.

The model gets all tokens of a batch in one row. `transformers` calls `paged_attention` in each
attention layer with the keywords of the model's call, which is how the `ForwardContext` gets there.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

import fast
from tools.runner.layers import AttentionLayer, layer_name

NAME = "kvtwin_paged"


@dataclass(frozen=True)
class ForwardContext:
    """The inputs of attention layers in a forward pass.

    Attributes:
        layers: The layers, by name.
        attn_metadata: The metadata of each, by name.
    """

    layers: dict[str, AttentionLayer]
    attn_metadata: dict[str, Any]


def paged_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,  # noqa: ARG001  # the metadata defines it
    *,
    forward_context: ForwardContext,
    **_kwargs: object,
) -> tuple[torch.Tensor, None]:
    """Write a layer's keys and values into its cache, and attend over the cache.

    Args:
        module: The model's attention.
        query: [1, num_heads, num_tokens, head_size].
        key: [1, num_kv_heads, num_tokens, head_size]. In a layer that shares the cache of another
            these are the other layer's, which has written them already.
        value: Likewise.
        attention_mask: Not read.
        forward_context: The batch.

    Returns:
        [1, num_tokens, num_heads, head_size], and no weights.
    """
    name = layer_name(module.layer_idx)
    layer, metadata = forward_context.layers[name], forward_context.attn_metadata[name]
    [kv_cache] = layer.kv_cache
    if layer.kv_sharing_target_layer_name is None:
        layer.impl.write(key[0].transpose(0, 1), value[0].transpose(0, 1), kv_cache, metadata)
    output = layer.impl.forward(query[0].transpose(0, 1), kv_cache, metadata)
    return output.unsqueeze(0), None


def plug_in(model: PreTrainedModel, layers: dict[str, AttentionLayer]) -> None:
    """Make a model attend through its KV caches.

    Args:
        model: The model, which is changed.
        layers: Its layers, by name.
    """
    AttentionInterface.register(NAME, paged_attention)
    AttentionMaskInterface.register(NAME, lambda *_args, **_kwargs: None)
    model.set_attn_implementation(NAME)
    is_first = True
    for name, decoder_layer in zip(layers, model.model.layers, strict=True):
        if layers[name].kv_sharing_target_layer_name is not None:
            hook = functools.partial(_narrow, name, is_first)
            decoder_layer.register_forward_pre_hook(hook, with_kwargs=True)
            is_first = False


def _narrow(
    name: str,
    is_first: bool,
    _layer: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Narrow the inputs of a layer that shares a cache to the tokens with logits.

    No later token reads the other tokens' results of such a layer. The hidden states are narrowed
    once, in the first such layer; the other inputs in each.
    """
    metadata = kwargs["forward_context"].attn_metadata[name]
    if not isinstance(metadata, fast.KVSharingFastPrefillMetadata):
        raise TypeError(f"{name} shares a cache, but its metadata is a {type(metadata).__name__}")
    indices = metadata.logits_indices_padded
    if indices is None:
        return None  # decodes only: all have logits
    hidden_states, (cos, sin), per_layer_input = args
    if is_first:
        hidden_states = hidden_states[:, :, indices]
    position_embeddings = cos[:, indices], sin[:, indices]
    return (hidden_states, position_embeddings, per_layer_input[:, indices]), kwargs


@torch.inference_mode()
def forward(
    model: PreTrainedModel,
    context: ForwardContext,
    input_ids: torch.Tensor,
    positions: torch.Tensor,
    logits_indices: torch.Tensor | None,
) -> torch.Tensor:
    """Run a model over a batch.

    Args:
        model: The model, plugged in.
        context: Its layers, and their metadata.
        input_ids: int64[num_tokens], padding too.
        positions: int64[num_tokens], of each token in its sequence.
        logits_indices: int64[num_logits], the tokens with logits; None: all that leave
            the last layer.

    Returns:
        [num_logits, vocab_size].
    """
    return model(
        input_ids=input_ids.unsqueeze(0),
        position_ids=positions.unsqueeze(0),
        use_cache=False,
        logits_to_keep=0 if logits_indices is None else logits_indices,  # 0: all
        forward_context=context,
    ).logits[0]
