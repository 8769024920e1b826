"""Kinds of tensors and arrays that callers pass in place of ordinary ones.

The memory of an ordinary tensor holds its elements. That of a sparse, nested, fake or quantized one
does not, nor that of a lazy view, or of a tensor whose storage was resized.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from conformance.arrays.guard_bands import Array
from conformance.targets.factories import Factory, FactoryContext
from conformance.values.comparison import NUMPY_IN_BOTH_TWINS
from conformance.values.parts import map_children


class Wrapper(torch.Tensor):
    """A subclass without storage, whose operations are applied to another tensor."""

    wrapped: torch.Tensor

    @staticmethod
    def __new__(cls: type[Wrapper], wrapped: torch.Tensor) -> Wrapper:  # noqa: PYI034
        """Return a tensor of the same shape and dtype."""
        made: Wrapper = torch.Tensor._make_wrapper_subclass(  # noqa: SLF001  # torch's name for it
            cls, wrapped.shape, dtype=wrapped.dtype, device=wrapped.device
        )
        made.wrapped = wrapped
        return made

    def __repr__(self) -> str:  # type: ignore[override]  # torch's takes more
        return f"Wrapper({self.wrapped!r})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch does not say that it is a classmethod
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Apply the function to the wrapped tensors."""
        del types

        def unwrap(value: Any) -> Any:
            return value.wrapped if isinstance(value, Wrapper) else map_children(unwrap, value)

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
        raise ValueError("the bits of a NaN would change")
    return torch._neg_view(-tensor)  # noqa: SLF001  # the values are those of `tensor`


def _conjugated(tensor: torch.Tensor) -> torch.Tensor:
    values = tensor.to(torch.complex64)
    if bool(values.isnan().any()):
        raise ValueError("the bits of a NaN would change")
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


def _from_an_offset(tensor: torch.Tensor) -> torch.Tensor:
    return torch.stack([tensor] * 100)[-1]


def _as_numpy(change: Callable[[Array], Any]) -> Callable[[torch.Tensor], Any]:
    return lambda tensor: change(tensor.detach().cpu().numpy())


TENSORS: Final[Mapping[str, Callable[[torch.Tensor], Any]]] = {
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
    "view of nothing from an offset": _without_storage(_from_an_offset),
    "neg view": _negated,
    "conj view": _conjugated,
    "inference tensor": _inference,
    "strided": _strided,
    "quantized": lambda t: torch.quantize_per_tensor(t.float(), 1.0, 0, torch.qint32),
    "list": lambda t: t.tolist(),
    "numpy": _as_numpy(lambda a: a.copy()),
    "numpy scalar": _as_numpy(lambda a: a.reshape(-1)[0]),
    "memoryview": _as_numpy(lambda a: a.copy().data),
    "dtype int16": lambda t: t.to(torch.int16),
    "dtype float64": lambda t: t.to(torch.float64),
    "complex": lambda t: t.to(torch.complex64),
    "0-dim": lambda t: t.reshape(-1)[0],
    "shared memory": lambda t: t.clone().share_memory_(),  # type: ignore[no-untyped-call]  # torch's
}
"""Conversions of an ordinary tensor to each kind; they raise if the kind does not allow it."""


def _unaligned(array: Array) -> Array:
    memory = np.zeros(array.nbytes + 1, np.uint8)
    found: Array = np.ndarray(array.shape, array.dtype, memory.data, 1)
    found[...] = array
    return found


ARRAYS: Final[Mapping[str, Callable[[Array], Any]]] = {
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
}
"""The same for arguments that are NumPy arrays in all implementations."""

ORDINARY: Final = frozenset(
    {"inference tensor", "neg view", "requires grad", "shared memory", "strided"}
    | {"reversed view", "unaligned"}
)
"""Kinds with the type, dtype and values of an ordinary tensor, which a function may accept."""


class NoSuchKindError(Exception):
    """An array cannot be converted to this kind of tensor."""


class OfKind(Factory):
    """An array that implementations get as another kind of tensor; `reference` gets the array.

    Args:
        kind: One of `kinds_at(path)`.
        array: The values.
        path: The path of the argument.

    Attributes:
        made: The last tensor that was made; None before. Reports do not show it.
    """

    compared = ("kind", "array", "path")

    def __init__(self, kind: str, array: Array, path: str) -> None:
        self.kind, self.array, self.path = kind, array, path
        self.made: Any = None

    def __repr__(self) -> str:
        return f"OfKind({self.kind!r}, {self.array!r}, {self.path!r})"

    def make(self, converter: FactoryContext) -> Any:
        """Return the array for `reference`, or the converted one.

        Raises:
            NoSuchKindError: The values cannot be converted.
        """
        converted = converter.convert(self.array, self.path)
        if converter.device is None:
            return converted
        kinds: Mapping[str, Any] = TENSORS if isinstance(converted, torch.Tensor) else ARRAYS
        make = kinds[self.kind]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # some kinds are called prototypes
                self.made = make(converted)
        except Exception as error:
            raise NoSuchKindError(self.kind) from error
        return self.made


def kinds_at(path: str) -> list[str]:
    """Return the names of the kinds that an array at a path of a call may be replaced with."""
    is_numpy = path.rsplit(".", 1)[-1] in NUMPY_IN_BOTH_TWINS
    return list(ARRAYS if is_numpy else TENSORS)
