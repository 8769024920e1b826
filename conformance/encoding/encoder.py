"""Writes values as plain JSON: arguments as they were drawn, results as they are compared."""

from __future__ import annotations

import enum
import types
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from conformance.encoding.arrays import (
    Array,
    Json,
    Memory,
    encode_array,
    encode_dtype,
    encode_elements,
    encode_int,
)
from conformance.encoding.classes import class_path, is_plain
from conformance.targets.factories import Factory
from conformance.values.aliases import owner_of
from conformance.values.call import Call
from conformance.values.parts import children, compared_fields, map_children


class Encoder:
    """Writes values that may share objects and memory, one after another.

    At first every object gets an id, and every array a memory. `finish` removes those that nothing
    refers to.

    >>> Encoder().encode((1, 2.5, np.int32(3), None))
    {'$': 'tuple', 'items': [1, {'$': 'float', 'value': 2.5}, \
{'$': 'scalar', 'dtype': 'int32', 'value': 3}, None]}
    """

    def __init__(self) -> None:
        self._ids: dict[int, int] = {}
        self._nodes: list[dict[str, Json]] = []
        self._references: list[dict[str, Json]] = []
        self._alive: list[object] = []
        self._memories: list[Memory] = []
        self._places: dict[int, int] = {}
        self._has_places = True

    def encode(self, value: Any) -> Json:
        """Return a value as JSON.

        Raises:
            TypeError: The value cannot be written as JSON.
        """
        found = _encode_scalar(value)
        if found is not _NO_SCALAR:
            return found
        if type(value) is tuple:
            return {"$": "tuple", "items": [self.encode(entry) for entry in value]}
        if type(value) is slice:
            return {"$": "slice", **self.encode_fields(children(value))}
        if id(value) in self._ids:
            self._references.append({"$": "ref", "id": self._ids[id(value)]})
            return self._references[-1]
        number = self._ids[id(value)] = len(self._nodes)
        self._alive.append(value)  # so that its id is not reused
        node: dict[str, Json] = {}
        self._nodes.append(node)
        kind, *rest = self._encode_object(value).items()
        node.update([kind, ("id", number), *rest])
        if "memory" in node:
            self._memories[node["memory"]].nodes.append(node)
        return node

    def encode_fields(self, fields: Mapping[str, Any]) -> dict[str, Json]:
        """Return named values as JSON."""
        return {name: self.encode(value) for name, value in fields.items()}

    def finish(self, case: dict[str, Json]) -> dict[str, Json]:
        """Return a case with its memories, without the ids and memories that nothing refers to.

        Args:
            case: The case; `encode` returned its parts. They cannot be used afterwards.

        >>> encoder = Encoder()
        >>> encoder.finish({"a": encoder.encode([1])})
        {'a': [1]}
        """
        ids = {old: new for new, old in enumerate(sorted({ref["id"] for ref in self._references}))}
        for node in (*self._nodes, *self._references):
            if node["id"] in ids:
                node["id"] = ids[node["id"]]
            else:
                del node["id"]
        kept = [memory for memory in self._memories if not memory.is_one_array]
        for memory in self._memories:
            for node in memory.nodes:
                if memory in kept:
                    node["memory"] = kept.index(memory)
                else:
                    del node["memory"], node["offset_bytes"], node["strides_bytes"]
        found = {name: _with_plain_lists(value) for name, value in case.items()}
        return {**found, "memories": [one.encode() for one in kept]} if kept else found

    def same(self, copied: Any, written: Any) -> None:
        """Write a copy of an object as references to that object.

        Args:
            copied: The copy, which a `Converter` made.
            written: The object; nothing happens if it was not written.
        """
        if id(written) not in self._ids or id(copied) in self._ids:
            return
        self._ids[id(copied)] = self._ids[id(written)]
        self._alive.append(copied)
        if isinstance(copied, np.ndarray):
            owner = owner_of(copied)
            self._places[id(owner)] = self._places[id(owner_of(written))]
            self._alive.append(owner)

    def seal(self) -> None:
        """Note that all arguments are written, and results follow."""
        for memory in self._memories:
            memory.is_sealed = True

    def forget(self) -> None:
        """Write all objects again from now on, with their present values and without memories."""
        self._ids.clear()
        self._has_places = False

    def _encode_array(self, array: Array) -> dict[str, Json]:
        if type(array) is not np.ndarray:
            raise TypeError(f"a {type(array).__name__} cannot be written")
        written = {"$": "array", **encode_array(array)}
        if not self._has_places:
            return written
        owner = owner_of(array)
        place = self._places.setdefault(id(owner), len(self._memories))
        if place == len(self._memories):
            self._memories.append(Memory(owner))
        return {**written, "memory": place, **self._memories[place].place(array, owner)}

    def _encode_object(self, value: Any) -> dict[str, Json]:
        """Return the JSON of an object that can occur in several places."""
        if isinstance(value, np.ndarray):
            found = self._encode_array(value)
        elif isinstance(value, type):
            found = {"$": "class", "name": value.__name__}
        elif type(value) is list:
            found = {"$": "list", "items": [self.encode(entry) for entry in value]}
        elif type(value) is dict:
            items = [[self.encode(key), self.encode(entry)] for key, entry in value.items()]
            found = {"$": "dict", "items": items}
        elif isinstance(value, set | frozenset):
            found = {"$": type(value).__name__, "items": self._encode_set(value)}
        elif isinstance(value, types.FunctionType):
            found = self._encode_function(value)
        elif isinstance(value, Exception):
            path = class_path(type(value))
            found = {"$": "exception", "class": path, "message": str(value)}
        else:
            found = self._encode_instance(value)
        return found

    def _encode_set(self, value: Iterable[Any]) -> list[Json]:
        """Return the entries of a set in an order that does not change from run to run."""
        return sorted((self.encode(entry) for entry in value), key=repr)

    def _encode_instance(self, value: Any) -> dict[str, Json]:
        """Return an object by its attributes, or by those that it is compared by."""
        cls, path = type(value), class_path(type(value))
        if isinstance(value, Factory):
            if path is None:
                raise TypeError(f"a factory of {cls}, which is in no module, cannot be written")
            return {"$": "blueprint", "class": path, "fields": self.encode_fields(vars(value))}
        compared = compared_fields(value)
        if hasattr(cls, "compared") or (path is None and compared):
            fields = {name: getattr(value, name) for name in compared if hasattr(value, name)}
            return {"$": "made", "class": cls.__name__, "fields": self.encode_fields(fields)}
        if isinstance(value, types.MethodType | types.BuiltinFunctionType | types.ModuleType):
            raise TypeError(f"{value!r} cannot be written")
        if path is not None and is_plain(cls):
            return {"$": "object", "class": path, "fields": self.encode_fields(children(value))}
        members = {n: v for n, v in vars(cls).items() if not n.startswith("__")}
        if path is None and cls.__bases__ == (object,) and not any(map(callable, members.values())):
            return {
                "$": "own",
                "class": cls.__name__,
                "members": self.encode_fields(members),
                "fields": self.encode_fields(vars(value)),
            }
        raise TypeError(f"a {cls.__module__}.{cls.__qualname__} cannot be written")

    def _encode_function(self, function: types.FunctionType) -> dict[str, Json]:
        """Return a function without named parameters as its result; it is called once."""
        code = function.__code__
        if code.co_argcount + code.co_kwonlyargcount:
            raise TypeError(
                f"function {function.__qualname__}, which takes arguments, cannot be written"
            )
        try:
            return {"$": "function", "returns": self.encode(function())}
        except Exception as error:
            if isinstance(error, TypeError) and "cannot be written" in str(error):
                raise
            raised = {"class": class_path(type(error)), "message": str(error)}
            return {"$": "function", "raises": raised}


