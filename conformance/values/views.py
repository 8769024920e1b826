"""Compares results as views: strides, offsets and shared memory, not the values of elements."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from conformance.values.aliases import address_of, is_supplied, memory_of, strides_of
from conformance.values.differences import Difference, Verdict
from conformance.values.parts import (
    PLAIN,
    child_path,
    children,
    has_entries,
    has_only_plain,
    is_array,
    is_immutable,
    is_object,
)


@dataclasses.dataclass(frozen=True)
class View:
    """The layout of an array in memory.

    Attributes:
        strides: Strides in bytes.
        offset: Bytes from the beginning of its memory.
        memory: The path of the first array in this memory, arguments before results.
        place: The path at which this object first occurs.
    """

    strides: tuple[int, ...]
    offset: int
    memory: str
    place: str


def first_view_difference(
    expected: object,
    actual: object,
    expected_arguments: Mapping[str, Any],
    actual_arguments: Mapping[str, Any],
) -> Difference | None:
    """Return the first array of a result whose view differs from the expected one.

    Args:
        expected: The answer of `reference`.
        actual: The answer of a target; the same tree.
        expected_arguments: The arguments of `reference`, which an answer may be a view of.
        actual_arguments: Those of the target.

    Returns:
        The first difference in strides, in the offset, in the memory, or in which parts are the
        same object.

    >>> import numpy as np
    >>> a, t = np.arange(6), torch.arange(6)
    >>> first_view_difference(a.reshape(2, 3), t.reshape(2, 3), {"a": a}, {"a": t}) is None
    True
    >>> first_view_difference(a[1:], t[1:].clone(), {"a": a}, {"a": t}).line
    'result.offset = 0 bytes, but should be 8 bytes'
    >>> first_view_difference([a, a], [t, t[:]], {"a": a}, {"a": t}).line
    "result[1] = a separate object, but should be the same object as arguments['a']"
    """
    parts = _parts(actual_arguments, actual)
    devices = _devices(parts)
    expected_views = _views(_parts(expected_arguments, expected), devices)
    got = _views(parts, devices)
    for path, view in expected_views.items():
        if path not in got:  # supplied
            continue
        difference = _difference(path, view, got[path])
        if difference is not None:
            return difference
    return None


def _difference(path: str, expected_views: View | str, got: View | str) -> Difference | None:
    """Return the difference of one array, or of one list, given as its first path."""
    if isinstance(expected_views, View) and isinstance(got, View):
        if got.strides != expected_views.strides:
            where = f"{path}.strides"
            facts = f"{got.strides} bytes", f"{expected_views.strides} bytes"
            return Difference(Verdict.STRIDES, where, None, *facts)
        if got.offset != expected_views.offset:
            facts = f"{got.offset} bytes", f"{expected_views.offset} bytes"
            return Difference(Verdict.PLACE, f"{path}.offset", None, *facts)
        if got.memory != expected_views.memory:
            facts = f"in the memory of {got.memory}", f"in that of {expected_views.memory}"
            return Difference(Verdict.PLACE, path, None, *facts)
        expected_views, got = expected_views.place, got.place
    if got != expected_views:
        facts = _same_as(path, str(got)), _same_as(path, str(expected_views))
        return Difference(Verdict.IDENTITY, path, None, *facts)
    return None


def _same_as(path: str, place: str) -> str:
    return "a separate object" if place == path else f"the same object as {place}"


def _devices(parts: Iterable[tuple[str, Any]]) -> dict[str, str]:
    """Return the device of each array, by its path."""
    return {
        path: str(value.device) if isinstance(value, torch.Tensor) else "cpu"
        for path, value in parts
        if is_array(value)
    }


def _parts(arguments: Mapping[str, Any], result: object) -> list[tuple[str, Any]]:
    """Return the arrays and other mutable parts of arguments and results, with their paths."""
    seen: set[int] = set()
    return [*_parts_of(arguments, "arguments", seen), *_parts_of(result, "result", seen)]


def _parts_of(value: Any, path: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Yield the parts of a value; those in a list or mutable object only where it occurs first.

    Args:
        value: The value.
        path: Its path.
        seen: The ids of the arrays, lists, dicts and objects that were visited before.
    """
    is_shared = is_array(value) or isinstance(value, list | Mapping)
    if is_shared or (is_object(value) and not is_immutable(value)):
        yield path, value
        if id(value) in seen:
            return
        seen.add(id(value))
    if has_only_plain(value):
        return
    is_entry = has_entries(value)
    for key, child in children(value).items():
        if type(child) not in PLAIN:
            yield from _parts_of(child, child_path(path, key, is_entry=is_entry), seen)


def _views(parts: Iterable[tuple[str, Any]], devices: Mapping[str, str]) -> dict[str, View | str]:
    """Return the view of each array of a result, and the first path of each list or object.

    If one array occurs in two places, and the target has a tensor on the device in one and on the
    CPU in the other, these are two objects in two memories. So the array counts as two here.
    """
    memories: dict[tuple[int, str | None], str] = {}
    places: dict[tuple[int, str | None], str] = {}
    found: dict[str, View | str] = {}
    for path, value in parts:
        if is_supplied(value):
            continue
        device = devices.get(path)
        place = places.setdefault((id(value), device), path)
        if not is_array(value):
            found[path] = place
            continue
        if 0 in value.shape:
            # An empty array has no address, and its strides mean nothing.
            found[path] = View((), 0, path, place)
            continue
        start = memory_of(value)
        memory = memories.setdefault((start, device), path)
        found[path] = View(strides_of(value), address_of(value) - start, memory, place)
    return {path: view for path, view in found.items() if path.startswith("result")}
