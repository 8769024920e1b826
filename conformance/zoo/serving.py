"""How a model is served: the ranks, block size, dtypes, backends and maximum length."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType

from conformance.zoo.catalogue import BackendInfo, get_backend, suits
from conformance.zoo.layer import MAMBA, Layer
from conformance.zoo.models import Model

DTYPES = ("bfloat16", "float16", "float32", "float8_e4m3fn", "float8_e5m2")
"""The dtypes of keys and values."""

DTYPE_NAMES = MappingProxyType(
    {
        "bf16": "bfloat16",
        "fp16": "float16",
        "half": "float16",
        "fp32": "float32",
        "float": "float32",
        "fp8": "float8_e4m3fn",
        "fp8_e4m3": "float8_e4m3fn",
        "fp8_e5m2": "float8_e5m2",
        "fp8_ds_mla": "float8_e4m3fn",
    }
)
"""Other names of dtypes that engines accept."""


@dataclass(frozen=True, kw_only=True)
class Serving:
    """A model, and the settings of the engine that serves it.

    Attributes:
        model: The model.
        tensor_parallel_size: Ranks that share each layer.
        dtype: The dtype of keys, values and latents, by a name in `DTYPES` or `DTYPE_NAMES`; None
            or "auto": the model's. States and caches with a format of their own keep theirs. 8-bit
            latents of sparse MLA have the format of its kernels.
        mamba_cache_mode: How many blocks of states a request has: "none", "align" (prefixes that
            end with a block are cached) or "all".
        requested_block_size: Tokens in a block; None: the backends' default. Hybrid models raise
            that of their attention layers.
        requested_max_model_len: The longest sequence that is served; None: the model's.
        max_num_batched_tokens: The most tokens of a step.
        max_num_seqs: The most requests of a step.
        num_speculative_tokens: Draft tokens of each decode.
        num_state_checkpoints: Extra states of each request, for prefixes that others share.
        backends: Names of backends to use in place of the layers' own. Each layer takes the first
            one that suits it.

    Raises:
        TypeError: A number that is not an int.
        ValueError: A number that is too small, or too large for the model; a dtype that caches do
            not have; a backend that suits no layer; a number of ranks that does not divide the
            heads.
        KeyError: No such backend.

    Example:
        >>> from conformance.zoo.models import get_model
        >>> serving = Serving(model=get_model("llama-3.1-70b"), tensor_parallel_size=4)
        >>> serving.layers[0].num_kv_heads, serving.block_size, serving.max_model_len
        (2, 16, 131072)
    """

    model: Model
    tensor_parallel_size: int = 1
    dtype: str | None = None
    mamba_cache_mode: str = "none"
    requested_block_size: int | None = None
    requested_max_model_len: int | None = None
    max_num_batched_tokens: int = 8192
    max_num_seqs: int = 256
    num_speculative_tokens: int = 0
    num_state_checkpoints: int = 0
    backends: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("tensor_parallel_size", "max_num_batched_tokens", "max_num_seqs"):
            _check_positive(name, getattr(self, name))
        if self.requested_block_size is not None:
            _check_positive("block_size", self.requested_block_size)
        if self.requested_max_model_len is not None:
            _check_positive("max_model_len", self.requested_max_model_len)
        if self.max_model_len > self.model.max_context_tokens:
            raise ValueError(
                f"max_model_len is {self.max_model_len}, but {self.model.name} is published for "
                f"at most {self.model.max_context_tokens} tokens"
            )
        self._check_dtype()
        for backend in self.backends:
            self._check_backend(get_backend(backend))
        _ = self.layers  # divides them

    @property
    def max_model_len(self) -> int:
        """The longest sequence that is served, in tokens of the decoder."""
        if self.requested_max_model_len is None:
            return self.model.max_context_tokens
        return self.requested_max_model_len

    @property
    def block_size(self) -> int:
        """Tokens in a block, before hybrid models raise it."""
        if self.requested_block_size is not None:
            return self.requested_block_size
        names = {layer.backend for layer in self.layers} | set(self.backends)
        return max(get_backend(name).block_size for name in names)

    @property
    def cache_dtype(self) -> str | None:
        """The dtype that is requested, by its name in `DTYPES`; None: the model's."""
        if self.dtype in (None, "auto"):
            return None
        return DTYPE_NAMES.get(str(self.dtype), self.dtype)

    @property
    def num_further_states(self) -> int:
        """Blocks of states of a request in addition to those of `mamba_cache_mode`."""
        return self.num_speculative_tokens + self.num_state_checkpoints

    @property
    def is_hybrid(self) -> bool:
        """Whether some layers have states instead of keys and values."""
        return any(layer.kind == MAMBA for layer in self.layers)

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """The layers as each rank has them, with their dtypes and backends."""
        return tuple(self._served(layer) for layer in self.model.layers)

    def _served(self, layer: Layer) -> Layer:
        """Return a rank's part of a layer."""
        part = layer.divided(self.tensor_parallel_size)
        suiting = (name for name in self.backends if suits(get_backend(name), layer))
        served = replace(
            part,
            backend=next(suiting, layer.backend),
            dtype=layer.dtype or self.cache_dtype or self.model.dtype,
            states=tuple(replace(s, dtype=s.dtype or self.model.dtype) for s in part.states),
            num_speculative_blocks=self.num_further_states if layer.kind == MAMBA else 0,
        )
        if layer.fp8_format is None or self.cache_dtype != "float8_e4m3fn":
            return served
        return replace(served, dtype="uint8", cache_dtype_str=layer.fp8_format)

    def _check_dtype(self) -> None:
        """Check that the model's caches can have the dtype."""
        if self.cache_dtype is None:
            return
        is_sparse = any(layer.fp8_format for layer in self.model.layers)
        refused = ("float8_e5m2", "fp8_e5m2") if is_sparse else ("fp8_ds_mla",)
        allowed = [name for name in (*DTYPES, *DTYPE_NAMES) if name not in refused]
        if self.dtype not in allowed:
            raise ValueError(
                f"dtype is {self.dtype!r}, but for {self.model.name} must be one of "
                f"{', '.join(allowed)}"
            )

    def _check_backend(self, facts: BackendInfo) -> None:
        """Check that a backend suits at least one layer."""
        if not any(suits(facts, layer) for layer in self.model.layers):
            kinds = {get_backend(layer.backend).computes for layer in self.model.layers}
            sparse = " with an indexer" if "indexer" in kinds else ""
            raise ValueError(
                f"backend {facts.name} computes {facts.computes}, and suits no layer of "
                f"{self.model.name}, whose layers are {', '.join(sorted(kinds))}{sparse}"
            )


def _check_positive(name: str, value: object) -> None:
    """Check that a setting is an int of at least 1."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} is {value!r}, but should be an int")
    if value < 1:
        raise ValueError(f"{name} is {value}, but should be at least 1")
