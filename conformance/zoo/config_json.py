"""The fields of a model's `config.json`, as published on the Hugging Face Hub."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CLASS_DEFAULTS: Mapping[str, Mapping[str, object]] = {
    "llama": {"attention_bias": False, "mlp_bias": False, "tie_word_embeddings": False},
    "qwen2": {"use_sliding_window": False, "tie_word_embeddings": False},
    "mistral": {"sliding_window": 4096, "tie_word_embeddings": False},
    "phi3": {"sliding_window": None, "tie_word_embeddings": False},
    "gemma2": {"tie_word_embeddings": True},
    "gemma3_text": {
        "vocab_size": 262_208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 131_072,
        "query_pre_attn_scalar": 256,
        "sliding_window_pattern": 6,
        "tie_word_embeddings": True,
    },
    "gemma3n_text": {"tie_word_embeddings": True},
    "gpt_oss": {"attention_bias": True, "tie_word_embeddings": False},
    "llama4_text": {
        "no_rope_layer_interval": 4,
        "interleave_moe_layer_step": 1,
        "attention_bias": False,
        "tie_word_embeddings": False,
    },
    "deepseek_v3": {"tie_word_embeddings": False},
    "deepseek_v32": {"tie_word_embeddings": False},
    "longcat_flash": {"tie_word_embeddings": False},
    "qwen3_next": {
        "full_attention_interval": 4,
        "attention_bias": False,
        "tie_word_embeddings": False,
    },
    "jamba": {
        "attn_layer_period": 8,
        "attn_layer_offset": 4,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
        "tie_word_embeddings": False,
    },
    "nemotron_h": {"mamba_ssm_cache_dtype": "float32", "tie_word_embeddings": False},
    "whisper": {"max_source_positions": 1500, "max_target_positions": 448},
}
"""The defaults of transformers 5.23 for fields that a `config.json` may omit, by `model_type`.

Published files do omit some: that of gemma-3-27b has neither the pattern of its layers nor the
maximum sequence length, and that of llama-4-scout has no `no_rope_layers`.
"""


@dataclass(frozen=True)
class ConfigJson:
    """The fields of a `config.json`.

    Fields of `text_config`, which multimodal models have, take precedence over those of the file.

    Attributes:
        source: The name of the file or the model, for messages.
        fields: The content of the file.

    Example:
        >>> config = ConfigJson("my.json", {"model_type": "llama", "num_hidden_layers": 2})
        >>> config.count("num_hidden_layers"), config.get("mlp_bias")
        (2, False)
        >>> config.count("hidden_size")
        Traceback (most recent call last):
        ValueError: my.json has no 'hidden_size', which the planner needs for model type llama
    """

    source: str
    fields: Mapping[str, Any]

    @property
    def model_type(self) -> str:
        """The architecture of the language model."""
        text = self.fields.get("text_config")
        if isinstance(text, Mapping) and "model_type" in text:
            return str(text["model_type"])
        if "model_type" not in self.fields:
            raise ValueError(f"{self.source} has no 'model_type'")
        return str(self.fields["model_type"])

    def get(self, name: str, default: object = None) -> Any:
        """Return a field, or its default in the model's class; `default` if it is not set."""
        for fields in (
            self.fields.get("text_config") or {},
            self.fields,
            CLASS_DEFAULTS.get(self.model_type, {}),
        ):
            if name in fields:
                return default if fields[name] is None else fields[name]
        return default

    def require(self, name: str, *others: str) -> Any:
        """Return a required field, under this or another name.

        Raises:
            ValueError: It is missing.
        """
        for known in (name, *others):
            if (value := self.get(known)) is not None:
                return value
        raise ValueError(
            f"{self.source} has no {name!r}, which the planner needs for model type "
            f"{self.model_type}"
        )

    def count(self, name: str, *others: str) -> int:
        """Return a field that must be an integer of at least 1.

        Raises:
            ValueError: It is missing, or not such an integer.
        """
        value = self.require(name, *others)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{self.source}: {name} is {value!r}, expected an integer >= 1")
        return value

    @property
    def head_dim(self) -> int:
        """The number of elements of an attention head."""
        if self.get("head_dim") is not None:
            return self.count("head_dim")
        return self.count("hidden_size") // self.count("num_attention_heads")

    @property
    def num_key_value_heads(self) -> int:
        """The number of KV heads; by default the number of query heads."""
        return self.count("num_key_value_heads", "num_attention_heads")


def read_config_json(path: Path) -> ConfigJson:
    """Read a `config.json`, given its path or that of its folder.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is not a JSON object.
    """
    path = path / "config.json" if path.is_dir() else path
    try:
        fields = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise ValueError(f"{path} has a JSON {type(fields).__name__}, expected an object")  # noqa: TRY004  # of the file
    return ConfigJson(str(path), fields)
