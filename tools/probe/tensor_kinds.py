"""Unusual kinds of tensors and arrays: sparse, meta, fake, subclasses, views without storage."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from conformance.arrays.guard_bands import Array
from conformance.targets.conversion import Converter
from conformance.targets.factories import Factory
from conformance.values.comparison import NUMPY_IN_BOTH_TWINS
from conformance.values.parts import map_children


class Wrapper(torch.Tensor):
    """A wrapper subclass without storage."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls: type[Wrapper], inner: torch.Tensor) -> Wrapper:  # noqa: PYI034
        """Return a tensor of the same shape and dtype."""
        made: Wrapper = torch.Tensor._make_wrapper_subclass(  # noqa: SLF001  # torch's name for it
            cls, inner.shape, dtype=inner.dtype, device=inner.device
        )
        made.inner = inner
        return made

    def __repr__(self) -> str:  # type: ignore[override]  # torch's takes more
        return f"Wrapper({self.inner!r})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Apply the function to the inner tensors."""
        del types

        def unwrap(value: Any) -> Any:
            return value.inner if isinstance(value, Wrapper) else map_children(unwrap, value)

        found = func(*unwrap(args), **{k: unwrap(v) for k, v in (kwargs or {}).items()})
        return Wrapper(found) if type(found) is torch.Tensor else found


class PlainSubclass(torch.Tensor):
    """A subclass with ordinary storage."""


