"""Metadata classes that extend another one with more fields, and instances of them."""

from __future__ import annotations

import dataclasses
import types
from typing import Any

from reference.backend import subclass_attention_metadata


def extend_metadata_cls(
    prefix: str, metadata_cls: type[Any], fields: list[tuple[str, Any, Any]]
) -> type[Any]:
    """Make a metadata class that extends another one with more fields.

    If the class is a dataclass, so is the new one, and a field that it has already is not changed.
    Otherwise it keeps its comparison and its `repr`, and the new fields are attributes.
    """
    if dataclasses.is_dataclass(metadata_cls):
        known = [field.name for field in dataclasses.fields(metadata_cls)]
        new_fields = [field for field in fields if field[0] not in known]
        return subclass_attention_metadata(prefix, metadata_cls, new_fields)
    body: dict[str, Any] = {"__module__": metadata_cls.__module__}
    body |= {name: default for name, _, default in fields}
    # As a class statement makes it, with any metaclass: an enum, for example, is rejected.
    return types.new_class(
        prefix + metadata_cls.__name__,
        (metadata_cls,),
        exec_body=lambda namespace: namespace.update(body),
    )


def extend_metadata(
    metadata: object, extended_cls: type[Any], new_values: dict[str, object]
) -> object:
    """Return an instance of the class with all attributes of a metadata and some new values.

    `__init__` is not called: the values in `__dict__` and in slots are copied by reference, and the
    entries of a tuple. A metadata that holds values in another way (a dict, a number, an array) is
    a `TypeError`.
    """
    made = _make_instance(metadata, extended_cls)
    for cls in type(metadata).__mro__:
        slots = vars(cls).values() if "__slots__" in vars(cls) else []
        for slot in slots:
            if isinstance(slot, types.MemberDescriptorType) and _is_filled(slot, metadata):
                slot.__set__(made, slot.__get__(metadata))
    if hasattr(metadata, "__dict__"):
        vars(made).update(vars(metadata))
    # Not with the class's own `__setattr__`: it may be frozen.
    for name, value in new_values.items():
        object.__setattr__(made, name, value)
    return made


def _make_instance(metadata: object, extended_cls: type[Any]) -> object:
    """Return an instance without attributes, with the entries of the metadata if it is a tuple."""
    if isinstance(metadata, tuple):
        return tuple.__new__(extended_cls, metadata)
    if isinstance(metadata, types.SimpleNamespace):
        return types.SimpleNamespace.__new__(extended_cls)
    return object.__new__(extended_cls)


def _is_filled(slot: types.MemberDescriptorType, metadata: object) -> bool:
    """Return whether a slot has a value."""
    try:
        slot.__get__(metadata)
    except AttributeError:
        return False
    return True
