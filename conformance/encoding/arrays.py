"""Numbers and arrays as JSON: elements bit for bit, dtypes, and the memory that arrays lie in."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

from conformance.values.aliases import address_of

Json: TypeAlias = Any
"""What `json` reads and writes."""

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

MAX_BYTES = 2**30
"""The largest file of a case, and the most memory of its arrays."""

MAX_SAFE_INT = 2**53 - 1
"""The largest int that every JSON reader keeps exactly, also one that only has doubles."""


def encode_int(value: int) -> int | str:
    """Return an int as a JSON number, or as a string where a double might not hold it.

    >>> encode_int(2**53 - 1), encode_int(-(2**63))
    (9007199254740991, '-9223372036854775808')
    """
    return value if abs(value) <= MAX_SAFE_INT else str(value)


def encode_elements(array: Array) -> list[Json]:
    """Return the elements of an array in C order, each as JSON.

    A finite float is a number, which a double represents exactly; any other float is the string of
    its bits in hex. A complex number is a pair.

    >>> encode_elements(np.array([1.5, -0.0, np.nan], np.float16))
    [1.5, -0.0, '0x7e00']
    >>> encode_elements(np.array([2**40, 2**60]))
    [1099511627776, '1152921504606846976']
    """
    flat = np.ascontiguousarray(array).reshape(-1)
    if flat.dtype == np.bool_:
        return flat.tolist()
    if flat.dtype.kind in "iu":
        return [encode_int(value) for value in flat.tolist()]
    if flat.dtype.kind == "c":
        parts = encode_elements(flat.view(_part_of(flat.dtype)))
        return [list(pair) for pair in zip(parts[::2], parts[1::2], strict=True)]
    bits = flat.view(f"u{flat.dtype.itemsize}").tolist()
    with np.errstate(all="ignore"):
        values = flat.astype(np.float64).tolist()
    digits = 2 * flat.dtype.itemsize
    return [
        value if math.isfinite(value) else f"0x{word:0{digits}x}"
        for value, word in zip(values, bits, strict=True)
    ]


def decode_elements(elements: Sequence[Json], dtype: np.dtype[Any]) -> Array:
    """Return elements as a vector of a dtype; the inverse of `encode_elements`.

    Args:
        elements: Flat, as `encode_elements` gives them.
        dtype: The dtype that they were encoded from.

    Raises:
        ValueError: An element that the dtype does not hold exactly.

    >>> decode_elements(["0x7fc1", 0.5], np.dtype(ml_dtypes.bfloat16)).view(np.uint16).tolist()
    [32705, 16128]
    >>> decode_elements([0.1], np.dtype(np.float16))
    Traceback (most recent call last):
        ...
    ValueError: 0.1 is not a value of float16
    """
    if dtype == np.bool_:
        return np.array(list(_each(elements, dtype, bool)), dtype)
    if dtype.kind in "iu":
        ints = [int(value) for value in _each(elements, dtype, int, str)]
        limits = np.iinfo(dtype)
        for value in ints:
            if not limits.min <= value <= limits.max:
                raise ValueError(f"{value} is not a value of {dtype.name}")
        return np.array(ints, dtype)
    if dtype.kind == "c":
        parts = [part for pair in elements for part in pair]
        return decode_elements(parts, _part_of(dtype)).view(dtype).copy()
    found = np.zeros(len(elements), dtype)
    words = found.view(f"u{dtype.itemsize}")
    for i, value in enumerate(_each(elements, dtype, int, float, str)):
        if isinstance(value, str):
            words[i] = int(value, 16)
        else:
            found[i] = value
            if float(found[i]) != value:
                raise ValueError(f"{value} is not a value of {dtype.name}")
    return found


def _each(elements: Sequence[Json], dtype: np.dtype[Any], *kinds: type) -> Iterator[Any]:
    """Yield elements, each of which must be of one of some JSON types."""
    for value in elements:
        if type(value) not in kinds:
            raise ValueError(f"{value!r} is not a value of {dtype.name}")
        yield value


def _part_of(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of the parts of a complex dtype."""
    return np.dtype(f"f{dtype.itemsize // 2}")


def encode_dtype(dtype: np.dtype[Any]) -> str:
    """Return a dtype's name.

    Raises:
        TypeError: The name does not identify the dtype: records, text, another byte order.

    >>> encode_dtype(np.dtype(ml_dtypes.float8_e4m3fn))
    'float8_e4m3fn'
    """
    is_known = dtype.isnative and dtype.kind not in "SUMm"
    if not is_known or decode_dtype(dtype.name) != dtype:
        raise TypeError(f"dtype {dtype!r} cannot be stored by its name")
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


def nested(flat: Sequence[Json], shape: Sequence[int]) -> Json:
    """Return elements as lists in lists, by a shape; without elements there are no inner lists.

    >>> nested([1, 2, 3, 4], (2, 2)), nested([7], ()), nested([], (2**40, 0))
    ([[1, 2], [3, 4]], 7, [])
    """
    if not shape:
        return flat[0]
    if not flat or len(shape) == 1:
        return list(flat)
    step = len(flat) // shape[0]
    return [nested(flat[i : i + step], shape[1:]) for i in range(0, len(flat), step)]