def _without_storage(make: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    def make_without(tensor: torch.Tensor) -> torch.Tensor:
        made = make(tensor)
        made.untyped_storage().resize_(0)
        return made

    return make_without


def _negated(tensor: torch.Tensor) -> torch.Tensor:
    if bool(tensor.isnan().any()):
        raise ValueError("a NaN does not come back with all of its bits")
    return torch._neg_view(-tensor)  # noqa: SLF001  # the values are those of `tensor`


def _conjugated(tensor: torch.Tensor) -> torch.Tensor:
    values = tensor.to(torch.complex64)
    if bool(values.isnan().any()):
        raise ValueError("a NaN does not come back with all of its bits")
    return torch.conj(values.conj_physical())  # the values are those of `tensor`


def _fake(tensor: torch.Tensor) -> torch.Tensor:
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        return mode.from_tensor(tensor.detach().clone())


def _inference(tensor: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return tensor.clone()


def _strided(tensor: torch.Tensor) -> torch.Tensor:
    wide = torch.stack([tensor, torch.full_like(tensor, 1)], dim=-1)
    return wide[..., 0]


def _expanded(tensor: torch.Tensor) -> torch.Tensor:
    return tensor[:1].expand(tensor.shape)


def _as_numpy(change: Callable[[Array], Any]) -> Callable[[torch.Tensor], Any]:
    return lambda tensor: change(tensor.detach().cpu().numpy())


TENSORS: dict[str, Callable[[torch.Tensor], Any]] = {
    "sparse COO": lambda t: t.to_sparse(),
    "sparse CSR": lambda t: t.to_sparse_csr(),
    "nested": lambda t: torch.nested.as_nested_tensor([t, t]),
    "nested, jagged": lambda t: torch.nested.as_nested_tensor([t, t], layout=torch.jagged),
    "mkldnn": lambda t: t.to_mkldnn(),
    "fake": _fake,
    "meta": lambda t: t.to("meta"),
    "functional": torch._to_functional_tensor,  # noqa: SLF001  # torch's name
    "wrapper subclass": Wrapper,
    "plain subclass": lambda t: t.as_subclass(PlainSubclass),
    "parameter": lambda t: torch.nn.Parameter(t.clone(), requires_grad=False),
    "requires grad": lambda t: t.clone().requires_grad_(),  # noqa: FBT003, RUF100  # torch's
    "storage resized to 0": _without_storage(torch.clone),
    "neg view of nothing": _without_storage(_negated),
    "conj view of nothing": _without_storage(_conjugated),
    "strided view of nothing": _without_storage(_strided),
    "neg view": _negated,
    "conj view": _conjugated,
    "inference tensor": _inference,
    "strided": _strided,
    "flipped": lambda t: t.flip(0).flip(0),
    "expanded": _expanded,
    "quantized": lambda t: torch.quantize_per_tensor(t.float(), 1.0, 0, torch.qint32),
    "list": lambda t: t.tolist(),
    "numpy": _as_numpy(lambda a: a.copy()),
    "numpy scalar": _as_numpy(lambda a: a.reshape(-1)[0]),
    "memoryview": _as_numpy(lambda a: memoryview(a.copy())),
    "dtype int16": lambda t: t.to(torch.int16),
    "dtype float64": lambda t: t.to(torch.float64),
    "complex": lambda t: t.to(torch.complex64),
    "0-dim": lambda t: t.reshape(-1)[0],
    "shared memory": lambda t: t.clone().share_memory_(),
}
"""Conversions of an ordinary tensor to each kind; they raise if the kind does not allow it."""


def _unaligned(array: Array) -> Array:
    memory = np.zeros(array.nbytes + 1, np.uint8)
    found: Array = np.ndarray(array.shape, array.dtype, memory.data, 1)
    found[...] = array
    return found


ARRAYS: dict[str, Callable[[Array], Any]] = {
    "masked": lambda a: np.ma.masked_array(a, np.ones(a.shape, np.bool_)),
    "byte-swapped": lambda a: a.astype(a.dtype.newbyteorder()),
    "structured": lambda a: np.zeros(a.shape, [("a", a.dtype)]),
    "objects": lambda a: a.astype(object),
    "float": lambda a: a.astype(np.float64),
    "uint64": lambda a: a.astype(np.uint64),
    "matrix": np.asmatrix,
    "subclass": lambda a: a.view(np.recarray),
    "tensor": lambda a: torch.from_numpy(a.copy()),
    "list": lambda a: a.tolist(),
    "reversed view": lambda a: a[::-1].copy()[::-1],
    "unaligned": _unaligned,
    "zero-stride": lambda a: np.broadcast_to(a[:1], a.shape),
}
"""The same for NumPy arrays, for arguments that are arrays in `fast`."""


class NoSuchKindError(Exception):
    """An array cannot be converted to this kind of tensor."""


SAME_TYPE = frozenset(
    {"expanded", "flipped", "inference tensor", "neg view", "neg view of nothing", "reversed view"}
    | {"shared memory", "storage resized to 0", "strided", "strided view of nothing", "unaligned"}
    | {"zero-stride"}
)
"""Kinds that keep the type, dtype and device, so that these are compared in results too."""


@dataclasses.dataclass(frozen=True, eq=False)
class OfKind(Factory):
    """An array that `fast` gets as another kind of tensor.

    Attributes:
        kind: One of `TENSORS` or `ARRAYS`.
        array: The values.
        path: The path of the argument.
        tensor: The tensor for `fast`; None: the array is converted to the kind.
    """

    kind: str
    array: Array
    path: str
    tensor: torch.Tensor | None = None

    def make(self, converter: Converter) -> Any:
        """Return the array for `reference`, and the converted one for `fast`.

        Raises:
            NoSuchKindError: The values cannot be converted.
        """
        if converter.device is not None and self.tensor is not None:
            return self.tensor
        converted = converter.convert(self.array, self.path)
        if converter.device is None:
            return converted
        kinds: Any = TENSORS if isinstance(converted, torch.Tensor) else ARRAYS
        try:
            return kinds[self.kind](converted)
        except Exception as error:
            raise NoSuchKindError(self.kind) from error


def some_kind(random: Random, array: Array, path: str) -> OfKind:
    """Return an array as a kind of tensor or array, chosen at random."""
    return OfKind(random.choice(list(ARRAYS if is_numpy(path) else TENSORS)), array, path)


def is_numpy(path: str) -> bool:
    """Return whether an argument is a NumPy array in both twins."""
    name = path.rsplit(".", 1)[-1]
    return name in NUMPY_IN_BOTH_TWINS or "input_batch" in path
