"""Published models as lists of layers, from `models.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

FULL = "full"
SLIDING_WINDOW = "sliding_window"
CHUNKED_LOCAL = "chunked_local"
LATENT = "latent"  # MLA
CROSS = "cross"
ENCODER_ONLY = "encoder_only"
MAMBA = "mamba"  # all layers of states


@dataclass(frozen=True, kw_only=True)
class State:
    """A state of a Mamba layer, or of one like it."""

    shape: tuple[int, ...]  # of one request
    dtype: str = "bfloat16"


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A layer that reads or writes a KV cache, or an attention layer that does not need one."""

    name: str  # of the module, with `.attn` appended where the engine has a submodule for it
    kind: str  # one of the constants above
    backend: str = "FLASH_ATTN"  # the engine's name for what computes it
    num_kv_heads: int = 0  # 1 for a latent; 0 in Mamba layers, as is the next one
    head_size: int = 0  # elements of a key, of a value, or of the latent with its rotary part
    sliding_window: int | None = None  # keys that a query attends to, its own included; None: all
    attention_chunk_size: int | None = None  # tokens of a chunk of chunked local attention
    kv_sharing_target: str | None = None  # the layer whose cache this one reads; None: its own
    dtype: str = "bfloat16"  # of the cache
    cache_dtype_str: str | None = None  # the format of packed latents
    mamba_type: str | None = None  # the kind of states
    states: tuple[State, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Model:
    """A published model, and the limits of the engine that serves it."""

    name: str
    layers: tuple[Layer, ...]  # those that have a KV cache, share one, or attend without one
    max_model_len: int  # the longest sequence of the decoder that is served, in tokens
    block_size: int = 16  # of its attention, in tokens: those of a hybrid hold a request's states
    num_attn_module: int = 1  # attention modules in one layer
    encoder_tokens: int = 0  # tokens that the encoder makes of each input; 0: no encoder
    max_num_batched_tokens: int = 8192
    max_num_seqs: int = 256
    num_speculative_tokens: int = 0


LONGEST_SERVED = 4096
"""The most tokens of a `max_model_len`; some models are published for millions of tokens."""


def _read_model(name: str, table: dict[str, Any]) -> Model:
    kinds = table.pop("kind")
    num_shared = table.pop("num_kv_shared_layers", 0)
    max_model_len = min(table.pop("max_context_tokens"), LONGEST_SERVED)
    layers = [
        layer for stack in table.pop("layers").split(",") for layer in _read_stack(stack, kinds)
    ]
    num_own = len(layers) - num_shared
    last = {layer.kind: layer.name for layer in layers[:num_own]}
    shared = (replace(layer, kv_sharing_target=last[layer.kind]) for layer in layers[num_own:])
    layers = [*layers[:num_own], *shared]
    return Model(name=name, layers=tuple(layers), max_model_len=max_model_len, **table)


def _read_stack(stack: str, kinds: Mapping[str, list[dict[str, Any]]]) -> Iterator[Layer]:
    """Yield the layers of a text such as `62 x wwwwwf`: numbered from 0, one letter for each."""
    num_layers, pattern = stack.split(" x ")
    for number in range(int(num_layers)):
        for fields in kinds.get(pattern[number % len(pattern)], []):
            states = [
                State(**{**state, "shape": tuple(state["shape"])})
                for state in fields.get("states", ())
            ]
            own = {"name": fields["name"].format(number), "states": tuple(states)}
            yield Layer(**{**fields, **own})


with Path(__file__).with_name("models.toml").open("rb") as _file:
    _TABLES = tomllib.load(_file)

MODELS: Mapping[str, Model] = MappingProxyType(
    {name: _read_model(name, table) for name, table in _TABLES.items()}
)
"""The models, by name."""
