"""What the layers of a model keep in the KV cache, and how their caches share memory."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Self

from reference._checks import check_dict, check_list, check_str, check_strs, is_kind
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
    """What the layers of one group keep that are of one kind, but of unlike sizes.

    Its page holds a page of each of its layers.

    Attributes:
        block_size: Positions in a block, at least 1.
        kv_cache_specs: The layers' own specs by layer name; at least one, all of this block size.
            The dict is copied.

    Raises:
        TypeError: A field of the wrong type, a name that is not a str, a value that is not a spec.
        ValueError: No specs, a spec of another block size.

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
        """Return the bytes of as many blocks as the spec needs that needs the most.

        The number of blocks of a spec is its own `max_memory_usage_bytes` in its own pages.
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
        """Say whether specs are of one kind, so that one block table serves all their layers.

        They must have one block size (which is looked at first), and all be of the kind of the
        first: `FullAttentionSpec` (MLA counts as it), `CrossAttentionSpec`, `SlidingWindowSpec`
        with one window, `ChunkedLocalAttentionSpec` with one chunk size, or `MambaSpec` with one
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
        """Return the uniform spec of layers, or None where `is_uniform_type` says no.

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
"""The kinds of spec that may be uniform, and the field that must be the same."""


def _check_specs_dict(name: str, value: object) -> dict[str, Any]:
    """Return a dict of layer names to specs, of which there must be one."""
    specs = check_dict(name, value)
    if not specs:
        raise ValueError(f"{name} is empty, expected at least 1 spec")
    for layer_name, spec in specs.items():
        check_str(f"a key of {name}", layer_name)
        check_spec(f"{name}[{layer_name!r}]", spec)
    return specs


@dataclass
class KVCacheTensor:
    """One allocation, and the layers that use it. Nothing is checked when it is made.

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
    """Layers that share one block table. Nothing is checked when it is made.

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
    """The KV cache of a model. Nothing is checked when it is made.

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
    """Return the spec whose class says a group's kind: of a uniform group the first inner one."""
    if is_kind(spec, "UniformTypeKVCacheSpecs"):
        inner: KVCacheSpec = next(iter(get_inner_specs(spec).values()))
        return inner
    return spec


def get_inner_specs(spec: Any) -> dict[str, Any]:  # noqa: ANN401  # a uniform one, told by name
    """Return the layers' own specs of a uniform group, by layer name."""
    return _check_specs_dict("kv_cache_specs", spec.kv_cache_specs)


def get_cached_groups(kv_cache_config: KVCacheConfig) -> list[KVCacheGroupSpec]:
    """Return the groups that keep a cache, all but the encoder-only ones; no layer is in two."""
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
