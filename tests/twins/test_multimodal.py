"""Multimodal inputs: embeddings in placeholders, and the outputs of encoders."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ml_dtypes import bfloat16, float8_e4m3fn, float8_e5m2

NAN_BITS = {
    np.float16: 0x7E00,
    bfloat16: 0x7FC0,
    np.float32: 0x7FC00000,
    np.float64: 0x7FF8000000000000,
    float8_e4m3fn: 0x7F,
    float8_e5m2: 0x7E,
}


def make_rows(num_rows: int, num_columns: int, dtype: Any) -> Any:
    """Make a matrix of random bits, which include NaN payloads, infinities and -0.0."""
    num_bytes = num_rows * num_columns * np.dtype(dtype).itemsize
    content = np.random.default_rng(0).integers(0, 256, num_bytes, np.uint8)
    return content.view(dtype).reshape(num_rows, num_columns).copy()


def bytes_of(twin: Any, matrix: Any) -> list[list[int]]:
    if 0 in matrix.shape:
        return [[]] * len(matrix)
    rows: list[list[int]] = matrix.view(twin.dtype("uint8")).tolist()
    return rows


def mask_of(twin: Any, entries: str) -> Any:
    """Return a mask, written as `x` for an embedding and `.` for none."""
    return twin.array([entry == "x" for entry in entries], "bool")


@pytest.mark.parametrize("mask", ["", "...", "xxx", "xx.xx.xx.x..x"])
@pytest.mark.parametrize("dtype", NAN_BITS)
@pytest.mark.parametrize("embed_dim", [0, 1, 3, 16])
def test_there_and_back(twin: Any, mask: str, dtype: Any, embed_dim: int) -> None:
    embeds = twin.convert(make_rows(mask.count("x"), embed_dim, dtype))
    is_embed = mask_of(twin, mask)
    with twin.checked():
        placed = twin.scatter_mm_placeholders(embeds, is_embed)
    back = twin.gather_mm_placeholders(placed, is_embed)
    assert bytes_of(twin, placed) == bytes_of(twin, twin.scatter_mm_placeholders(embeds, is_embed))
    assert ((len(mask), embed_dim), embeds.shape) == (placed.shape, back.shape)
    assert embeds.dtype == placed.dtype == back.dtype
    nan = NAN_BITS[dtype].to_bytes(np.dtype(dtype).itemsize, "little")
    rows = iter(bytes_of(twin, embeds))
    expected = [next(rows) if entry == "x" else [*nan] * embed_dim for entry in mask]
    assert expected == bytes_of(twin, placed)
    assert bytes_of(twin, embeds) == bytes_of(twin, back)


@pytest.mark.parametrize("anything", [np.zeros((2, 3)), np.zeros(7, np.int32), [1, 2], None])
def test_without_a_mask(twin: Any, anything: Any) -> None:
    assert anything is twin.scatter_mm_placeholders(anything, None)
    assert anything is twin.gather_mm_placeholders(anything, None)


ROWS = np.zeros((2, 3), np.float32)


@pytest.mark.parametrize(
    ("mm_embeddings", "num_items"),
    [((), 0), ([ROWS, np.zeros((0, 7), np.int8)], 2), (np.zeros((4, 2, 3)), 4)],
)
def test_encoder_outputs_that_are_fine(twin: Any, mm_embeddings: Any, num_items: int) -> None:
    twin.sanity_check_mm_encoder_outputs(twin.convert(mm_embeddings), num_items)
