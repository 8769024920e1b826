"""The architectures of the zoo: how to make the layers of each from a `config.json`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from conformance.zoo.attention_layers import (
    deepseek_layers,
    deepseek_v32_layers,
    every_nth_full,
    full_layers,
    gemma3_layers,
    gemma3n_layers,
    gpt_oss_layers,
    llama4_layers,
    longcat_layers,
    whisper_layers,
)
from conformance.zoo.config_json import ConfigJson
from conformance.zoo.layer import Layer
from conformance.zoo.state_layers import jamba_layers, nemotron_h_layers, qwen3_next_layers


@dataclass(frozen=True)
class Architecture:
    """How to read the `config.json` of an architecture, except for its weights.

    Attributes:
        make_layers: Makes its layers from the fields of a `config.json`.
        max_tokens: The field with the maximum sequence length.
        num_attn_module: Attention modules in one layer.
        encoder_tokens: The field with the number of encoder tokens; "": there is no encoder.
    """

    make_layers: Callable[[ConfigJson], list[Layer]]
    max_tokens: str = "max_position_embeddings"
    num_attn_module: int = 1
    encoder_tokens: str = ""


ARCHITECTURES = {
    "llama": Architecture(full_layers),
    "qwen2": Architecture(full_layers),
    "mistral": Architecture(full_layers),
    "phi3": Architecture(full_layers),
    "gemma2": Architecture(partial(every_nth_full, n=2)),
    "gemma3_text": Architecture(gemma3_layers),
    "gemma3n_text": Architecture(gemma3n_layers),
    "gpt_oss": Architecture(gpt_oss_layers),
    "llama4_text": Architecture(llama4_layers),
    "deepseek_v3": Architecture(deepseek_layers),
    "deepseek_v32": Architecture(deepseek_v32_layers),
    "longcat_flash": Architecture(longcat_layers, num_attn_module=2),
    "qwen3_next": Architecture(qwen3_next_layers),
    "jamba": Architecture(jamba_layers),
    "nemotron_h": Architecture(nemotron_h_layers),
    "whisper": Architecture(
        whisper_layers, "max_target_positions", encoder_tokens="max_source_positions"
    ),
}
"""The architectures, by the `model_type` of a `config.json` or of its `text_config`."""
