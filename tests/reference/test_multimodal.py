"""Multimodal inputs: embeddings in placeholders, and what encoders make."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import reference.multimodal
from reference import (
    gather_mm_placeholders,
    sanity_check_mm_encoder_outputs,
    scatter_mm_placeholders,
)

EXAMPLES = settings(max_examples=80, deadline=None, derandomize=True, database=None)

NAN_BITS = [
    (np.float16, np.uint16, 0x7E00),
    (ml_dtypes.bfloat16, np.uint16, 0x7FC0),
    (np.float32, np.uint32, 0x7FC00000),
    (np.float64, np.uint64, 0x7FF8000000000000),
    (ml_dtypes.float8_e4m3fn, np.uint8, 0x7F),
    (ml_dtypes.float8_e5m2, np.uint8, 0x7E),
]

DTYPES = [dtype for dtype, _, _ in NAN_BITS]


def bits_of(array: np.ndarray[Any, Any]) -> list[Any]:
    """Return the bits of each entry."""
    bits: list[Any] = np.ascontiguousarray(array).view(f"u{array.itemsize}").tolist()
    return bits


def mask_of(entries: str) -> np.ndarray[Any, Any]:
    """Return a mask, written as `x` for an embedding and `.` for none."""
    return np.array([entry == "x" for entry in entries], np.bool_)


@pytest.mark.parametrize("name", reference.multimodal.__all__)
def test_names(name: str) -> None:
    """Every name of the field's module is importable from it, and is the package's."""
    assert getattr(reference, name) is getattr(reference.multimodal, name)


@pytest.mark.parametrize(("dtype", "unsigned", "nan_bits"), NAN_BITS)
def test_bits_of_nan(dtype: Any, unsigned: Any, nan_bits: int) -> None:  # noqa: ANN401  # dtypes
    """Where there is no embedding there is the dtype's plain NaN; it is a NaN."""
    embeds = np.array([[1, 2, 3], [4, 5, 6]]).astype(dtype)
    placed = scatter_mm_placeholders(embeds, mask_of(".x.x"))
    assert np.dtype(dtype) == placed.dtype
    assert np.isnan(placed[0].astype(np.float64)).all()
    rows = bits_of(embeds)
    assert [[nan_bits] * 3, rows[0], [nan_bits] * 3, rows[1]] == placed.view(unsigned).tolist()


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_bit_is_kept(dtype: Any) -> None:  # noqa: ANN401  # a dtype
    """Payloads of NaNs, signs of zeros, infinities: all bytes go there and back as they are."""
    itemsize = np.dtype(dtype).itemsize
    content = np.arange(256, dtype=np.uint8).repeat(itemsize)
    mixed = (np.arange(256 * itemsize) * 37 % 256).astype(np.uint8)
    embeds = np.concatenate([content, mixed]).view(dtype).reshape(8, -1)
    mask = mask_of("x.xxxx..xxx")
    placed = scatter_mm_placeholders(embeds, mask)
    assert bits_of(embeds) == bits_of(placed[mask])
    assert bits_of(embeds) == bits_of(gather_mm_placeholders(placed, mask))


@pytest.mark.parametrize("mask", ["", ".", "x", "...", "xxx", "x.x", ".xx.", "xx.xx.xx."])
@pytest.mark.parametrize("embed_dim", [0, 1, 5])
def test_rows_stand_in_order(mask: str, embed_dim: int) -> None:
    """The `k`-th True entry has row `k`; the results are new and contiguous."""
    num_embeds = mask.count("x")
    embeds = np.arange(num_embeds * embed_dim, dtype=np.float32).reshape(num_embeds, embed_dim)
    placed = scatter_mm_placeholders(embeds, mask_of(mask))
    assert (len(mask), embed_dim) == placed.shape
    for i, entry in enumerate(mask):
        if entry == "x":
            assert embeds[mask[:i].count("x")].tolist() == placed[i].tolist()
        else:
            assert np.isnan(placed[i]).all()
    gathered = gather_mm_placeholders(placed, mask_of(mask))
    assert (embeds.shape, embeds.tolist()) == (gathered.shape, gathered.tolist())
    assert placed.flags.c_contiguous
    assert gathered.flags.c_contiguous
    assert not np.shares_memory(embeds, placed)
    assert not np.shares_memory(placed, gathered)


