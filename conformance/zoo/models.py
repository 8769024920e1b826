"""The published models of the zoo, which `models.toml` lists."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from conformance.name_lists import near
from conformance.zoo.layer import Layer, State, repeat


@dataclass(frozen=True, kw_only=True)
class Model:
    """A published model, as far as a KV cache sees it.

    Attributes:
        name: Its name at a command line.
        published_as: Its name at the Hugging Face hub.
        source: Where the numbers come from.
        layers: The layers that have a KV cache, share one, or attend without one, in order.
        max_context_tokens: The longest sequence of the decoder that it was published for.
        dtype: The dtype of its weights, and so of its caches, by name.
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


def _read_model(table: dict[str, Any]) -> Model:
    """Return the model of a table of `models.toml`."""
    layers = {
        name: _read_layer({**table.get("common", {}), **own})
        for name, own in table["layer"].items()
    }
    repeated: list[Layer] = []
    for section in table["layers"]:
        pattern = [[layers[name] for name in _modules(entry)] for entry in section["pattern"]]
        repeated += repeat(pattern, section["count"])
    num_own = len(repeated) - table.get("num_kv_shared_layers", 0)
    last = {layer.kind: layer.name for layer in repeated[:num_own]}
    for number, layer in enumerate(repeated[num_own:], num_own):
        repeated[number] = replace(layer, kv_sharing_target=last[layer.kind])
    fields = {n: table[n] for n in Model.__dataclass_fields__ if n in table and n != "layers"}
    return Model(**fields, layers=tuple(repeated))


def _read_layer(fields: dict[str, Any]) -> Layer:
    """Return a layer, with `{}` for the number in its name."""
    states = tuple(State(**{**s, "shape": tuple(s["shape"])}) for s in fields.pop("states", ()))
    state_heads = tuple(fields.pop("state_heads", ()))
    if "head_size" in fields:
        fields.setdefault("scale", fields["head_size"] ** -0.5)
    return Layer(**fields, states=states, state_heads=state_heads)


def _modules(entry: str | list[str]) -> list[str]:
    """Return the modules of a layer of a pattern."""
    if isinstance(entry, list):
        return entry
    return [] if entry == "-" else [entry]


with Path(__file__).with_name("models.toml").open("rb") as _file:
    _TABLES = tomllib.load(_file)["model"]

MODELS: Mapping[str, Model] = MappingProxyType({t["name"]: _read_model(t) for t in _TABLES})
"""The models, by name."""


def get_model(name: str) -> Model:
    """Return a model of the zoo.

    Raises:
        KeyError: There is none of that name; the message lists the nearest.

    Example:
        >>> get_model("llama-3.1-8b").layers[31].name
        'model.layers.31.self_attn.attn'
    """
    if name not in MODELS:
        raise KeyError(f"unknown model {name!r}; try {near(name, MODELS)}")
    return MODELS[name]
