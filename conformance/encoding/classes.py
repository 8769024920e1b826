"""Finds the class that a stored case names, even if it was renamed or moved."""

from __future__ import annotations

import dataclasses
import importlib
import types
from typing import Any

import reference

MODULES = (
    *("builtins", "ml_dtypes", "numpy", "reference", "types"),
    *(
        f"conformance.{name}"
        for name in (
            *("arrays.overwrites", "checks.contract_checks", "checks.law_checks"),
            *("checks.tensor_kind_checks", "conditions.condition_checks", "contracts.contract"),
            *("contracts.sessions", "coverage.presets", "execution.invocations"),
            *("invalid_inputs.attention_layers", "invalid_inputs.attn_metadata"),
            *("invalid_inputs.block_table", "invalid_inputs.kv_backends"),
            *("invalid_inputs.kv_views", "invalid_inputs.spec_groups", "laws.changes"),
            *("strategies.attention", "strategies.attention_groups", "strategies.attention_layers"),
            *("strategies.attn_metadata", "strategies.backend", "strategies.backends"),
            *("strategies.batch", "strategies.batch_order", "strategies.block_table"),
            *("strategies.buffers", "strategies.builders", "strategies.dense_layer"),
            *("strategies.fast_prefill_backend", "strategies.kv_cache", "strategies.kv_layout"),
            *("strategies.kv_plans", "strategies.mm_budget", "strategies.multimodal"),
            *("strategies.stub_factories", "targets.factories", "test_block_table"),
            *("test_block_table_interrupts", "test_checked_mode", "values.call"),
        )
    ),
)
"""The modules whose classes a case may name: decoding imports nothing else."""

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
        ValueError: The name does not exist, is not a class, or is not of one of `MODULES`.

    >>> find_class("reference:UBatchSlice").__name__
    'UBatchSlice'
    >>> find_class("os:system")
    Traceback (most recent call last):
        ...
    ValueError: class 'os:system' is none that a stored case may name
    """
    module, _, name = RENAMED.get(path, path).partition(":")
    module = MOVED.get(module, module)
    if module not in MODULES:
        raise ValueError(f"class {path!r} is none that a stored case may name")
    # Not `getattr`, for which NumPy imports some of its modules.
    found = vars(importlib.import_module(module)).get(name)
    if found is None:
        raise ValueError(f"class {path!r} does not exist")
    if not isinstance(found, type):
        raise ValueError(f"class {path!r} is not a class")  # noqa: TRY004  # a wrong name
    if module not in {found.__module__, found.__module__.partition(".")[0]}:  # it is imported there
        raise ValueError(f"class {path!r} is none that a stored case may name")
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


def is_plain(cls: type) -> bool:
    """Return whether objects of a class are fully described by their attributes."""
    return dataclasses.is_dataclass(cls) or cls in {types.SimpleNamespace, object}


_BACKENDS = "conformance.invalid_inputs.kv_backends"

FORMER_CODE = {
    f"{_BACKENDS}:_grows_in_two": f"{_BACKENDS}:SquareOfBlocks",
    f"{_BACKENDS}:_rank_grows.<locals>.get_kv_cache_shape": f"{_BACKENDS}:GrowingRank",
}
"""The classes that replace functions stored by version 1.0, by the names of these."""
