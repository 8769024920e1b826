"""The published models of the zoo, from `models.toml`, and models read from a `config.json`."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from conformance.name_lists import near
from conformance.zoo.architectures import ARCHITECTURES
from conformance.zoo.catalogue import get_backend, suits
from conformance.zoo.config_json import ConfigJson, read_config_json
from conformance.zoo.layer import Layer
from conformance.zoo.parameters import Weights
from conformance.zoo.weights import count_weights, published_dtype

TOWERS = ("vision_config", "audio_config")
"""The parts of a `config.json` whose weights are not counted."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """A published model: its layers, maximum lengths, dtypes and parameters.

    Attributes:
        name: Its name on the command line.
        published_as: Its name on the Hugging Face Hub.
        source: Where the numbers come from.
        layers: The layers that have a KV cache, share one, or attend without one, in order.
        max_context_tokens: The longest sequence of the decoder that it was published for.
        dtype: The dtype of its weights, and so of its caches, by name.
        num_attn_module: Attention modules in one layer.
        encoder_tokens: Tokens that the encoder makes of each request's input; 0: no encoder.
        weights: The parameters of the language model.
        weights_dtype: The dtype that they are published in, one of `conformance.zoo.weights.BITS`;
            None: an unknown quantization.
        uncounted: The parts that are not in `weights`: those for images and sound.
    """

    name: str
    published_as: str
    source: str
    layers: tuple[Layer, ...]
    max_context_tokens: int
    dtype: str = "bfloat16"
    num_attn_module: int = 1
    encoder_tokens: int = 0
    weights: Weights = field(default_factory=Counter, hash=False)
    weights_dtype: str | None = None
    uncounted: tuple[str, ...] = ()


def make_model(config: ConfigJson, **names: Any) -> Model:
    """Return the model that a `config.json` describes.

    `names` are `Model`'s fields with names: `name`, `published_as`, `source`.

    Raises:
        ValueError: An architecture that the zoo does not have; a field that is missing or wrong.
    """
    architecture = ARCHITECTURES.get(config.model_type)
    if architecture is None:
        raise ValueError(
            f"{config.source}: model_type is {config.model_type!r}, which the zoo does not have; "
            f"nearest: {near(config.model_type, ARCHITECTURES)}"
        )
    encoder_tokens = architecture.encoder_tokens
    return Model(
        **names,
        layers=tuple(architecture.make_layers(config)),
        max_context_tokens=config.count(architecture.max_tokens),
        dtype=str(config.require("torch_dtype", "dtype")),
        num_attn_module=architecture.num_attn_module,
        encoder_tokens=config.count(encoder_tokens) if encoder_tokens else 0,
        weights=count_weights(config),
        weights_dtype=published_dtype(config),
        uncounted=tuple(tower for tower in TOWERS if config.fields.get(tower) is not None),
    )


def read_model(path: Path) -> Model:
    """Return the model of a `config.json`, or of the folder that it is in.

    Raises:
        OSError: The file cannot be read.
        ValueError: As `make_model`; a file that is not a JSON object.
    """
    config = read_config_json(path)
    name = str(config.fields.get("_name_or_path") or config.source)
    return make_model(config, name=name, published_as=name, source=config.source)


def _read_zoo_model(table: dict[str, Any]) -> Model:
    """Return the model of a table of `models.toml`."""
    names = {name: table[name] for name in ("name", "published_as", "source")}
    model = make_model(ConfigJson(table["name"], table["config"]), **names)
    if "backend" not in table:
        return model
    facts = get_backend(table["backend"])
    layers = [
        replace(layer, backend=facts.name) if suits(facts, layer) else layer
        for layer in model.layers
    ]
    return replace(model, layers=tuple(layers))


with Path(__file__).with_name("models.toml").open("rb") as _file:
    _TABLES = tomllib.load(_file)["model"]

MODELS: Mapping[str, Model] = MappingProxyType({t["name"]: _read_zoo_model(t) for t in _TABLES})
"""The models, by name."""


def get_model(name: str) -> Model:
    """Return a model of the zoo, by its name there or on the Hugging Face Hub.

    Raises:
        KeyError: There is none of that name; the message lists the nearest names.

    Example:
        >>> get_model("llama-3.1-8b").layers[31].name
        'model.layers.31.self_attn.attn'
        >>> get_model("meta-llama/Llama-3.1-8B").name
        'llama-3.1-8b'
    """
    for model in MODELS.values():
        if name.lower() in (model.name, model.published_as.lower()):
            return model
    raise KeyError(f"unknown model {name!r}; try {near(name, MODELS)}")
