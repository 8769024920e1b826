"""Leaves out of an encoded case what tells nothing: ids nobody refers to, memory shown whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from conformance.encoding.elements import Json, decode_dtype
from conformance.values import map_children, walk


def pruned(case: dict[str, Json], memories: list[dict[str, Json]]) -> dict[str, Json]:
    """Return a case without what a reader need not know, its ids and memories counted from 0.

    Args:
        case: It, as an `Encoder` wrote it: every object with an id, every array in a memory.
        memories: The encoder's.

    Returns:
        The case, with the memories that are left under "memories".

    >>> pruned({"a": {"$": "list", "id": 7, "items": [1]}}, [])
    {'a': [1]}
    """
    nodes = [node for _, node in walk(case, "") if isinstance(node, dict) and "$" in node]
    referred = {node["id"] for node in nodes if node["$"] == "ref"}
    ids = {old: new for new, old in enumerate(_in_order(nodes, referred))}
    arrays = [node for node in nodes if "memory" in node]
    shown = Counter(node["memory"] for node in arrays)
    remaining = dict.fromkeys(
        node["memory"]
        for node in arrays
        if shown[node["memory"]] > 1 or not _is_all_of(node, memories[node["memory"]])
    )
    places = {old: new for new, old in enumerate(remaining)}

    def change(node: dict[str, Json]) -> Json:
        if "memory" in node:
            place = places.get(node["memory"])
            if place is None:
                for name in ("memory", "offset_bytes", "strides_bytes"):
                    del node[name]
            else:
                node["memory"] = place
        if "id" in node:
            number = ids.get(node["id"])
            if number is not None:
                node["id"] = number
                return node
            del node["id"]
        return node["items"] if node["$"] == "list" else node

    found = {name: _changed(value, change) for name, value in case.items()}
    if remaining:
        found["memories"] = [memories[old] for old in remaining]
    return found


def _in_order(nodes: list[dict[str, Json]], referred: set[int]) -> Iterator[int]:
    for node in nodes:
        if node["$"] != "ref" and node.get("id") in referred:
            yield node["id"]


def _is_all_of(node: dict[str, Json], memory: dict[str, Json]) -> bool:
    """Return whether an array is all of its memory, one element after another."""
    if node["dtype"] != memory["dtype"] or node["offset_bytes"] != 0:
        return False
    step, strides = decode_dtype(node["dtype"]).itemsize, []
    for length in reversed(node["shape"]):
        strides.append(step)
        step *= length
    # Of an axis of length 1 too: functions have met its stride.
    is_dense = bool(strides[::-1] == node["strides_bytes"])
    return step == memory["size"] * decode_dtype(memory["dtype"]).itemsize and (
        is_dense or memory["size"] == 0
    )


def _changed(value: Json, change: Callable[[dict[str, Json]], Json]) -> Json:
    found = map_children(lambda inner: _changed(inner, change), value)
    return change(found) if isinstance(found, dict) and "$" in found else found
