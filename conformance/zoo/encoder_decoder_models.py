"""Models of an encoder and a decoder that attends to it."""

from __future__ import annotations

from conformance.zoo.layer import CROSS, ENCODER_ONLY, FULL, Layer, repeat
from conformance.zoo.model import Model


def _whisper_attention(name: str, kind: str) -> Layer:
    """Describe one of the attentions of Whisper large, which has 20 heads of 64."""
    return Layer(
        name=name, kind=kind, num_query_heads=20, num_kv_heads=20, head_size=64, scale=64**-0.5
    )


WHISPER_ENCODER = _whisper_attention("model.encoder.layers.{}.self_attn.attn", ENCODER_ONLY)
WHISPER_SELF = _whisper_attention("model.decoder.layers.{}.self_attn.attn", FULL)
WHISPER_CROSS = _whisper_attention("model.decoder.layers.{}.encoder_attn.attn", CROSS)

ENCODER_DECODER_MODELS = (
    Model(
        name="whisper-large-v3",
        published_as="openai/whisper-large-v3",
        source="config.json at the hub (max_source_positions: 1500, max_target_positions: 448); "
        "Whisper (arXiv 2212.04356), table 1",
        layers=tuple(
            layer
            for kind in (WHISPER_ENCODER, WHISPER_SELF, WHISPER_CROSS)
            for layer in repeat((kind,), 32)
        ),
        max_context_tokens=448,
        dtype="float16",
        encoder_tokens=1500,
    ),
)
"""In the order in which they are listed."""
