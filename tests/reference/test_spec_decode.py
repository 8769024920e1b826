"""Speculative decoding: views of tokens by request, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from reference import reshape_attn_output_for_spec_decode


def numbered(shape: tuple[int, ...], dtype: Any = np.int64) -> np.ndarray[Any, Any]:  # noqa: ANN401  # of any kind
    """Return an array whose entries tell where they stand."""
    return np.arange(int(np.prod(shape))).astype(dtype).reshape(shape)


@pytest.mark.parametrize(
    ("attn_output", "expected"),
    [
        pytest.param(numbered((2, 3, 2, 2))[::-1, ::-1], [5, 4, 3, 2, 1, 0], id="backwards"),
    ],
)
def test_strides_that_allow_a_view(
    attn_output: np.ndarray[Any, Any], expected: list[int] | None
) -> None:
    """Tokens at one distance in memory, or too few to have any, are a view."""
    flat = reshape_attn_output_for_spec_decode(attn_output)
    requests, tokens, heads, dim = attn_output.shape
    assert (requests * tokens, heads, dim) == flat.shape
    if expected is not None:
        assert np.shares_memory(attn_output, flat)
        assert expected == (flat[:, 0, 0] // 4).tolist()
