"""What a layer keeps that attends to all positions: keys and values, or the latents of MLA."""

from dataclasses import dataclass
from typing import Any, Final, Self

import torch

from fast._checks import check_dtype, check_type, is_kind, show
from fast.base_spec import KVCacheSpec, check_specs, read_size, set_int

FP8_DS_MLA_TOKEN_BYTES: Final = 656
"""What one token of a latent cache in the layout `fp8_ds_mla` takes."""

HEAD_FIELDS: Final = ("block_size", "num_kv_heads", "head_size", "dtype")
BOUND_FIELDS: Final = ("sliding_window", "attention_chunk_size")


@dataclass(frozen=True)
class AttentionSpec(KVCacheSpec):
    """What an attention layer keeps: a key and a value for each position; the base of its kinds.

    Attributes:
        num_kv_heads: heads of keys and values.
        head_size: numbers in a head.
        dtype: theirs, a torch dtype.

    Example:
        >>> AttentionSpec(16, num_kv_heads=8, head_size=64, dtype=torch.bfloat16).page_size_bytes
        32768

    Source: the definition is kvtwin's own; the names are vLLM's.
    """

    num_kv_heads: int
    head_size: int
    dtype: torch.dtype

    def __post_init__(self) -> None:
        super().__post_init__()
        set_int(self, "num_kv_heads")
        set_int(self, "head_size")
        check_dtype("dtype", self.dtype)

    @property
    def page_size_bytes(self) -> int:
        """What the keys and values of one block take, in bytes."""
        return 2 * self.block_size * self.num_kv_heads * self.head_size * self.dtype.itemsize


