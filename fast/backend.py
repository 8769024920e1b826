"""Attention backends: what one must say, and how one is made of another."""

import keyword
import types
from abc import ABC, abstractmethod
from dataclasses import make_dataclass
from typing import Any

from fast._checks import check_type
from fast.attention_layers import (
    AttentionType,
    get_kv_cache_spec,
    get_layers_from_vllm_config,
    init_attn_backend,
)
from fast.block_size import MultipleOf
from fast.builders import (
    AttentionCGSupport,
    AttentionGroup,
    AttentionMetadata,
    AttentionMetadataBuilder,
)
from fast.made_classes import describe, make_once

__all__ = [
    "AttentionBackend",
    "AttentionCGSupport",
    "AttentionGroup",
    "AttentionMetadata",
    "AttentionMetadataBuilder",
    "AttentionType",
    "get_kv_cache_spec",
    "get_layers_from_vllm_config",
    "init_attn_backend",
    "subclass_attention_backend",
    "subclass_attention_metadata",
]


class AttentionBackend(ABC):
    """What a family of attention kernels says of itself; all of it static.

    Example:
        >>> class Paged(AttentionBackend):
        ...     @staticmethod
        ...     def get_name():
        ...         return "PAGED"
        ...
        ...     @staticmethod
        ...     def get_builder_cls():
        ...         return AttentionMetadataBuilder
        ...
        ...     @staticmethod
        ...     def get_kv_cache_shape(
        ...         num_blocks, block_size, num_kv_heads, head_size, cache_dtype_str="auto"
        ...     ):
        ...         return (2, num_blocks, block_size, num_kv_heads, head_size)
        >>> Paged.get_kv_cache_shape(9, 16, 8, 128)
        (2, 9, 16, 8, 128)
        >>> Paged.get_supported_kernel_block_sizes()
        [MultipleOf(base=1)]

    Source: the definition is kvtwin's own; the names are vLLM's.
    """

    @staticmethod
    @abstractmethod
    def get_name() -> str:
        """Return the name of the backend."""

    @staticmethod
    @abstractmethod
    def get_builder_cls() -> type[Any]:
        """Return the class of its builders."""

    @staticmethod
    @abstractmethod
    def get_kv_cache_shape(
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_size: int,
        cache_dtype_str: str = "auto",
    ) -> tuple[int, ...]:
        """Return the logical shape of a layer's cache.

        Args:
            num_blocks: its blocks.
            block_size: positions in a block.
            num_kv_heads: heads of keys and values.
            head_size: elements of a head.
            cache_dtype_str: how elements are stored; "auto": as the cache's dtype says.
        """

    @staticmethod
    def get_supported_kernel_block_sizes() -> list[int | MultipleOf]:
        """Return the block sizes that its kernels work on: any.

        Source: the definition is kvtwin's own; the name is vLLM's.
        """
        return [MultipleOf(1)]

    @staticmethod
    def get_kv_cache_stride_order() -> tuple[int, ...]:
        """Return in which order memory holds the dimensions of the shape, the outermost first.

        Raises:
            NotImplementedError: in the order of the shape.

        Source: the definition is kvtwin's own; the name is vLLM's.
        """
        raise NotImplementedError("no order is stated: dimensions lie in memory as in the shape")


def subclass_attention_backend(
    name_prefix: str, attention_backend_cls: type[Any], builder_cls: type[Any]
) -> type[Any]:
    """Make a backend that has another builder.

    Args:
        name_prefix: what stands before the name of the class.
        attention_backend_cls: the class of a backend, which is not changed.
        builder_cls: the class of the builders.

    Returns:
        A subclass, whose `get_builder_cls` returns `builder_cls`; the same one for the same
        arguments.

    Raises:
        TypeError: a prefix that is no text, or a class that is none.

    Example:
        >>> class Own(AttentionMetadataBuilder[None]):
        ...     def build(self, common_prefix_len, common_attn_metadata, fast_build=False):
        ...         return None
        >>> backend = subclass_attention_backend("Own", AttentionBackend, Own)
        >>> backend.__name__, backend.get_builder_cls().__name__
        ('OwnAttentionBackend', 'Own')

    Source: the definition is kvtwin's own; the name is vLLM's.
    """
    check_name_prefix(name_prefix)
    check_type("attention_backend_cls", attention_backend_cls, type, "a class")
    check_type("builder_cls", builder_cls, type, "a class")
    key = "backend", name_prefix, id(attention_backend_cls), id(builder_cls)
    return make_once(key, lambda: _make_backend(name_prefix, attention_backend_cls, builder_cls))


