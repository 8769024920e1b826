"""Comparison: the first difference between what `reference` and a target return. Exact, always."""

from __future__ import annotations

import dataclasses
import re
from typing import Any, Final

import numpy as np
import torch

from conformance.harness.memory import NUMPY_IN_BOTH_TWINS, bits, first_difference
from conformance.harness.story import Difference, Verdict
from conformance.harness.values import Array, is_object, parts

NUMBERS: Final = (bool, int, float, np.generic)


class Comparison:
    """Compares results of a target with those of `reference`.

    Args:
        device: The type of device of its tensors.
        host: The fields whose arrays stay NumPy's in both twins.
    """

    def __init__(self, device: str = "cpu", host: frozenset[str] = frozenset()) -> None:
        self.device, self.host = device, host | NUMPY_IN_BOTH_TWINS

    def difference(self, expected: Any, got: Any, where: str = "result") -> Difference | None:
        """Return the first difference: of structure, then of values, then of types alone."""
        found = list(self._differences(expected, got, where))
        if not found:
            return None
        order = (Verdict.WRONG_ANSWER, Verdict.OTHER)
        return min(found, key=lambda difference: order.index(difference.verdict))

    def _differences(self, expected: Any, got: Any, where: str) -> list[Difference]:
        """Return one difference, or those of the parts, up to the first wrong answer."""
        if isinstance(expected, np.ndarray):
            found = self._of_arrays(expected, got, where)
            return [] if found is None else [found]
        inside = parts(expected)
        if not (inside or isinstance(expected, list | tuple | dict) or is_object(expected)):
            found = _of_plain(expected, got, where)
            return [] if found is None else [found]
        differences = []
        if type(expected).__name__ != type(got).__name__:
            if not _is_alike(expected, got):
                return [Difference(where, got, expected, "wrong type")]
            differences.append(Difference(where, got, expected, "wrong type", Verdict.OTHER))
        if isinstance(expected, list | tuple | dict) and len(expected) != len(got):
            return [Difference(where, got, expected, "wrong length")]
        if isinstance(expected, dict) and list(expected) != list(got):
            return [Difference(where, list(got), list(expected), "wrong keys")]
        is_entry = isinstance(expected, list | tuple | dict)
        for key, part in inside:
            if not is_entry and not hasattr(got, key):
                return [Difference(f"{where}.{key}", "nothing", part, "missing attribute")]
            other = got[key] if is_entry else getattr(got, key)
            place = f"{where}[{key!r}]" if is_entry else f"{where}.{key}"
            differences += self._differences(part, other, place)
            if any(one.verdict is Verdict.WRONG_ANSWER for one in differences):
                break
        return differences

    def _of_arrays(self, expected: Array, got: Any, where: str) -> Difference | None:
        name = re.findall(r"\w+", where)[-1]
        is_numpy = name in self.host
        if not isinstance(got, np.ndarray if is_numpy else torch.Tensor):
            return Difference(where, got, expected, "wrong type")
        if tuple(got.shape) != expected.shape:
            return Difference(where, got, expected, "wrong shape")
        if isinstance(got, torch.Tensor):
            if str(got.dtype).removeprefix("torch.") != expected.dtype.name:
                return Difference(where, got, expected, "wrong dtype")
            device = "cpu" if name.endswith("_cpu") else self.device
            if got.device.type != device:
                return Difference(where, got.device.type, device, "wrong device")
            if type(got) is not torch.Tensor or got.layout is not torch.strided:
                return Difference(where, type(got).__name__, "Tensor", "wrong type", Verdict.OTHER)
            values = as_numpy(got)
        elif got.dtype != expected.dtype:
            return Difference(where, got, expected, "wrong dtype")
        else:
            values = got
        if not expected.size:
            return None
        mine, right = bits(values), bits(expected)
        if np.array_equal(mine, right):
            return None
        index = first_difference(mine, right)
        return Difference(where, values, expected, "wrong value", index=index)


def as_numpy(tensor: torch.Tensor) -> Array:
    """Return the values of a tensor as an array; dtypes that NumPy lacks as ml_dtypes'."""
    import ml_dtypes  # noqa: PLC0415  # few functions need it

    plain = tensor.detach().resolve_neg().resolve_conj().cpu()
    try:
        return plain.numpy()
    except TypeError:
        dtype = np.dtype(getattr(ml_dtypes, str(plain.dtype).removeprefix("torch.")))
        return plain.contiguous().view(torch.uint8).numpy().view(dtype).reshape(plain.shape)


def _of_plain(expected: Any, got: Any, where: str) -> Difference | None:
    if isinstance(expected, np.dtype) and isinstance(got, torch.dtype):
        got = np.dtype(str(got).removeprefix("torch."))
    if isinstance(expected, type) and isinstance(got, type):
        expected, got = expected.__name__, got.__name__
    if isinstance(expected, NUMBERS) != isinstance(got, NUMBERS) or isinstance(got, torch.Tensor):
        return Difference(where, got, expected, "wrong type")
    if isinstance(expected, float) and expected != expected:  # NaN
        return None if got != got else Difference(where, got, expected, "wrong value")
    if bool(expected != got):
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


def in_verdict(difference: Difference | None, verdict: Verdict) -> Difference | None:
    """Return a difference with another verdict."""
    return difference and dataclasses.replace(difference, verdict=verdict)
