"""Calls of the functions that subclass a backend or its metadata class."""

from __future__ import annotations

import dataclasses
from typing import Any, Final

from conformance.coverage.presets import Preset
from conformance.strategies import cached as st
from conformance.strategies.attention_layers import builder_classes
from conformance.strategies.repeated import repeated
from conformance.strategies.stub_factories import BackendClass
from conformance.targets.factories import Factory, FactoryContext
from conformance.values.call import Call

PREFIX_LENGTH: Final = "length of the prefix"
FIELDS_OF_A_CLASS: Final = "fields"


def _prefixes(draw: st.DrawFn, preset: Preset) -> str:
    """Draw the prefix of a class name."""
    if preset.axis == PREFIX_LENGTH:
        return "".join(repeated(draw, preset, PREFIX_LENGTH, "ABC_"))
    return draw(st.sampled_from(("", "Fast", "Custom_")))


@st.composite
def subclass_backend_calls(draw: st.DrawFn, preset: Preset) -> Call:
    """Draw calls of `subclass_attention_backend`, of the package's backends and an engine's own."""
    own = BackendClass("PLAIN", draw(builder_classes()), draw(st.booleans()), draw(st.booleans()))
    arguments = {
        "name_prefix": _prefixes(draw, preset),
        "attention_backend_cls": own,
        "builder_cls": draw(builder_classes()),
    }
    return Call("subclass_attention_backend", arguments)


@dataclasses.dataclass(frozen=True, eq=False)
class MetadataClass(Factory):
    """A factory of a backend's metadata class.

    Attributes:
        is_own: Whether it is an engine's own; else it extends `AttentionMetadata`.
        is_dataclass: Whether it has fields: `longest`, and `total`, which is 3 by default.
        has_eq: Whether its objects compare by value.
        is_frozen: Whether its objects are immutable.
    """

    is_own: bool = False
    is_dataclass: bool = True
    has_eq: bool = True
    is_frozen: bool = False

    def make(self, converter: FactoryContext) -> type:
        """Return the class."""
        base = object if self.is_own else converter.implementation.find("AttentionMetadata")
        if not self.is_dataclass:
            return type("Lengths", (base,), {})
        fields: list[Any] = [("longest", int), ("total", int, 3)]
        made: type = dataclasses.make_dataclass(
            "Lengths", fields, bases=(base,), eq=self.has_eq, frozen=self.is_frozen
        )
        made.__module__ = "engine"  # `make_dataclass` names another one
        return made


FIELDS = (("num_padded", int, 0), ("note", str, "none"), ("scale", float, None), ("total", int, 7))
"""Fields to add; the class already has the last one."""


@st.composite
def subclass_metadata_calls(draw: st.DrawFn, preset: Preset) -> Call:
    """Draw calls of `subclass_attention_metadata`, of dataclasses and of plain classes."""
    flags = {name: draw(st.booleans()) for name in ("is_own", "has_eq", "is_frozen")}
    is_dataclass = draw(st.MOSTLY)
    fields: Any = draw(st.permutations(FIELDS))[: draw(st.integers(0, len(FIELDS)))]
    if preset.axis == FIELDS_OF_A_CLASS:
        number = draw(preset.sizes(FIELDS_OF_A_CLASS, st.nothing()))
        fields = [(f"field_{i}", int, i) for i in range(number)]
    if draw(st.sampled_from((True, False, False))):
        fields = [list(field) for field in fields]
    if draw(st.booleans()):
        fields = tuple(fields)
    arguments = {
        "name_prefix": _prefixes(draw, preset),
        "metadata_cls": MetadataClass(is_dataclass=is_dataclass, **flags),
        "fields": fields,
    }
    return Call("subclass_attention_metadata", arguments)
