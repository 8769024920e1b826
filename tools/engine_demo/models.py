"""Tiny models with random weights, one for each kind of KV cache that vLLM runs on a CPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

COMMON: Final[dict[str, Any]] = {
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,  # 16 is not supported on a CPU
    "vocab_size": 512,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}

LOCAL_SIZE: Final = 64
"""The chunk and the sliding window in tokens: two blocks."""

MODELS: Final[dict[str, dict[str, Any]]] = {
    # One KV cache group of full attention.
    "tiny-qwen2": {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "num_hidden_layers": 2,
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "use_sliding_window": False,
    },
    # Groups with a sliding window, and one of full attention.
    "tiny-gemma3": {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "num_hidden_layers": 4,
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 2048,
        "query_pre_attn_scalar": 64,
        "sliding_window": LOCAL_SIZE,
        "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
    },
    # Three groups of chunked local attention, and one of full attention.
    "tiny-llama4": {
        "architectures": ["Llama4ForCausalLM"],
        "model_type": "llama4_text",
        "num_hidden_layers": 4,
        "intermediate_size_mlp": 256,
        "hidden_act": "silu",
        "max_position_embeddings": 4096,
        "rope_theta": 10000.0,
        "interleave_moe_layer_step": 0,
        "moe_layers": [],
        "num_local_experts": 2,
        "num_experts_per_tok": 1,
        "attention_chunk_size": LOCAL_SIZE,
        "no_rope_layers": [1, 1, 1, 0],
        "layer_types": ["chunked_attention"] * 3 + ["full_attention"],
        "use_qk_norm": True,
        "attn_temperature_tuning": False,
        "attention_bias": False,
    },
    # Groups of convolution states, and one of full attention.
    "tiny-lfm2": {
        "architectures": ["Lfm2ForCausalLM"],
        "model_type": "lfm2",
        "num_hidden_layers": 4,
        "max_position_embeddings": 2048,
        "norm_eps": 1e-6,
        "conv_dim": 256,
        "conv_L_cache": 3,
        "conv_bias": False,
        "block_dim": 256,
        "block_multiple_of": 256,
        "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": False,
        "layer_types": ["conv", "full_attention", "conv", "full_attention"],
    },
}


def write_model(name: str, folder: Path) -> None:
    """Write a model's `config.json` into a folder; weights are made when it is loaded."""
    config = json.dumps(COMMON | MODELS[name])
    (folder / "config.json").write_text(config, encoding="utf-8")
