"""The implementation that is probed: `fast`, or a module whose names replace those of `fast`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import fast
import reference
from conformance.conversion import Converter
from conformance.implementations import FAST, Implementation, load_implementation
from conformance.targets import Target
from tools.probe.guarded_memory import GuardedMemory
from tools.probe.placing import PlacingCarrier


class Overlay(ModuleType):
    """The names of a module, and those of `fast` where it has none."""

    def __init__(self, module: ModuleType) -> None:
        super().__init__(module.__name__)
        vars(self).update({n: v for n, v in vars(module).items() if not n.startswith("__")})

    def __getattr__(self, name: str) -> Any:
        return getattr(fast, name)


def load(path: Path | None) -> Implementation:
    """Return `fast`, or the module of a file in front of it."""
    if path is None:
        return FAST
    found = load_implementation(str(path))
    return Implementation(found.name, Overlay(found.module))


@dataclasses.dataclass(frozen=True)
class ProbedTarget(Target):
    """A target whose arguments lie in guarded memory.

    Attributes:
        memory: where they lie.
        random: how they lie there.
        changes: the arguments that the function may change.
        may_span: whether views of one memory may be placed apart.
    """

    memory: GuardedMemory = dataclasses.field(default_factory=GuardedMemory)
    random: Random = dataclasses.field(default_factory=Random)
    changes: frozenset[str] = frozenset()
    may_span: bool = True

    def converter(self, **options: Any) -> Converter:
        """Return a new converter into guarded memory, with `Converter`'s options."""
        converter = PlacingCarrier(
            self.implementation, self.memory, self.random, self.changes, **options
        )
        converter.may_span = self.may_span
        return converter

    def lookup(self, function: str) -> Callable[..., Any]:
        """Return a function, a method, or a short play of several calls."""
        return looked_up(super(), function)


@dataclasses.dataclass(frozen=True)
class ReferenceTarget(Target):
    """The definition, with the same plays."""

    def lookup(self, function: str) -> Callable[..., Any]:
        """Return a function, a method, or a short play of several calls."""
        return looked_up(super(), function)


def looked_up(target: Any, function: str) -> Callable[..., Any]:
    """Return what a name of the probe's is in a target."""
    play = PLAYS.get(function)
    if play is None:
        return target.lookup(function)  # type: ignore[no-any-return]  # a target's
    return play(target.implementation.module)


def _buffer(implementation: Any) -> Callable[..., Any]:
    def play(size: Any, **keywords: Any) -> Any:
        made = implementation.CpuGpuBuffer(*size, **keywords)
        return made.cpu, made.gpu

    return play


def _copy(method: str) -> Callable[[Any], Callable[..., Any]]:
    def bind(implementation: Any) -> Callable[..., Any]:
        def play(size: Any, value: Any, n: Any, **keywords: Any) -> Any:
            made = implementation.CpuGpuBuffer(*size, **keywords)
            (made.cpu if method == "copy_to_gpu" else made.gpu)[...] = value
            return getattr(made, method)(n)

        return play

    return bind


def _np(implementation: Any) -> Callable[..., Any]:
    def play(size: Any, **keywords: Any) -> Any:
        made = implementation.CpuGpuBuffer(*size, **keywords)
        made.np[...] = 1
        return made.cpu

    return play


def _layout(implementation: Any) -> Callable[..., Any]:
    def play(cache_layout: Any) -> Any:
        try:
            implementation.set_kv_cache_layout(cache_layout)
            return implementation.get_kv_cache_layout()
        finally:
            implementation.set_kv_cache_layout(None)

    return play


def _checks(implementation: Any) -> Callable[..., Any]:
    def play(enabled: Any) -> Any:
        if implementation is reference:
            if not isinstance(enabled, bool) and type(enabled).__name__ != "bool":
                raise TypeError(f"enabled must be a bool, got {type(enabled).__name__}")
            return None
        with implementation.checks(enabled):
            pass
        return None

    return play


def _method(name: str) -> Callable[[Any], Callable[..., Any]]:
    return lambda _: lambda self: getattr(self, name)


PLAYS: dict[str, Callable[[Any], Callable[..., Any]]] = {
    "CpuGpuBuffer": _buffer,
    "CpuGpuBuffer.copy_to_gpu": _copy("copy_to_gpu"),
    "CpuGpuBuffer.copy_to_cpu": _copy("copy_to_cpu"),
    "CpuGpuBuffer.np": _np,
    "set_kv_cache_layout": _layout,
    "checks": _checks,
}
"""What takes several calls to show, by name; each is a function of an implementation."""
