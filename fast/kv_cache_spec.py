"""Describe the KV cache of a model: the specs of its layers, its tensors, and its groups."""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Self

from fast._checks import check_not_empty, check_type, is_kind
from fast.attention_spec import AttentionSpec, FullAttentionSpec, MLAAttentionSpec
from fast.base_spec import KVCacheSpec, check_spec
from fast.bounded_attention_spec import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    EncoderOnlyAttentionSpec,
    SlidingWindowSpec,
)
from fast.mamba_spec import MambaSpec

__all__ = [
    "AttentionSpec",
    "ChunkedLocalAttentionSpec",
    "CrossAttentionSpec",
    "EncoderOnlyAttentionSpec",
    "FullAttentionSpec",
    "KVCacheConfig",
    "KVCacheGroupSpec",
    "KVCacheSpec",
    "KVCacheTensor",
    "MLAAttentionSpec",
    "MambaSpec",
    "SlidingWindowSpec",
    "UniformTypeKVCacheSpecs",
]

UNIFORM_KINDS: Final = {
    "FullAttentionSpec": None,
    "CrossAttentionSpec": None,
    "SlidingWindowSpec": "sliding_window",
    "ChunkedLocalAttentionSpec": "attention_chunk_size",
    "MambaSpec": "num_speculative_blocks",
}
"""The kinds of spec that may be uniform, and the field that must be the same in all."""


@dataclass(frozen=True)
class UniformTypeKVCacheSpecs(KVCacheSpec):
    """The KV cache format of a group whose layers have one kind of spec but different sizes.

    Definition: `reference.UniformTypeKVCacheSpecs`.
    """

    kv_cache_specs: dict[str, KVCacheSpec]

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_named_specs("kv_cache_specs", self.kv_cache_specs)
        for name, spec in self.kv_cache_specs.items():
            if spec.block_size != self.block_size:
                raise ValueError(
                    f"kv_cache_specs[{name!r}].block_size is {spec.block_size}, "
                    f"expected block_size {self.block_size}"
                )
        object.__setattr__(self, "kv_cache_specs", dict(self.kv_cache_specs))

    def __hash__(self) -> int:
        return hash((self.block_size, frozenset(self.kv_cache_specs.items())))

    @property
    def page_size_bytes(self) -> int:
        """The bytes of one block: the sum over its specs.

        Definition: `reference.UniformTypeKVCacheSpecs.page_size_bytes`.
        """
        return sum(spec.page_size_bytes for spec in self.kv_cache_specs.values())

    def max_memory_usage_bytes(self, vllm_config: Any) -> int:
        """Return the most bytes that one request may need.

        Definition: `reference.UniformTypeKVCacheSpecs.max_memory_usage_bytes`.
        """
        num_pages = max(
            -(-spec.max_memory_usage_bytes(vllm_config) // spec.page_size_bytes)
            for spec in self.kv_cache_specs.values()
        )
        return num_pages * self.page_size_bytes

    def copy_with_new_block_size(self, block_size: int) -> Self:
        """Return the same spec with another block size, also in its inner specs.

        Definition: `reference.UniformTypeKVCacheSpecs.copy_with_new_block_size`.
        """
        inner = {
            name: spec.copy_with_new_block_size(block_size)
            for name, spec in self.kv_cache_specs.items()
        }
        return dataclasses.replace(self, block_size=block_size, kv_cache_specs=inner)

    @classmethod
    def is_uniform_type(cls, specs: dict[str, Any]) -> bool:
        """Return whether specs are of one kind, so that their layers can share a block table.

        Definition: `reference.UniformTypeKVCacheSpecs.is_uniform_type`.
        """
        _check_named_specs("specs", specs)
        first_name, first = next(iter(specs.items()))
        if not _all_equal(spec.block_size for spec in specs.values()):
            return False
        kind = next((kind for kind in UNIFORM_KINDS if is_kind(first, kind)), None)
        if kind is None:
            raise NotImplementedError(
                f"specs[{first_name!r}] is of class {type(first).__name__}, expected one of "
                f"{', '.join(UNIFORM_KINDS)}"
            )
        if not all(is_kind(spec, kind) for spec in specs.values()):
            return False
        field = UNIFORM_KINDS[kind]
        return field is None or _all_equal(getattr(spec, field) for spec in specs.values())

    @classmethod
    def from_specs(cls, specs: dict[str, Any]) -> Self | None:
        """Return the uniform spec of layers, or None if `is_uniform_type` is False.

        Definition: `reference.UniformTypeKVCacheSpecs.from_specs`.
        """
        if not cls.is_uniform_type(specs):
            return None
        return cls(block_size=next(iter(specs.values())).block_size, kv_cache_specs=specs)


@dataclass
class KVCacheTensor:
    """One allocation, and the layers that use it.

    Definition: `reference.KVCacheTensor`.
    """

    size: int
    shared_by: list[str]


@dataclass
class KVCacheGroupSpec:
    """Layers that share one block table.

    Definition: `reference.KVCacheGroupSpec`.
    """

    layer_names: list[str]
    kv_cache_spec: KVCacheSpec


@dataclass
class KVCacheConfig:
    """The KV cache of a model.

    Definition: `reference.KVCacheConfig`.
    """

    num_blocks: int
    kv_cache_tensors: list[KVCacheTensor]
    kv_cache_groups: list[KVCacheGroupSpec]


def find_inner_specs(spec: Any) -> list[Any]:
    """Return the inner specs of a uniform spec, at least one; for another spec, itself."""
    if not is_kind(spec, "UniformTypeKVCacheSpecs"):
        return [spec]
    check_not_empty("kv_cache_specs", spec.kv_cache_specs, "spec")
    return list(spec.kv_cache_specs.values())


def is_encoder_only(group: Any) -> bool:
    """Return whether a group is encoder-only, so that it keeps no cache.

    A uniform spec has the kind of its first inner spec.
    """
    return is_kind(find_inner_specs(group.kv_cache_spec)[0], "EncoderOnlyAttentionSpec")


def _check_named_specs(name: str, specs: dict[str, Any]) -> None:
    check_type(name, specs, dict, "a dict")
    check_not_empty(name, specs, "spec")
    for layer_name, spec in specs.items():
        check_type(f"a key of {name}", layer_name, str, "a str")
        check_spec(f"{name}[{layer_name!r}]", spec)


def _all_equal(values: Iterable[object]) -> bool:
    first, *others = values
    return all(value == first for value in others)
