"""Multimodal inputs: embeddings at their placeholders, and how many items a step may have."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from reference._checks import (
    Array,
    check_int,
    check_is_array,
    check_ndim,
    check_rows_out,
    check_type,
)
from reference.mm_budget import MultiModalBudget, compute_mm_encoder_budget

__all__ = [
    "MultiModalBudget",
    "compute_mm_encoder_budget",
    "gather_mm_placeholders",
    "sanity_check_mm_encoder_outputs",
    "scatter_mm_placeholders",
]

NAN_BITS = {
    "float16": 0x7E00,
    "bfloat16": 0x7FC0,
    "float32": 0x7FC0_0000,
    "float64": 0x7FF8_0000_0000_0000,
    "float8_e4m3fn": 0x7F,
    "float8_e5m2": 0x7E,
}
"""The bits of each dtype's NaN: positive, quiet, all other bits of the mantissa 0 (if it has such a
NaN; float8_e4m3fn does not). Other dtypes hold no embeddings."""


def scatter_mm_placeholders(
    embeds: Array, is_embed: NDArray[np.bool_] | None, *, out: Array | None = None
) -> Array:
    """Scatter the embeddings of a multimodal item to the placeholder tokens that stand for it.

    Args:
        embeds: [num_embeds, embed_dim], of float16, bfloat16, float32, float64, float8_e4m3fn or
            float8_e5m2, of any strides.
        is_embed: bool[num_placeholders], the placeholders that an embedding replaces: exactly
            `num_embeds` of them (a single row is not broadcast); None: all.
        out: Of the result's shape and dtype, the array to write to; None: a new one. It must be
            contiguous and share no memory with the inputs.

    Returns:
        A new, contiguous [num_placeholders, embed_dim] of the same dtype, or `out`. Where
        `is_embed` is True it has the rows of `embeds` in order, bit for bit; elsewhere NaN, with
        the bits in `NAN_BITS`. If `is_embed` and `out` are both None, `embeds` itself, unchecked.

    Raises:
        TypeError: A mask that is not a bool vector (not an array, another dtype, not one
            dimension); embeddings that are not an array, or of a dtype without NaN; an `out` of
            another dtype.
        ValueError: Embeddings without exactly two dimensions, or more or fewer than True entries;
            an `out` that has another shape, is not contiguous, is read-only, or shares memory with
            an input. Nothing is written.

    Example:
        >>> import numpy as np
        >>> embeds = np.array([[1.0, 2.0], [3.0, 4.0]])
        >>> scatter_mm_placeholders(embeds, np.array([True, False, True])).tolist()
        [[1.0, 2.0], [nan, nan], [3.0, 4.0]]

    Source: the definition is kvtwin's own; the name is vLLM's.
    """
    if is_embed is None and out is None:
        return embeds
    check_ndim("embeds", check_is_array("embeds", embeds), 2)
    mask = [True] * len(embeds) if is_embed is None else _check_mask(is_embed)
    if embeds.dtype.name not in NAN_BITS or not embeds.dtype.isnative:
        raise TypeError(f"embeds must be of a dtype that has NaN, got {embeds.dtype}")
    num_embeds, embed_dim = embeds.shape
    if num_embeds > len(mask):
        raise ValueError(f"embeds has {num_embeds} rows, but is_embed has {len(mask)} entries")
    if mask.count(True) != num_embeds:
        raise ValueError(
            f"embeds has {num_embeds} rows, but is_embed has {mask.count(True)} True entries"
        )

    bits = NAN_BITS[embeds.dtype.name]
    nan = np.array(bits, dtype=f"u{embeds.itemsize}").view(embeds.dtype)
    placeholders = _output(out, (len(mask), embed_dim), {"embeds": embeds, "is_embed": is_embed})
    next_embed = 0
    for i, has_embed in enumerate(mask):
        if has_embed:
            placeholders[i] = embeds[next_embed]
            next_embed += 1
        else:
            placeholders[i] = nan
    return placeholders


def gather_mm_placeholders(
    placeholders: Array, is_embed: NDArray[np.bool_] | None, *, out: Array | None = None
) -> Array:
    """Gather the embeddings of a multimodal item from the placeholder tokens that stand for it.

    This is the inverse of `scatter_mm_placeholders` with the same mask.

    Args:
        placeholders: [num_placeholders, embed_dim], of any dtype and strides.
        is_embed: bool[num_placeholders], the placeholders that are embeddings; None: all.
        out: Of the result's shape and dtype, the array to write to; None: a new one. It must be
            contiguous and share no memory with the inputs.

    Returns:
        A new, contiguous [number of True entries, embed_dim] of the same dtype, or `out`: the rows
        where `is_embed` is True, in order, bit for bit. If `is_embed` and `out` are both None,
        `placeholders` itself, unchecked.

    Raises:
        TypeError: A mask that is not a bool vector (not an array, another dtype, not one
            dimension), placeholders that are not an array, an `out` of another dtype.
        ValueError: Placeholders without exactly two dimensions, or more or fewer than entries of
            the mask; an `out` that has another shape, is not contiguous, is read-only, or shares
            memory with an input. Nothing is written.

    Example:
        >>> import numpy as np
        >>> placeholders = np.array([[1.0, 2.0], [np.nan, np.nan], [3.0, 4.0]])
        >>> gather_mm_placeholders(placeholders, np.array([True, False, True])).tolist()
        [[1.0, 2.0], [3.0, 4.0]]

    Source: the definition is kvtwin's own; the name is vLLM's.
    """
    if is_embed is None and out is None:
        return placeholders
    check_ndim("placeholders", check_is_array("placeholders", placeholders), 2)
    mask = [True] * len(placeholders) if is_embed is None else _check_mask(is_embed)
    if len(mask) != len(placeholders):
        raise ValueError(
            f"is_embed has {len(mask)} entries, but placeholders has {len(placeholders)} rows"
        )

    shape = (mask.count(True), placeholders.shape[1])
    if is_embed is not None and isinstance(out, np.ndarray):
        _check_num_rows(out, len(placeholders), shape[0])
    embeds = _output(out, shape, {"placeholders": placeholders, "is_embed": is_embed})
    next_embed = 0
    for i, has_embed in enumerate(mask):
        if has_embed:
            embeds[next_embed] = placeholders[i]
            next_embed += 1
    return embeds


def _check_num_rows(out: Array, num_placeholders: int, num_embeds: int) -> None:
    """Check that an output has one row for each embedding."""
    check_ndim("out", out, 2)
    if len(out) > num_placeholders:
        raise ValueError(f"out has {len(out)} rows, but placeholders has {num_placeholders}")
    if len(out) != num_embeds:
        raise ValueError(f"out has {len(out)} rows, but is_embed has {num_embeds} True entries")


def _output(
    out: Array | None, shape: tuple[int, int], inputs: dict[str, Array | NDArray[np.bool_] | None]
) -> Array:
    """Return the rows to write to, of the dtype of the first input: `out`, or new ones."""
    given = {name: array for name, array in inputs.items() if array is not None}
    dtype = next(iter(given.values())).dtype
    if out is None:
        return np.empty(shape, dtype)
    return check_rows_out(out, dtype, shape, given.values())


def _check_mask(is_embed: object) -> list[bool]:
    """Return the entries of a bool vector."""
    mask = check_is_array("is_embed", is_embed)
    if mask.dtype != np.bool_ or mask.ndim != 1:
        raise TypeError(
            f"is_embed must be a vector of bool, got {mask.dtype} of shape {mask.shape}"
        )
    entries: list[bool] = mask.tolist()
    return entries


def sanity_check_mm_encoder_outputs(
    mm_embeddings: list[Array] | tuple[Array, ...] | Array, expected_num_items: int
) -> None:
    """Check that an encoder returned one matrix for each multimodal item.

    Args:
        mm_embeddings: [tokens, hidden size] for each item, of any dtype, in a list or tuple; or one
            array [items, tokens, hidden size].
        expected_num_items: How many items there must be.

    Raises:
        TypeError: Embeddings that are not a list, tuple or array; an item that is not an array; a
            number that is not an int.
        ValueError: Another number of items; an item without exactly two dimensions (a single array:
            three); a negative number.

    Example:
        >>> import numpy as np
        >>> sanity_check_mm_encoder_outputs([np.zeros((5, 64)), np.zeros((9, 64))], 2)
        >>> sanity_check_mm_encoder_outputs(np.zeros((2, 5, 64)), 1)
        Traceback (most recent call last):
        ValueError: mm_embeddings has 2 items, expected 1; the likely cause is the model's \
embedding method

    Source: the definition is kvtwin's own; the name is vLLM's.
    """
    expected = check_int("expected_num_items", expected_num_items, 0)
    likely_cause = "the likely cause is the model's embedding method"
    if isinstance(mm_embeddings, np.ndarray):
        if mm_embeddings.ndim != 3:
            raise ValueError(
                f"mm_embeddings has shape {mm_embeddings.shape}, expected 3 dimensions, "
                f"2 for each item; {likely_cause}"
            )
    else:
        check_type(
            "mm_embeddings", mm_embeddings, list | tuple, "an array, or a list or tuple of arrays"
        )
    for i, item in enumerate(mm_embeddings):
        if check_is_array(f"mm_embeddings[{i}]", item).ndim != 2:
            raise ValueError(
                f"mm_embeddings[{i}] has shape {item.shape}, expected 2 dimensions; {likely_cause}"
            )
    if len(mm_embeddings) != expected:
        raise ValueError(
            f"mm_embeddings has {len(mm_embeddings)} items, expected {expected}; {likely_cause}"
        )
