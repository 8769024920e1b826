"""Finds the class that a stored case names, even if it was renamed or moved."""

from __future__ import annotations

import importlib
from typing import Any

import reference

MODULES = ("reference", "conformance", "numpy", "ml_dtypes", "builtins", "types")
"""The packages that a class may be from: decoding a case imports nothing else."""

RENAMED = {
    "conformance.checks:_Valid": "conformance.checks:ValidExample",
    "conformance.checks:_Broken": "conformance.checks:InvalidExample",
    "conformance.strategies.builders:Wish": "conformance.strategies.builders:ThresholdOptions",
    "conformance.test_buffers:Copies": "conformance.strategies.buffers:Copies",
}
"""Former names of classes, which are still read."""

MOVED = {
    "conformance.calls": "conformance.values.call",
    "conformance.checks": "conformance.checks.contract_checks",
    "conformance.dense_layer": "conformance.strategies.dense_layer",
    "conformance.factories": "conformance.targets.factories",
    "conformance.invocations": "conformance.execution.invocations",
    "conformance.overwrites": "conformance.arrays.overwrites",
    "conformance.sessions": "conformance.contracts.sessions",
    "conformance.strategies.engines": "conformance.strategies.stub_factories",
    "conformance.strategies.presets": "conformance.coverage.presets",
}
"""Former modules of classes, which are still read."""

RENAMED_FIELDS = {
    "conformance.values.call:Call": {"facts": "source"},
    "conformance.strategies.dense_layer:Layer": {"given_up": "num_freed_tokens"},
}
"""Former names of fields by class, which are still read."""


def class_path(cls: type) -> str | None:
    """Return the name by which `find_class` finds a class; None if it cannot.

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
        ValueError: The name does not exist, is not a class, or is not in `MODULES`.

    >>> find_class("reference:UBatchSlice").__name__
    'UBatchSlice'
    >>> find_class("os:system")
    Traceback (most recent call last):
        ...
    ValueError: class 'os:system' is in none of reference, conformance, numpy, ml_dtypes, ...
    """
    module, _, qualname = RENAMED.get(path, path).partition(":")
    found = _find(MOVED.get(module, module), qualname, f"class {path!r}")
    if not isinstance(found, type):
        raise ValueError(f"class {path!r} is not a class")  # noqa: TRY004  # a wrong name
    _check_module(found.__module__, f"class {path!r}")  # a module may have imported it
    return found


def find_exception(path: str) -> type[Exception]:
    """Return the exception class of a name.

    Raises:
        ValueError: As `find_class`; or the class is not an exception.
    """
    found: type[Exception] = find_class(path)
    if not issubclass(found, Exception):
        raise ValueError(f"class {path!r} is not an exception")  # noqa: TRY004  # a wrong name
    return found


def _find(module: str, qualname: str, what: str) -> Any:
    _check_module(module, what)
    try:
        found: Any = importlib.import_module(module)
        for name in qualname.split("."):
            found = getattr(found, name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{what} does not exist: {error}") from error
    return found


def _check_module(module: str, what: str) -> None:
    if module.split(".", maxsplit=1)[0] not in MODULES:
        raise ValueError(f"{what} is in none of {', '.join(MODULES[:4])}, ...")


_BACKENDS = "conformance.invalid_inputs.kv_backends"

FORMER_CODE = {
    f"{_BACKENDS}:_grows_in_two": f"{_BACKENDS}:SquareOfBlocks",
    f"{_BACKENDS}:_rank_grows.<locals>.get_kv_cache_shape": f"{_BACKENDS}:GrowingRank",
}
"""The classes that replace functions stored by version 1.0, by the names of these."""
