"""Reads values that an `Encoder` wrote."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from conformance.encoding.arrays import (
    Array,
    Json,
    decode_array,
    decode_dtype,
    decode_elements,
    decode_memories,
)
from conformance.encoding.classes import (
    FORMER_CODE,
    RENAMED_FIELDS,
    find_class,
    find_exception,
    is_plain,
)
from conformance.targets.factories import Factory, FactoryContext
from conformance.values.call import Call


@dataclasses.dataclass(frozen=True, eq=False)
class Made(Factory):
    """A factory of a result's object, of which only the compared fields are stored.

    Attributes:
        cls: The name of its class.
        fields: Its compared fields.
    """

    cls: str
    fields: Mapping[str, Any]

    def make(self, converter: FactoryContext) -> Any:
        """Return an object of a new class of this name, with the same compared fields."""
        made = type(self.cls, (), {"compared": tuple(self.fields)})()
        for name, value in self.fields.items():
            setattr(made, name, converter.convert(value, f"result.{name}"))
        return made


MAX_DEPTH = 100
"""How deeply values may be nested: a call with deeper ones could exceed Python's limit."""


class Decoder:
    """Reads the values of a case, in the order in which they were written.

    Args:
        memories: The case's memories.

    >>> Decoder().decode({"$": "tuple", "items": [1, {"$": "scalar", "dtype": "int8", "value": 2}]})
    (1, np.int8(2))
    """

    def __init__(self, memories: Sequence[Json] = ()) -> None:
        self._memories = decode_memories(memories)
        self._objects: dict[int, Any] = {}
        self._depth = 0
        self._arrays: list[tuple[Array, Array]] = []

    def decode(self, node: Json) -> Any:
        """Return the value of a node.

        Raises:
            ValueError: A node that is not in the schema or nested too deeply, or a class that no
                longer exists.
        """
        if not isinstance(node, list | dict):
            return node
        if self._depth == MAX_DEPTH:
            raise ValueError(f"values are nested more than {MAX_DEPTH} deep")
        self._depth += 1
        try:
            return self._decode(node)
        finally:
            self._depth -= 1

    def _decode(self, node: Json) -> Any:
        if isinstance(node, list):
            return [self.decode(entry) for entry in node]
        kind = node.get("$")
        if kind == "ref":
            return self._objects[node["id"]]
        read = _READERS.get(kind)
        if read is None:
            raise ValueError(f"a node of kind {kind!r} is unknown")
        found = read(self, node)
        self.keep(node, found)
        return found

    def keep(self, node: Json, value: Any) -> Any:
        """Store an object by its id, for references to it, also from inside it."""
        if "id" in node:
            self._objects.setdefault(node["id"], value)
        return value

    def fields(self, fields: Mapping[str, Json]) -> dict[str, Any]:
        """Return the values of named nodes."""
        return {name: self.decode(value) for name, value in fields.items()}

    def array(self, node: Json) -> Array:
        """Return an array, in its memory."""
        array = decode_array(node, self._memories)
        self._arrays.append((array, array.copy()))
        return array

    def check_arrays(self) -> None:
        """Raise `ValueError` if arrays of one memory, read since the last check, disagree."""
        for array, values in self._arrays:
            if array.tobytes() != values.tobytes():
                raise ValueError(f"arrays of one memory disagree: {array} should be {values}")
        self._arrays.clear()

    def function(self, node: Json) -> Callable[..., Any]:
        """Return a function that returns or raises the same as the stored one."""
        if "raises" in node:
            error = find_exception(node["raises"]["class"])(node["raises"]["message"])
            return _raising(error)
        if "returns" in node:
            return _returning(self.decode(node["returns"]))
        former = FORMER_CODE.get(node["code"])
        if former is None:  # a stub: no case calls it
            return _raising(ValueError(f"function {node['code']} is not stored"))
        function: Callable[..., Any] = find_class(former)(**self.fields(node["closure"]))
        return function


