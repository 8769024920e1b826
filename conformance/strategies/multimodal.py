"""Calls of the functions for multimodal placeholders: masks, and rows of every dtype and layout."""

from __future__ import annotations

import dataclasses
from typing import Any

import ml_dtypes
import numpy as np

from conformance.arrays.guard_bands import Array, guarded, poisoned, poisoned_rows_out
from conformance.coverage.presets import MINIMAL, Preset
from conformance.strategies import cached as st
from conformance.strategies.repeated import long_lists
from conformance.values.call import Arguments, Call

PLACEHOLDERS = "placeholders"
ELEMENTS = "elements of a row"
ITEMS = "items"
TOKENS = "tokens of an item"

NAN_BITS = {
    np.dtype(np.float16): 0x7E00,
    np.dtype(ml_dtypes.bfloat16): 0x7FC0,
    np.dtype(np.float32): 0x7FC0_0000,
    np.dtype(np.float64): 0x7FF8_0000_0000_0000,
    np.dtype(ml_dtypes.float8_e4m3fn): 0x7F,
    np.dtype(ml_dtypes.float8_e5m2): 0x7E,
}
"""The dtypes of embeddings, and the bits of the NaN of each."""

FLOATS = tuple(NAN_BITS)
OTHERS = tuple(map(np.dtype, (np.int8, np.int64, np.bool_, np.complex64, np.uint8)))
"""Dtypes that embeddings cannot have; rows of them can still be gathered."""

LAYOUTS = ("dense", "one element on", "wide rows", "every other element", "columns first")
"""Memory layouts of rows: contiguous, misaligned to 16 bytes, apart, or not contiguous."""

MASKS = ("all", "none", "single", "runs", "runs", "any", "any", "empty")


@dataclasses.dataclass(frozen=True)
class Rows:
    """The mask, size, dtype and memory layout of a call's rows.

    Attributes:
        mask: Which placeholders are embeddings.
        embed_dim: The elements of a row.
        dtype: Their dtype.
        layout: One of `LAYOUTS`.
    """

    mask: tuple[bool, ...]
    embed_dim: int
    dtype: np.dtype[Any]
    layout: str

    @property
    def row_bytes(self) -> int:
        """Return the bytes of a row."""
        return self.embed_dim * self.dtype.itemsize


def random_bits(shape: tuple[int, int], dtype: np.dtype[Any], seed: int) -> Array:
    """Return a matrix of random bits: NaNs of all payloads, infinities and -0.0 among them.

    >>> random_bits((1, 8), np.dtype(np.float32), 0)[0, :4].view(np.uint32).tolist()
    [2143289345, 4286578688, 2139095041, 2147483648]
    """
    rng = np.random.default_rng(seed)
    size = shape[0] * shape[1]
    if dtype == np.bool_:
        return rng.integers(2, size=shape).astype(dtype)
    random_bytes = rng.integers(256, size=size * dtype.itemsize).astype(np.uint8)
    if dtype not in NAN_BITS:
        return random_bytes.view(dtype).reshape(shape)
    words = np.dtype(f"u{dtype.itemsize}")
    bits = random_bytes.view(words)
    # A quiet NaN with a payload, -infinity, a signalling NaN, -0.0.
    nan, sign = NAN_BITS[dtype], 1 << 8 * dtype.itemsize - 1
    infinity = np.array(np.inf).astype(dtype).view(words).item()
    special = np.array([nan | 1, infinity | sign, infinity + 1, sign], words)
    bits[: len(special)] = special[: len(bits)]
    bits[seed % 7 + 5 :: 7] = special[seed % 4]
    return bits.view(dtype).reshape(shape)


def laid_out(values: Array, layout: str) -> Array:
    """Return a matrix in one of `LAYOUTS`, between guard bands."""
    rows, dim = values.shape
    guard = 16 // values.itemsize  # so that dense rows begin at a multiple of 16 bytes
    if layout == "columns first":
        view = poisoned((dim, rows), values.dtype).T
    elif layout == "wide rows":
        view = poisoned((rows + 2, dim + guard), values.dtype)[1:-1, :dim]
    elif layout == "every other element":
        view = poisoned((rows, 2 * dim + 2), values.dtype)[:, 1 : 2 * dim + 1 : 2]
    else:
        first = guard + (layout == "one element on")
        flat = poisoned((first + rows * dim + guard,), values.dtype)
        view = flat[first : first + rows * dim].reshape(rows, dim)
    view[...] = values
    return view


def _mask(kind: str, length: int, seed: int) -> list[bool]:
    """Return a mask; runs are like the rows of an image, with a separator after each."""
    rng = np.random.default_rng(seed)
    if kind == "empty":
        return []
    if kind == "any":
        return [bool(entry) for entry in rng.random(length) < rng.choice((0.2, 0.5, 0.9))]
    found = {"all": [True] * length, "none": [False] * length}.get(kind)
    if found is None and kind == "single":
        single = int(rng.integers(length))
        found = [place == single for place in range(length)]
    run = 2 + seed % 4
    return found or [place % run != run - 1 for place in range(length)]


