"""The places in the arguments of a call where something can be replaced."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from conformance.targets.factories import Factory
from conformance.values.call import Call
from conformance.values.parts import child_path, children, has_entries, with_child


@dataclasses.dataclass(frozen=True)
class Site:
    """A place in a call.

    Attributes:
        steps: The keys of `children` that lead to it from the call.
        path: The place as an expression: `common_attn_metadata.seq_lens`.
        value: The value at the place.
    """

    steps: tuple[Any, ...]
    path: str
    value: Any


def sites_of(call: Call, deepest: int = 6) -> list[Site]:
    """Return all places in a call: arguments, hints and their nested values.

    >>> [site.path for site in sites_of(Call("f", {"a": [1, 2], "b": slice(0, 3)}))]
    ['a', 'a[0]', 'a[1]', 'b']
    """
    found: list[Site] = []
    seen: set[int] = set()
    for part in ("arguments", "hints"):
        for name, value in getattr(call, part).items():
            found += _inside(value, (part, name), name, deepest, seen)
    return found


def _inside(
    value: Any, steps: tuple[Any, ...], path: str, deepest: int, seen: set[int]
) -> Iterator[Site]:
    if steps != ("arguments", "self"):
        yield Site(steps, path, value)
    entries = [] if deepest == 0 or id(value) in seen else _entries(value)
    if entries:
        seen.add(id(value))
    for key, inner in entries:
        where = child_path(path, key, is_entry=has_entries(value))
        yield from _inside(inner, (*steps, key), where, deepest - 1, seen)


def _entries(value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, slice) or (isinstance(value, Factory) and not _holds_arrays(value)):
        return []  # a caller's own class: the function does not construct it
    entries = list((vars(value) if isinstance(value, Factory) else children(value)).items())
    if has_entries(value):
        return entries[:20]
    hidden = {"path"} if isinstance(value, Factory) else set()  # where it stands
    return [(n, entry) for n, entry in entries if not (n.startswith("_") or n in hidden)]


def _holds_arrays(value: Any) -> bool:
    return any(isinstance(inner, np.ndarray) for inner in vars(value).values())


def replaced_at(call: Call, site: Site, value: Any) -> Call:
    """Return a copy of the call with another value at a place; values elsewhere are shared.

    >>> call = Call("f", {"a": [1, 2]})
    >>> replaced_at(call, sites_of(call)[2], "x")
    f(a=[1, 'x'])
    """
    found: Call = _replaced(call, site.steps, value)
    return found


def _replaced(owner: Any, steps: tuple[Any, ...], value: Any) -> Any:
    if not steps:
        return value
    inner = owner[steps[0]] if has_entries(owner) else getattr(owner, steps[0])
    return with_child(owner, steps[0], _replaced(inner, steps[1:], value))


def are_copies(path: str, other: str) -> bool:
    """Return whether two places hold the same values, on the CPU and on a device.

    >>> are_copies("batch.seq_lens", "batch.seq_lens_cpu"), are_copies("a.cpu", "a.gpu")
    (True, True)
    >>> are_copies("logits_indices_cpu", "common_attn_metadata.logits_indices_padded")
    True
    """
    names = {path.rsplit(".", 1)[-1], other.rsplit(".", 1)[-1]}
    if names == {"logits_indices_cpu", "logits_indices_padded"}:
        return True
    if {path[-4:], other[-4:]} == {".cpu", ".gpu"}:
        return path[:-4] == other[:-4]
    return path == f"{other}_cpu" or other == f"{path}_cpu"