def flattened(values: Json, shape: Sequence[int]) -> list[Json]:
    """Return the elements of lists in lists; the inverse of `nested`.

    Raises:
        ValueError: Lists that are not of the shape.

    >>> flattened([[1, 2], [3, 4]], (2, 2))
    [1, 2, 3, 4]
    >>> flattened([[1, 2], [3]], (2, 2))
    Traceback (most recent call last):
        ...
    ValueError: values have 1 entries on an axis of 2
    """
    if not shape:
        return [values]
    if 0 in shape:
        if values != []:
            raise ValueError(f"values are not empty, but the shape is {tuple(shape)}")
        return []
    if not isinstance(values, list) or len(values) != shape[0]:
        found = len(values) if isinstance(values, list) else "no"
        raise ValueError(f"values have {found} entries on an axis of {shape[0]}")
    if len(shape) == 1:
        return values
    return [element for row in values for element in flattened(row, shape[1:])]


@dataclasses.dataclass(eq=False)
class Memory:
    """The memory of some arrays, as it was when the first of them was written.

    Attributes:
        owner: The array that owns it.
        content: Its bytes.
        is_shown: Which of these are in an array whose values are written.
        is_sealed: Whether arrays that are written from now on no longer change `is_shown`, since
            they are results that lie in the memory of an argument.
        nodes: The arrays in it, as JSON.
    """

    owner: Array
    content: Array = dataclasses.field(init=False)
    is_shown: Array = dataclasses.field(init=False)
    is_sealed: bool = False
    nodes: list[dict[str, Json]] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        flat = self.owner.ravel(order="K")
        if flat.nbytes != self.owner.nbytes or not _is_dense(self.owner):
            raise TypeError(f"an array lies in memory of strides {self.owner.strides}")
        self.content = flat.view(np.uint8).copy()
        self.is_shown = np.zeros(self.content.size, np.bool_)

    def place(self, array: Array, owner: Array) -> dict[str, Json]:
        """Return the offset and the strides of an array in it, and mark its bytes as shown.

        Args:
            array: The array.
            owner: The owner of its memory: `self.owner`, or an implementation's copy of that.
        """
        if not array.size:
            return {"offset_bytes": 0, "strides_bytes": [0] * array.ndim}
        offset = address_of(array) - address_of(owner)
        if not self.is_sealed:
            shape, strides = (*array.shape, array.itemsize), (*array.strides, 1)
            np.ndarray(shape, np.bool_, self.is_shown.data, offset, strides)[...] = True
        return {"offset_bytes": offset, "strides_bytes": list(array.strides)}

    @property
    def is_one_array(self) -> bool:
        """Whether one C-contiguous array covers all of it, so that it need not be written."""
        [node, *others] = self.nodes
        dtype = decode_dtype(node["dtype"])
        if others or dtype != self.owner.dtype or node["offset_bytes"]:
            return False
        step, strides = dtype.itemsize, []
        for length in reversed(node["shape"]):
            strides.append(step)
            step *= length
        # The stride of an axis of length 1 is compared too: it has made a difference.
        is_dense = strides[::-1] == node["strides_bytes"]
        return step == self.owner.nbytes and bool(is_dense or not self.owner.size)

    def encode(self) -> dict[str, Json]:
        """Return it as JSON: its size, and the bytes that no array shows."""
        node: dict[str, Json] = {"dtype": encode_dtype(self.owner.dtype), "size": self.owner.size}
        rest = np.unique(self.content[~self.is_shown])
        if rest.size == 1:
            node["filled_with"] = f"0x{int(rest[0]):02x}"
        elif rest.size:
            node["values"] = encode_elements(self.content.view(self.owner.dtype))
        return node


def _is_dense(array: Array) -> bool:
    """Return whether an array's elements are contiguous, in any order of its axes."""
    size = array.itemsize
    for stride, length in sorted(zip(array.strides, array.shape, strict=True)):
        if length != 1 and stride != size:
            return not array.size
        size *= length
    return True


def decode_memories(nodes: Sequence[Json]) -> list[Array]:
    """Return memories as vectors of their dtypes.

    Raises:
        ValueError: They have more than `MAX_BYTES`.
    """
    memories, num_bytes = [], 0
    for node in nodes:
        dtype = decode_dtype(node["dtype"])
        num_bytes += node["size"] * dtype.itemsize
        if num_bytes > MAX_BYTES:
            raise ValueError(f"memories have more than {MAX_BYTES:,} bytes")
        if "values" in node:
            memories.append(decode_elements(node["values"], dtype))
        else:
            memories.append(np.zeros(node["size"], dtype))
            memories[-1].view(np.uint8).fill(int(node.get("filled_with", "0x00"), 16))
    return memories


def encode_array(array: Array) -> dict[str, Json]:
    """Return an array's dtype, shape and values as JSON."""
    return {
        "dtype": encode_dtype(array.dtype),
        "shape": list(array.shape),
        "values": nested(encode_elements(array), array.shape),
    }


def decode_array(node: Json, memories: list[Array]) -> Array:
    """Return an array in one of the memories of its case, or in new memory.

    Raises:
        ValueError: An array that reaches outside its memory.
    """
    dtype, shape = decode_dtype(node["dtype"]), tuple(node["shape"])
    values = decode_elements(flattened(node["values"], shape), dtype).reshape(shape)
    if "memory" not in node:
        return values
    if 0 in shape:
        nothing: Array = memories[node["memory"]][:0]
        return nothing.view(dtype).reshape(shape)
    memory = memories[node["memory"]].view(np.uint8)
    offset, strides = node["offset_bytes"], tuple(node["strides_bytes"])
    try:
        # The buffer is of bytes, since NumPy exports no buffer of the dtypes of `ml_dtypes`.
        array: Array = np.ndarray(shape, dtype, memory, offset, strides)
    except (TypeError, ValueError) as error:
        raise ValueError(f"an array reaches outside memory {node['memory']}: {error}") from error
    array[...] = values
    return array
