"""Invalid inputs of the functions that subclass a backend or its metadata class."""

from __future__ import annotations

from conformance.invalid_inputs.changes import Refusals, refusals, replaced
from conformance.invalid_inputs.kinds import Class, Str, invalid_by_kind

PREFIX_REFUSALS: Refusals = {
    (ValueError, "name_prefix"): {"a null character": replaced("name_prefix", "a\0b")}
}

SUBCLASS_BACKEND_INVALID_INPUTS = [
    *invalid_by_kind(name_prefix=Str(), attention_backend_cls=Class(), builder_cls=Class()),
    *refusals(PREFIX_REFUSALS),
]

VALID = ("first", int, 0)

SUBCLASS_METADATA_REFUSALS: Refusals = {
    (TypeError, "fields"): {
        "no fields": replaced("fields", None),
        "fields in a dict": replaced("fields", {"first": int}),
        "fields in a str": replaced("fields", "abc"),
        "a field is a str": replaced("fields", [VALID, "abc"]),
        "a field is a set": replaced("fields", [VALID, {"second", 1, 2}]),
        "a field's name is an int": replaced("fields", [VALID, (2, int, 0)]),
    },
    (ValueError, "fields"): {
        "a field of two parts": replaced("fields", [VALID, ("second", int)]),
        "a field of four parts": replaced("fields", [VALID, ("second", int, 0, 0)]),
        "a field's name is empty": replaced("fields", [VALID, ("", int, 0)]),
        "a field's name has a space": replaced("fields", [VALID, ("a b", int, 0)]),
        "a field's name is a keyword": replaced("fields", [VALID, ("class", int, 0)]),
        "a field is given twice": replaced("fields", [VALID, VALID]),
    },
    (ValueError, "second"): {
        "a default can change": replaced("fields", [VALID, ("second", list, [])])
    },
}

SUBCLASS_METADATA_INVALID_INPUTS = [
    *invalid_by_kind(name_prefix=Str(), metadata_cls=Class()),
    *refusals(PREFIX_REFUSALS),
    *refusals(SUBCLASS_METADATA_REFUSALS),
]