@st.composite
def _rows(draw: st.DrawFn, preset: Preset, dtypes: tuple[np.dtype[Any], ...]) -> tuple[Rows, int]:
    """Draw a description of rows, and a seed for their values."""
    lengths = (3, 1, 8, 17, 30) if preset is MINIMAL else (16, 33, preset.max_num_tokens)
    dims = (3, 1, 8, 16, 5, 0) if preset is MINIMAL else (16, 24, 7, 33)
    length = draw(preset.sizes(PLACEHOLDERS, st.sampled_from(lengths)))
    # From one number, so that most combinations occur: Hypothesis tends to repeat single draws.
    seed = rest = draw(st.integers(0, 2**24))
    chosen: list[Any] = []
    for choices in (LAYOUTS, dims, dtypes, MASKS):
        rest, place = divmod(rest, len(choices))
        chosen.append(choices[place])
    layout, dim, dtype, mask = chosen
    if preset.axis:
        dim, mask = draw(preset.sizes(ELEMENTS, st.just(3))), "any" if length else "empty"
    return Rows(tuple(_mask(mask, length, seed)), dim, dtype, layout), seed


def _placeholder_calls(draw: st.DrawFn, preset: Preset, *, is_scatter: bool) -> Call:
    """Draw calls with rows, and each of a mask and an `out` or not."""
    rows, seed = draw(_rows(preset, FLOATS if is_scatter else (*FLOATS, *OTHERS)))
    counts = (sum(rows.mask), len(rows.mask))
    num_rows, num_out = counts if is_scatter else counts[::-1]
    values = random_bits((num_rows, rows.embed_dim), rows.dtype, seed)
    function = "scatter_mm_placeholders" if is_scatter else "gather_mm_placeholders"
    arguments: Arguments = {
        "embeds" if is_scatter else "placeholders": laid_out(values, rows.layout),
        "is_embed": None,
    }
    has_mask = bool(preset.axis) or not (draw(st.RARELY) and draw(st.MOSTLY))
    offset = draw(st.sampled_from((None, 0, 1)))  # 1 is not aligned to 16 bytes
    if offset is not None:
        shape = (num_out if has_mask else num_rows, rows.embed_dim)
        arguments["out"] = poisoned_rows_out(shape, rows.dtype, offset)
    if not has_mask:
        return Call(function, arguments)
    arguments["is_embed"] = guarded(rows.mask, np.bool_, draw(st.sampled_from((1, 2))))
    has_hint = not is_scatter and draw(st.booleans())
    return Call(function, arguments, rows, {"num_embeds": num_out} if has_hint else {})


@st.composite
def scatter_calls(draw: st.DrawFn, preset: Preset) -> Call:
    """Draw calls of `scatter_mm_placeholders`; the source is its `Rows`, None without a mask."""
    return _placeholder_calls(draw, preset, is_scatter=True)


@st.composite
def gather_calls(draw: st.DrawFn, preset: Preset) -> Call:
    """Draw calls of `gather_mm_placeholders`; the source is its `Rows`, None without a mask."""
    return _placeholder_calls(draw, preset, is_scatter=False)


def wide_calls(function: str) -> st.SearchStrategy[Call]:
    """Return calls with rows so long that several blocks of threads share each."""
    rows = Rows((True, False, True), 4099, FLOATS[-1], LAYOUTS[1])
    is_scatter = function == "scatter_mm_placeholders"
    values = random_bits((2 if is_scatter else 3, rows.embed_dim), rows.dtype, 3)
    arguments: Arguments = {
        "embeds" if is_scatter else "placeholders": laid_out(values, rows.layout),
        "is_embed": guarded(rows.mask, np.bool_),
    }
    return st.just(Call(function, arguments, rows))


@st.composite
def sanity_check_calls(draw: st.DrawFn, preset: Preset) -> Call:
    """Draw calls of `sanity_check_mm_encoder_outputs`: a list, a tuple or one array of items."""
    least = 1 if preset.axis == TOKENS else 0
    number = draw(preset.sizes(ITEMS, st.integers(least, 3 if preset is MINIMAL else 9)))
    kind = draw(st.sampled_from((list, tuple, None)))
    item = preset.sizes(TOKENS, st.integers(0, 4))
    if preset.axis == ITEMS:
        lengths = draw(long_lists(item, number))
    else:
        lengths = draw(st.lists(item, min_size=number, max_size=number))
    dtype = draw(st.sampled_from((np.float16, ml_dtypes.bfloat16, np.int8)))
    if kind is None:
        shape = (number, draw(preset.sizes(TOKENS, st.integers(0, 3))), 2)
        embeddings: Any = poisoned(shape, dtype)
    else:
        embeddings = kind(poisoned((length, 2), dtype) for length in lengths)
    arguments = {"mm_embeddings": embeddings, "expected_num_items": number}
    return Call("sanity_check_mm_encoder_outputs", arguments)