@EXAMPLES
@given(st.lists(st.booleans(), max_size=12), st.integers(0, 4), st.sampled_from(DTYPES), st.data())
def test_gather_undoes_scatter(
    entries: list[bool],
    embed_dim: int,
    dtype: Any,  # noqa: ANN401  # a dtype
    data: st.DataObject,
) -> None:
    """Whatever the mask and the bits, what was placed is found again."""
    num_bytes = sum(entries) * embed_dim * np.dtype(dtype).itemsize
    content = data.draw(st.binary(min_size=num_bytes, max_size=num_bytes))
    embeds = np.frombuffer(content, np.uint8).view(dtype).reshape(sum(entries), embed_dim)
    mask = np.array(entries, np.bool_)
    gathered = gather_mm_placeholders(scatter_mm_placeholders(embeds, mask), mask)
    assert (embeds.shape, embeds.dtype) == (gathered.shape, gathered.dtype)
    assert embeds.tobytes() == gathered.tobytes()


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


@pytest.mark.parametrize("dtype", [np.int64, np.bool_, np.complex64, np.float16, np.uint8, "U3"])
def test_gather_takes_any_dtype(dtype: Any) -> None:  # noqa: ANN401  # a dtype
    """Rows are copied whatever they are."""
    placeholders = np.array([[0, 1], [1, 0], [1, 1]]).astype(dtype)
    gathered = gather_mm_placeholders(placeholders, mask_of("x.x"))
    assert (placeholders.dtype, placeholders[[0, 2]].tolist()) == (
        gathered.dtype,
        gathered.tolist(),
    )


@pytest.mark.parametrize("anything", [np.zeros((2, 3)), np.zeros(7, np.int32), [1, 2], None])
def test_without_a_mask(anything: Any) -> None:  # noqa: ANN401  # of any type
    """Without a mask both hand back what they got, and look at nothing."""
    assert anything is scatter_mm_placeholders(anything, None)
    assert anything is gather_mm_placeholders(anything, None)


ROWS = np.zeros((2, 3), np.float32)

BAD_MASKS = [
    ([True, True], "is_embed must be an array, got list"),
    (np.ones(2, np.uint8), "is_embed must be a vector of bool, got uint8 of shape (2,)"),
    (np.array([0, 1]), "is_embed must be a vector of bool, got int64 of shape (2,)"),
    (
        np.ones((2, 1), np.bool_),
        "is_embed must be a vector of bool, got bool of shape (2, 1)",
    ),
    (np.zeros((), np.bool_), "is_embed must be a vector of bool, got bool of shape ()"),
]


@pytest.mark.parametrize("function", [scatter_mm_placeholders, gather_mm_placeholders])
@pytest.mark.parametrize(("is_embed", "message"), BAD_MASKS)
def test_masks_that_are_none(function: Any, is_embed: Any, message: str) -> None:  # noqa: ANN401  # of any type
    """A mask that is no bool vector is refused, in these words."""
    with pytest.raises(TypeError) as caught:
        function(ROWS, is_embed)
    assert message == str(caught.value)


WANTED = "float16 or bfloat16 or float32 or float64 or float8_e4m3fn or float8_e5m2"


@pytest.mark.parametrize(
    ("embeds", "mask", "error", "message"),
    [
        (ROWS.tolist(), "xx", TypeError, "embeds must be an array, got list"),
        (ROWS[0], "xxx", ValueError, "embeds must have 2 dimensions, got shape (3,)"),
        (ROWS[None], "x", ValueError, "embeds must have 2 dimensions, got shape (1, 2, 3)"),
        (ROWS, "x..", ValueError, "embeds has 2 rows, but is_embed has 1 True entries"),
        (ROWS, "xxx", ValueError, "embeds has 2 rows, but is_embed has 3 True entries"),
        (ROWS[:1], "xx", ValueError, "embeds has 1 rows, but is_embed has 2 True entries"),
        (ROWS[:0], "x", ValueError, "embeds has 0 rows, but is_embed has 1 True entries"),
        (ROWS, "", ValueError, "embeds has 2 rows, but is_embed has 0 entries"),
        *(
            (
                ROWS.astype(dtype),
                "xx",
                TypeError,
                f"embeds must be of a dtype that has NaN, got {dtype}",
            )
            for dtype in ("int32", "bool", "complex64", ">f4", "float8_e3m4", "float8_e5m2fnuz")
        ),
    ],
)
def test_refusals_of_scatter(
    embeds: Any,  # noqa: ANN401  # of any type
    mask: str,
    error: type[Exception],
    message: str,
) -> None:
    """Embeddings of another kind or number are refused, in these words."""
    with pytest.raises(error) as caught:
        scatter_mm_placeholders(embeds, mask_of(mask))
    assert message == str(caught.value)


