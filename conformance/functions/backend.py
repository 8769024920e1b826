"""Backends: what they must define, and classes that extend backends and metadata."""

from __future__ import annotations

import abc
import dataclasses
import inspect
import random
from typing import Any, Final

from hypothesis import strategies as st

from conformance.harness.contract import Arguments, Contract
from conformance.harness.objects import Factory, Twin, attempt
from conformance.harness.sizes import sizes
from conformance.laws.backends import Backend
from conformance.laws.batches import choices
from conformance.laws.builders import builder_classes

BACKEND: Final = "AttentionBackend"
ABSTRACT: Final = ("get_name", "get_builder_cls", "get_kv_cache_shape")
OTHERS: Final = ("get_supported_kernel_block_sizes", "get_kv_cache_stride_order")


def define(twin: Twin, *, names: list[str]) -> dict[str, Any]:
    twin.function(BACKEND)  # an adapter may not support it
    base = twin.find(BACKEND)
    cls: Any = type("Plain", (base,), {name: staticmethod(tuple) for name in names})
    found: list[Any] = []
    for owner in (base, cls, base):
        supported = owner.get_supported_kernel_block_sizes()
        found.append(list(supported))
        if isinstance(supported, list):
            supported.clear()
    static = [inspect.getattr_static(base, name) for name in (*ABSTRACT, *OTHERS)]
    order = attempt(cls.get_kv_cache_stride_order)
    shape = inspect.signature(base.get_kv_cache_shape).parameters
    return {
        "made": type(attempt(cls).error),
        "static": [isinstance(one, staticmethod) for one in static],
        "supported": found,
        "order": (order.value, type(order.error)),
        "default": shape["cache_dtype_str"].default,
    }


def prefixes() -> st.SearchStrategy[str]:
    return st.sampled_from(("", "Fast", "Custom_")) | sizes().map(lambda size: "A" * size)


def null_character(arguments: Arguments, rng: random.Random) -> Arguments:
    """Let the prefix have a null character."""
    del rng
    return {**arguments, "name_prefix": "a\0b"}


class _EqualByName(abc.ABCMeta):
    def __eq__(cls, other: object) -> bool:
        return isinstance(other, type) and cls.__name__ == other.__name__

    def __hash__(cls) -> int:
        return hash(cls.__name__)


@dataclasses.dataclass
class Proxy(Backend):
    """A backend class that equals every class of its name, as a registry's proxies do."""

    def make(self, twin: Twin) -> type:
        made: Any = super().make(twin)
        return _EqualByName(made.__name__, (made,), {}) if isinstance(made, type) else made


@st.composite
def backends(draw: st.DrawFn) -> Backend:
    """Draw backends with and without a base class, and with a metaclass."""
    cls, is_own = draw(st.sampled_from((Backend, Proxy))), draw(st.booleans())
    return cls(builder=draw(builder_classes()), is_own=is_own)


def extend_backend(twin: Twin, **arguments: Any) -> dict[str, Any]:
    """Return a subclass, one of that, and one of another backend of the same name."""
    make, base = twin.function("subclass_attention_backend"), arguments["attention_backend_cls"]
    builder = arguments["builder_cls"]
    before = base.get_builder_cls() if hasattr(base, "get_builder_cls") else None
    made = make(**arguments)
    second = make("Second", made, type("Builder", (), {}))
    twin_base = type(base)(base.__name__, base.__bases__, dict(vars(base)))
    of_twin = make(**{**arguments, "attention_backend_cls": twin_base})
    owners = [made, made(), second, second()]
    return {
        "name": made.__name__,
        "module": made.__module__ == base.__module__,
        "bases": [cls.__name__ for cls in second.__mro__[:3]],
        "builders": [owner.get_builder_cls() is builder for owner in owners],
        "unchanged": base.get_builder_cls() is before,
        "again": make(**arguments) is made,
        "twins": [of_twin is made, of_twin.__bases__[0] is twin_base],
        "methods": [(one.get_name(), one.get_kv_cache_shape(9, 2, 1, 8)) for one in owners],
    }


@dataclasses.dataclass
class MetadataClass(Factory):
    """A backend's metadata class: with `longest`, and `total`, by default 3, if a dataclass."""

    is_own: bool
    is_dataclass: bool
    has_eq: bool
    is_frozen: bool

    def make(self, twin: Twin) -> type:
        base = object if self.is_own else twin.find("AttentionMetadata")
        if not self.is_dataclass:
            return type("Lengths", (base,), {"__module__": "engine"})
        fields: list[Any] = [("longest", int), ("total", int, 3)]
        options: Any = {"eq": bool(self.has_eq), "frozen": bool(self.is_frozen)}
        made: type = dataclasses.make_dataclass("Lengths", fields, bases=(base,), **options)
        made.__module__ = "engine"  # `make_dataclass` names another one
        return made


