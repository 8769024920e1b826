"""The memory that arrays lie in, of which they show some: strided views, guard bands, sharing."""

from __future__ import annotations

import dataclasses

import numpy as np

from conformance.aliases import address_of
from conformance.encoding.elements import (
    Array,
    Json,
    decode_dtype,
    decode_elements,
    encode_dtype,
    encode_elements,
    flattened,
    nested,
)


@dataclasses.dataclass
class Memory:
    """A memory, as it was when its first array was written.

    Attributes:
        owner: The array that owns it.
        content: Its bytes.
        is_shown: Which of them an array shows whose values are written.
        is_sealed: Whether arrays that come later show it no more: a result, in an argument.
    """

    owner: Array
    content: Array = dataclasses.field(init=False)
    is_shown: Array = dataclasses.field(init=False)
    is_sealed: bool = False

    def __post_init__(self) -> None:
        flat = self.owner.ravel(order="K")
        if flat.nbytes != self.owner.nbytes or not _is_dense(self.owner):
            raise TypeError(f"an array lies in memory of strides {self.owner.strides}")
        self.content = flat.view(np.uint8).copy()
        self.is_shown = np.zeros(self.content.size, np.bool_)

    def place(self, array: Array, owner: Array) -> dict[str, Json]:
        """Return where an array lies in it, and note that it is shown there.

        Args:
            array: The array.
            owner: What owns its memory: this, or an implementation's copy of this.
        """
        if not array.size:  # it lies nowhere
            return {"offset_bytes": 0, "strides_bytes": [0] * array.ndim}
        offset = address_of(array) - address_of(owner)
        if not self.is_sealed:
            shape, strides = (*array.shape, array.itemsize), (*array.strides, 1)
            np.ndarray(shape, np.bool_, self.is_shown.data, offset, strides)[...] = True
        return {"offset_bytes": offset, "strides_bytes": list(array.strides)}

    def encode(self) -> dict[str, Json]:
        """Return it as JSON: its size, and what is where no array shows anything."""
        node: dict[str, Json] = {"dtype": encode_dtype(self.owner.dtype), "size": self.owner.size}
        rest = np.unique(self.content[~self.is_shown])
        if rest.size == 1:
            node["filled_with"] = f"0x{int(rest[0]):02x}"
        elif rest.size:
            node["values"] = encode_elements(self.content.view(self.owner.dtype))
        return node


def _is_dense(array: Array) -> bool:
    """Return whether an array's elements stand side by side, in any order of its axes."""
    size = array.itemsize
    for stride, length in sorted(zip(array.strides, array.shape, strict=True)):
        if length != 1 and stride != size:
            return not array.size
        size *= length
    return True


def decode_memory(node: Json) -> Array:
    """Return a memory as a vector of its dtype."""
    dtype = decode_dtype(node["dtype"])
    if "values" in node:
        return decode_elements(node["values"], dtype)
    memory = np.zeros(node["size"], dtype)
    memory.view(np.uint8).fill(int(node.get("filled_with", "0x00"), 16))
    return memory


def encode_array(array: Array) -> dict[str, Json]:
    """Return an array's dtype, shape and values as JSON."""
    return {
        "dtype": encode_dtype(array.dtype),
        "shape": list(array.shape),
        "values": nested(encode_elements(array), array.shape),
    }


def decode_array(node: Json, memories: list[Array]) -> Array:
    """Return an array in its memory, or in memory of its own.

    Args:
        node: It, as JSON.
        memories: The memories of the case, in which its values are then.

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
        # Of bytes: NumPy gives no buffer of the dtypes that it does not know.
        array: Array = np.ndarray(shape, dtype, memory, offset, strides)
    except (TypeError, ValueError) as error:
        raise ValueError(f"an array reaches outside memory {node['memory']}: {error}") from error
    array[...] = values
    return array
