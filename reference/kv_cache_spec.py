"""Specs, tensors and groups: what the layers of a model keep in the KV cache."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Self

from reference._checks import check_list, check_not_empty, check_strs, check_type, is_kind
from reference.attention_spec import AttentionSpec, FullAttentionSpec, MLAAttentionSpec
from reference.base_spec import KVCacheSpec, check_spec
from reference.bounded_attention_spec import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    EncoderOnlyAttentionSpec,
    SlidingWindowSpec,
)
from reference.mamba_spec import MambaSpec

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


@dataclass(frozen=True)
class UniformTypeKVCacheSpecs(KVCacheSpec):
    """What the layers of one group keep if they have the same kind but different sizes.

    Its page consists of one page of each layer.

    Attributes:
        block_size: Positions in a block, at least 1.
        kv_cache_specs: The inner spec of each layer by name; at least one, all with this block
            size. The dict is copied.

    Raises:
        TypeError: A field of the wrong type, a name that is not a str, a value that is not a spec.
        ValueError: No specs, a spec with another block size.

    Example:
        >>> import numpy as np
        >>> small, large = (FullAttentionSpec(16, 8, size, np.float16) for size in (64, 128))
        >>> specs = UniformTypeKVCacheSpecs(16, {"layers.0": small, "layers.1": large})
        >>> specs.page_size_bytes == small.page_size_bytes + large.page_size_bytes
        True

    Source: the definition is kvtwin's own; the names are vLLM's.
    """

    kv_cache_specs: dict[str, KVCacheSpec]

    def __post_init__(self) -> None:
        super().__post_init__()
        self._store(
            "kv_cache_specs", dict(_check_specs_dict("kv_cache_specs", self.kv_cache_specs))
        )
        for layer_name, spec in self.kv_cache_specs.items():
            if spec.block_size != self.block_size:
                raise ValueError(
                    f"kv_cache_specs[{layer_name!r}].block_size is {spec.block_size}, "
                    f"expected block_size {self.block_size}"
                )

    def __hash__(self) -> int:
        return hash((self.block_size, frozenset(self.kv_cache_specs.items())))

    @property
    def page_size_bytes(self) -> int:
        """The bytes of one block: the sum over its specs."""
        return sum(spec.page_size_bytes for spec in self.kv_cache_specs.values())

    def max_memory_usage_bytes(self, vllm_config: object) -> int:
        """Return the bytes of the blocks that the most demanding inner spec needs.

        An inner spec needs its own `max_memory_usage_bytes`, divided by its own page size, blocks.
        """
        num_pages = [
            -(-spec.max_memory_usage_bytes(vllm_config) // spec.page_size_bytes)
            for spec in self.kv_cache_specs.values()
        ]
        return max(num_pages) * self.page_size_bytes

    def copy_with_new_block_size(self, block_size: int) -> Self:
        """Return the same spec with another block size, which its inner specs have too."""
        specs = {
            layer_name: spec.copy_with_new_block_size(block_size)
            for layer_name, spec in self.kv_cache_specs.items()
        }
        return dataclasses.replace(self, block_size=block_size, kv_cache_specs=specs)

    @classmethod
    def is_uniform_type(cls, specs: dict[str, KVCacheSpec]) -> bool:
        """Return whether specs are of one kind, so that their layers can share a block table.

        They must all have the same block size, which is checked first, and the kind of the first:
        `FullAttentionSpec` (including MLA), `CrossAttentionSpec`, `SlidingWindowSpec` with the same
        window, `ChunkedLocalAttentionSpec` with the same chunk size, or `MambaSpec` with the same
        number of speculative blocks.

        Args:
            specs: The specs by layer name.

        Raises:
            NotImplementedError: The first spec is of another kind.
            TypeError: An argument that is not a dict, a name that is not a str, a value that is not
                a spec.
            ValueError: No specs.

        Example:
            >>> import numpy as np
            >>> full = FullAttentionSpec(16, 8, 128, np.float16)
            >>> near = SlidingWindowSpec(16, 8, 128, np.float16, 64)
            >>> UniformTypeKVCacheSpecs.is_uniform_type({"layers.0": full, "layers.1": near})
            False
        """
        entries = list(_check_specs_dict("specs", specs).values())
        first = entries[0]
        if any(spec.block_size != first.block_size for spec in entries):
            return False
        for kind, field in UNIFORM_KINDS.items():
            if is_kind(first, kind):
                return all(
                    is_kind(spec, kind)
                    and (field is None or getattr(spec, field) == getattr(first, field))
                    for spec in entries
                )
        raise NotImplementedError(
            f"specs[{next(iter(specs))!r}] is of class {type(first).__name__}, "
            f"expected one of {', '.join(UNIFORM_KINDS)}"
        )

    @classmethod
    def from_specs(cls, specs: dict[str, KVCacheSpec]) -> Self | None:
        """Return the uniform spec of layers, or None if `is_uniform_type` is False.

        Args:
            specs: The specs by layer name.

        Raises:
            NotImplementedError: The first spec is of a kind that is never uniform.
            TypeError: An argument that is not a dict, a name that is not a str, a value that is not
                a spec.
            ValueError: No specs.
        """
        if not cls.is_uniform_type(specs):
            return None
        first = next(iter(specs.values()))
        return cls(block_size=first.block_size, kv_cache_specs=specs)


UNIFORM_KINDS = {
    "FullAttentionSpec": None,
    "CrossAttentionSpec": None,
    "SlidingWindowSpec": "sliding_window",
    "ChunkedLocalAttentionSpec": "attention_chunk_size",
    "MambaSpec": "num_speculative_blocks",
}
"""The kinds of spec that may be uniform, and the field that must be the same in all."""


def _check_specs_dict(name: str, value: object) -> dict[str, Any]:
    """Return a dict of layer names to specs, with at least one."""
    specs: dict[str, Any] = check_type(name, value, dict)
    check_not_empty(name, specs, "spec")
    for layer_name, spec in specs.items():
        check_type(f"a key of {name}", layer_name, str)
        check_spec(f"{name}[{layer_name!r}]", spec)
    return specs


@dataclass
class KVCacheTensor:
    """One allocation, and the layers that use it. The constructor checks nothing.

    Attributes:
        size: Its bytes.
        shared_by: The names of the layers that use it.

    Example:
        >>> KVCacheTensor(size=4096, shared_by=["layers.0.attn", "layers.4.attn"])
        KVCacheTensor(size=4096, shared_by=['layers.0.attn', 'layers.4.attn'])

    Source: the definition is kvtwin's own; the names are vLLM's.
    """

    size: int
    shared_by: list[str]


@dataclass
class KVCacheGroupSpec:
    """Layers that share one block table. The constructor checks nothing.

    Attributes:
        layer_names: The names of the layers.
        kv_cache_spec: What each of them keeps.

    Example:
        >>> KVCacheGroupSpec(["layers.0.attn"], KVCacheSpec(16))
        KVCacheGroupSpec(layer_names=['layers.0.attn'], kv_cache_spec=KVCacheSpec(block_size=16))

    Source: the definition is kvtwin's own; the names are vLLM's.
    """

    layer_names: list[str]
    kv_cache_spec: KVCacheSpec


@dataclass
class KVCacheConfig:
    """The KV cache of a model. The constructor checks nothing.

    Attributes:
        num_blocks: Blocks in the pool that all groups draw from.
        kv_cache_tensors: The allocations.
        kv_cache_groups: The groups of layers.

    Example:
        >>> KVCacheConfig(num_blocks=0, kv_cache_tensors=[], kv_cache_groups=[]).num_blocks
        0

    Source: the definition is kvtwin's own; the names are vLLM's.
    """

    num_blocks: int
    kv_cache_tensors: list[KVCacheTensor]
    kv_cache_groups: list[KVCacheGroupSpec]


def get_kind_spec(spec: KVCacheSpec) -> KVCacheSpec:
    """Return the spec whose class is the kind of a group: the first inner spec if it is uniform."""
    if is_kind(spec, "UniformTypeKVCacheSpecs"):
        inner: KVCacheSpec = next(iter(get_inner_specs(spec).values()))
        return inner
    return spec


def get_inner_specs(spec: Any) -> dict[str, Any]:
    """Return the inner specs of a uniform group, by layer name."""
    return _check_specs_dict("kv_cache_specs", spec.kv_cache_specs)


def get_cached_groups(kv_cache_config: KVCacheConfig) -> list[KVCacheGroupSpec]:
    """Return the groups that keep a cache, all but encoder-only ones; no layer may be in two."""
    groups, seen = [], set()
    for g, group in enumerate(
        check_list("kv_cache_config.kv_cache_groups", kv_cache_config.kv_cache_groups)
    ):
        if is_kind(get_kind_spec(group.kv_cache_spec), "EncoderOnlyAttentionSpec"):
            continue
        groups.append(group)
        name = f"kv_cache_groups[{g}].layer_names"
        for i, layer_name in enumerate(check_strs(name, group.layer_names)):
            if layer_name in seen:
                raise ValueError(f"{name}[{i}] is {layer_name!r}, a layer that is named before")
            seen.add(layer_name)
    return groups
