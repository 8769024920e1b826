"""The implementation under test: `fast`, or a module whose names replace those of `fast`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any, Final

import numpy as np

import fast
import reference
from conformance.arrays.change_tracking import argument_of
from conformance.arrays.guard_bands import Array
from conformance.arrays.guarded_memory import GuardedMemory
from conformance.targets import target as targets
from conformance.targets.conversion import Converter
from conformance.targets.implementations import FAST, Implementation, load_implementation
from conformance.targets.target import Target


class Overlay(ModuleType):
    """A module that falls back to `fast` for missing names."""

    def __init__(self, module: ModuleType) -> None:
        super().__init__(module.__name__)
        vars(self).update({n: v for n, v in vars(module).items() if not n.startswith("__")})

    def __getattr__(self, name: str) -> Any:
        return getattr(fast, name)


def load(path: Path | None) -> Implementation:
    """Return `fast`, or the module of a file as an overlay of `fast`."""
    if path is None:
        return FAST
    found = load_implementation(str(path))
    return Implementation(found.name, Overlay(found.module))


@dataclasses.dataclass(frozen=True)
class ScenarioTarget(Target):
    """A target whose functions include `SCENARIOS`, short sequences of calls.

    Attributes:
        method: A method of an object, which is returned for every name; None: look the name up.
    """

    method: Callable[..., Any] | None = None

    def lookup(self, function: str) -> Callable[..., Any]:
        """Return a function, a method, or one of `SCENARIOS`."""
        if self.method is not None:
            return self.method
        if function in SCENARIOS:
            return partial(SCENARIOS[function], self.implementation.module)
        return super().lookup(function)


REFERENCE: Final = ScenarioTarget("reference", targets.REFERENCE.implementation, None)


@dataclasses.dataclass(frozen=True)
class ProbedTarget(ScenarioTarget):
    """A target whose arguments are in guarded memory.

    Attributes:
        memory: The guarded memory.
        random: The source of random placement.
        changes: The arguments that the function may change.
        may_span: Whether views of the same memory may be copied separately.
    """

    memory: GuardedMemory = dataclasses.field(default_factory=GuardedMemory)
    random: Random = dataclasses.field(default_factory=Random)
    changes: frozenset[str] = frozenset()
    may_span: bool = True

    def converter(self, **options: Any) -> PlacingConverter:
        """Return a new converter into guarded memory, with `Converter`'s options."""
        return PlacingConverter(self, **options)


class PlacingConverter(Converter):
    """Copies arguments into guarded memory, each array to separate pages.

    An array ends before a guard page or begins after one, and a view is copied with all of its base
    or only the spanned part, at random.
    """

    def __init__(self, target: ProbedTarget, **options: Any) -> None:
        super().__init__(target.implementation, "cpu", **options)
        self._target, self._path = target, ""
        self._pages: list[tuple[str, int, int]] = []

    def protect(self) -> None:
        """Make all arrays read-only that the function may not change."""
        for path, first, length in self._pages:
            if argument_of(path) not in self._target.changes:
                self._target.memory.make_read_only(first, length)

    def _convert_array(self, array: Array, path: str) -> Any:
        self._path = path
        if self._target.may_span and self._target.random.random() < 0.7:
            array = spanned(array)
        return super()._convert_array(array, path)

    def _copied(self, drawn: Array) -> Array:
        at_end = self._target.random.random() < 0.7
        copied, first, length = self._target.memory.place(drawn, at_end=at_end)
        self._pages.append((self._path, first, length))
        return copied


def spanned(array: Array) -> Array:
    """Return the same values with the same strides, in memory that ends with the last element.

    >>> view = np.arange(9)[1:6:2]
    >>> spanned(view).tolist(), spanned(view).base.tolist()
    ([1, 3, 5], [1, 2, 3, 4, 5])
    """
    owner: Any = array
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    if owner is array or not array.size or not owner.flags.c_contiguous:
        return array
    low = high = array.__array_interface__["data"][0] - owner.__array_interface__["data"][0]
    for length, stride in zip(array.shape, array.strides, strict=True):
        low, high = low + min(stride, 0) * (length - 1), high + max(stride, 0) * (length - 1)
    start, stop = low // array.itemsize, high // array.itemsize + 1
    span = owner.reshape(-1)[start:stop].copy()
    first = array.__array_interface__["data"][0] - owner.__array_interface__["data"][0] - low
    data = span.view(np.uint8).data
    return np.ndarray(array.shape, array.dtype, data, first, array.strides)


def _buffer(module: Any, size: Any, **keywords: Any) -> Any:
    made = module.CpuGpuBuffer(*size, **keywords)
    return made.cpu, made.gpu


def _buffer_np(module: Any, size: Any, **keywords: Any) -> Any:
    made = module.CpuGpuBuffer(*size, **keywords)
    made.np[...] = 1
    return made.cpu


def _copy_to_gpu(module: Any, size: Any, value: Any, n: Any, **keywords: Any) -> Any:
    made = module.CpuGpuBuffer(*size, **keywords)
    made.cpu[...] = value
    return made.copy_to_gpu(n)


def _copy_to_cpu(module: Any, size: Any, value: Any, n: Any, **keywords: Any) -> Any:
    made = module.CpuGpuBuffer(*size, **keywords)
    made.gpu[...] = value
    return made.copy_to_cpu(n)


def _layout(module: Any, cache_layout: Any) -> Any:
    try:
        module.set_kv_cache_layout(cache_layout)
        return module.get_kv_cache_layout()
    finally:
        module.set_kv_cache_layout(None)


def _checks(module: Any, enabled: Any) -> None:
    if module is reference:  # it has no checked mode
        if not isinstance(enabled, bool) and type(enabled).__name__ != "bool":
            raise TypeError(f"enabled must be a bool, got {type(enabled).__name__}")
        return
    with module.checks(enabled):
        pass


SCENARIOS: Final[dict[str, Callable[..., Any]]] = {
    "CpuGpuBuffer": _buffer,
    "CpuGpuBuffer.copy_to_gpu": _copy_to_gpu,
    "CpuGpuBuffer.copy_to_cpu": _copy_to_cpu,
    "CpuGpuBuffer.np": _buffer_np,
    "set_kv_cache_layout": _layout,
    "checks": _checks,
}
"""Functions that make several calls, by name; the first argument is the implementation's module."""
