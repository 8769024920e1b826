"""Models whose layers keep keys and values: all alike, by turns with a window or chunks, shared."""

from __future__ import annotations

from dataclasses import replace

from conformance.zoo.layer import CHUNKED_LOCAL, FULL, SLIDING_WINDOW, Layer, repeat
from conformance.zoo.model import Model

DECODER = "model.layers.{}.self_attn.attn"


def _attention(query_heads: int, kv_heads: int, head_size: int, name: str = DECODER) -> Layer:
    """Describe attention over everything before, scaled by the head size."""
    return Layer(
        name=name,
        kind=FULL,
        num_query_heads=query_heads,
        num_kv_heads=kv_heads,
        head_size=head_size,
        scale=head_size**-0.5,
    )


def _with_window(layer: Layer, window: int) -> Layer:
    """Give a layer a sliding window."""
    return replace(layer, kind=SLIDING_WINDOW, sliding_window=window)


LLAMA_8B = _attention(32, 8, 128)
LLAMA_70B = replace(_attention(64, 8, 128), backend="FLASHINFER")
QWEN_7B = _attention(28, 4, 128)
MISTRAL = _with_window(_attention(32, 8, 128), 4096)
PHI_3_MINI = _with_window(_attention(32, 32, 96), 2047)
GEMMA_2 = replace(_attention(16, 8, 256), backend="FLASHINFER", logits_soft_cap=50.0)
GEMMA_3 = replace(
    _attention(32, 16, 128, f"language_model.{DECODER}"),
    scale=168**-0.5,  # query_pre_attn_scalar: 5376 of the hidden size, by 32 heads
)
GEMMA_3N = replace(
    _attention(8, 2, 256, "model.language_model.layers.{}.self_attn.attn"),
    backend="TRITON_ATTN",
    scale=1.0,  # queries and keys are normalised
)
GPT_OSS = replace(_attention(64, 8, 64), backend="TRITON_ATTN", has_sinks=True)
LLAMA_4 = _attention(40, 8, 128, f"language_model.{DECODER}")


def _gemma_3n_layers() -> tuple[Layer, ...]:
    """Return 20 layers with caches of their own, and 15 that read those of the last of a kind."""
    layers = repeat((*[_with_window(GEMMA_3N, 512)] * 4, GEMMA_3N), 35)
    own, sharing = layers[:20], layers[20:]
    last = {layer.kind: layer.name for layer in own}
    return (*own, *[replace(layer, kv_sharing_target=last[layer.kind]) for layer in sharing])


ATTENTION_MODELS = (
    Model(
        name="llama-3.1-8b",
        published_as="meta-llama/Llama-3.1-8B",
        source="config.json at the hub; The Llama 3 Herd of Models (arXiv 2407.21783), table 3",
        layers=repeat((LLAMA_8B,), 32),
        max_context_tokens=131_072,
    ),
    Model(
        name="llama-3.1-70b",
        published_as="meta-llama/Llama-3.1-70B",
        source="config.json at the hub; The Llama 3 Herd of Models (arXiv 2407.21783), table 3",
        layers=repeat((LLAMA_70B,), 80),
        max_context_tokens=131_072,
    ),
    Model(
        name="qwen2.5-7b",
        published_as="Qwen/Qwen2.5-7B",
        source="config.json at the hub (use_sliding_window: false); Qwen2.5 Technical Report "
        "(arXiv 2412.15115), table 1",
        layers=repeat((QWEN_7B,), 28),
        max_context_tokens=131_072,
    ),
    Model(
        name="mistral-7b-v0.1",
        published_as="mistralai/Mistral-7B-v0.1",
        source="config.json at the hub; Mistral 7B (arXiv 2310.06825), table 1",
        layers=repeat((MISTRAL,), 32),
        max_context_tokens=32_768,
    ),
    Model(
        name="phi-3-mini-4k",
        published_as="microsoft/Phi-3-mini-4k-instruct",
        source="config.json at the hub (sliding_window: 2047); Phi-3 Technical Report "
        "(arXiv 2404.14219), section 2",
        layers=repeat((PHI_3_MINI,), 32),
        max_context_tokens=4096,
    ),
    Model(
        name="gemma-2-9b",
        published_as="google/gemma-2-9b-it",
        source="config.json at the hub (attn_logit_softcapping: 50); Gemma 2 (arXiv 2408.00118), "
        "table 1 and section 2: local and global layers by turns",
        layers=repeat((_with_window(GEMMA_2, 4096), GEMMA_2), 42),
        max_context_tokens=8192,
    ),
    Model(
        name="gemma-3-27b",
        published_as="google/gemma-3-27b-it",
        source="text_config of config.json at the hub (sliding_window_pattern: 6); Gemma 3 "
        "Technical Report (arXiv 2503.19786), section 2: five local layers, then a global one",
        layers=repeat((*[_with_window(GEMMA_3, 1024)] * 5, GEMMA_3), 62),
        max_context_tokens=131_072,
    ),
    Model(
        name="gemma-3n-e4b",
        published_as="google/gemma-3n-E4B-it",
        source="text_config of config.json at the hub (num_kv_shared_layers: 15; layer_types: four "
        "local layers, then a global one)",
        layers=_gemma_3n_layers(),
        max_context_tokens=32_768,
    ),
    Model(
        name="gpt-oss-20b",
        published_as="openai/gpt-oss-20b",
        source="config.json at the hub; the gpt-oss model card (arXiv 2508.10925), section 2",
        layers=repeat((_with_window(GPT_OSS, 128), GPT_OSS), 24),
        max_context_tokens=131_072,
    ),
    Model(
        name="llama-4-scout",
        published_as="meta-llama/Llama-4-Scout-17B-16E-Instruct",
        source="text_config of config.json at the hub (attention_chunk_size: 8192; no_rope_layers: "
        "every fourth is full)",
        layers=repeat(
            (*[replace(LLAMA_4, kind=CHUNKED_LOCAL, attention_chunk_size=8192)] * 3, LLAMA_4), 48
        ),
        max_context_tokens=10_485_760,
    ),
)
"""In the order in which they are listed."""
