"""Compare results in a few microseconds; `first_difference` describes a difference."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from conformance.values.comparison import NUMPY_IN_BOTH_TWINS, torch_dtype
from conformance.values.parts import compared_fields

_SCALARS = frozenset({int, bool, str, type(None)})


def is_same(expected: object, actual: object, name: str = "") -> bool:
    """Return whether two results are certainly equal.

    Args:
        expected: What `reference` returned.
        actual: What a target returned.
        name: The name of the field that has these values.

    Returns:
        True only if `first_difference` finds nothing. False may mean unknown, as for tensors on a
        GPU.

    >>> is_same((np.arange(3), 5), (torch.arange(3), 5)), is_same(np.arange(3), torch.arange(4))
    (True, False)
    >>> is_same(np.zeros(1, np.int32), torch.zeros(1, dtype=torch.int64)), is_same(1, True)
    (False, False)
    """
    kind = type(expected)
    if kind in _SCALARS:
        return type(actual) is kind and expected == actual
    if kind is np.ndarray:
        return _is_same_array(expected, actual, name)
    if type(actual).__name__ != kind.__name__:
        return False
    pair: Any = expected, actual
    if kind is list or kind is tuple:
        return len(pair[0]) == len(pair[1]) and all(
            is_same(e, a, name) for e, a in zip(*pair, strict=True)
        )
    if kind is dict:
        return list(pair[0]) == list(pair[1]) and all(
            is_same(e, pair[1][key], str(key)) for key, e in pair[0].items()
        )
    fields = compared_fields(expected)
    return bool(fields) and all(
        hasattr(actual, field) and is_same(getattr(expected, field), getattr(actual, field), field)
        for field in fields
    )


_DTYPES = {
    np.dtype(kind): torch_dtype(np.dtype(kind))
    for kind in (np.int8, np.int16, np.int32, np.int64, np.uint8, np.bool_)
}


def _is_same_array(expected: object, actual: object, name: str) -> bool:
    """Return whether an array and a tensor on the CPU are equal, bit for bit."""
    expected_array: Any = expected
    found: Any = actual
    if name in NUMPY_IN_BOTH_TWINS:
        if type(found) is not np.ndarray:
            return False
    else:
        if type(found) is not torch.Tensor or found.device.type != "cpu":
            return False
        if found.dtype is not _DTYPES.get(expected_array.dtype) or found.is_neg():
            return False
        found = found.numpy()
    return bool(
        found.shape == expected_array.shape
        and found.dtype == expected_array.dtype
        and found.tobytes() == expected_array.tobytes()
    )
