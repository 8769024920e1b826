"""Comparison: the first difference between what `reference` and a target return. Exact, always."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Final

import numpy as np
import torch

from conformance.adapters.base import is_guessed
from conformance.harness.memory import (
    NUMPY_IN_BOTH_TWINS,
    bits,
    first_difference,
    is_on_host,
    torch_dtype,
)
from conformance.harness.story import Difference, Verdict
from conformance.harness.values import Array, fields_of, is_object, parts

NUMBERS: Final = (bool, int, float, np.generic)


class Comparison:
    """Compares results of a target with those of `reference`.

    Args:
        device: The type of device of its tensors.
        host: The fields whose arrays stay NumPy's in both twins.
        lacks: The fields that its objects need not have.
        may_have_more: Whether its objects may have more fields.
    """

    def __init__(
        self,
        device: str = "cpu",
        host: frozenset[str] = frozenset(),
        lacks: frozenset[str] = frozenset(),
        *,
        may_have_more: bool = False,
    ) -> None:
        self.may_have_more = may_have_more
        self.device, self.host, self.lacks = device, host | NUMPY_IN_BOTH_TWINS, lacks

    def difference(self, expected: Any, got: Any, where: str = "result") -> Difference | None:
        """Return the first wrong value or structure; if there is none, the first wrong type."""
        mild: list[Difference] = []
        return self._wrong(expected, got, where, mild) or next(iter(mild), None)

    def _wrong(
        self, expected: Any, got: Any, where: str, mild: list[Difference]
    ) -> Difference | None:
        """Return the first wrong answer; append the first difference of a type alone to `mild`."""
        found: Difference | None
        if is_guessed(got):
            return None
        if isinstance(expected, np.ndarray):
            found = self._of_arrays(expected, got, where)
        elif isinstance(expected, list | tuple | dict | slice) or is_object(expected):
            return self._of_parts(expected, got, where, mild)
        else:
            found = _of_plain(expected, got, where)
        if found is not None and found.verdict is Verdict.OTHER:
            mild[:] = mild or [found]
            return None
        return found

    def _of_parts(
        self, expected: Any, got: Any, where: str, mild: list[Difference]
    ) -> Difference | None:
        if type(expected).__name__ != type(got).__name__:
            found = Difference(where, got, expected, "wrong type", Verdict.OTHER)
            if not _is_alike(expected, got):
                return dataclasses.replace(found, verdict=Verdict.WRONG_ANSWER)
            mild[:] = mild or [found]
        elif (
            not self.may_have_more
            and dataclasses.is_dataclass(got)
            and len(fields_of(got)) > len(parts(expected))
        ):
            words = "an object with more fields", type(expected).__name__
            mild[:] = mild or [Difference(where, *words, "wrong type", Verdict.OTHER)]
        is_entry = isinstance(expected, list | tuple | dict)
        if is_entry and len(expected) != len(got):
            return Difference(where, got, expected, "wrong length")
        if isinstance(expected, dict) and list(expected) != list(got):
            return Difference(where, list(got), list(expected), "wrong keys")
        for key, part in parts(expected):
            place = f"{where}[{key!r}]" if is_entry else f"{where}.{key}"
            if key in self.lacks and getattr(got, key, None) is None:
                continue
            if not is_entry and not hasattr(got, key):
                return Difference(place, "nothing", part, "missing attribute")
            other = got[key] if is_entry else getattr(got, key)
            wrong = self._wrong(part, other, place, mild)
            if wrong is not None:
                return wrong
        return None

    def _of_arrays(self, expected: Array, got: Any, where: str) -> Difference | None:
        if not isinstance(got, np.ndarray | torch.Tensor):
            return Difference(where, got, expected, "wrong type")
        if tuple(got.shape) != expected.shape:
            return Difference(where, got, expected, "wrong shape")
        found = self._of_types(expected, got, where)
        if found is not None:
            return _of_numbers(expected, got, found)
        values = as_numpy(got)
        if not expected.size or (expected.dtype.kind in "iub" and (values == expected).all()):
            return None
        mine, right = bits(values), bits(expected)
        if np.array_equal(mine, right):
            return None
        index = first_difference(mine, right)
        return Difference(where, values, expected, "wrong value", index=index)

    def _of_types(self, expected: Array, got: Any, where: str) -> Difference | None:
        is_numpy = name_of(where) in self.host
        if not isinstance(got, np.ndarray if is_numpy else torch.Tensor):
            return Difference(where, got, expected, "wrong type")
        if got.dtype != (expected.dtype if is_numpy else torch_dtype(expected.dtype)):
            return Difference(where, got, expected, "wrong dtype")
        if isinstance(got, torch.Tensor):
            is_on_cpu = self.device == "cpu" or is_on_host(name_of(where))
            device = "cpu" if is_on_cpu else self.device
            if got.device.type != device:
                return Difference(where, got.device.type, device, "wrong device")
            if type(got) is not torch.Tensor or got.layout is not torch.strided:
                return Difference(where, type(got).__name__, "Tensor", "wrong type")
        return None


def _of_numbers(expected: Array, got: Any, found: Difference) -> Difference:
    """Return a wrong number rather than the difference of types; right ones are no wrong answer."""
    try:
        values = as_numpy(got)
        are_numbers = (values == values) | (expected == expected)  # noqa: PLR0124  # not both NaN
        wrong = np.argwhere((values != expected) & are_numbers)
    except Exception:  # noqa: BLE001  # a meta tensor has no values, and a caller's may raise
        return found
    if not len(wrong):
        return dataclasses.replace(found, verdict=Verdict.OTHER)
    index = tuple(map(int, wrong[0]))
    return Difference(found.where, values, expected, "wrong value", index=index)


def name_of(where: str) -> str:
    """Return the last name in an expression.

    >>> name_of("result[0].seq_lens"), name_of("arguments['positions']")
    ('seq_lens', 'positions')
    """
    return where.rpartition(".")[2].rpartition("['")[2].removesuffix("']")


def as_numpy(tensor: torch.Tensor | Array) -> Array:
    """Return the values of a tensor as an array; dtypes that NumPy lacks as ml_dtypes'."""
    import ml_dtypes  # noqa: PLC0415  # few functions need it

    if isinstance(tensor, np.ndarray):
        return tensor
    plain = tensor.detach().resolve_neg().resolve_conj().cpu()
    try:
        values: Array = plain.numpy()
    except TypeError:
        dtype = np.dtype(getattr(ml_dtypes, str(plain.dtype).removeprefix("torch.")))
        dense = plain.clone(memory_format=torch.contiguous_format)  # `contiguous` keeps strides
        values = dense.reshape(-1).view(torch.uint8).numpy().view(dtype).reshape(plain.shape)
    return values