FIELDS: Final = (
    ("num_padded", int, 0),
    ("note", str, "none"),
    ("scale", float, None),
    ("total", int, 7),
)
"""Fields to add; the class may have the last one."""


@st.composite
def metadata_calls(draw: st.DrawFn) -> st.SearchStrategy[Arguments]:
    """Draw classes, dataclasses or not, and fields in any order, some of which the class has."""
    is_own, is_dataclass, has_eq, is_frozen, number, is_listed, is_tuple, is_many = choices(
        *(draw, (False, True), (True, True, True, False), (True, False), (False, True)),
        *(range(len(FIELDS) + 1), (False, False, True), (False, True), (True, *[False] * 5)),
    )
    fields: list[Any] = draw(st.permutations(FIELDS))[:number]
    if is_many:
        fields += [(f"field_{i}", int, i) for i in range(draw(sizes(0, 70)), 0, -1)]
    fields = [list(field) for field in fields] if is_listed else fields
    return st.just(
        {
            "name_prefix": draw(prefixes()),
            "metadata_cls": MetadataClass(is_own, is_dataclass, has_eq, is_frozen),
            "fields": tuple(fields) if is_tuple else fields,
        }
    )


def wrong_field(arguments: Arguments, rng: random.Random) -> Arguments:
    """Add a field of a name that cannot be one, or with a default that can change."""
    wrong: list[Any] = [("class", int, 0), ("a b", int, 0), ("", int, 0), ("second", list, [])]
    wrong.append({"second", 1, 2})
    return {**arguments, "fields": [*arguments["fields"], rng.choice(wrong)]}


def extend_metadata(twin: Twin, **arguments: Any) -> dict[str, Any]:
    """Return what the subclass of a metadata class is like, and when another call makes it too."""
    make, base = twin.function("subclass_attention_metadata"), arguments["metadata_cls"]
    before = list(vars(base)) if isinstance(base, type) else None
    made: Any = make(**arguments)
    fields = dataclasses.fields(made)
    lacking = ["-" for field in fields if field.default is dataclasses.MISSING]
    one, same = made(*lacking), made(*lacking)
    is_changed = attempt(setattr, one, "note", "changed").error
    prefix, default = arguments["name_prefix"], dataclasses.field(default=3)
    flags = [make(prefix, base, [("flag", object, value)]) for value in (1, True, 1)]
    counts = [make(prefix, base, [("count", int, default)]) for _ in range(2)]
    counts.append(make(prefix, base, [("count", int, dataclasses.field(default=3))]))
    return {
        "names": [cls.__name__ for cls in made.__mro__],
        "module": made.__module__,
        "fields": [(field.name, field.type, vars(same)[field.name]) for field in fields],
        "repr": repr(same).rpartition(".")[2],
        "compares": [made(*lacking) == same, made.__hash__ is None],
        "can change": type(is_changed),
        "base": [made.__bases__[0] is base, list(vars(base)) == before],
        "again": make(**arguments) is made,
        "of defaults": [flags[0] is flags[1], flags[0] is flags[2]],
        "of fields": [counts[0] is counts[1], counts[0] is counts[2]],
    }


CONTRACTS = [
    Contract(
        function=BACKEND,
        calls=st.just(
            st.fixed_dictionaries(
                {"names": st.lists(st.sampled_from((*ABSTRACT, OTHERS[1])), unique=True)}
            )
        ),
        run=define,
        examples=0.1,
        hard_cases={
            "all is defined": lambda args: {*ABSTRACT} <= {*args["names"]},
            "all but the builders": lambda args: (
                {*ABSTRACT} - {*args["names"]} == {"get_builder_cls"}
            ),
        },
    ),
    Contract(
        function="subclass_attention_backend",
        calls=st.just(
            st.fixed_dictionaries(
                {
                    "name_prefix": prefixes(),
                    "attention_backend_cls": backends(),
                    "builder_cls": builder_classes(),
                }
            )
        ),
        run=extend_backend,
        has_objects=True,
        specials=(null_character,),
        examples=0.2,
    ),
    Contract(
        function="subclass_attention_metadata",
        calls=metadata_calls(),
        run=extend_metadata,
        has_objects=True,
        specials=(wrong_field, wrong_field, null_character),
        examples=0.3,
    ),
]