def _make_backend(
    name_prefix: str, attention_backend_cls: type[Any], builder_cls: type[Any]
) -> type[Any]:
    """Make a backend that has another builder."""

    def get_builder_cls() -> type[Any]:
        """Return the class of its builders."""
        return builder_cls

    members = {
        "__module__": attention_backend_cls.__module__,
        "get_builder_cls": staticmethod(get_builder_cls),
    }
    name = name_prefix + attention_backend_cls.__name__
    return types.new_class(name, (attention_backend_cls,), exec_body=lambda ns: ns.update(members))


def subclass_attention_metadata(
    name_prefix: str,
    metadata_cls: type[Any],
    fields: list[tuple[str, Any, Any]] | tuple[tuple[str, Any, Any], ...],
) -> type[Any]:
    """Make a metadata class that has more fields.

    Args:
        name_prefix: what stands before the name of the class.
        metadata_cls: the class that is extended, a dataclass as a rule; it is not changed.
        fields: each field as `(name, type, default)`; one that `metadata_cls` has gets another
            default.

    Returns:
        A dataclass, a subclass; it is frozen, or compared by identity, where `metadata_cls` is.
        Its `__module__` is that of `metadata_cls`. The same one for the same arguments.

    Raises:
        TypeError: an argument, or a field's name, of another type.
        ValueError: a field that is not of three parts, a name that is no identifier or given
            twice, a default that instances would share, such as a list.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass
        ... class Lengths(AttentionMetadata):
        ...     longest: int
        >>> subclass_attention_metadata("Padded", Lengths, [("padding", int, 0)])(8).padding
        0

    Source: the definition is kvtwin's own; the name is vLLM's.
    """
    check_name_prefix(name_prefix)
    check_type("metadata_cls", metadata_cls, type, "a class")
    _check_fields(fields)
    described = tuple((name, describe(kind), describe(default)) for name, kind, default in fields)
    key = "metadata", name_prefix, id(metadata_cls), described
    return make_once(key, lambda: _make_metadata(name_prefix, metadata_cls, fields))


def check_name_prefix(name_prefix: object) -> None:
    """Refuse what cannot begin the name of a class.

    Raises:
        TypeError: it is no str.
        ValueError: it has a null character.
    """
    check_type("name_prefix", name_prefix, str, "a str")
    if "\0" in str(name_prefix):
        raise ValueError(f"name_prefix is {name_prefix!r}, expected no null character")


def _make_metadata(
    name_prefix: str,
    metadata_cls: type[Any],
    fields: list[tuple[str, Any, Any]] | tuple[tuple[str, Any, Any], ...],
) -> type[Any]:
    """Make a metadata class that has more fields."""
    parameters = getattr(metadata_cls, "__dataclass_params__", None)
    made: type[Any] = make_dataclass(
        name_prefix + metadata_cls.__name__,
        fields,
        bases=(metadata_cls,),
        eq=parameters is None or parameters.eq,
        frozen=parameters is not None and parameters.frozen,
    )
    made.__module__ = metadata_cls.__module__  # from 3.12 on a `__module__` in namespace is ignored
    return made


def _check_fields(fields: object) -> None:
    """Refuse what is no list of fields."""
    check_type("fields", fields, list | tuple, "a list or tuple")
    seen: list[str] = []
    for i, field in enumerate(fields):  # type: ignore[var-annotated,arg-type]  # checked above
        check_type(f"fields[{i}]", field, list | tuple, "a tuple (name, type, default)")
        if len(field) != 3:
            raise ValueError(
                f"fields[{i}] has {len(field)} parts, expected 3: name, type and default"
            )
        name = field[0]
        check_type(f"fields[{i}][0]", name, str, "a str")
        if not name.isidentifier() or keyword.iskeyword(name):
            raise ValueError(f"fields[{i}][0] is {name!r}, expected an identifier")
        if name in seen:
            first = seen.index(name)
            raise ValueError(f"fields[{i}][0] is {name!r}, the same as fields[{first}][0]")
        seen.append(name)
