"""Multimodal inputs: embeddings in placeholders, and what encoders make."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ml_dtypes import float8_e3m4, float8_e5m2fnuz

from reference import (
    gather_mm_placeholders,
    scatter_mm_placeholders,
)


def mask_of(entries: str) -> np.ndarray[Any, Any]:
    """Return a mask, written as `x` for an embedding and `.` for none."""
    return np.array([entry == "x" for entry in entries], np.bool_)


def test_strided_and_read_only() -> None:
    """Views are read as they are seen, and nothing is changed."""
    store = np.arange(24, dtype=np.float64).reshape(4, 6)
    embeds, mask = store[::-2, 1::2], mask_of("x.?..x")[::1]
    before = store.copy()
    for array in (store, embeds, mask):
        array.flags.writeable = False
    placed = scatter_mm_placeholders(embeds, mask[::-1])
    assert [[19.0, 21.0, 23.0], [7.0, 9.0, 11.0]] == placed[[0, 5]].tolist()
    every_other = gather_mm_placeholders(placed[::5], mask_of(".?x")[::2])
    assert [[7.0, 9.0, 11.0]] == every_other.tolist()
    assert before.tolist() == store.tolist()


@pytest.mark.parametrize("dtype", [">i8", "U3"])
def test_gather_takes_any_dtype(dtype: Any) -> None:  # noqa: ANN401  # a dtype
    """Rows are copied whatever they are."""
    placeholders = np.array([[0, 1], [1, 0], [1, 1]]).astype(dtype)
    gathered = gather_mm_placeholders(placeholders, mask_of("x.x"))
    assert (placeholders.dtype, placeholders[[0, 2]].tolist()) == (
        gathered.dtype,
        gathered.tolist(),
    )


@pytest.mark.parametrize("dtype", [">f4", float8_e3m4, float8_e5m2fnuz])
def test_dtypes_that_torch_has_not(dtype: Any) -> None:  # noqa: ANN401  # a dtype
    """Other dtypes of NumPy are refused, though they have NaN."""
    with pytest.raises(TypeError) as caught:
        scatter_mm_placeholders(np.zeros((2, 3), dtype), mask_of("xx"))
    assert f"embeds must be of a dtype that has NaN, got {np.dtype(dtype)}" == str(caught.value)