@dataclass(frozen=True)
class FullAttentionSpec(AttentionSpec):
    """What a layer keeps of all positions.

    Attributes:
        sliding_window: the window of a layer whose cache is kept whole all the same, in tokens.
        attention_chunk_size: the chunk of such a layer, in tokens.

    Example:
        >>> FullAttentionSpec(16, 8, 64, torch.bfloat16).sliding_window is None
        True

    Source: the definition is kvtwin's own; the names are vLLM's.
    """

    sliding_window: int | None = None
    attention_chunk_size: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for field in BOUND_FIELDS:
            if getattr(self, field) is not None:
                set_int(self, field)

    def max_memory_usage_bytes(self, vllm_config: Any) -> int:  # noqa: ANN401  (an engine's own)
        """Return the pages of the longest sequence, or of one context-parallel rank's part of it.

        Args:
            vllm_config: `model_config` and `parallel_config` are read.

        Returns:
            Whole pages, in bytes.

        Raises:
            AttributeError: `vllm_config` lacks what is read.
            TypeError: what is read is no int.
            ValueError: what is read is below 1.

        Example:
            >>> from types import SimpleNamespace as Config
            >>> config = Config(
            ...     model_config=Config(max_model_len=100),
            ...     parallel_config=Config(
            ...         decode_context_parallel_size=2, prefill_context_parallel_size=1
            ...     ),
            ... )
            >>> spec = FullAttentionSpec(16, num_kv_heads=8, head_size=64, dtype=torch.float16)
            >>> spec.max_memory_usage_bytes(config) // spec.page_size_bytes
            4

        Source: the definition is kvtwin's own; the name is vLLM's.
        """
        ranks = read_size(vllm_config, "parallel_config.decode_context_parallel_size") * read_size(
            vllm_config, "parallel_config.prefill_context_parallel_size"
        )
        num_tokens = -(-read_size(vllm_config, "model_config.max_model_len") // ranks)
        return -(-num_tokens // self.block_size) * self.page_size_bytes

    @classmethod
    def merge(cls, specs: list[Any]) -> Self:
        """Return one spec for layers of one group, which carries the one window or chunk found.

        Args:
            specs: the layers' specs, of full attention and none of MLA.

        Returns:
            A spec of this class.

        Raises:
            TypeError: not a list, or of what is no spec.
            ValueError: none, another kind, unequal heads, block sizes or dtypes, two windows or
                chunks, or one of each.

        Example:
            >>> plain = FullAttentionSpec(16, 8, 64, torch.bfloat16)
            >>> window = FullAttentionSpec(16, 8, 64, torch.bfloat16, sliding_window=128)
            >>> FullAttentionSpec.merge([plain, window]) == window
            True

        Source: the definition is kvtwin's own; the name is vLLM's.
        """
        check_specs(specs)
        for i, spec in enumerate(specs):
            if not is_kind(spec, "FullAttentionSpec") or is_kind(spec, "MLAAttentionSpec"):
                raise ValueError(
                    f"specs[{i}] is of class {type(spec).__name__}, expected FullAttentionSpec"
                    " without MLA"
                )
        return cls(**find_shared_fields(specs, HEAD_FIELDS), **find_bound(specs))


@dataclass(frozen=True)
class MLAAttentionSpec(FullAttentionSpec):
    """What a layer of multi-head latent attention keeps: one latent for each position.

    Attributes:
        cache_dtype_str: the cache's own layout; "fp8_ds_mla" takes 656 bytes for a position.

    Example:
        >>> MLAAttentionSpec(64, 1, 576, torch.bfloat16).page_size_bytes
        73728

    Source: the definition is kvtwin's own; the names are vLLM's.
    """

    cache_dtype_str: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_type("cache_dtype_str", self.cache_dtype_str, str | None, "a str or None")

    @property
    def page_size_bytes(self) -> int:
        """What the latents of one block take, in bytes."""
        if self.cache_dtype_str == "fp8_ds_mla":
            return self.block_size * FP8_DS_MLA_TOKEN_BYTES
        return self.block_size * self.num_kv_heads * self.head_size * self.dtype.itemsize

    @classmethod
    def merge(cls, specs: list[Any]) -> Self:
        """Return one spec for layers of one group, which carries the one window or chunk found.

        Args:
            specs: the layers' specs, all of MLA.

        Returns:
            A spec of this class.

        Raises:
            TypeError: not a list, or of what is no spec.
            ValueError: none, another kind, unequal layouts, heads, block sizes or dtypes, two
                windows or chunks, or one of each.

        Example:
            >>> MLAAttentionSpec.merge([MLAAttentionSpec(64, 1, 576, torch.uint8)]).head_size
            576

        Source: the definition is kvtwin's own; the name is vLLM's.
        """
        check_specs(specs)
        for i, spec in enumerate(specs):
            if not is_kind(spec, "MLAAttentionSpec"):
                raise ValueError(
                    f"specs[{i}] is of class {type(spec).__name__}, expected MLAAttentionSpec"
                )
        fields = (*HEAD_FIELDS, "cache_dtype_str")
        return cls(**find_shared_fields(specs, fields), **find_bound(specs))


def find_shared_fields(specs: list[Any], fields: tuple[str, ...]) -> dict[str, Any]:
    """Return the values of fields in which all specs agree.

    Raises:
        ValueError: they do not.
    """
    for field in fields:
        expected = getattr(specs[0], field)
        for i, spec in enumerate(specs):
            value = getattr(spec, field)
            if value != expected:
                raise ValueError(
                    f"specs[{i}].{field} is {show(value)}, unlike {show(expected)} of specs[0]"
                )
    return {field: getattr(specs[0], field) for field in fields}


def find_bound(specs: list[Any]) -> dict[str, Any]:
    """Return the one window or chunk that is found in specs of full attention.

    Raises:
        ValueError: there are two.
    """
    found = {field: {getattr(spec, field) for spec in specs} - {None} for field in BOUND_FIELDS}
    if sum(map(len, found.values())) > 1:
        raise ValueError(
            f"specs have sliding_window {sorted(found['sliding_window'])} and attention_chunk_size "
            f"{sorted(found['attention_chunk_size'])}, expected at most 1 number in all"
        )
    return {field: next(iter(values), None) for field, values in found.items()}
