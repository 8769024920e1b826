"""Speculative decoding: views of tokens by request, and back."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest


def numbered(shape: tuple[int, ...]) -> Any:
    return np.arange(math.prod(shape)).reshape(shape)


def test_views_are_written_through(twin: Any) -> None:
    query = twin.convert(numbered((4, 1, 1)))
    by_request = twin.reshape_query_for_spec_decode(query, 2)
    by_request[1, 0] = 70
    twin.reshape_attn_output_for_spec_decode(by_request)[3] = 80
    assert [0, 1, 70, 80] == query[:, 0, 0].tolist()


def test_three_dimensions_are_as_they_are(twin: Any) -> None:
    attn_output = twin.convert(np.zeros((6, 8, 4)))
    assert attn_output is twin.reshape_attn_output_for_spec_decode(attn_output)


@pytest.mark.parametrize(
    ("attn_output", "expected"),
    [
        pytest.param(numbered((3, 4, 2, 2))[::2, :1], [0, 8], id="one token of each"),
        pytest.param(numbered((3, 4, 2, 2))[2:, ::2], [8, 10], id="one request"),
        pytest.param(numbered((2, 4, 2, 2))[:, ::2], [0, 2, 4, 6], id="every other token"),
        pytest.param(np.broadcast_to(numbered((1, 1, 2, 2)), (2, 2, 2, 2)), [0] * 4, id="repeated"),
        pytest.param(numbered((2, 3, 4, 2))[:, :, ::3], [0, 2, 4, 6, 8, 10], id="strided heads"),
        pytest.param(numbered((2, 3, 2, 2))[:, :2, :0], None, id="no heads"),
    ],
)
def test_strides_that_allow_a_view(twin: Any, attn_output: Any, expected: list[int] | None) -> None:
    attn_output = twin.convert(attn_output)
    flat = twin.reshape_attn_output_for_spec_decode(attn_output)
    requests, tokens, heads, dim = attn_output.shape
    assert (requests * tokens, heads, dim) == flat.shape
    if expected is not None:
        assert twin.shares_memory(attn_output, flat)
        assert expected == (flat[:, 0, 0] // 4).tolist()


@pytest.mark.parametrize("step", [1, 3])
@pytest.mark.parametrize("shape", [(6, 2, 3), (2, 1, 1), (4, 0, 3), (4, 2, 0), (0, 2, 3)])
def test_token_by_token(twin: Any, shape: tuple[int, int, int], step: int) -> None:
    tokens, heads, dim = shape
    query = twin.convert(numbered((tokens * step, heads, dim))[::step])
    by_request = twin.reshape_query_for_spec_decode(query, 2)
    assert (2, tokens // 2, heads, dim) == by_request.shape
    assert query.tolist() == [token for request in by_request.tolist() for token in request]
    back = twin.reshape_attn_output_for_spec_decode(by_request)
    assert (query.shape, query.tolist()) == (back.shape, back.tolist())
    assert query.dtype == by_request.dtype == back.dtype
    if tokens * heads * dim:
        assert twin.shares_memory(query, by_request)
        assert twin.shares_memory(query, back)
