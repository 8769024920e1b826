"""The real kernels with a line changed, run in the simulator."""

from __future__ import annotations

import inspect
import linecache
from collections.abc import Mapping
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from conformance.profiles import Kind
from fast.kernels import cuda
from known_bad.entries import KnownBad


class Edit(NamedTuple):
    """A bug of a kernel.

    Attributes:
        function: The kernel or device function.
        old: A piece of its source.
        new: What replaces it.
        why: What happens, and why nobody would notice.
        seen_by: The kind of check that is to see it, or the law's name.
    """

    function: str
    old: str
    new: str
    why: str
    seen_by: Kind | str = Kind.SAME_ANSWER


def edited(kernels: ModuleType, function: str, old: str, new: str) -> str:
    """Return a module's source with one piece of one function replaced.

    Raises:
        ValueError: The piece does not stand there once: the kernel was rewritten, and the bug must
            be planted anew.
    """
    source = inspect.getsource(kernels)
    begin = source.index(f"def {function}(")
    end = source.find("\n\n\n", begin)
    body = source[begin : end if end >= 0 else len(source)]
    if body.count(old) != 1:
        raise ValueError(f"{old!r} stands {body.count(old)} times in {function}, expected 1")
    return source.replace(body, body.replace(old, new))


def install(patch: pytest.MonkeyPatch, kernels: ModuleType, source: str) -> None:
    """Put the kernels of another source in the place of a module's."""
    patch.setattr(cuda, "KERNELS", [])  # where they declare themselves
    names: dict[str, Any] = {"__name__": kernels.__name__}
    path = f"<known bad {hash(source)}>"
    linecache.cache[path] = (len(source), None, source.splitlines(keepends=True), path)
    exec(compile(source, path, "exec"), names)  # noqa: S102  # our own source
    for kernel in cuda.KERNELS:
        patch.setattr(kernels, kernel.name, names[kernel.name])


def edits_of(kernels: ModuleType, checked: str, edits: Mapping[str, Edit]) -> list[KnownBad]:
    """Return a module's kernels as they are, and with each bug.

    Args:
        kernels: The module.
        checked: The function whose checks run them.
        edits: The bugs by name.
    """

    def put(patch: pytest.MonkeyPatch, edit: Edit | None = None) -> None:
        source = inspect.getsource(kernels) if edit is None else edited(kernels, *edit[:3])
        install(patch, kernels, source)

    def bad(bug: str, edit: Edit) -> KnownBad:
        return KnownBad(checked, bug, edit.why, lambda patch: put(patch, edit), "sim", edit.seen_by)

    why = "The kernels as they are, compiled anew."
    honest = KnownBad(checked, None, why, put, target="sim")
    return [honest, *(bad(bug, edit) for bug, edit in edits.items())]