@pytest.mark.parametrize(
    ("placeholders", "mask", "error", "message"),
    [
        (ROWS.tolist(), "xx", TypeError, "placeholders must be an array, got list"),
        (ROWS[0], "xxx", ValueError, "placeholders must have 2 dimensions, got shape (3,)"),
        (ROWS, "x", ValueError, "is_embed has 1 entries, but placeholders has 2 rows"),
        (ROWS, "xx.", ValueError, "is_embed has 3 entries, but placeholders has 2 rows"),
        (ROWS[:1], "xx", ValueError, "is_embed has 2 entries, but placeholders has 1 rows"),
    ],
)
def test_refusals_of_gather(
    placeholders: Any,  # noqa: ANN401  # of any type
    mask: str,
    error: type[Exception],
    message: str,
) -> None:
    """Placeholders of another kind or number are refused, in these words."""
    with pytest.raises(error) as caught:
        gather_mm_placeholders(placeholders, mask_of(mask))
    assert message == str(caught.value)


@pytest.mark.parametrize(
    ("mm_embeddings", "expected_num_items"),
    [
        ([], 0),
        ((), np.int64(0)),
        ([ROWS, np.zeros((0, 7), np.int8)], 2),
        ((ROWS,), 1),
        (np.zeros((4, 2, 3)), 4),
        (np.zeros((0, 2, 3)), 0),
    ],
)
def test_encoder_outputs_that_are_fine(
    mm_embeddings: Any,  # noqa: ANN401  # of several types
    expected_num_items: int,
) -> None:
    """So many matrices, in a list, a tuple or an array, are fine."""
    assert None is sanity_check_mm_encoder_outputs(mm_embeddings, expected_num_items)


CAUSE = "; the likely cause is the model's embedding method"


@pytest.mark.parametrize(
    ("mm_embeddings", "expected_num_items", "error", "message"),
    [
        ([ROWS], 2, ValueError, f"mm_embeddings has 1 items, expected 2{CAUSE}"),
        (np.zeros((2, 2, 3)), 1, ValueError, f"mm_embeddings has 2 items, expected 1{CAUSE}"),
        (
            ROWS,
            2,
            ValueError,
            "mm_embeddings has shape (2, 3), expected 3 dimensions, 2 for each item" + CAUSE,
        ),
        (
            np.zeros(()),
            0,
            ValueError,
            "mm_embeddings has shape (), expected 3 dimensions, 2 for each item" + CAUSE,
        ),
        (
            [ROWS, ROWS[None]],
            2,
            ValueError,
            f"mm_embeddings[1] has shape (1, 2, 3), expected 2 dimensions{CAUSE}",
        ),
        (
            [ROWS[0]],
            1,
            ValueError,
            f"mm_embeddings[0] has shape (3,), expected 2 dimensions{CAUSE}",
        ),
        (
            [ROWS, None],
            2,
            TypeError,
            "mm_embeddings[1] must be an array, got NoneType",
        ),
        (
            {"image": ROWS},
            1,
            TypeError,
            "mm_embeddings must be an array, or a list or tuple of arrays, got dict",
        ),
        ([ROWS], -1, ValueError, "expected_num_items is -1, expected at least 0"),
        ([ROWS], 1.0, TypeError, "expected_num_items must be an int, got 1.0 of float"),
    ],
)
def test_encoder_outputs_that_are_not(
    mm_embeddings: Any,  # noqa: ANN401  # of any type
    expected_num_items: Any,  # noqa: ANN401  # likewise
    error: type[Exception],
    message: str,
) -> None:
    """Anything else is refused, with its likely cause, in these words."""
    with pytest.raises(error) as caught:
        sanity_check_mm_encoder_outputs(mm_embeddings, expected_num_items)
    assert message == str(caught.value)