def _of_plain(expected: Any, got: Any, where: str) -> Difference | None:
    if type(expected) is type(got) and type(expected) in {int, bool, type(None)}:
        return None if expected == got else Difference(where, got, expected, "wrong value")
    if isinstance(expected, np.dtype) and isinstance(got, torch.dtype):
        got = np.dtype(str(got).removeprefix("torch."))
    if isinstance(expected, type) and isinstance(got, type):
        expected, got = expected.__name__, got.__name__
    is_array = isinstance(got, np.ndarray | torch.Tensor)
    if isinstance(expected, NUMBERS) != isinstance(got, NUMBERS) or is_array:
        return Difference(where, got, expected, "wrong type")
    is_nan = isinstance(expected, float) and math.isnan(expected)
    if not (math.isnan(got) if is_nan else bool(expected == got)):
        return Difference(where, got, expected, "wrong value")
    if type(expected) is not type(got):
        kinds = type(got).__name__, type(expected).__name__
        return Difference(f"type({where})", *kinds, "wrong type", Verdict.OTHER)
    return None


def _is_alike(expected: Any, got: Any) -> bool:
    """Return whether a value of another type can be compared part by part."""
    if isinstance(expected, list | tuple):
        return isinstance(got, list | tuple)
    if isinstance(expected, dict):
        return isinstance(got, dict)
    return is_object(expected) and all(hasattr(got, name) for name, _ in parts(expected))