def _with_plain_lists(node: Json) -> Json:
    """Return JSON in which lists without an id are lists, and not nodes."""
    found = map_children(_with_plain_lists, node)
    is_list = isinstance(found, dict) and found.get("$") == "list" and "id" not in found
    return found["items"] if is_list else found


def encode_call(call: Call) -> dict[str, Json]:
    """Return a call as JSON: its arguments, its hints, and the memories that they lie in.

    Raises:
        TypeError: An argument cannot be written as JSON.

    >>> encode_call(Call("f", {"block_size": 2}))
    {'function': 'f', 'arguments': {'block_size': 2}}
    """
    encoder = Encoder()
    return encoder.finish(start_call(encoder, call))


def start_call(encoder: Encoder, call: Call) -> dict[str, Json]:
    """Return a call as JSON that has to be finished."""
    case = {"function": call.function, "arguments": encoder.encode_fields(call.arguments)}
    return {**case, "hints": encoder.encode_fields(call.hints)} if call.hints else case


_NO_SCALAR = object()


def _encode_scalar(value: Any) -> Json:
    """Return a scalar, dtype, class or enum member as JSON; `_NO_SCALAR` for any other value."""
    kind = type(value)
    found: Json = _NO_SCALAR
    if value is None or kind in {bool, str}:
        found = value
    elif kind is int:
        number = encode_int(value)
        found = number if number is value else {"$": "int", "value": number}
    elif kind is float:
        found = {"$": "float", "value": encode_elements(np.array([value]))[0]}
    elif kind is complex:
        found = {"$": "complex", "value": encode_elements(np.array([value]))[0]}
    elif kind is bytes:
        found = {"$": "bytes", "hex": value.hex()}
    elif isinstance(value, np.generic):
        dtype = encode_dtype(value.dtype)
        found = {"$": "scalar", "dtype": dtype, "value": encode_elements(np.array([value]))[0]}
    elif isinstance(value, np.dtype):
        found = _encode_any_dtype(value)
    elif isinstance(value, type) and class_path(value) is not None:
        found = {"$": "type", "name": class_path(value)}
    elif isinstance(value, enum.Enum):
        found = {"$": "enum", "class": class_path(kind), "name": value.name}
    return found


def _encode_any_dtype(dtype: np.dtype[Any]) -> Json:
    """Return a dtype as JSON, a structured one by its fields."""
    if dtype.names is None:
        return {"$": "dtype", "name": encode_dtype(dtype)}
    fields = [[name, encode_dtype(dtype[name])] for name in dtype.names]
    return {"$": "dtype", "fields": fields}
