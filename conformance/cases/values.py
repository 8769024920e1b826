"""Values as JSON: arguments bit for bit, with the memory that arrays lie in and shared objects.

`docs/vectors.md` describes the format, `schema.json` defines it.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib.util
import math
import re
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

import reference
from conformance.targets.factories import Factory
from conformance.values.aliases import address_of, owner_of
from conformance.values.parts import children, compared_fields, map_children

Json: TypeAlias = Any
"""What `json` reads and writes."""

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

MAX_BYTES = 2**30
"""The most memory that an array of a case may have."""

MAX_DEPTH = 100
"""How deeply values may be nested: a call with deeper ones could exceed Python's limit."""

PACKAGES = ("builtins", "conformance", "ml_dtypes", "numpy", "reference", "types")
"""The packages whose classes a case may name, in modules that are loaded already."""

IMPORTED = re.compile(r"conformance\.(invalid_inputs|strategies)\.\w+")
"""The modules that are imported if a case names a class of theirs."""


def encode_dtype(dtype: np.dtype[Any]) -> str:
    """Return a dtype's name.

    Raises:
        TypeError: The name does not identify the dtype: records, text, another byte order.

    >>> encode_dtype(np.dtype(ml_dtypes.float8_e4m3fn))
    'float8_e4m3fn'
    """
    is_known = dtype.isnative and dtype.kind not in "SUMm"
    if not is_known or decode_dtype(dtype.name) != dtype:
        raise TypeError(f"dtype {dtype!r} cannot be written by its name")
    return dtype.name


def decode_dtype(name: str) -> np.dtype[Any]:
    """Return the dtype of a name, NumPy's or that of `ml_dtypes`.

    >>> decode_dtype("bfloat16"), decode_dtype("int32")
    (dtype(bfloat16), dtype('int32'))
    """
    known = getattr(ml_dtypes, name, None)
    if isinstance(known, type) and issubclass(known, np.generic):
        return np.dtype(known)
    try:
        return np.dtype(name)
    except TypeError as error:
        raise ValueError(f"dtype {name!r} is unknown") from error


def encode_elements(array: Array) -> Json:
    """Return the elements of an array as nested lists; without elements, as an empty one.

    A finite float is a number, which a double represents exactly; any other float is the string of
    its bits in hex. A complex number is a pair.

    >>> encode_elements(np.array([[1.5, -0.0, np.nan]], np.float16))
    [[1.5, -0.0, '0x7e00']]
    """
    if array.dtype.kind in "biu" or not array.size:
        return array.tolist() if array.size else []
    array = np.array(array, order="C")
    if array.dtype.kind == "c":
        return encode_elements(array[..., None].view(f"f{array.itemsize // 2}"))
    with np.errstate(all="ignore"):
        values = array.astype(np.float64)
    found, odd = values.astype(object), ~np.isfinite(values)
    words = array.view(f"u{array.itemsize}")[odd]
    found[odd] = [f"0x{word:0{2 * array.itemsize}x}" for word in words.tolist()]
    return found.tolist()