def _raising(error: Exception) -> Callable[..., Any]:
    def answer(*_: object, **__: object) -> object:
        raise error

    return answer


def _returning(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


def _read_list(decoder: Decoder, node: Json) -> Any:
    found = decoder.keep(node, [])
    found += [decoder.decode(entry) for entry in node["items"]]
    return found


def _read_dict(decoder: Decoder, node: Json) -> Any:
    found = decoder.keep(node, {})
    for key, value in node["items"]:
        known = decoder.decode(key)
        found[known] = decoder.decode(value)
    return found


def _read_dtype(_: Decoder, node: Json) -> Any:
    if "fields" in node:
        return np.dtype([(name, decode_dtype(dtype)) for name, dtype in node["fields"]])
    return decode_dtype(node["name"])


def _read_object(decoder: Decoder, node: Json) -> Any:
    """Return an object with its stored attributes, without the checks of its class."""
    cls = find_class(node["class"])
    if not (is_plain(cls) or issubclass(cls, Factory)):
        raise ValueError(f"class {node['class']!r} is none of objects that a stored case may have")
    found = decoder.keep(node, cls.__new__(cls))
    renamed = RENAMED_FIELDS.get(f"{cls.__module__}:{cls.__qualname__}", {})
    for name, value in decoder.fields(node["fields"]).items():
        object.__setattr__(found, renamed.get(name, name), value)
    return found


def _read_own(decoder: Decoder, node: Json) -> Any:
    """Return an object of a new class, in place of one that no module has."""
    members = {"__repr__": lambda _: f"{node['class']}(...)", **decoder.fields(node["members"])}
    found = decoder.keep(node, type(node["class"], (), members)())
    vars(found).update(decoder.fields(node["fields"]))
    return found


def _read_scalar(_: Decoder, node: Json) -> Any:
    return decode_elements([node["value"]], decode_dtype(node["dtype"]))[0]


def _python(name: str) -> Callable[[Decoder, Json], Any]:
    dtype = np.dtype(name)
    return lambda _, node: decode_elements([node["value"]], dtype)[0].item()


_READERS: dict[Any, Callable[[Decoder, Json], Any]] = {
    "int": lambda _, node: int(node["value"]),
    "float": _python("float64"),
    "complex": _python("complex128"),
    "bytes": lambda _, node: bytes.fromhex(node["hex"]),
    "scalar": _read_scalar,
    "dtype": _read_dtype,
    "type": lambda _, node: find_class(node["name"]),
    "class": lambda _, node: type(node["name"], (), {}),
    "enum": lambda _, node: find_class(node["class"])[node["name"]],
    "tuple": lambda decoder, node: tuple(decoder.decode(entry) for entry in node["items"]),
    "list": _read_list,
    "dict": _read_dict,
    "set": lambda decoder, node: {decoder.decode(entry) for entry in node["items"]},
    "frozenset": lambda decoder, node: frozenset(map(decoder.decode, node["items"])),
    "slice": lambda decoder, node: slice(
        *(decoder.decode(node[name]) for name in ("start", "stop", "step"))
    ),
    "array": lambda decoder, node: decoder.array(node),
    "object": _read_object,
    "blueprint": _read_object,
    "own": _read_own,
    "made": lambda decoder, node: Made(node["class"], decoder.fields(node["fields"])),
    "function": lambda decoder, node: decoder.function(node),
    "exception": lambda _, node: find_exception(node["class"])(node["message"]),
}


def decode_call(case: Json, decoder: Decoder | None = None) -> Call:
    """Return the call of a case, without `source`, which is not stored.

    Args:
        case: The case, from `encode_call`.
        decoder: The decoder; None for a new one.

    >>> decode_call({"function": "f", "arguments": {"block_size": 2}})
    f(block_size=2)
    """
    decoder = decoder or Decoder(case.get("memories", ()))
    arguments = decoder.fields(case.get("arguments", {}))
    return Call(case["function"], arguments, hints=decoder.fields(case.get("hints", {})))
