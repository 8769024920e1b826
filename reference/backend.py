"""Attention backends: their interface, and backends and metadata classes that extend others."""

from __future__ import annotations

import dataclasses
import keyword
from abc import ABC, abstractmethod
from typing import Any

from reference._checks import check_type
from reference.attention_layers import (
    AttentionType,
    get_kv_cache_spec,
    get_layers_from_vllm_config,
    init_attn_backend,
)
from reference.block_size import MultipleOf
from reference.builders import (
    AttentionCGSupport,
    AttentionGroup,
    AttentionMetadata,
    AttentionMetadataBuilder,
)
from reference.class_cache import key_of_value, make_once

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
    """The interface of an attention backend, which is a class of static methods.

    `get_name`, `get_builder_cls` and `get_kv_cache_shape` are abstract.

    Example:
        >>> class Plain(AttentionBackend):
        ...     @staticmethod
        ...     def get_name():
        ...         return "PLAIN"
        ...
        ...     @staticmethod
        ...     def get_builder_cls():
        ...         return None
        ...
        ...     @staticmethod
        ...     def get_kv_cache_shape(
        ...         num_blocks, block_size, num_kv_heads, head_size, cache_dtype_str="auto"
        ...     ):
        ...         return 2, num_blocks, block_size, num_kv_heads, head_size
        >>> Plain.get_kv_cache_shape(9, 16, 8, 64)
        (2, 9, 16, 8, 64)
        >>> Plain.get_supported_kernel_block_sizes()
        [MultipleOf(base=1)]

    Source: the definition is kvtwin's own; the names are vLLM's.
    """

    @staticmethod
    @abstractmethod
    def get_name() -> str:
        """Return the backend's name, in capitals."""

    @staticmethod
    @abstractmethod
    def get_builder_cls() -> Any:
        """Return the class of the builders of its metadata."""

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
            num_blocks: Number of blocks.
            block_size: Positions in a block.
            num_kv_heads: Heads of keys and values.
            head_size: Elements of a head.
            cache_dtype_str: The name of the cache's format; "auto": that of its dtype.
        """

    @staticmethod
    def get_supported_kernel_block_sizes() -> list[int | MultipleOf]:
        """Return the block sizes that its kernels support; by default all."""
        return [MultipleOf(1)]

    @staticmethod
    def get_kv_cache_stride_order() -> tuple[int, ...]:
        """Return the dimensions of the cache's shape in the order of memory, outermost first.

        Raises:
            NotImplementedError: Always, by default, which means the order of the shape.
        """
        raise NotImplementedError("no order is stated: dimensions lie in memory as in the shape")


def subclass_attention_backend(
    name_prefix: str, attention_backend_cls: type[Any], builder_cls: type[Any]
) -> type[Any]:
    """Make a backend that extends another one and has other builders.

    The class is made once: the same three arguments give the same class, as long as it is
    referenced anywhere.

    Args:
        name_prefix: The prefix of the new class name, before the other's name.
        attention_backend_cls: The other backend, a class. It is not changed.
        builder_cls: The class of the builders.

    Returns:
        A subclass. Its `get_builder_cls()`, called on the class or on an instance, returns
        `builder_cls`. Its `__module__` is that of `attention_backend_cls`.

    Raises:
        TypeError: A prefix that is not a str; a backend or builders that are not a class.

    Example:
        >>> class Plain:
        ...     get_name = staticmethod(lambda: "PLAIN")
        >>> backend = subclass_attention_backend("Fast", Plain, int)
        >>> (
        ...     backend.__name__,
        ...     backend.get_name(),
        ...     backend.get_builder_cls(),
        ...     backend().get_builder_cls(),
        ... )
        ('FastPlain', 'PLAIN', <class 'int'>, <class 'int'>)
        >>> backend is subclass_attention_backend("Fast", Plain, int)
        True

    Source: the definition is kvtwin's own; the name is vLLM's.
    """
    base = check_type("attention_backend_cls", attention_backend_cls, type)
    builders = check_type("builder_cls", builder_cls, type)
    name = _check_name_prefix(name_prefix) + base.__name__
    members = {"__module__": base.__module__, "get_builder_cls": staticmethod(lambda: builders)}
    return make_once(
        ("backend", name_prefix, id(base), id(builders)),
        lambda: type(name, (base,), members),
    )


def _check_name_prefix(name_prefix: object) -> str:
    """Return the prefix of a class name, a str."""
    prefix: str = check_type("name_prefix", name_prefix, str)
    if "\0" in prefix:
        raise ValueError(f"name_prefix is {prefix!r}, expected no null character")
    return prefix


def subclass_attention_metadata(
    name_prefix: str,
    metadata_cls: type[Any],
    fields: list[tuple[str, Any, Any]] | tuple[tuple[str, Any, Any], ...],
) -> type[Any]:
    """Make a metadata class that extends another one with more fields.

    The class is made once: the same prefix, class and fields give the same class, as long as it is
    referenced anywhere. Types and defaults are the same if they are equal and print the same (1 and
    True do not); a `dataclasses.field` is the same if it is the same object. With a default that is
    not hashable, such as a tuple of lists, every call makes a new class.

    Args:
        name_prefix: The prefix of the new class name, before the other's name.
        metadata_cls: The other class. It is not changed.
        fields: A list or tuple with an entry `(name, type, default)` for each new field, a tuple or
            list. The default may be a `dataclasses.field`. A field that the other class has already
            gets this type and default, and keeps its position.

    Returns:
        A dataclass that extends `metadata_cls`. It is frozen if that class is, and compares by
        value if that class does; if that class is not a dataclass, it is not frozen and compares by
        value. Its `__module__` is that of `metadata_cls`.

    Raises:
        TypeError: A prefix or a name that is not a str; a `metadata_cls` that is not a class;
            fields, or an entry of them, that are not a list or tuple.
        ValueError: An entry without exactly three parts; a name that is not an identifier, is a
            keyword, or is given twice; a mutable default, such as a list.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass
        ... class Lengths:
        ...     longest: int
        >>> subclass_attention_metadata("Padded", Lengths, [("num_padded", int, 0)])(8)
        PaddedLengths(longest=8, num_padded=0)

    Source: the definition is kvtwin's own; the name is vLLM's.
    """
    base = check_type("metadata_cls", metadata_cls, type)
    name = _check_name_prefix(name_prefix) + base.__name__
    _check_fields(fields)
    is_dataclass = dataclasses.is_dataclass(base)
    key_of_fields = tuple(
        (field_name, *key_of_value(annotation), *key_of_value(default))
        for field_name, annotation, default in fields
    )

    def make() -> type[Any]:
        made: type[Any] = dataclasses.make_dataclass(
            name,
            fields,
            bases=(base,),
            eq=not is_dataclass or base.__dataclass_params__.eq,
            frozen=is_dataclass and base.__dataclass_params__.frozen,
        )
        made.__module__ = base.__module__
        return made

    return make_once(("metadata", name_prefix, id(base), key_of_fields), make)


def _check_fields(fields: object) -> None:
    """Check that each new field has a unique name, a type and a default."""
    names: list[str] = []
    for i, entry in enumerate(check_type("fields", fields, list | tuple)):
        check_type(f"fields[{i}]", entry, list | tuple, "a tuple (name, type, default)")
        if len(entry) != 3:
            raise ValueError(
                f"fields[{i}] has {len(entry)} parts, expected 3: name, type and default"
            )
        name = check_type(f"fields[{i}][0]", entry[0], str)
        if not name.isidentifier() or keyword.iskeyword(name):
            raise ValueError(f"fields[{i}][0] is {name!r}, expected an identifier")
        if name in names:
            raise ValueError(
                f"fields[{i}][0] is {name!r}, the same as fields[{names.index(name)}][0]"
            )
        names.append(name)