def decode_elements(values: Json, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """Return an array of nested lists; the inverse of `encode_elements`.

    Raises:
        ValueError: Lists of another shape, or an element that the dtype does not hold exactly.

    >>> decode_elements([0.1], np.dtype(np.float16), (1,))
    Traceback (most recent call last):
        ...
    ValueError: 0.1 is not a value of float16
    """
    if dtype.kind == "c":
        parts = decode_elements(values, np.dtype(f"f{dtype.itemsize // 2}"), (*shape, 2))
        return parts.view(dtype).reshape(shape)
    if math.prod(shape) * dtype.itemsize > MAX_BYTES:
        raise ValueError(f"an array has more than {MAX_BYTES:,} bytes")
    elements = np.array(values, object)
    if elements.shape != shape and (0 not in shape or values != []):
        raise ValueError(f"values are of shape {elements.shape}, but the array is of {shape}")
    kinds: tuple[type, ...] = {"b": (bool,), "i": (int,), "u": (int,)}.get(
        dtype.kind, (int, float, str)
    )
    found = np.zeros(shape, dtype)
    flat = found.reshape(-1)
    for place, value in enumerate(elements.reshape(-1).tolist()):
        if type(value) in kinds:
            if isinstance(value, str):
                flat.view(f"u{dtype.itemsize}")[place] = int(value, 16)
                continue
            try:
                flat[place] = value
            except OverflowError:
                pass
            else:
                kept = flat[place] if dtype.kind in "biu" else float(flat[place])
                if kept == value:
                    continue
        raise ValueError(f"{value!r} is not a value of {dtype.name}")
    return found


def class_path(cls: type) -> str | None:
    """Return the name by which `find_class` finds a class; None if it cannot.

    >>> class_path(reference.FullAttentionSpec), class_path(int), class_path(type("Own", (), {}))
    ('reference:FullAttentionSpec', 'builtins:int', None)
    """
    is_public = getattr(reference, cls.__name__, None) is cls
    path = f"{'reference' if is_public else cls.__module__}:{cls.__qualname__}"
    try:
        return path if find_class(path) is cls else None
    except ValueError:
        return None


def find_class(path: str) -> Any:
    """Return the class of a name; only modules of `IMPORTED` are imported.

    Raises:
        ValueError: There is no such class in a module that a case may name.

    >>> find_class("os:PathLike")
    Traceback (most recent call last):
        ...
    ValueError: class 'os:PathLike' is none that a stored case may name
    """
    module, _, name = path.partition(":")
    found = None
    if IMPORTED.fullmatch(module) and importlib.util.find_spec(module) is not None:
        importlib.import_module(module)
    if module.partition(".")[0] in PACKAGES and module in sys.modules:
        found = vars(sys.modules[module]).get(name)  # `getattr` may import
    if not isinstance(found, type) or module not in {
        found.__module__,
        found.__module__.partition(".")[0],
    }:
        raise ValueError(f"class {path!r} is none that a stored case may name")
    return found


def _is_plain(cls: type) -> bool:
    """Return whether objects of a class are fully described by their attributes."""
    is_data = dataclasses.is_dataclass(cls) or issubclass(cls, Factory)
    return is_data or cls in {types.SimpleNamespace, object}


class Encoder:
    """Writes values that may share objects and memory, one after another.

    An object that occurs again is a `ref` to its first occurrence, which gets an id. An array that
    is not all of its memory is a `view` of that.

    >>> Encoder().fields({"a": (1, 2.5, np.int32(3), None)})
    {'a': {'$': 'tuple', 'items': [1, 2.5, {'$': 'scalar', 'dtype': 'int32', 'value': 3}, None]}}
    """

    def __init__(self) -> None:
        self._nodes: dict[int, dict[str, Json]] = {}
        self._memories: dict[int, dict[str, Json]] = {}
        self._alive: list[object] = []
        self._num_ids = 0

    def fields(self, fields: Mapping[str, Any]) -> dict[str, Json]:
        """Return named values as JSON; complete when all values that share objects are written.

        Raises:
            TypeError: A value cannot be written as JSON.
        """
        return {name: self.encode(value) for name, value in fields.items()}

    def encode(self, value: Any) -> Json:
        """Return a value as JSON, in which lists are nodes; see `plain_lists`."""
        found = _encode_scalar(value)
        if found is not None or value is None:
            return found
        if type(value) is tuple:
            return {"$": "tuple", "items": [self.encode(entry) for entry in value]}
        if type(value) is slice:
            return {"$": "slice", **self.fields(children(value))}
        if id(value) in self._nodes:
            return self._ref(self._nodes[id(value)])
        node = self._nodes[id(value)] = {}
        self._alive.append(value)  # so that its id is not reused
        node.update(
            self._array(value, node) if isinstance(value, np.ndarray) else self._object(value)
        )
        return node

    def _ref(self, node: dict[str, Json]) -> dict[str, Json]:
        if "id" not in node:
            node["id"] = self._num_ids
            self._num_ids += 1
        return {"$": "ref", "id": node["id"]}

    def _array(self, array: Array, node: dict[str, Json]) -> dict[str, Json]:
        if type(array) is not np.ndarray:
            raise TypeError(f"a {type(array).__name__} cannot be written")
        owner = owner_of(array)
        memory = self._memories.get(id(owner))
        head = {"dtype": encode_dtype(array.dtype), "shape": list(array.shape)}
        # A stride of an axis of length 1 may be any: it has made a difference.
        if (
            memory is None
            and owner is array
            and array.strides == np.zeros(array.shape, array.dtype).strides
        ):
            self._memories[id(owner)] = node
            return {"$": "array", **head, "values": encode_elements(array)}
        if memory is None:
            flat = owner.ravel(order="K")
            if flat.nbytes != owner.nbytes or (flat.size and not np.shares_memory(flat, owner)):
                raise TypeError(f"an array lies in memory of strides {owner.strides}")
            self._alive.append(owner)
            memory = self._memories[id(owner)] = {
                "$": "array",
                "dtype": encode_dtype(owner.dtype),
                "shape": [owner.size],
                "values": encode_elements(flat),
            }
            of = memory
        else:
            of = self._ref(memory)
        offset = address_of(array) - address_of(owner) if array.size else 0
        return {"$": "view", **head, "of": of, "offset": offset, "strides": list(array.strides)}

    def _object(self, value: Any) -> dict[str, Json]:  # noqa: PLR0911  # one for each kind
        cls, path = type(value), class_path(type(value))
        if isinstance(value, type):
            return {"$": "class", "name": value.__name__}
        if cls is list:
            return {"$": "list", "items": [self.encode(entry) for entry in value]}
        if cls is dict:
            items = [[self.encode(key), self.encode(entry)] for key, entry in value.items()]
            return {"$": "dict", "items": items}
        if isinstance(value, set | frozenset):
            return {"$": cls.__name__, "items": sorted(map(self.encode, value), key=repr)}
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, Exception):
            return {"$": "exception", "class": path, "message": str(value)}
        if path is not None and _is_plain(cls) and not hasattr(cls, "compared"):
            fields = vars(value) if hasattr(value, "__dict__") else children(value)
            return {"$": "object", "class": path, "fields": self.fields(fields)}
        compared = compared_fields(value)
        if compared:
            fields = {name: getattr(value, name) for name in compared if hasattr(value, name)}
            return {"$": "made", "class": cls.__name__, "fields": self.fields(fields)}
        members = {n: v for n, v in vars(cls).items() if not n.startswith("__")}
        if path is None and cls.__bases__ == (object,) and not any(map(callable, members.values())):
            known = {"members": self.fields(members), "fields": self.fields(vars(value))}
            return {"$": "own", "class": cls.__name__, **known}
        raise TypeError(f"a {cls.__module__}.{cls.__qualname__} cannot be written")

    def _function(self, function: types.FunctionType) -> dict[str, Json]:
        """Return a function without named parameters by its result; it is called once."""
        if function.__code__.co_argcount + function.__code__.co_kwonlyargcount:
            raise TypeError(f"function {function.__qualname__} cannot be written")
        try:
            result = function()
        except Exception as error:  # noqa: BLE001  # whatever it raises
            return {"$": "function", "raises": self.encode(error)}
        return {"$": "function", "returns": self.encode(result)}


