"""Define the KV cache specs of layers that attend to all positions: full attention and MLA."""

from dataclasses import dataclass
from typing import Any, Final, Self

import torch

from fast._checks import check_dtype, check_type, is_kind, show
from fast.base_spec import KVCacheSpec, check_specs, read_size, set_int

FP8_DS_MLA_TOKEN_BYTES: Final = 656
"""The bytes of a token in the cache format `fp8_ds_mla`, its scales included."""

HEAD_FIELDS: Final = ("block_size", "num_kv_heads", "head_size", "dtype")
BOUND_FIELDS: Final = ("sliding_window", "attention_chunk_size")


@dataclass(frozen=True)
class AttentionSpec(KVCacheSpec):
    """The KV cache format of an attention layer: a key and a value for each position and head.

    `dtype` is a torch dtype.

    Definition: `reference.AttentionSpec`.
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
        """The bytes of one block.

        Definition: `reference.AttentionSpec.page_size_bytes`.
        """
        return 2 * self.block_size * self.num_kv_heads * self.head_size * self.dtype.itemsize


@dataclass(frozen=True)
class FullAttentionSpec(AttentionSpec):
    """The KV cache format of full attention, in which tokens attend to all tokens before them.

    Definition: `reference.FullAttentionSpec`.
    """

    sliding_window: int | None = None
    attention_chunk_size: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for field in BOUND_FIELDS:
            if getattr(self, field) is not None:
                set_int(self, field)

    def max_memory_usage_bytes(self, vllm_config: Any) -> int:
        """Return the bytes of the longest sequence, or of one context-parallel rank's part of it.

        Definition: `reference.FullAttentionSpec.max_memory_usage_bytes`.
        """
        ranks = read_size(vllm_config, "parallel_config.decode_context_parallel_size") * read_size(
            vllm_config, "parallel_config.prefill_context_parallel_size"
        )
        num_tokens = -(-read_size(vllm_config, "model_config.max_model_len") // ranks)
        return -(-num_tokens // self.block_size) * self.page_size_bytes

    @classmethod
    def merge(cls, specs: list[Any]) -> Self:
        """Return one spec for the layers of one group: full attention, none of them MLA.

        Definition: `reference.FullAttentionSpec.merge`.
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
    """The KV cache format of multi-head latent attention: one latent for each position.

    Definition: `reference.MLAAttentionSpec`.
    """

    cache_dtype_str: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_type("cache_dtype_str", self.cache_dtype_str, str | None, "a str or None")

    @property
    def page_size_bytes(self) -> int:
        """The bytes of one block.

        Definition: `reference.MLAAttentionSpec.page_size_bytes`.
        """
        if self.cache_dtype_str == "fp8_ds_mla":
            return self.block_size * FP8_DS_MLA_TOKEN_BYTES
        return self.block_size * self.num_kv_heads * self.head_size * self.dtype.itemsize

    @classmethod
    def merge(cls, specs: list[Any]) -> Self:
        """Return one spec for the layers of one group: all MLA.

        Definition: `reference.MLAAttentionSpec.merge`.
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
    """Return the values of fields; raise ValueError unless all specs agree on them."""
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
    """Return the one window or chunk size of full-attention specs; two are a ValueError."""
    found = {field: {getattr(spec, field) for spec in specs} - {None} for field in BOUND_FIELDS}
    if sum(map(len, found.values())) > 1:
        raise ValueError(
            f"specs have sliding_window {sorted(found['sliding_window'])} and attention_chunk_size "
            f"{sorted(found['attention_chunk_size'])}, expected at most 1 number in all"
        )
    return {field: next(iter(values), None) for field, values in found.items()}
