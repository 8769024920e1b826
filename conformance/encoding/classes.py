"""Classes and functions by name: how what is written finds its code again."""

from __future__ import annotations

import importlib
import inspect
import types
from typing import Any

import reference

MODULES = ("reference", "conformance", "numpy", "ml_dtypes", "builtins", "types")
"""The packages that a name may lead to: what is read imports nothing else."""

RENAMED = {
    "conformance.checks:_Valid": "conformance.checks:ValidExample",
    "conformance.checks:_Broken": "conformance.checks:InvalidExample",
}
"""Former names of classes, which are still read."""


def class_path(cls: type) -> str | None:
    """Return the name by which a class is found again, None for one that no module has.

    >>> class_path(reference.FullAttentionSpec), class_path(int), class_path(type("Own", (), {}))
    ('reference:FullAttentionSpec', 'builtins:int', None)
    """
    module = cls.__module__
    if module.split(".")[0] == "reference" and getattr(reference, cls.__name__, None) is cls:
        module = "reference"
    path = f"{module}:{cls.__qualname__}"
    try:
        return path if find_class(path) is cls else None
    except ValueError:
        return None


def find_class(path: str) -> Any:
    """Return the class of a name.

    Raises:
        ValueError: A name that leads nowhere, or to no class, or out of `MODULES`.

    >>> find_class("reference:UBatchSlice").__name__
    'UBatchSlice'
    >>> find_class("os:system")
    Traceback (most recent call last):
        ...
    ValueError: class 'os:system' is in none of reference, conformance, numpy, ml_dtypes, ...
    """
    name, _, qualname = RENAMED.get(path, path).partition(":")
    found = _find(name, qualname, f"class {path!r}")
    if not isinstance(found, type):
        raise ValueError(f"class {path!r} is no class")  # noqa: TRY004  # a wrong name
    return found


def _find(module: str, qualname: str, what: str) -> Any:
    if module.split(".", maxsplit=1)[0] not in MODULES:
        raise ValueError(f"{what} is in none of {', '.join(MODULES[:4])}, ...")
    try:
        found: Any = importlib.import_module(module)
        for name in qualname.split("."):
            found = getattr(found, name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{what} is not there any more: {error}") from error
    return found


def code_path(function: types.FunctionType) -> str:
    """Return the name by which a function's code is found again, also one made in a function.

    Raises:
        TypeError: A function whose code cannot be told by it.

    >>> from conformance.factories import DEVICE
    >>> code_path(type(DEVICE).make)
    'conformance.factories:Device.make'
    """
    path = f"{function.__module__}:{function.__qualname__}"
    try:
        codes = _codes(path)
    except ValueError:
        codes = []
    if function.__code__ not in codes:
        raise TypeError(f"function {path} cannot be written: its code is not found by its name")
    place = codes.index(function.__code__)
    return path if place == 0 else f"{path}#{place}"


def find_code(path: str) -> tuple[types.CodeType, dict[str, Any]]:
    """Return the code of a name, and the globals of its module.

    Raises:
        ValueError: A name that leads to no code any more.
    """
    name, _, place = path.partition("#")
    codes = _codes(name)
    if int(place or 0) >= len(codes):
        raise ValueError(f"function {path!r} is not there any more")
    module = importlib.import_module(name.partition(":")[0])
    return codes[int(place or 0)], vars(module)


def _codes(path: str) -> list[types.CodeType]:
    """Return the codes of one name: several lambdas in a function are all called `<lambda>`."""
    module, _, qualname = path.partition(":")
    outermost = qualname.split(".<locals>", 1)[0]
    found = inspect.unwrap(_find(module, outermost, f"function {path!r}"))
    if not isinstance(found, types.FunctionType):
        return []
    codes, left = [], [found.__code__]
    while left:
        code = left.pop(0)
        if code.co_qualname == qualname:
            codes.append(code)
        left += [const for const in code.co_consts if isinstance(const, types.CodeType)]
    return codes