def _encode_scalar(value: Any) -> Json:
    """Return a scalar, dtype, class or enum member as JSON; None for any other value."""
    kind = type(value)
    found: Json = None
    if kind in {bool, int, str} or (kind is float and math.isfinite(value)):
        found = value
    elif kind in {float, complex}:
        found = {"$": kind.__name__, "value": encode_elements(np.array(value))}
    elif kind is bytes:
        found = {"$": "bytes", "hex": value.hex()}
    elif isinstance(value, np.generic):
        dtype = encode_dtype(value.dtype)
        found = {"$": "scalar", "dtype": dtype, "value": encode_elements(np.array(value))}
    elif isinstance(value, np.dtype) and value.names is not None:
        fields = [[name, encode_dtype(value[name])] for name in value.names]
        found = {"$": "dtype", "fields": fields}
    elif isinstance(value, np.dtype):
        found = {"$": "dtype", "name": encode_dtype(value)}
    elif isinstance(value, type) and class_path(value) is not None:
        found = {"$": "type", "name": class_path(value)}
    elif isinstance(value, enum.Enum):
        found = {"$": "enum", "class": class_path(kind), "name": value.name}
    return found


def plain_lists(node: Json) -> Json:
    """Return complete JSON in which lists without an id are lists, and not nodes."""
    found = map_children(plain_lists, node)
    is_list = isinstance(found, dict) and found.get("$") == "list" and "id" not in found
    return found["items"] if is_list else found


