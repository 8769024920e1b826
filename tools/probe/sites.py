"""The places in the arguments of a call where something can be replaced."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np

from conformance.calls import Call
from conformance.factories import Factory

Step: TypeAlias = tuple[str, Any]
"""One step into a value: `("item", 2)` of a list or dict, `("attribute", "seq_lens")`."""


@dataclasses.dataclass(frozen=True)
class Site:
    """A place in a call.

    Attributes:
        steps: how it is reached from the call.
        value: what stands there.
    """

    steps: tuple[Step, ...]
    value: Any

    @property
    def path(self) -> str:
        """The place as an expression: `common_attn_metadata.seq_lens`."""
        (_, first), *rest = self.steps[1:]
        inside = (f"[{key!r}]" if kind == "item" else f".{key}" for kind, key in rest)
        return f"{first}{''.join(inside)}"


def sites_of(call: Call, deepest: int = 6) -> list[Site]:
    """Return all places of a call, arguments and what is inside them.

    >>> [site.path for site in sites_of(Call("f", {"a": [1, 2], "b": slice(0, 3)}))]
    ['a', 'a[0]', 'a[1]', 'b']
    """
    found: list[Site] = []
    seen: set[int] = set()
    for part in ("arguments", "hints"):
        for name, value in getattr(call, part).items():
            steps = (("attribute", part), ("item", name))
            found += _inside(value, steps, deepest, seen)
    return found


def _inside(value: Any, steps: tuple[Step, ...], deepest: int, seen: set[int]) -> Iterator[Site]:
    if steps != (("attribute", "arguments"), ("item", "self")):
        yield Site(steps, value)
    if deepest == 0 or id(value) in seen:
        return
    if isinstance(value, list | tuple | dict) or hasattr(value, "__dict__"):
        seen.add(id(value))
    for step, inner in _entries(value):
        yield from _inside(inner, (*steps, step), deepest - 1, seen)


def _entries(value: Any) -> Iterator[tuple[Step, Any]]:
    if isinstance(value, list | tuple):
        for i, entry in enumerate(value[:20]):
            yield ("item", i), entry
    elif isinstance(value, dict):
        for key, entry in list(value.items())[:20]:
            yield ("item", key), entry
    elif isinstance(value, np.ndarray | type | str):
        return
    elif isinstance(value, Factory) and not _holds_arrays(value):
        return  # a caller's own class: how it is made is not the function's business
    elif isinstance(value, Factory | SimpleNamespace) or dataclasses.is_dataclass(value):
        for name, entry in vars(value).items():
            is_where_it_stands = name == "path" and isinstance(value, Factory)
            if not name.startswith("_") and not is_where_it_stands:
                yield ("attribute", name), entry


def _holds_arrays(value: Any) -> bool:
    return any(isinstance(inner, np.ndarray) for inner in vars(value).values())


def replaced_at(call: Call, site: Site, value: Any) -> Call:
    """Return the call with another value at a place; what leads there is copied.

    >>> call = Call("f", {"a": [1, 2]})
    >>> replaced_at(call, sites_of(call)[2], "x")
    f(a=[1, 'x'])
    """
    found: Call = _replaced(call, site.steps, value)
    return found


def _replaced(owner: Any, steps: tuple[Step, ...], value: Any) -> Any:
    if not steps:
        return value
    (kind, key), *rest = steps
    if kind == "attribute":
        changed = copy.copy(owner)
        inner = _replaced(getattr(owner, key), tuple(rest), value)
        object.__setattr__(changed, key, inner)  # of a frozen dataclass too
        return changed
    entries = list(owner) if isinstance(owner, tuple) else copy.copy(owner)
    entries[key] = _replaced(owner[key], tuple(rest), value)
    return tuple(entries) if isinstance(owner, tuple) else entries


def are_copies(path: str, other: str) -> bool:
    """Tell whether two places hold the same values, on the CPU and on a device.

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
