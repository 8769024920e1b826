"""A published model: its layers, and what else an engine must know to serve it."""

from __future__ import annotations

from dataclasses import dataclass

from conformance.zoo.layer import Layer


@dataclass(frozen=True, kw_only=True)
class Model:
    """A published model, as far as a KV cache sees it.

    Attributes:
        name: As one types it at a command line.
        published_as: Its name at the Hugging Face hub.
        source: Where the numbers come from.
        layers: Those that have a KV cache, share one, or attend without one; in the model's order.
        max_context_tokens: The longest sequence that it was published for, of the decoder.
        dtype: Of its weights, and so of its caches, by name.
        num_attn_module: Attention modules in one layer.
        encoder_tokens: Tokens that the encoder makes of each request's input; 0: no encoder.
    """

    name: str
    published_as: str
    source: str
    layers: tuple[Layer, ...]
    max_context_tokens: int
    dtype: str = "bfloat16"
    num_attn_module: int = 1
    encoder_tokens: int = 0
