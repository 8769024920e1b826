"""What the layers of a model keep in the KV cache: specs, the tensors and the groups of a model."""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Self

from fast._checks import check_type, describe, is_kind
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
"""The kinds of which a uniform spec can be, and the field in which its specs must agree."""


@dataclass(frozen=True)
class UniformTypeKVCacheSpecs(KVCacheSpec):
    """What layers of one kind and unlike sizes keep: their pages together are one page.

    Attributes:
        kv_cache_specs: each layer's spec, by name; a copy of the dict that was given.

    Raises:
        TypeError: not a dict of names to specs.
        ValueError: no specs, or one of another block size.

    Example:
        >>> import torch
        >>> small, large = (FullAttentionSpec(16, 8, size, torch.float16) for size in (64, 128))
        >>> specs = UniformTypeKVCacheSpecs(16, {"layers.0": small, "layers.1": large})
        >>> specs.page_size_bytes == small.page_size_bytes + large.page_size_bytes
        True

    Source: the definition is kvtwin's own; the names are vLLM's.
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
        """What one block of all layers takes, in bytes."""
        return sum(spec.page_size_bytes for spec in self.kv_cache_specs.values())

    def max_memory_usage_bytes(self, vllm_config: Any) -> int:  # noqa: ANN401  (an engine's own)
        """Return the pages of the layer that needs most of them, in bytes.

        Args:
            vllm_config: what the layers' specs read of it.

        Returns:
            Whole pages of all layers, in bytes.

        Raises:
            AttributeError, NotImplementedError, TypeError, ValueError: as a layer's spec does.

        Example:
            >>> import torch
            >>> from types import SimpleNamespace as Config
            >>> config = Config(cache_config=Config(mamba_cache_mode="none"))
            >>> spec = MambaSpec(16, ((8,),), (torch.float32,))
            >>> specs = UniformTypeKVCacheSpecs(16, {"layers.0": spec, "layers.1": spec})
            >>> specs.max_memory_usage_bytes(config)
            64

        Source: the definition is kvtwin's own; the name is vLLM's.
        """
        num_pages = max(
            -(-spec.max_memory_usage_bytes(vllm_config) // spec.page_size_bytes)
            for spec in self.kv_cache_specs.values()
        )
        return num_pages * self.page_size_bytes

    def copy_with_new_block_size(self, block_size: int) -> Self:
        """Return the same specs with another block size, each layer's too.

        Args:
            block_size: positions in a block.

        Returns:
            A new spec.

        Raises:
            TypeError: it is not an int.
            ValueError: it is below 1.

        Example:
            >>> import torch
            >>> spec = FullAttentionSpec(16, 8, 64, torch.float16)
            >>> specs = UniformTypeKVCacheSpecs(16, {"layers.0": spec})
            >>> specs.copy_with_new_block_size(8).kv_cache_specs["layers.0"].block_size
            8

        Source: the definition is kvtwin's own; the name is vLLM's.
        """
        inner = {
            name: spec.copy_with_new_block_size(block_size)
            for name, spec in self.kv_cache_specs.items()
        }
        return dataclasses.replace(self, block_size=block_size, kv_cache_specs=inner)

    @classmethod
    def is_uniform_type(cls, specs: dict[str, Any]) -> bool:
        """Say whether layers can have one uniform spec: they are of one kind and block size.

        Args:
            specs: each layer's spec, by name. The first one's kind is asked of all, and where it
                has one, its window, its chunk or its number of speculative blocks.

        Returns:
            Whether they can.

        Raises:
            TypeError: not a dict of names to specs.
            ValueError: no specs.
            NotImplementedError: no uniform spec is of the first one's kind.

        Example:
            >>> import torch
            >>> full = FullAttentionSpec(16, 8, 64, torch.float16)
            >>> window = SlidingWindowSpec(16, 8, 64, torch.float16, sliding_window=128)
            >>> UniformTypeKVCacheSpecs.is_uniform_type({"layers.0": full, "layers.1": window})
            False

        Source: the definition is kvtwin's own; the name is vLLM's.
        """
        _check_named_specs("specs", specs)
        first_name, first = next(iter(specs.items()))
        if not _is_one(spec.block_size for spec in specs.values()):
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
        return field is None or _is_one(getattr(spec, field) for spec in specs.values())

    @classmethod
    def from_specs(cls, specs: dict[str, Any]) -> Self | None:
        """Return the uniform spec of some layers, where they can have one.

        Args:
            specs: each layer's spec, by name.

        Returns:
            The spec, or None.

        Raises:
            TypeError: not a dict of names to specs.
            ValueError: no specs.
            NotImplementedError: no uniform spec is of the first one's kind.

        Example:
            >>> import torch
            >>> spec = FullAttentionSpec(16, 8, 64, torch.float16)
            >>> UniformTypeKVCacheSpecs.from_specs({"layers.0": spec}).block_size
            16

        Source: the definition is kvtwin's own; the name is vLLM's.
        """
        if not cls.is_uniform_type(specs):
            return None
        return cls(block_size=next(iter(specs.values())).block_size, kv_cache_specs=specs)


@dataclass
class KVCacheTensor:
    """One allocation, and the layers that use it.

    Attributes:
        size: its bytes.
        shared_by: the layers' names.

    Example:
        >>> KVCacheTensor(size=4096, shared_by=["layers.0", "layers.1"]).size
        4096

    Source: the definition is kvtwin's own; the names are vLLM's.
    """

    size: int
    shared_by: list[str]


@dataclass
class KVCacheGroupSpec:
    """Layers that share one block table.

    Attributes:
        layer_names: their names.
        kv_cache_spec: what each of them keeps, or all of them in a uniform spec.

    Example:
        >>> KVCacheGroupSpec(["layers.0"], KVCacheSpec(16)).kv_cache_spec.block_size
        16

    Source: the definition is kvtwin's own; the names are vLLM's.
    """

    layer_names: list[str]
    kv_cache_spec: KVCacheSpec


@dataclass
class KVCacheConfig:
    """A model's whole KV cache.

    Attributes:
        num_blocks: blocks of each layer.
        kv_cache_tensors: what is allocated.
        kv_cache_groups: the layers, by block table.

    Example:
        >>> KVCacheConfig(num_blocks=8, kv_cache_tensors=[], kv_cache_groups=[]).num_blocks
        8

    Source: the definition is kvtwin's own; the names are vLLM's.
    """

    num_blocks: int
    kv_cache_tensors: list[KVCacheTensor]
    kv_cache_groups: list[KVCacheGroupSpec]


def find_inner_specs(spec: Any) -> list[Any]:  # noqa: ANN401  (an engine's own)
    """Return the specs of which a group's spec is made: those of a uniform spec, or itself.

    Raises:
        ValueError: a uniform spec of none.
    """
    if not is_kind(spec, "UniformTypeKVCacheSpecs"):
        return [spec]
    if not spec.kv_cache_specs:
        raise ValueError("kv_cache_specs is empty, expected at least 1 spec")
    return list(spec.kv_cache_specs.values())


def is_encoder_only(group: Any) -> bool:  # noqa: ANN401  (an engine's own)
    """Say whether a group keeps no cache. A uniform spec's kind is that of its first spec."""
    return is_kind(find_inner_specs(group.kv_cache_spec)[0], "EncoderOnlyAttentionSpec")


def _check_named_specs(name: str, specs: object) -> None:
    """Refuse what is not a dict of names to specs, with at least one."""
    if not isinstance(specs, dict):
        raise TypeError(f"{name} must be a dict, got {describe(specs)}")
    if not specs:
        raise ValueError(f"{name} is empty, expected at least 1 spec")
    for layer_name, spec in specs.items():
        check_type(f"a key of {name}", layer_name, str, "a str")
        check_spec(f"{name}[{layer_name!r}]", spec)


def _is_one(values: Iterable[object]) -> bool:
    """Say whether all values are equal."""
    first, *others = values
    return all(value == first for value in others)
