"""The docstrings: `reference` states each definition, and `fast` points to it."""

from __future__ import annotations

import doctest
import inspect
import operator
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import fast
import reference

POINTER = re.compile(r"^ *Definition: `(?:reference|fast)\.(.*)`\.$", re.MULTILINE)


def is_documented(value: object) -> bool:
    """Return whether a value has a docstring of its own, as constants and type aliases do not."""
    return inspect.isroutine(value) or inspect.isclass(value)


def find_documented(package: ModuleType) -> Iterator[tuple[str, Any]]:
    """Yield the functions and classes of both packages, and public methods, by their names.

    An inherited method has the name of the class that defines it, unless that one is private.
    """
    for name in filter(lambda name: hasattr(fast, name), reference.__all__):
        value = getattr(package, name)
        if is_documented(value):
            yield name, value
        if not inspect.isclass(value):
            continue
        for owner in reversed(value.__mro__):
            public = owner.__name__ if owner.__name__ in package.__all__ else name
            for member_name, member in vars(owner).items():
                is_ours = owner.__module__.startswith(package.__name__) and member_name[0] != "_"
                if is_ours and (is_documented(member) or isinstance(member, property)):
                    yield f"{public}.{member_name}", member


IN_REFERENCE, IN_FAST = dict(find_documented(reference)), dict(find_documented(fast))
FUNCTIONS = [name for name in reference.__all__ if inspect.isfunction(getattr(reference, name))]


def sections_of(documented: object) -> set[str]:
    doc = inspect.getdoc(documented) or ""
    return set(re.findall(r"^(Args|Attributes|Returns|Raises|Example|Source):", doc, re.MULTILINE))


@pytest.mark.parametrize("name", sorted(IN_FAST.keys() & IN_REFERENCE.keys()))
def test_fast_points_to_the_definition(name: str) -> None:
    doc = inspect.getdoc(IN_FAST[name]) or ""
    assert f"Definition: `reference.{name}`." == doc.splitlines()[-1]
    assert not sections_of(IN_FAST[name])


def test_pointers_resolve() -> None:
    texts = [p.read_text(encoding="utf-8") for p in Path(str(fast.__file__)).parent.rglob("*.py")]
    targets = [target for text in texts for target in POINTER.findall(text)]
    assert len(targets) >= len(IN_FAST.keys() & IN_REFERENCE.keys())
    for target in targets:
        assert operator.attrgetter(target)(reference).__doc__, target


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_defined(name: str) -> None:
    function = getattr(reference, name)
    signature, doc = inspect.signature(function), inspect.getdoc(function) or ""
    needed = {"Example", "Source"} | ({"Args"} if signature.parameters else set())
    needed |= set() if signature.return_annotation == "None" else {"Returns"}
    needed |= set() if name == "is_valid_kv_cache_layout" else {"Raises"}  # it rejects nothing
    assert not needed - sections_of(function)
    (found,) = doctest.DocTestFinder(recurse=False).find(function, "documented")
    assert found.examples
    lines = [rf"(?m)^    \*{{0,2}}{parameter}: " for parameter in signature.parameters]
    assert not [line for line in lines if not re.search(line, doc)]
