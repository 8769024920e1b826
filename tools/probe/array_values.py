"""Mutate an array of a valid call: its values, shape, dtype or layout."""

from __future__ import annotations

import warnings
from random import Random
from typing import Any

import numpy as np

from conformance.arrays.guard_bands import Array

DTYPES = (np.int8, np.int16, np.int32, np.int64, np.uint8, np.float16, np.float32, np.float64)
OTHER_DTYPES = (*DTYPES, np.bool_, np.complex64, np.uint32, np.uint64)


def other_array(random: Random, array: Array) -> Array:
    """Return an array with its values, shape, dtype or layout changed at random."""
    draw = random.random()
    if draw < 0.6 and array.size:
        return other_values(random, array)
    if draw < 0.75:
        return other_shape(random, array)
    if draw < 0.85:
        return _cast(array, random.choice(OTHER_DTYPES))
    return other_layout(random, array)


def _cast(array: Array, dtype: Any) -> Array:
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return array.astype(dtype, copy=True)


def other_values(random: Random, array: Array) -> Array:
    """Return a copy with one or more bad elements."""
    changed = np.ascontiguousarray(array).copy()
    flat = changed.reshape(-1)
    if array.dtype == np.bool_:
        for _ in range(random.randint(1, 3)):
            flat[random.randrange(flat.size)] ^= True
    elif array.dtype.kind in "iu":
        bounds = np.iinfo(array.dtype)
        far = [bounds.min, bounds.max, bounds.max // 2 + 1, -1, 0, 1, 2**31 - 1, -(2**31)]
        if random.random() < 0.1:
            flat[:] = random.choice([value for value in far if bounds.min <= value <= bounds.max])
        for _ in range(random.choice((1, 1, 1, 2, 5))):
            at = random.randrange(flat.size)
            near = int(flat[at]) + random.choice((-100, -2, -1, 1, 2, 100))
            value = random.choice([near, near, *far])
            flat[at] = min(max(value, bounds.min), bounds.max)
        if random.random() < 0.1:
            flat[:] = flat[::-1].copy()
    elif array.dtype.kind == "f":
        flat[random.randrange(flat.size)] = random.choice((np.nan, np.inf, -np.inf, -0.0, 6e4))
    return changed


def other_shape(random: Random, array: Array) -> Array:
    """Return the array in another shape: shorter, longer, of other dimensions, or empty."""
    dense: Array = np.ascontiguousarray(array).reshape(array.shape)
    shapes = [dense[None], dense[..., None], dense.reshape(-1), np.zeros((), array.dtype)]
    shapes += [np.zeros((0, 2**40), array.dtype), np.zeros((2**31, 0), array.dtype)]
    if array.ndim:
        shapes += [dense[:-1], np.concatenate([dense, dense]), dense[:0]]
        shapes += [dense[..., :0], dense[..., :-1]]
    chosen = random.choice(shapes)
    return np.ascontiguousarray(chosen).reshape(chosen.shape).copy()


def other_layout(random: Random, array: Array) -> Array:
    """Return the same values in another memory layout: strided, or column-major."""
    if array.ndim == 0 or not array.size:
        return array.copy()
    step = random.choice((2, 3))
    if array.ndim > 1 and random.random() < 0.5:
        memory = np.zeros(array.shape[::-1], array.dtype)
        view = memory.T
    else:
        memory = np.zeros((*array.shape[:-1], array.shape[-1] * step), array.dtype)
        view = memory[..., ::step]
    view[...] = array
    return view