class Decoder:
    """Reads the values of a case, in the order in which they were written.

    >>> Decoder().decode({"$": "tuple", "items": [1, {"$": "scalar", "dtype": "int8", "value": 2}]})
    (1, np.int8(2))
    """

    def __init__(self) -> None:
        self._objects: dict[int, Any] = {}
        self._depth = 0

    def decode(self, node: Json) -> Any:
        """Return the value of a node.

        Raises:
            ValueError: An unknown kind of node, nested too deeply, or a class that does not exist.
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
        if kind not in _READERS:
            raise ValueError(f"a node of kind {kind!r} is unknown")
        return self._keep(node, _READERS[kind](self, node))

    def fields(self, fields: Mapping[str, Json]) -> dict[str, Any]:
        """Return the values of named nodes."""
        return {name: self.decode(value) for name, value in fields.items()}

    def _keep(self, node: Json, value: Any) -> Any:
        """Store an object by its id, for references to it, also from inside it."""
        if "id" in node:
            self._objects.setdefault(node["id"], value)
        return value

    def _list(self, node: Json) -> Any:
        found = self._keep(node, [])
        found += [self.decode(entry) for entry in node["items"]]
        return found

    def _dict(self, node: Json) -> Any:
        found = self._keep(node, {})
        for key, value in node["items"]:
            known = self.decode(key)
            found[known] = self.decode(value)
        return found

    def _object(self, node: Json) -> Any:
        """Return an object with its stored attributes, without the checks of its class."""
        cls = find_class(node["class"])
        if not _is_plain(cls):
            raise ValueError(f"class {node['class']!r} is none of objects of a stored case")
        found = self._keep(node, cls.__new__(cls))
        for name, value in self.fields(node["fields"]).items():
            object.__setattr__(found, name, value)
        return found

    def _own(self, node: Json) -> Any:
        """Return an object of a new class, in place of one that no module has."""
        members = {"__repr__": lambda _: f"{node['class']}(...)", **self.fields(node["members"])}
        found = self._keep(node, type(node["class"], (), members)())
        vars(found).update(self.fields(node["fields"]))
        return found

    def _function(self, node: Json) -> Callable[..., Any]:
        """Return a function that returns or raises the same as the stored one."""
        result = self.decode(node["raises"] if "raises" in node else node["returns"])

        def answer(*_: object, **__: object) -> Any:
            if "raises" in node:
                raise result
            return result

        return answer

    def _view(self, node: Json) -> Array:
        memory, dtype, shape = self.decode(node["of"]), decode_dtype(node["dtype"]), node["shape"]
        if not (isinstance(memory, np.ndarray) and memory.flags.c_contiguous):
            raise ValueError("an array is a view of what is no memory")
        memory = memory.reshape(-1)
        if 0 in shape:
            return memory[:0].view(dtype).reshape(shape)
        if math.prod(shape) * dtype.itemsize > MAX_BYTES:
            raise ValueError(f"an array has more than {MAX_BYTES:,} bytes")
        try:
            # The buffer is of bytes, since NumPy exports no buffer of the dtypes of `ml_dtypes`.
            return np.ndarray(
                shape, dtype, memory.view(np.uint8), node["offset"], tuple(node["strides"])
            )
        except (TypeError, ValueError) as error:
            raise ValueError(f"an array reaches outside its memory: {error}") from error


def _read_array(_: Decoder, node: Json) -> Array:
    return decode_elements(node["values"], decode_dtype(node["dtype"]), tuple(node["shape"]))


def _read_scalar(_: Decoder, node: Json) -> Any:
    return decode_elements(node["value"], decode_dtype(node["dtype"]), ())[()]


def _read_dtype(_: Decoder, node: Json) -> Any:
    if "fields" in node:
        return np.dtype([(name, decode_dtype(dtype)) for name, dtype in node["fields"]])
    return decode_dtype(node["name"])


def _read_exception(_: Decoder, node: Json) -> Exception:
    cls: type[Exception] = find_class(node["class"])
    if not issubclass(cls, Exception):
        raise ValueError(f"class {node['class']!r} is not an exception")  # noqa: TRY004  # a name
    return cls(node["message"])


def _read_slice(decoder: Decoder, node: Json) -> slice:
    return slice(*(decoder.decode(node[name]) for name in ("start", "stop", "step")))


_READERS: dict[Any, Callable[[Any, Json], Any]] = {
    "float": lambda _, node: decode_elements(node["value"], np.dtype(float), ()).item(),
    "complex": lambda _, node: decode_elements(node["value"], np.dtype(complex), ()).item(),
    "bytes": lambda _, node: bytes.fromhex(node["hex"]),
    "scalar": _read_scalar,
    "dtype": _read_dtype,
    "type": lambda _, node: find_class(node["name"]),
    "class": lambda _, node: type(node["name"], (), {}),
    "enum": lambda _, node: find_class(node["class"])[node["name"]],
    "tuple": lambda decoder, node: tuple(decoder.decode(entry) for entry in node["items"]),
    "list": Decoder._list,  # noqa: SLF001  # its own
    "dict": Decoder._dict,  # noqa: SLF001
    "set": lambda decoder, node: {decoder.decode(entry) for entry in node["items"]},
    "frozenset": lambda decoder, node: frozenset(map(decoder.decode, node["items"])),
    "slice": _read_slice,
    "array": _read_array,
    "view": Decoder._view,  # noqa: SLF001
    "object": Decoder._object,  # noqa: SLF001
    "own": Decoder._own,  # noqa: SLF001
    "function": Decoder._function,  # noqa: SLF001
    "exception": _read_exception,
}
