"""Define attention backends, and make backends and metadata classes that extend others."""

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
from fast.class_cache import describe, make_once

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

    Definition: `reference.AttentionBackend`.
    """

    @staticmethod
    @abstractmethod
    def get_name() -> str:
        """Return the backend's name, in capitals.

        Definition: `reference.AttentionBackend.get_name`.
        """

    @staticmethod
    @abstractmethod
    def get_builder_cls() -> type[Any]:
        """Return the class of the builders of its metadata.

        Definition: `reference.AttentionBackend.get_builder_cls`.
        """

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

        Definition: `reference.AttentionBackend.get_kv_cache_shape`.
        """

    @staticmethod
    def get_supported_kernel_block_sizes() -> list[int | MultipleOf]:
        """Return the block sizes that its kernels support; by default all.

        Definition: `reference.AttentionBackend.get_supported_kernel_block_sizes`.
        """
        return [MultipleOf(1)]

    @staticmethod
    def get_kv_cache_stride_order() -> tuple[int, ...]:
        """Return the dimensions of the cache's shape in the order of memory, outermost first.

        Definition: `reference.AttentionBackend.get_kv_cache_stride_order`.
        """
        raise NotImplementedError("no order is stated: dimensions lie in memory as in the shape")


def subclass_attention_backend(
    name_prefix: str, attention_backend_cls: type[Any], builder_cls: type[Any]
) -> type[Any]:
    """Make a subclass of a backend that has another builder class.

    Definition: `reference.subclass_attention_backend`.
    """
    check_name_prefix(name_prefix)
    check_type("attention_backend_cls", attention_backend_cls, type, "a class")
    check_type("builder_cls", builder_cls, type, "a class")
    key = "backend", name_prefix, id(attention_backend_cls), id(builder_cls)
    return make_once(key, lambda: _make_backend(name_prefix, attention_backend_cls, builder_cls))


def _make_backend(
    name_prefix: str, attention_backend_cls: type[Any], builder_cls: type[Any]
) -> type[Any]:
    def get_builder_cls() -> type[Any]:
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
    """Make a metadata class that extends another one with more fields.

    Definition: `reference.subclass_attention_metadata`.
    """
    check_name_prefix(name_prefix)
    check_type("metadata_cls", metadata_cls, type, "a class")
    _check_fields(fields)
    described = tuple((name, describe(kind), describe(default)) for name, kind, default in fields)
    key = "metadata", name_prefix, id(metadata_cls), described
    return make_once(key, lambda: _make_metadata(name_prefix, metadata_cls, fields))


def check_name_prefix(name_prefix: object) -> None:
    """Check that a value can be the prefix of a class name: a str without null characters."""
    check_type("name_prefix", name_prefix, str, "a str")
    if "\0" in str(name_prefix):
        raise ValueError(f"name_prefix is {name_prefix!r}, expected no null character")


def _make_metadata(
    name_prefix: str,
    metadata_cls: type[Any],
    fields: list[tuple[str, Any, Any]] | tuple[tuple[str, Any, Any], ...],
) -> type[Any]:
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
    """Check that a value is a list of fields, each with a name, a type and a default."""
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
