"""KV cache specs of layers that attend to all positions: full attention and MLA."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from reference._checks import check_dtype, check_int, check_type, is_kind, show
from reference.base_spec import KVCacheSpec, check_specs_list, read_config

FP8_DS_MLA = "fp8_ds_mla"
FP8_DS_MLA_BYTES_PER_TOKEN = 656
"""The bytes of a token in the cache format `fp8_ds_mla`, its scales included."""


@dataclass(frozen=True)
class AttentionSpec(KVCacheSpec):
    """What an attention layer keeps: a key and a value for each position and head.

    Attributes:
        block_size: Positions in a block, at least 1.
        num_kv_heads: Heads of keys and values, at least 1.
        head_size: Elements of a key or a value of one head, at least 1.
        dtype: The dtype of an element; a scalar type is stored as its dtype.

    Raises:
        TypeError: A field of the wrong type or dtype.
        ValueError: A number that is too small.

    Example:
        >>> import numpy as np
        >>> AttentionSpec(16, 8, 128, np.float16).page_size_bytes
        65536

    Source: the definition is kvtwin's own; the names are vLLM's.
    """

    num_kv_heads: int
    head_size: int
    dtype: np.dtype[Any] | type[np.generic]

    def __post_init__(self) -> None:
        super().__post_init__()
        self._store("num_kv_heads", check_int("num_kv_heads", self.num_kv_heads, 1))
        self._store("head_size", check_int("head_size", self.head_size, 1))
        self._store("dtype", check_dtype("dtype", self.dtype))

    @property
    def page_size_bytes(self) -> int:
        """The bytes of one block: `2 * block_size * num_kv_heads * head_size * itemsize`."""
        return 2 * self._latent_page_size_bytes

    @property
    def _latent_page_size_bytes(self) -> int:
        """The bytes of one block with one vector for each position and head."""
        itemsize = np.dtype(self.dtype).itemsize
        return self.block_size * self.num_kv_heads * self.head_size * itemsize


@dataclass(frozen=True)
class FullAttentionSpec(AttentionSpec):
    """What a layer keeps if its tokens attend to all tokens before them.

    A layer with a window or a chunk may have this spec too, if its group keeps everything anyway.

    Attributes:
        block_size: Positions in a block, at least 1.
        num_kv_heads: Heads of keys and values, at least 1.
        head_size: Elements of a key or a value of one head, at least 1.
        dtype: The dtype of an element.
        sliding_window: Positions that a token attends to, at least 1; None: no window.
        attention_chunk_size: Positions in a chunk of local attention, at least 1; None: no chunks.

    Raises:
        TypeError: A field of the wrong type or dtype.
        ValueError: A number that is too small.

    Example:
        >>> import numpy as np
        >>> from reference.config import ModelConfig, ParallelConfig, VllmConfig
        >>> model, parallel = ModelConfig(max_model_len=100), ParallelConfig()
        >>> config = VllmConfig(model_config=model, parallel_config=parallel)
        >>> spec = FullAttentionSpec(16, 8, 128, np.float16)
        >>> spec.max_memory_usage_bytes(config) // spec.page_size_bytes
        7
        >>> windowed = FullAttentionSpec(16, 8, 128, np.float16, sliding_window=64)
        >>> FullAttentionSpec.merge([spec, windowed]).sliding_window
        64

    Source: the definition is kvtwin's own; the names are vLLM's.
    """

    sliding_window: int | None = None
    attention_chunk_size: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for field in ("sliding_window", "attention_chunk_size"):
            value = getattr(self, field)
            if value is not None:
                self._store(field, check_int(field, value, 1))

    def max_memory_usage_bytes(self, vllm_config: object) -> int:
        """Return the bytes of `ceil(length / block_size)` blocks.

        The length is `ceil(max_model_len / (dcp * pcp))`, since each sequence is distributed over
        `dcp` ranks of decode and `pcp` ranks of prefill context parallelism.
        """
        dcp = read_config(vllm_config, "parallel_config.decode_context_parallel_size")
        pcp = read_config(vllm_config, "parallel_config.prefill_context_parallel_size")
        max_model_len = read_config(vllm_config, "model_config.max_model_len")
        return self._pages_bytes(-(-max_model_len // (dcp * pcp)))

    @classmethod
    def merge(cls, specs: list[Self]) -> Self:
        """Return one spec for the layers of one group: full attention, none of them MLA.

        They must have the same block size, number of heads, head size and dtype. All specs with a
        window must have the same one, and all with a chunk size the same one; there must not be
        both a window and a chunk size.

        Args:
            specs: The specs of the layers.

        Returns:
            A spec of this class with these fields, and with the window or chunk size if there is
            one.

        Raises:
            TypeError: An argument that is not a list, an entry that is not a spec.
            ValueError: No specs, specs that cannot be merged.
        """
        for i, spec in enumerate(check_specs_list(specs)):
            if not is_kind(spec, "FullAttentionSpec") or is_kind(spec, "MLAAttentionSpec"):
                raise ValueError(
                    f"specs[{i}] is of class {type(spec).__name__}, expected FullAttentionSpec "
                    "without MLA"
                )
        return cls(**_merge_full_attention_fields(specs))


def _merge_full_attention_fields(specs: list[Any]) -> dict[str, Any]:
    """Return the fields of the full-attention spec that merges all specs."""
    fields: dict[str, Any] = {}
    for field in ("block_size", "num_kv_heads", "head_size", "dtype"):
        fields[field] = _check_one_value(field, specs)
    windows = sorted({spec.sliding_window for spec in specs} - {None})
    chunk_sizes = sorted({spec.attention_chunk_size for spec in specs} - {None})
    if len(windows) + len(chunk_sizes) > 1:
        raise ValueError(
            f"specs have sliding_window {windows} and attention_chunk_size {chunk_sizes}, "
            "expected at most 1 number in all"
        )
    fields["sliding_window"] = windows[0] if windows else None
    fields["attention_chunk_size"] = chunk_sizes[0] if chunk_sizes else None
    return fields


def _check_one_value(field: str, specs: list[Any]) -> object:
    """Return the value that a field has in all specs."""
    first: object = getattr(specs[0], field)
    for i, spec in enumerate(specs):
        if getattr(spec, field) != first:
            raise ValueError(
                f"specs[{i}].{field} is {show(getattr(spec, field))}, "
                f"unlike {show(first)} of specs[0]"
            )
    return first


@dataclass(frozen=True)
class MLAAttentionSpec(FullAttentionSpec):
    """What a layer of multi-head latent attention keeps: one latent, not a key and a value.

    Attributes:
        block_size: Positions in a block, at least 1.
        num_kv_heads: Latents of a position, at least 1.
        head_size: Elements of a latent, at least 1.
        dtype: The dtype of an element.
        sliding_window: As in `FullAttentionSpec`.
        attention_chunk_size: As in `FullAttentionSpec`.
        cache_dtype_str: The name of the cache's format; with "fp8_ds_mla" a position takes 656
            bytes.

    Raises:
        TypeError: A field of the wrong type or dtype.
        ValueError: A number that is too small.

    Example:
        >>> import numpy as np
        >>> MLAAttentionSpec(64, 1, 576, np.float16).page_size_bytes
        73728
        >>> MLAAttentionSpec(64, 1, 576, np.uint8, cache_dtype_str="fp8_ds_mla").page_size_bytes
        41984

    Source: the definition is kvtwin's own; the names are vLLM's.
    """

    cache_dtype_str: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_type("cache_dtype_str", self.cache_dtype_str, str | None, "a str or None")

    @property
    def page_size_bytes(self) -> int:
        """The bytes of one block: `block_size * num_kv_heads * head_size * itemsize`.

        With "fp8_ds_mla" it is `block_size * 656`.
        """
        if self.cache_dtype_str == FP8_DS_MLA:
            return self.block_size * FP8_DS_MLA_BYTES_PER_TOKEN
        return self._latent_page_size_bytes

    @classmethod
    def merge(cls, specs: list[Self]) -> Self:
        """Return one spec for the layers of one group: all MLA, with the same `cache_dtype_str`.

        Otherwise as `FullAttentionSpec.merge`.

        Args:
            specs: The specs of the layers.

        Returns:
            A spec of this class with these fields, and with the window or chunk size if there is
            one.

        Raises:
            TypeError: An argument that is not a list, an entry that is not a spec.
            ValueError: No specs, specs that cannot be merged.
        """
        for i, spec in enumerate(check_specs_list(specs)):
            if not is_kind(spec, "MLAAttentionSpec"):
                raise ValueError(
                    f"specs[{i}] is of class {type(spec).__name__}, expected MLAAttentionSpec"
                )
        fields = _merge_full_attention_fields(specs)
        fields["cache_dtype_str"] = _check_one_value("cache_dtype_str", specs)
        return cls(**fields)
