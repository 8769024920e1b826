"""Bad calls of the functions that make a backend, or its metadata, of another."""

from __future__ import annotations

from conformance.contracts import InvalidInput, replaced
from conformance.strategies.attention_layers import own_config


def _classes(argument: str) -> list[InvalidInput]:
    return [
        InvalidInput(f"{argument} is {what}", TypeError, argument, replaced(argument, bad))
        for what, bad in (("None", None), ("a name", "Plain"), ("an object", own_config()))
    ]


PREFIXES = [
    InvalidInput(f"the prefix is {bad!r}", TypeError, "name_prefix", replaced("name_prefix", bad))
    for bad in (None, 3, b"Fast")
]

SUBCLASS_BACKEND_INVALID_INPUTS = [
    *PREFIXES,
    *_classes("attention_backend_cls"),
    *_classes("builder_cls"),
]

GOOD = ("first", int, 0)

SUBCLASS_METADATA_INVALID_INPUTS = [
    *PREFIXES,
    *_classes("metadata_cls"),
    *(
        InvalidInput(what, error, argument, replaced("fields", bad))
        for what, error, argument, bad in (
            ("no fields", TypeError, "fields", None),
            ("fields in a dict", TypeError, "fields", {"first": int}),
            ("fields in a str", TypeError, "fields", "abc"),
            ("a field is a str", TypeError, "fields", [GOOD, "abc"]),
            ("a field is a set", TypeError, "fields", [GOOD, {"second", 1, 2}]),
            ("a field of two parts", ValueError, "fields", [GOOD, ("second", int)]),
            ("a field of four parts", ValueError, "fields", [GOOD, ("second", int, 0, 0)]),
            ("a field's name is an int", TypeError, "fields", [GOOD, (2, int, 0)]),
            ("a field's name is empty", ValueError, "fields", [GOOD, ("", int, 0)]),
            ("a field's name has a space", ValueError, "fields", [GOOD, ("a b", int, 0)]),
            ("a field's name is a keyword", ValueError, "fields", [GOOD, ("class", int, 0)]),
            ("a field is given twice", ValueError, "fields", [GOOD, GOOD]),
            ("a default can change", ValueError, "second", [GOOD, ("second", list, [])]),
        )
    ),
]
