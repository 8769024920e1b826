"""Stored cases: stories as JSON files, read without importing or running what a file names."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import math
import os
import re
import types
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeAlias

import ml_dtypes
import numpy as np

import reference
from conformance.harness.story import Circumstances, Story
from conformance.harness.values import Drawn, root_of

Json: TypeAlias = Any
Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

SCHEMA_VERSION: Final = "3.0"
MAX_BYTES: Final = 2**30  # of all arrays of a case
MAX_DEPTH: Final = 100
MAX_LISTED: Final = 256  # elements; a larger array is compressed

_DTYPES: Final = """bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 complex64 complex128
    float16 float32 float64 bfloat16 float8_e3m4 float8_e4m3 float8_e4m3b11fnuz float8_e4m3fn
    float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu"""
DTYPES: Final[dict[str, np.dtype[Any]]] = {
    name: np.dtype(getattr(ml_dtypes, name, name)) for name in _DTYPES.split()
}

CLASSES: Final[dict[str, Any]] = {
    **{cls.__name__: cls for cls in (Story, Circumstances, types.SimpleNamespace)},
    **{
        name: cls
        for name, cls in vars(reference).items()
        if name in reference.__all__ and isinstance(cls, type) and dataclasses.is_dataclass(cls)
    },
}
"""The classes of which a file may have instances."""


@dataclasses.dataclass(frozen=True)
class Case:
    path: Path
    story: Story
    target: str
    difference: str


def encode(story: Story) -> dict[str, Json]:
    """Return a story as JSON; a TypeError says which value cannot be stored."""
    return {"schema_version": SCHEMA_VERSION, "story": _Encoder(story).encode(story)}


def encode_value(value: Any) -> Json:
    return _Encoder(value).encode(value)


def decode(case: dict[str, Json]) -> Story:
    """Return the story of JSON; a ValueError says what is wrong with it."""
    version = str(case.get("schema_version") if isinstance(case, dict) else None)
    if not version.startswith("3."):
        raise ValueError(f"schema_version is {version}, but this version reads {SCHEMA_VERSION}")
    try:
        story: Story = _Decoder().decode(case["story"])
        for part, right in ((story, Story("", {})), (story.circumstances, Circumstances())):
            for name, value in vars(right).items():  # a newer field may be missing
                kinds = (dict, tuple, types.NoneType) if value is None else type(value)
                if type(part) is not type(right) or not isinstance(getattr(part, name), kinds):
                    raise ValueError(f"{name} is malformed")
    except (ArithmeticError, AttributeError, LookupError, TypeError, zlib.error) as error:
        raise ValueError(f"a value is missing, unknown or malformed: {error}") from error
    return story


def store(story: Story, folder: Path, target: str, difference: str) -> Path:
    """Write a story to a new file of a folder, and return the file; errors as in `encode`."""
    case = encode(story)
    digest = hashlib.sha256(json.dumps(case).encode()).hexdigest()[:8]
    path = folder / f"{story.function}-{digest}.json"
    text = written({**case, "target": target, "difference": difference})
    folder.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}")  # another worker may write the same case
    part.write_text(text, encoding="ascii")
    return part.replace(path)


def written(case: dict[str, Json]) -> str:
    text = json.dumps(case, indent=1)
    return re.sub(r'\[[^][{}"]*\]', lambda found: re.sub(r"\s+", " ", found[0]), text) + "\n"


def load(path: Path) -> list[Case]:
    """Return the case of a file, or those of a folder; a ValueError names the file."""
    if path.is_dir():
        files = (file for file in sorted(path.rglob("*.json")) if file.name != "index.json")
        return [case for file in files for case in load(file)]
    try:
        case = json.loads(path.read_text(encoding="utf-8"))
        story = decode(case)
    except (OSError, RecursionError, ValueError) as error:
        raise ValueError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    return [Case(path, story, str(case.get("target", "")), str(case.get("difference", "")))]


def _is_named(value: Any) -> bool:
    """Return whether a value is a scalar or dtype of NumPy, or a class, that has a name here."""
    if isinstance(value, type):
        return _class_named(value.__name__) is value
    dtype = value.dtype if isinstance(value, np.generic) else value
    return isinstance(dtype, np.dtype) and DTYPES.get(dtype.name) == dtype


def _class_named(name: str) -> Any:
    return CLASSES.get(name) or Drawn.classes.get(name)


def _has_fields(value: object) -> bool:
    return _class_named(type(value).__name__) is type(value)


def _listed(array: Array) -> Json:
    if array.dtype.kind in "biu" or not array.size:
        return array.tolist() if array.size else []
    with np.errstate(all="ignore"):
        values = array.astype(np.float64) if array.dtype.kind != "c" else np.array(np.nan)
    return values.tolist() if np.isfinite(values).all() else None


def _memory(array: Array) -> dict[str, Json]:
    if DTYPES.get(array.dtype.name) != array.dtype:
        raise TypeError(f"an array of dtype {array.dtype} cannot be stored")
    found = {"dtype": array.dtype.name, "shape": [*array.shape]}
    values = _listed(array) if array.size <= MAX_LISTED else None
    if values is not None:
        return {**found, "values": values}
    return {**found, "zlib": base64.b64encode(zlib.compress(array.tobytes())).decode()}


def _scalar(value: Any) -> Json:
    if isinstance(value, bytes):
        return {"$": "bytes", "hex": value.hex()}
    if isinstance(value, np.dtype):
        return {"$": "dtype", "dtype": value.name}
    if isinstance(value, type):
        return {"$": "class", "class": value.__name__}
    if type(value) is int and value.bit_length() > 1000:  # Python limits digits
        return {"$": "int", "hex": f"{value:x}"}
    if isinstance(value, np.generic) or (type(value) is float and not math.isfinite(value)):
        kind = "float" if type(value) is float else "scalar"
        return {"$": kind, **_memory(np.array(value))}
    return value


class _Encoder:
    """Writes values; one that occurs again is a `ref` to the `id` of its first occurrence."""

    def __init__(self, *values: Any) -> None:
        self._counts: Counter[int] = Counter()  # how often an object, or a memory, occurs
        self._ids: dict[int, int] = {}
        for value in values:
            self._count(value, 0)

    def _count(self, value: Any, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise TypeError(f"values nested more than {MAX_DEPTH} deep cannot be stored")
        self._counts[id(value)] += 1
        if self._counts[id(value)] == 1:
            if isinstance(value, np.ndarray):
                self._counts[-id(root_of(value))] += 1  # negative: apart from the owner as a value
            parts = [*value] if type(value) in {list, tuple, dict} else []
            parts += value.values() if type(value) is dict else ()
            for part in [*parts, *(vars(value).values() if _has_fields(value) else ())]:
                self._count(part, depth + 1)

    def encode(self, value: Any) -> Json:
        kind = type(value)
        if value is None or kind in {bool, str, int, float, bytes} or _is_named(value):
            return _scalar(value)
        if id(value) in self._ids:
            return {"$": "ref", "id": self._ids[id(value)]}
        head = {"$": kind.__name__, **self._id(id(value))}
        if kind is np.ndarray:
            return self._array(value, head)
        if _has_fields(value) or (kind is dict and {*map(type, value)} <= {str}):
            fields = value if kind is dict else vars(value)
            return {**head, "fields": {name: self.encode(part) for name, part in fields.items()}}
        if kind is dict:
            items = [[self.encode(key), self.encode(part)] for key, part in value.items()]
        elif kind in {list, tuple, set, frozenset}:
            items = [self.encode(part) for part in value]
            items = items if kind in {list, tuple} else sorted(items, key=json.dumps)
        elif kind is slice:
            items = [self.encode(part) for part in (value.start, value.stop, value.step)]
        else:
            raise TypeError(f"a {kind.__module__}.{kind.__qualname__} cannot be stored")
        return items if kind is list and "id" not in head else {**head, "items": items}

    def _id(self, key: int) -> dict[str, Json]:
        if self._counts[key] < 2:
            return {}
        self._ids[key] = len(self._ids)
        return {"id": self._ids[key]}

    def _array(self, array: Array, head: dict[str, Json]) -> Json:
        owner = root_of(array)
        if self._counts[-id(owner)] < 2 and array.flags.c_contiguous:
            return {**head, **_memory(array)}
        if -id(owner) in self._ids:
            of: dict[str, Json] = {"$": "ref", "id": self._ids[-id(owner)]}
        else:
            flat = owner.ravel(order="K")
            if flat.size and not np.shares_memory(flat, owner):
                raise TypeError(f"an array in memory of strides {owner.strides} cannot be stored")
            of = {"$": "ndarray", **self._id(-id(owner)), **_memory(flat)}
        offset = array.ctypes.data - owner.ctypes.data if array.size else 0
        head["dtype"] = _memory(np.empty(0, array.dtype))["dtype"]
        seen = {"shape": [*array.shape], "strides": [*array.strides], "offset": offset}
        return {**head, **seen, "of": of}


class _Decoder:
    """Reads values in the order in which they were written."""

    def __init__(self) -> None:
        self._found: dict[int, Any] = {}
        self._depth = self._num_bytes = 0

    def decode(self, node: Json) -> Any:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ValueError(f"values are nested more than {MAX_DEPTH} deep")
        found = [*map(self.decode, node)] if isinstance(node, list) else node
        found = self._node(node) if isinstance(node, dict) else found
        self._depth -= 1
        return found

    def _node(self, node: dict[str, Json]) -> Any:
        kind = node["$"]
        if kind == "ref":
            return self._found[node["id"]]
        if "fields" in node and (kind == "dict" or _class_named(kind)):
            fields = {name: self.decode(part) for name, part in node["fields"].items()}
            found: Any = fields
            if kind != "dict":
                cls = _class_named(kind)
                found = cls.__new__(cls)
                vars(found).update(fields)
        elif kind in _READERS:
            found = _READERS[kind](self, node)
        else:
            raise ValueError(f"{kind!r} is no kind of value, and no class that a case may name")
        if "id" in node:
            self._found[node["id"]] = found
        return found

    def items(self, node: dict[str, Json]) -> list[Any]:
        return [*map(self.decode, node["items"])]

    def array(self, node: dict[str, Json]) -> Array:
        dtype, shape = DTYPES[node["dtype"]], node["shape"]
        if not all(type(size) is int and size >= 0 for size in shape):
            raise ValueError(f"{shape} is not a shape")
        size = math.prod(shape) * dtype.itemsize
        self._num_bytes += size
        if self._num_bytes > MAX_BYTES:
            raise ValueError(f"the arrays have more than {MAX_BYTES:,} bytes")
        if "of" in node:
            memory = self.decode(node["of"]).reshape(-1).view(np.uint8)  # ml_dtypes' cannot be one
            return np.ndarray(shape, dtype, memory, node["offset"], tuple(node["strides"]))
        if "zlib" in node:
            packed = base64.b64decode(node["zlib"])
            data = zlib.decompressobj().decompress(packed, size + 1)
            if len(data) != size:
                raise ValueError(f"an array of {size} bytes was stored as {len(data)}")
            owner = np.empty(shape, dtype)  # no view of bytes, since views of it may follow
            owner.reshape(-1).view(np.uint8)[:] = np.frombuffer(data, np.uint8)
            return owner
        found = np.array(node["values"], dtype) if size else np.zeros(shape, dtype)
        if [*found.shape] != shape or _listed(found) != node["values"]:
            raise ValueError(f"the values are not {dtype} of shape {shape}")
        return found


_READERS: Final[dict[str, Callable[[_Decoder, Json], Any]]] = {
    "int": lambda _, node: int(node["hex"], 16),
    "float": lambda decoder, node: decoder.array(node).item(),
    "bytes": lambda _, node: bytes.fromhex(node["hex"]),
    "scalar": lambda decoder, node: decoder.array(node)[()],
    "dtype": lambda _, node: DTYPES[node["dtype"]],
    "class": lambda _, node: CLASSES[node["class"]],
    "ndarray": _Decoder.array,
    "list": _Decoder.items,
    "slice": lambda decoder, node: slice(*decoder.items(node)),
    "dict": lambda decoder, node: dict(decoder.items(node)),
    "tuple": lambda decoder, node: tuple(decoder.items(node)),
    "set": lambda decoder, node: set(decoder.items(node)),
    "frozenset": lambda decoder, node: frozenset(decoder.items(node)),
}
