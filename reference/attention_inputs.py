"""Checks of the inputs of attention: arrays of floats, masks, scales, caches."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from reference._checks import Array, check_array

FLOATS = ("float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2")
"""The dtypes of queries, keys and values, by name."""


def check_floats(name: str, value: object, ndim: int) -> Array:
    """Return an array of floats with `ndim` dimensions."""
    if not isinstance(value, np.ndarray):
        raise TypeError(f"{name} is a {type(value).__name__}, but must be a NumPy array")
    if value.dtype.name not in FLOATS or not value.dtype.isnative:
        raise TypeError(f"{name} has dtype {value.dtype}, but must have {' or '.join(FLOATS)}")
    if value.ndim != ndim:
        raise ValueError(f"{name} has shape {value.shape}, but must have {ndim} dimensions")
    return value


def check_shape(name: str, array: Array, wanted: tuple[int | None, ...], why: str) -> None:
    """Check the lengths of an array's dimensions; None allows any length."""
    for length, wanted_length in zip(array.shape, wanted, strict=True):
        if wanted_length is not None and length != wanted_length:
            shape = ", ".join("*" if n is None else str(n) for n in wanted)
            raise ValueError(f"{name} has shape {array.shape}, but must have ({shape}), {why}")


def check_heads(num_heads: int, num_kv_heads: int) -> int:
    """Return the number of query heads for each head of the keys and values."""
    if num_kv_heads == 0 or num_heads % num_kv_heads != 0:
        raise ValueError(f"q has {num_heads} heads, but must have a multiple of {num_kv_heads}")
    return num_heads // num_kv_heads


def check_mask(value: object, num_tokens: int, num_keys: int) -> NDArray[np.bool_]:
    """Return a mask: which query may see which key."""
    mask = check_array("mask", value, np.bool_, ndim=2)
    check_shape("mask", mask, (num_tokens, num_keys), "a row for each of q, a column for each of k")
    return mask


def check_scale(value: object, head_size: int) -> float:
    """Return the factor of the scores: None means `1 / sqrt(head_size)`."""
    if value is None:
        if head_size == 0:
            raise ValueError("q has heads of size 0, but they must have at least 1 without a scale")
        return 1.0 / math.sqrt(head_size)
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise TypeError(f"scale is {value!r} ({type(value).__name__}), but must be a number")
    if not math.isfinite(value):
        raise ValueError(f"scale is {value}, but must be finite")
    return float(value)


def check_kv_cache(value: object) -> Array:
    """Return a cache of keys and values: [2, num_blocks, block_size, num_kv_heads, head_size]."""
    kv_cache = check_floats("kv_cache", value, ndim=5)
    if len(kv_cache) != 2:
        raise ValueError(
            f"kv_cache has shape {kv_cache.shape}, but must have 2, keys and values, first"
        )
    if kv_cache.shape[2] == 0:
        raise ValueError(f"kv_cache has shape {kv_cache.shape}, but must have blocks of 1 or more")
    return kv_cache
