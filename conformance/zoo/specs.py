"""The KV cache spec of each layer, made with an implementation."""

from __future__ import annotations

from conformance.targets.target import Answer, Target
from conformance.zoo.layer import (
    CHUNKED_LOCAL,
    CROSS,
    ENCODER_ONLY,
    FULL,
    LATENT,
    MAMBA,
    SLIDING_WINDOW,
    Layer,
)

_SPEC_CLASSES = {
    FULL: "FullAttentionSpec",
    SLIDING_WINDOW: "SlidingWindowSpec",
    CHUNKED_LOCAL: "ChunkedLocalAttentionSpec",
    LATENT: "MLAAttentionSpec",
    CROSS: "CrossAttentionSpec",
    ENCODER_ONLY: "EncoderOnlyAttentionSpec",
    MAMBA: "MambaSpec",
}


def make_spec(
    target: Target, layer: Layer, block_size: int, page_size_padded: int | None = None
) -> Answer:
    """Return the KV cache spec of a layer, which is a rank's part with its dtypes.

    `page_size_padded` is the size of a page of states with padding, in bytes; None: no padding.

    Example:
        >>> from conformance.targets.target import REFERENCE
        >>> from conformance.zoo.serving import Serving
        >>> from conformance.zoo.models import get_model
        >>> layer = Serving(model=get_model("phi-3-mini-4k")).layers[0]
        >>> make_spec(REFERENCE, layer, 16).sliding_window
        2047
    """
    make = _SPEC_CLASSES[layer.kind]
    if layer.kind == MAMBA:
        return target.call(
            make,
            block_size=block_size,
            shapes=tuple(state.shape for state in layer.states),
            dtypes=tuple(target.dtype(str(state.dtype)) for state in layer.states),
            page_size_padded=page_size_padded,
            mamba_type=layer.mamba_type,
            num_speculative_blocks=layer.num_speculative_blocks,
        )
    own: dict[str, object] = {}
    if layer.kind == SLIDING_WINDOW:
        own["sliding_window"] = layer.sliding_window
    elif layer.kind == CHUNKED_LOCAL:
        own["attention_chunk_size"] = layer.attention_chunk_size
    elif layer.kind == LATENT:
        own["cache_dtype_str"] = layer.cache_dtype_str
    return target.call(
        make,
        block_size=block_size,
        num_kv_heads=layer.num_kv_heads,
        head_size=layer.head_size,
        dtype=target.dtype(str(layer.dtype)),
        **own,
    )
