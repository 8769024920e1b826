"""An engine's configuration, as one writes it in a hurry."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import fast
from known_bad.entries import KnownBad, rewritten

REQUIRED = dataclasses.MISSING
SHARED: dict[str, Any] = {}

Field = tuple[str, Any, Any]
"""A field's name, type and default."""


def _fields(cls: type[Any]) -> list[Field]:
    """Return the fields of a class, as another one can be made of them."""
    fields: list[Any] = [*dataclasses.fields(cls)]
    return [
        (
            field.name,
            field.type,
            dataclasses.field(default=field.default, default_factory=field.default_factory),
        )
        for field in fields
    ]


def _with_another_default(fields: list[Field]) -> list[Field]:
    """Return fields of which the last with a default has another one."""
    at = max(i for i, (_, _, field) in enumerate(fields) if field.default is not REQUIRED)
    name, kind, field = fields[at]
    other = dataclasses.field(default=not field.default)
    return [*fields[:at], (name, kind, other), *fields[at + 1 :]]


def _with_one_dict(fields: list[Field]) -> list[Field]:
    """Return fields of which all objects have one dict."""
    return [
        (name, kind, dataclasses.field(default_factory=lambda: SHARED))
        if field.default_factory is dict
        else (name, kind, field)
        for name, kind, field in fields
    ]


def _maker(name: str) -> Callable[[str | None], type[Any]]:
    real = getattr(fast, name)

    def make(bug: str | None) -> type[Any]:
        fields = _fields(real)
        if bug == "another default":
            fields = _with_another_default(fields)
        if bug == "one dict for all":
            fields = _with_one_dict(fields)
        is_named = bug != "its fields have an order"
        return dataclasses.make_dataclass(
            name, fields, kw_only=is_named, eq=bug != "equal to itself alone"
        )

    return make


WHY = {
    "its fields have an order": "A field more in the middle, and others shift.",
    "equal to itself alone": "Two engines of one configuration, and nobody finds out.",
    "another default": "Nobody reads a default again.",
    "one dict for all": "The second engine of a process finds the layers of the first.",
}

BUGS = {
    "ModelConfig": ("its fields have an order", "equal to itself alone"),
    "CacheConfig": ("its fields have an order", "another default"),
    "ParallelConfig": ("its fields have an order", "another default"),
    "SchedulerConfig": ("equal to itself alone", "another default"),
    "PassConfig": ("its fields have an order", "another default"),
    "CompilationConfig": ("one dict for all", "another default"),
    "SpeculativeConfig": ("its fields have an order", "another default"),
    "VllmConfig": ("its fields have an order", "equal to itself alone"),
}

CONFIG: list[KnownBad] = [
    entry
    for name, bugs in BUGS.items()
    for entry in rewritten(
        name,
        _maker(name),
        laws={"holds_what_it_is_given": {bug: WHY[bug] for bug in bugs}},
    )
]
