"""Fast prefill for layers that share a KV cache: only the tokens whose logits are needed."""

import dataclasses
import types
from typing import Any, Final, Protocol, runtime_checkable

import torch

from fast._checks import check_type
from fast.backend import subclass_attention_backend, subclass_attention_metadata
from fast.class_cache import make_once
from fast.logits_indices import make_kv_sharing_fast_prefill_common_attn_metadata
from fast.metadata import CommonAttentionMetadata

__all__ = [
    "KV_SHARING_FAST_PREFILL_METADATA_FIELDS",
    "KVSharingFastPrefillMetadata",
    "create_fast_prefill_custom_backend",
    "make_kv_sharing_fast_prefill_common_attn_metadata",
]

KV_SHARING_FAST_PREFILL_METADATA_FIELDS: Final[list[tuple[str, Any, Any]]] = [
    ("logits_indices_padded", torch.Tensor | None, None),
    ("num_logits_indices", int, 0),
]
"""The fields that fast prefill adds to a backend's metadata: name, type and default."""


@runtime_checkable
class KVSharingFastPrefillMetadata(Protocol):
    """A backend's metadata that has the tokens whose logits are needed.

    Definition: `reference.KVSharingFastPrefillMetadata`.
    """

    logits_indices_padded: torch.Tensor | None
    num_logits_indices: int | None


def create_fast_prefill_custom_backend(
    prefix: str, underlying_attn_backend: type[Any]
) -> type[Any]:
    """Make a backend that builds its metadata from the tokens whose logits are needed.

    On a GPU `build` synchronises, as `make_kv_sharing_fast_prefill_common_attn_metadata` does
    without `logits_indices_cpu`.

    Definition: `reference.create_fast_prefill_custom_backend`.
    """
    check_type("prefix", prefix, str, "a str")
    check_type("underlying_attn_backend", underlying_attn_backend, type, "a class")
    underlying_builder = underlying_attn_backend.get_builder_cls()
    check_type("the builder of underlying_attn_backend", underlying_builder, type, "a class")
    key = "fast prefill builder", prefix, id(underlying_builder)
    builder = make_once(key, lambda: _make_builder(prefix, underlying_builder))
    return subclass_attention_backend(prefix, underlying_attn_backend, builder)


def _make_builder(prefix: str, underlying_builder: type[Any]) -> type[Any]:
    # By the id of the class of the underlying metadata, since a metaclass may define equality. The
    # value keeps that class alive.
    classes: dict[int, type[Any]] = {}

    def build(
        self: Any,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> Any:
        # Read first: the underlying builder may change the batch, if it gets the batch itself.
        indices = common_attn_metadata.logits_indices_padded
        num_indices = common_attn_metadata.num_logits_indices
        underlying: Any = super(builder, self)
        built = underlying.build(
            common_prefix_len=common_prefix_len,
            common_attn_metadata=make_kv_sharing_fast_prefill_common_attn_metadata(
                common_attn_metadata
            ),
            **({"fast_build": True} if fast_build else {}),
        )
        cls = type(built)
        try:
            if id(cls) not in classes:
                classes[id(cls)] = _make_metadata_class(prefix, cls)
            return _extend(
                built,
                classes[id(cls)],
                logits_indices_padded=indices,
                num_logits_indices=num_indices,
            )
        except TypeError as error:
            raise TypeError(
                f"{underlying_builder.__name__} built a {cls.__name__}, which cannot be extended"
                f" by the logits fields: {error}"
            ) from error

    def fill(namespace: dict[str, Any]) -> None:
        namespace["__module__"] = underlying_builder.__module__
        namespace["build"] = build

    name = prefix + underlying_builder.__name__
    builder: type[Any] = types.new_class(name, (underlying_builder,), exec_body=fill)
    return builder


def _make_metadata_class(prefix: str, cls: type[Any]) -> type[Any]:
    fields = KV_SHARING_FAST_PREFILL_METADATA_FIELDS
    if dataclasses.is_dataclass(cls):
        known = {field.name for field in dataclasses.fields(cls)}
        return subclass_attention_metadata(prefix, cls, [f for f in fields if f[0] not in known])

    def fill(namespace: dict[str, Any]) -> None:
        namespace["__module__"] = cls.__module__
        namespace |= {name: default for name, _, default in fields}

    return types.new_class(prefix + cls.__name__, (cls,), exec_body=fill)


def _extend(built: Any, cls: type[Any], **fields: Any) -> Any:
    """Return an instance of a subclass with all attributes of an object and additional fields.

    Neither `__init__` nor `__setattr__` is called: the class may have no default constructor, or be
    frozen. Raises TypeError for objects that hold more than attributes, such as a dict.
    """
    if isinstance(built, tuple):
        extended = tuple.__new__(cls, built)
    elif isinstance(built, types.SimpleNamespace):
        extended = types.SimpleNamespace.__new__(cls)
    else:
        extended = object.__new__(cls)
    for base in type(built).__mro__:
        if "__slots__" in vars(base):
            _copy_slots(base, built, extended)
    vars(extended).update(getattr(built, "__dict__", {}))
    for name, value in fields.items():
        object.__setattr__(extended, name, value)
    return extended


def _copy_slots(cls: type[Any], source: object, target: object) -> None:
    """Copy the filled `__slots__` of one class from one object to another."""
    for slot in vars(cls).values():
        if isinstance(slot, types.MemberDescriptorType):
            try:
                value = slot.__get__(source)
            except AttributeError:
                continue
            slot.__set__(target, value)
