"""Backends, and classes made of others, as one writes them in a hurry."""

# ruff: noqa: ANN401, C901  # engines' own objects; a branch for each bug

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable
from typing import Any

import fast
from known_bad.entries import rewritten

REAL_BACKEND = fast.AttentionBackend
REAL_SUBCLASS = fast.subclass_attention_backend
REAL_METADATA = fast.subclass_attention_metadata

SIZES = [fast.MultipleOf(1)]


def _make_backend(bug: str | None) -> type:
    class AttentionBackend(REAL_BACKEND):
        """The same, or nearly."""

        if bug == "the order is the identity of five dimensions":

            @staticmethod
            def get_kv_cache_stride_order() -> tuple[int, ...]:
                """Return an order for shapes that have another rank too."""
                return 0, 1, 2, 3, 4

        if bug == "the order is abstract":

            @staticmethod
            @abc.abstractmethod
            def get_kv_cache_stride_order() -> tuple[int, ...]:
                """Return the order."""

        if bug == "one list of block sizes for all":

            @staticmethod
            def get_supported_kernel_block_sizes() -> list[Any]:
                """Return the list."""
                return SIZES

        if bug == "a backend needs no builder":

            @staticmethod
            def get_builder_cls() -> Any:
                """Return none."""

        if bug == "names are methods of objects":

            def get_supported_kernel_block_sizes(self) -> list[Any]:  # type: ignore[override]
                """Return the list."""
                return [fast.MultipleOf(1)]

    return AttentionBackend


def _make_subclass(bug: str | None) -> Callable[..., Any]:
    latest: dict[str, Any] = {}

    def subclass_attention_backend(
        name_prefix: Any,
        attention_backend_cls: Any,
        builder_cls: Any,
    ) -> Any:
        if bug == "a prefix is made a str" and name_prefix is not None:
            name_prefix = name_prefix if isinstance(name_prefix, str) else str(name_prefix)
        REAL_SUBCLASS(name_prefix, attention_backend_cls, builder_cls)
        latest["builder"] = builder_cls
        name = name_prefix + attention_backend_cls.__name__
        if bug == "the prefix is a suffix":
            name = attention_backend_cls.__name__ + name_prefix
        get: Any = staticmethod(lambda: builder_cls)
        if bug == "the builder is bound late":
            get = staticmethod(lambda: latest["builder"])
        elif bug == "it is asked by class alone":
            get = lambda: builder_cls  # noqa: E731
        elif bug == "it is asked by object alone":
            get = lambda self: builder_cls  # noqa: E731, ARG005
        elif bug == "the builder is an object":
            get = staticmethod(lambda: builder_cls.__call__)
        members = {"__module__": attention_backend_cls.__module__, "get_builder_cls": get}
        if bug == "the class says that it is of the maker's module":
            del members["__module__"]
        made = type(name, (attention_backend_cls,), members)
        if bug == "the backend itself is changed":
            attention_backend_cls.get_builder_cls = get
        return made

    return subclass_attention_backend


def _make_metadata(bug: str | None) -> Callable[..., Any]:
    known_classes: dict[int, tuple[Any, Any]] = {}  # by the real one, which is made once

    def subclass_attention_metadata(name_prefix: Any, metadata_cls: Any, fields: Any) -> Any:
        if bug == "the last of two fields wins" and isinstance(fields, list):
            fields = list(
                {
                    field[0] if isinstance(field, tuple) else i: field
                    for i, field in enumerate(fields)
                }.values()
            )
        if bug == "a keyword is a name" and isinstance(fields, list):
            fields = [
                (f"{f[0]}_", *f[1:]) if isinstance(f, tuple) and f[0] == "class" else f
                for f in fields
            ]
        real = REAL_METADATA(name_prefix, metadata_cls, fields)
        if id(real) in known_classes and bug != "each call makes a class":
            return known_classes[id(real)][1]
        given: Any = getattr(metadata_cls, "__dataclass_params__", None)
        has_eq, is_frozen = (given.eq, given.frozen) if given else (True, False)
        if bug == "it compares by value":
            has_eq = True
        if bug == "it can be changed only where nothing was frozen" and is_frozen:
            metadata_cls = dataclasses.make_dataclass(
                metadata_cls.__name__, [(f.name, f.type) for f in dataclasses.fields(metadata_cls)]
            )
            is_frozen = False
        fields = [tuple(field) for field in fields]
        if bug == "defaults are annotations":
            fields = [(name, kind) for name, kind, _ in fields]
        if bug == "fields are those of the first call":
            fields = sorted(fields)
        if bug == "fields that the class has stay as they are":
            known = {f.name for f in dataclasses.fields(metadata_cls)} if given else set()
            fields = [field for field in fields if field[0] not in known]
        made = dataclasses.make_dataclass(
            name_prefix + metadata_cls.__name__,
            fields,
            bases=(metadata_cls,),
            eq=has_eq,
            frozen=is_frozen,
        )
        if bug != "the class says that it is of the maker's module":
            made.__module__ = metadata_cls.__module__
        if bug == "attributes are set, no fields made":
            members = {"__module__": metadata_cls.__module__} | {n: d for n, _, d in fields}
            made = type(made.__name__, (metadata_cls,), members)
        known_classes[id(real)] = real, made
        return made

    return subclass_attention_metadata


BACKEND = [
    *rewritten(
        "AttentionBackend",
        _make_backend,
        laws={
            "test_a_backend_must_say": {
                "the order is the identity of five dimensions": "Shapes of MLA have three.",
                "the order is abstract": "Backends that say nothing cannot be made.",
                "one list of block sizes for all": "Whoever changes it, changes all backends.",
                "a backend needs no builder": "It is found out when groups are made.",
                "names are methods of objects": "Backends are asked by class.",
            }
        },
    ),
    *rewritten(
        "subclass_attention_backend",
        _make_subclass,
        answers={"the prefix is a suffix": "The name is only read in logs."},
        refusals={"a prefix is made a str": "It prints."},
        laws={
            "test_a_subclass_changes_the_builder_alone": {
                "the builder is bound late": "A closure over a loop's name: the last one wins.",
                "it is asked by class alone": "No `staticmethod`: an object is one argument more.",
                "it is asked by object alone": "A method: the class is asked without `self`.",
                "the builder is an object": "It makes builders too.",
                "the class says that it is of the maker's module": "Nothing looks at it.",
                "the backend itself is changed": "Its other layers get the builder too.",
            }
        },
    ),
    *rewritten(
        "subclass_attention_metadata",
        _make_metadata,
        refusals={
            "the last of two fields wins": "A dict.",
            "a keyword is a name": "`rename`: nobody finds the field again.",
        },
        laws={
            "test_a_subclass_has_more_fields": {
                "it compares by value": "Metadata of tensors have no truth value.",
                "it can be changed only where nothing was frozen": "No subclass: frozen and not do "
                "not mix.",
                "defaults are annotations": "Objects cannot be made without them.",
                "fields are those of the first call": "Sorted: by position they are others.",
                "fields that the class has stay as they are": "The new default is lost.",
                "attributes are set, no fields made": "They read alike; `replace` loses them.",
                "the class says that it is of the maker's module": "Python 3.12 ignores "
                "`__module__` in a namespace.",
            },
            "test_what_reads_alike_may_differ": {
                "each call makes a class": "`isinstance` fails for what another layer made.",
            },
        },
    ),
]
