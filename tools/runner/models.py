"""The models: real architectures of `transformers`, tiny, with random weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3nForCausalLM,
    Gemma3nTextConfig,
    Gemma3TextConfig,
    Llama4ForCausalLM,
    Llama4TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
)

from tools.runner.settings import (
    ATTENTION_CHUNK_SIZE,
    MODEL_NAMES,
    SLIDING_WINDOW,
    VOCAB_SIZE,
)

SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    # Large against the usual 0.02: attention is sharp and the tokens vary, so that one wrong key
    # changes them.
    "initializer_range": 0.2,
    "tie_word_embeddings": False,
    # Requests end at their maximum number of new tokens.
    "eos_token_id": None,
    "bos_token_id": None,
    "pad_token_id": 0,
}
"""The configuration that all models have in common."""

SLIDING, FULL = "sliding_attention", "full_attention"


def make_model(name: str, seed: int, device: torch.device) -> PreTrainedModel:
    """Make a model.

    Args:
        name: One of `MODEL_NAMES`.
        seed: Of its weights.
        device: Where to put it.

    Returns:
        The model, in float32.

    Raises:
        KeyError: An unknown name.
    """
    if name not in MODEL_NAMES:
        raise KeyError(f"unknown model {name!r}; the models are {', '.join(MODEL_NAMES)}")
    model_cls, config = {
        "llama": _llama,
        "gemma": _gemma,
        "gemma-shared": _gemma_shared,
        "llama-chunked": _llama_chunked,
    }[name]()
    torch.manual_seed(seed)
    return model_cls(config).eval().to(device)


def _llama() -> tuple[type[PreTrainedModel], Any]:
    """Full attention with grouped heads."""
    return LlamaForCausalLM, LlamaConfig(**SIZES, num_hidden_layers=4)


def _gemma() -> tuple[type[PreTrainedModel], Any]:
    """Two sliding-window layers to each full one: three KV cache groups."""
    return Gemma3ForCausalLM, Gemma3TextConfig(
        **SIZES,
        num_hidden_layers=6,
        layer_types=[SLIDING, SLIDING, FULL] * 2,
        sliding_window=SLIDING_WINDOW,
        query_pre_attn_scalar=4,
    )


def _gemma_shared() -> tuple[type[PreTrainedModel], Any]:
    """Sliding and full layers alternate; the last two read the caches of earlier layers."""
    return Gemma3nForCausalLM, Gemma3nTextConfig(
        **SIZES,
        num_hidden_layers=6,
        num_kv_shared_layers=2,
        layer_types=[SLIDING, FULL] * 3,
        sliding_window=SLIDING_WINDOW,
        vocab_size_per_layer_input=VOCAB_SIZE,
        hidden_size_per_layer_input=8,
        laurel_rank=8,
    )


def _llama_chunked() -> tuple[type[PreTrainedModel], Any]:
    """Two layers of chunked local attention with RoPE to each full one without, and experts."""
    return Llama4ForCausalLM, Llama4TextConfig(
        **SIZES,
        num_hidden_layers=6,
        no_rope_layer_interval=3,
        attention_chunk_size=ATTENTION_CHUNK_SIZE,
        intermediate_size_mlp=SIZES["intermediate_size"],
        num_local_experts=4,
        interleave_moe_layer_step=2,
        # It numbers positions from 0 in each call, which is wrong for a later chunk of a prompt.
        attn_temperature_tuning=False,
    )


@torch.inference_mode()
def generate(
    model: PreTrainedModel, prompt_token_ids: Sequence[int], max_new_tokens: int
) -> list[int]:
    """Generate the expected tokens of one request alone, with the model's own `generate`.

    It uses the KV cache of `transformers`, with windows and chunks. With transformers 5.23.0 the 24
    tokens after each prompt of 1 to 200 tokens are the same without it (`use_cache=False`).

    Args:
        model: The model, with its original attention.
        prompt_token_ids: The prompt.
        max_new_tokens: How many tokens.

    Returns:
        The new tokens.
    """
    prompt = torch.tensor([prompt_token_ids], device=model.device)
    tokens = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=max_new_tokens,
        do_sample=False,
    )
    return tokens[0, len(prompt_token_ids) :].tolist()
