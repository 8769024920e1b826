"""A metadata with all that another one has, and more: its class, and an instance of it."""

from __future__ import annotations

import dataclasses
import types
from typing import Any

from reference.backend import subclass_attention_metadata


def extend_metadata_cls(
    prefix: str, metadata_cls: type[Any], fields: list[tuple[str, Any, Any]]
) -> type[Any]:
    """Return a class of metadata that extends another one, with more fields.

    A dataclass's is a dataclass; a field that it has already stays as it is. What is no dataclass
    keeps its own way to compare and to print: its new fields are attributes.
    """
    if dataclasses.is_dataclass(metadata_cls):
        known = [field.name for field in dataclasses.fields(metadata_cls)]
        new_fields = [field for field in fields if field[0] not in known]
        return subclass_attention_metadata(prefix, metadata_cls, new_fields)
    body: dict[str, Any] = {"__module__": metadata_cls.__module__}
    body |= {name: default for name, _, default in fields}
    # As a class statement makes it, whatever the metaclass: an enum, for one, is refused.
    return types.new_class(
        prefix + metadata_cls.__name__,
        (metadata_cls,),
        exec_body=lambda namespace: namespace.update(body),
    )


def extend_metadata(
    metadata: object, extended_cls: type[Any], new_values: dict[str, object]
) -> object:
    """Return an instance of the class with all attributes of a metadata, and some new values.

    It is made without `__init__`: what stands in the metadata's `__dict__` and slots is copied, the
    same objects, and what a tuple holds. One that holds anything in another way (a dict, a number,
    an array) is a `TypeError`.
    """
    made = _make_instance(metadata, extended_cls)
    for cls in type(metadata).__mro__:
        slots = vars(cls).values() if "__slots__" in vars(cls) else []
        for slot in slots:
            if isinstance(slot, types.MemberDescriptorType) and _is_filled(slot, metadata):
                slot.__set__(made, slot.__get__(metadata))
    if hasattr(metadata, "__dict__"):
        vars(made).update(vars(metadata))
    # Not by the class's own way to set an attribute: it may be frozen.
    for name, value in new_values.items():
        object.__setattr__(made, name, value)
    return made


def _make_instance(metadata: object, extended_cls: type[Any]) -> object:
    """Return an instance that has no attributes yet, but holds what a metadata holds."""
    if isinstance(metadata, tuple):
        return tuple.__new__(extended_cls, metadata)
    if isinstance(metadata, types.SimpleNamespace):
        return types.SimpleNamespace.__new__(extended_cls)
    return object.__new__(extended_cls)


def _is_filled(slot: types.MemberDescriptorType, metadata: object) -> bool:
    """Say whether anything was put into a slot."""
    try:
        slot.__get__(metadata)
    except AttributeError:
        return False
    return True
