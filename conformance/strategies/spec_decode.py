"""Calls of the functions that reshape queries and outputs for speculative decoding."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from conformance.arrays.guard_bands import Array, poisoned
from conformance.coverage.presets import MINIMAL, Preset
from conformance.strategies import cached as st
from conformance.values.call import Call

DTYPES = (np.float16, ml_dtypes.bfloat16, np.float32, ml_dtypes.float8_e4m3fn, np.int8, np.bool_)

LAYOUTS = ("dense", "some heads", "some dims", "every other token", "heads first")
"""Memory layouts of queries: dense, a slice of more or longer heads (a packed projection), ..."""

OUTPUT_LAYOUTS = (*LAYOUTS[:3], "every other token", "one each, apart", "one request, apart")


def laid_out(shape: tuple[int, int, int], layout: str, dtype: type[np.generic]) -> Array:
    """Return an array of [tokens, heads, dim] in one of `LAYOUTS`.

    >>> laid_out((6, 2, 3), "some heads", np.int8).strides
    (9, 3, 1)
    """
    tokens, heads, dim = shape
    if layout == "heads first":
        view = poisoned((heads, tokens, dim), dtype).transpose(1, 0, 2)
    elif layout == "every other token":
        view = poisoned((2 * tokens, heads, dim), dtype)[1::2]
    elif layout == "some dims":
        view = poisoned((tokens, heads, dim + 2), dtype)[..., 1:-1]
    else:
        more = layout == "some heads"
        view = poisoned((tokens, heads + more, dim), dtype)[:, :heads]
    view[...] = (np.arange(view.size) % 3 == 0).reshape(shape)
    return view


AXES = ("requests", "tokens of a request", "heads", "head size")
"""The axes of a query or an output, by request."""


@st.composite
def _shapes(draw: st.DrawFn, preset: Preset) -> tuple[int, int, tuple[int, int]]:
    """Draw the numbers of requests, of tokens of each, and of heads and dims."""
    is_small = preset is MINIMAL
    num_reqs = draw(st.integers(1, 4) if is_small else st.sampled_from((1, 7, 64)))
    tokens = draw(st.sampled_from((0, 1, 2, 3) if is_small else (1, 2, 5)))
    heads = draw(st.sampled_from((1, 2, 0) if is_small else (1, 8)))
    dim = draw(st.sampled_from((1, 3) if is_small else (16,)))
    few = (3, 2, 2, 1) if preset.axis else (num_reqs, tokens, heads, dim)
    sizes = zip(AXES, few, strict=True)
    num_reqs, tokens, heads, dim = (draw(preset.sizes(axis, st.just(n))) for axis, n in sizes)
    return num_reqs, tokens, (heads, dim)


@st.composite
def reshape_query_calls(draw: st.DrawFn, preset: Preset) -> Call:
    """Draw calls of `reshape_query_for_spec_decode`, of queries in any memory layout."""
    num_reqs, tokens, rest = draw(_shapes(preset))
    layout, dtype = draw(st.sampled_from(LAYOUTS)), draw(st.sampled_from(DTYPES))
    query = laid_out((num_reqs * tokens, *rest), layout, dtype)
    return Call("reshape_query_for_spec_decode", {"query": query, "batch_size": num_reqs})


@st.composite
def reshape_output_calls(draw: st.DrawFn, preset: Preset) -> Call:
    """Draw calls of `reshape_attn_output_for_spec_decode`: four dimensions, and three."""
    num_reqs, tokens, rest = draw(_shapes(preset))
    layout, dtype = draw(st.sampled_from(OUTPUT_LAYOUTS)), draw(st.sampled_from(DTYPES))
    if layout == "one each, apart" and not preset.axis:
        output = laid_out((3 * num_reqs, *rest), "dense", dtype)[::3][:, None]
    elif layout == "one request, apart" and not preset.axis:
        output = laid_out((2 * tokens, *rest), "dense", dtype).reshape(2, tokens, *rest)[1:]
    elif not preset.axis and draw(st.SOMETIMES):
        output = laid_out((num_reqs * tokens, *rest), draw(st.sampled_from(LAYOUTS)), dtype)
    else:
        # NumPy would copy an array that is empty and not dense.
        has_none = 0 in (num_reqs * tokens, *rest)
        flat = laid_out((num_reqs * tokens, *rest), "dense" if has_none else layout, dtype)
        output = flat.reshape(num_reqs, tokens, *rest)
    return Call("reshape_attn_output_for_spec_decode", {"attn_output": output})
