"""Published models as lists of layers, from `models.toml`, and how they are served."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
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
    divided: int  # the axis that tensor parallelism divides
    dtype: str | None = None  # None: the model's


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A layer that reads or writes a KV cache, or an attention layer that does not need one."""

    name: str  # of the module, with `.attn` appended where the engine has a submodule for it
    kind: str  # one of the constants above
    backend: str = "FLASH_ATTN"  # the engine's name for what computes it
    num_query_heads: int = 0  # 0 in Mamba layers, as are the next two
    num_kv_heads: int = 0  # 1 for a latent
    head_size: int = 0  # elements of a key, of a value, or of the latent with its rotary part
    scale: float = 0.0  # of the scores before the softmax
    sliding_window: int | None = None  # keys that a query attends to, its own included; None: all
    attention_chunk_size: int | None = None  # tokens of a chunk of chunked local attention
    logits_soft_cap: float | None = None  # the bound of the scores
    has_sinks: bool = False  # whether each head has a learned score that attends to nothing
    kv_sharing_target: str | None = None  # the layer whose cache this one reads; None: its own
    dtype: str | None = None  # of the cache; None: the model's
    packed_format: str | None = None  # of the cache, if latents are packed: `fp8_ds_mla`
    cache_dtype_str: str | None = None  # the same, once it is served so
    mamba_type: str | None = None  # the kind of states
    states: tuple[State, ...] = ()

    @property
    def has_kv_cache(self) -> bool:
        """Whether it has a cache of its own."""
        return self.kind != ENCODER_ONLY and self.kv_sharing_target is None

    def divided(self, tensor_parallel_size: int) -> Layer:
        """Return the part of the layer that each rank of a tensor-parallel group has.

        If there are fewer KV heads than ranks, several ranks have the same one. A latent is whole
        on each rank.

        Raises:
            ValueError: Neither of the ranks and the heads divides the other.

        Example:
            >>> layer = Layer(name="0", kind="full", num_query_heads=32, num_kv_heads=4)
            >>> layer.divided(8).num_query_heads, layer.divided(8).num_kv_heads
            (4, 1)
        """
        ranks = tensor_parallel_size

        def part(number: int) -> int:
            if number % ranks and ranks % number:
                raise ValueError(f"{self.name} has {number} heads or channels, for {ranks} ranks")
            return max(number // ranks, 1)

        if self.kind == MAMBA:
            shapes = [list(state.shape) for state in self.states]
            for shape, state in zip(shapes, self.states, strict=True):
                shape[state.divided] = part(shape[state.divided])
            pairs = zip(self.states, shapes, strict=True)
            return replace(self, states=tuple(replace(s, shape=tuple(shape)) for s, shape in pairs))
        return replace(
            self,
            num_query_heads=part(self.num_query_heads),
            num_kv_heads=part(self.num_kv_heads),
        )


@dataclass(frozen=True, kw_only=True)
class Model:
    """A published model."""

    name: str
    layers: tuple[Layer, ...]  # those that have a KV cache, share one, or attend without one
    max_context_tokens: int  # the longest sequence of the decoder
    dtype: str = "bfloat16"  # of its caches
    block_size: int = 16  # of its attention, in tokens: those of a hybrid hold a request's states
    num_attn_module: int = 1  # attention modules in one layer
    encoder_tokens: int = 0  # tokens that the encoder makes of each input; 0: no encoder


LONGEST_SERVED = 4096
"""The engine's `max_model_len`; some models are published for millions of tokens."""


@dataclass(frozen=True, kw_only=True)
class Serving:
    """A model, and the settings of the engine that serves it.

    Example:
        >>> serving = Serving(model=MODELS["llama-3.1-70b"], tensor_parallel_size=4)
        >>> serving.layers[0].num_kv_heads, serving.max_model_len
        (2, 4096)
    """

    model: Model
    tensor_parallel_size: int = 1
    packs_latents: bool = False  # whether caches have their `packed_format`, if there is one
    max_num_batched_tokens: int = 8192
    max_num_seqs: int = 256
    num_speculative_tokens: int = 0

    @property
    def max_model_len(self) -> int:
        """The longest sequence that is served, in tokens of the decoder."""
        return min(self.model.max_context_tokens, LONGEST_SERVED)

    @property
    def is_hybrid(self) -> bool:
        """Whether some layers have states instead of keys and values."""
        return any(layer.kind == MAMBA for layer in self.model.layers)

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """The layers as each rank has them, with their dtypes."""
        return tuple(self._served(layer) for layer in self.model.layers)

    def _served(self, layer: Layer) -> Layer:
        part = layer.divided(self.tensor_parallel_size)
        if layer.packed_format is not None and self.packs_latents:
            return replace(part, dtype="uint8", cache_dtype_str=layer.packed_format)
        dtype = self.model.dtype
        states = tuple(replace(state, dtype=state.dtype or dtype) for state in part.states)
        return replace(part, dtype=layer.dtype or dtype, states=states)


def _read_model(table: dict[str, Any]) -> Model:
    """Return the model of a table of `models.toml`."""
    kinds = table.pop("kind")
    num_shared = table.pop("num_kv_shared_layers", 0)
    layers = [
        layer for stack in table.pop("layers").split(",") for layer in _read_stack(stack, kinds)
    ]
    num_own = len(layers) - num_shared
    last = {layer.kind: layer.name for layer in layers[:num_own]}
    shared = (replace(layer, kv_sharing_target=last[layer.kind]) for layer in layers[num_own:])
    return Model(layers=(*layers[:num_own], *shared), **table)


def _read_stack(stack: str, kinds: Mapping[str, list[dict[str, Any]]]) -> Iterator[Layer]:
    """Yield the layers of a text such as `62 x wwwwwf`: numbered from 0, one letter for each."""
    num_layers, pattern = stack.split(" x ")
    for number in range(int(num_layers)):
        for fields in kinds.get(pattern[number % len(pattern)], []):
            head_size = fields.get("head_size")
            own = {"scale": head_size**-0.5 if head_size else 0.0, **fields}
            own["name"] = fields["name"].format(number)
            own["states"] = tuple(
                State(**{**state, "shape": tuple(state["shape"])})
                for state in fields.get("states", ())
            )
            yield Layer(**own)


with Path(__file__).with_name("models.toml").open("rb") as _file:
    _TABLES = tomllib.load(_file)

MODELS: Mapping[str, Model] = MappingProxyType(
    {name: _read_model({"name": name, **table}) for name, table in _TABLES.items()}
)
"""The models, by name."""
