"""The docstrings: `reference` states each definition, and `fast` points to it."""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import fast
import reference


def is_documented(value: object) -> bool:
    """Return whether a value has a docstring of its own, as constants and type aliases do not."""
    return inspect.isroutine(value) or inspect.isclass(value)


SHARED = [name for name in reference.__all__ if is_documented(getattr(fast, name, None))]
"""The functions and classes that both packages have."""

WITHOUT_RAISES = {"is_valid_kv_cache_layout"}
"""The functions that reject nothing."""

POINTER = re.compile(r"^ *Definition: `(.*)`\.$", re.MULTILINE)


def members_of(cls: type[Any], package: ModuleType) -> Iterator[tuple[str, type[Any], Any]]:
    """Yield a class' public methods and properties, each with the class that defines it."""
    owners = [owner for owner in cls.__mro__ if owner.__module__.startswith(package.__name__)]
    for name in sorted({name for owner in owners for name in vars(owner)}):
        owner = next(owner for owner in owners if name in vars(owner))
        member = vars(owner)[name]
        if (is_documented(member) or isinstance(member, property)) and not name.startswith("_"):
            yield name, owner, member


def find_documented(package: ModuleType, names: list[str]) -> dict[str, Any]:
    """Return functions, classes, methods and properties by the names that pointers use.

    An inherited method has the name of the class that defines it, unless that one is private.
    """
    found = {}
    for name in names:
        found[name] = value = getattr(package, name)
        if inspect.isclass(value):
            for member_name, owner, member in members_of(value, package):
                public = owner.__name__ if owner.__name__ in package.__all__ else name
                found[f"{public}.{member_name}"] = member
    return found


IN_REFERENCE = find_documented(reference, reference.__all__)
IN_FAST = find_documented(fast, SHARED)
TWINS = sorted(IN_FAST.keys() & IN_REFERENCE.keys())


def sections_of(documented: object) -> set[str]:
    doc = inspect.getdoc(documented) or ""
    return set(re.findall(r"^(Args|Attributes|Returns|Raises|Example|Source):", doc, re.MULTILINE))


@pytest.mark.parametrize("name", TWINS)
def test_fast_points_to_the_definition(name: str) -> None:
    doc = inspect.getdoc(IN_FAST[name]) or ""
    assert f"Definition: `reference.{name}`." == doc.splitlines()[-1]
    assert not sections_of(IN_FAST[name])


def test_pointers_resolve() -> None:
    found = 0
    for path in sorted(Path(str(fast.__file__)).parent.rglob("*.py")):
        for target in POINTER.findall(path.read_text(encoding="utf-8")):
            assert resolve(target).__doc__, target
            found += 1
    assert found >= len(TWINS)


def resolve(path: str) -> Any:
    """Return the object at a dotted path, in a package or in one of its modules."""
    names = path.split(".")
    value: Any = importlib.import_module(names[0])
    for i, name in enumerate(names[1:], 1):
        if not hasattr(value, name):
            value = importlib.import_module(".".join(names[: i + 1]))
        else:
            value = getattr(value, name)
    return value


@pytest.mark.parametrize(
    "name", [name for name in reference.__all__ if inspect.isfunction(getattr(reference, name))]
)
def test_functions_are_defined(name: str) -> None:
    function = getattr(reference, name)
    signature = inspect.signature(function)
    needed = {"Example", "Source"}
    if signature.parameters:
        needed |= {"Args"}
    if signature.return_annotation != "None":
        needed |= {"Returns"}
    if name not in WITHOUT_RAISES:
        needed |= {"Raises"}
    assert not needed - sections_of(function)
    assert_example(function)
    assert_arguments(function, function)


def assert_example(documented: object) -> None:
    (found,) = doctest.DocTestFinder(recurse=False).find(documented, "documented")
    assert found.examples


def assert_arguments(documented: object, function: Any) -> None:
    """Check that a docstring has a line for each parameter of a function."""
    doc = inspect.getdoc(documented) or ""
    names = [name for name in inspect.signature(function).parameters if name != "self"]
    assert not [name for name in names if not re.search(rf"(?m)^    \*{{0,2}}{name}: ", doc)]
