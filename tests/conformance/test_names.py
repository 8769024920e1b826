"""Each name of the list can be imported from both packages, and takes the parameters it should."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from collections.abc import Callable
from operator import attrgetter
from types import ModuleType
from typing import Any

import pytest
from names import FAST_ALONE, KEYWORDS_OF_FAST_ALONE, NAMES, REFERENCE_ALONE, SHARED

import fast
import reference

PACKAGES = (reference, fast)

SIGNATURES = {name: signature for name, signature in NAMES.items() if signature is not None}


def spelled(function: Callable[..., Any], lacking: tuple[str, ...] = ()) -> str:
    """Return a signature without annotations, and without some parameters."""
    signature = inspect.signature(function)
    parameters = [p for p in signature.parameters.values() if p.name not in lacking]
    bare = [p.replace(annotation=p.empty) for p in parameters]
    return str(signature.replace(parameters=bare, return_annotation=signature.empty))


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
@pytest.mark.parametrize("module", SHARED)
def test_names_are_importable(package: ModuleType, module: str) -> None:
    """From the package, which states them in `__all__`, and from the module: the same objects."""
    inner = importlib.import_module(f"{package.__name__}.{module}")
    for name in [name for name in SHARED[module] if "." not in name]:
        assert name in package.__all__
        assert getattr(package, name) is getattr(inner, name), name


@pytest.mark.parametrize(
    ("package", "alone"), [(reference, set(REFERENCE_ALONE)), (fast, FAST_ALONE)]
)
def test_there_are_no_other_names(package: ModuleType, alone: set[str]) -> None:
    """`__all__` states each name once, and none that the list does not have."""
    listed = {name for name in {*NAMES, *alone} if "." not in name}
    assert len(package.__all__) == len(set(package.__all__))
    assert listed == set(package.__all__)


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures(name: str) -> None:
    """Parameters have these names, kinds, order and defaults; `fast` has some keywords besides."""
    expected = f"({SIGNATURES[name]})"
    assert expected == spelled(attrgetter(name)(reference))
    assert expected == spelled(attrgetter(name)(fast), KEYWORDS_OF_FAST_ALONE.get(name, ()))


@pytest.mark.parametrize("name", KEYWORDS_OF_FAST_ALONE)
def test_keywords_of_fast_alone(name: str) -> None:
    """They are keyword-only, and None by default."""
    parameters = inspect.signature(getattr(fast, name)).parameters
    found = [parameters[keyword] for keyword in KEYWORDS_OF_FAST_ALONE[name]]
    assert all(p.kind is p.KEYWORD_ONLY and p.default is None for p in found)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_methods_are_listed(package: ModuleType) -> None:
    """Each public method that a class of the list defines is in the list."""
    listed, missing = {*NAMES, *FAST_ALONE}, []
    for name in NAMES:
        owner = None if "." in name else getattr(package, name)
        if not inspect.isclass(owner):
            continue
        for base in owner.__mro__:
            if base.__name__ in NAMES and base.__module__.startswith(package.__name__):
                public = [m for m, v in vars(base).items() if m[0] != "_" and is_method(v)]
                missing += [m for m in public if f"{base.__name__}.{m}" not in listed]
    assert [] == missing


def is_method(member: object) -> bool:
    """Return whether a class's member is a function."""
    return inspect.isfunction(getattr(member, "__func__", member))


@pytest.mark.parametrize("name", [n for n in NAMES if n.endswith("Config")])
def test_configs_have_the_same_fields(name: str) -> None:
    """A config has the same fields in the same order, and its defaults are the same."""
    fields = [
        [(f.name, f.default, getattr(f.default_factory, "__name__", None)) for f in found]
        for found in (dataclasses.fields(getattr(package, name)) for package in PACKAGES)
    ]
    assert fields[0] == fields[1]


@pytest.mark.parametrize("name", REFERENCE_ALONE)
def test_what_a_batch_means_is_said_by_reference_alone(name: str) -> None:
    """The access relation and attention are in `reference` alone."""
    assert f"({REFERENCE_ALONE[name]})" == spelled(getattr(reference, name))
    assert not hasattr(fast, name)
