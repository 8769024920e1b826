"""Speculative decoding: views of tokens by request, and back."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference import reshape_attn_output_for_spec_decode, reshape_query_for_spec_decode

EXAMPLES = settings(max_examples=80, deadline=None, derandomize=True, database=None)


def numbered(shape: tuple[int, ...], dtype: Any = np.int64) -> np.ndarray[Any, Any]:  # noqa: ANN401  # of any kind
    """Return an array whose entries tell where they stand."""
    return np.arange(int(np.prod(shape))).astype(dtype).reshape(shape)


@EXAMPLES
@given(
    st.integers(1, 4), st.integers(0, 4), st.integers(0, 3), st.integers(0, 3), st.integers(1, 3)
)
def test_token_by_token(num_reqs: int, n: int, heads: int, dim: int, step: int) -> None:
    """Token `i * n + j` is `[i, j]` of the view, of strided queries too, and goes back there."""
    query = numbered((num_reqs * n * step, heads, dim))[::step]
    by_request = reshape_query_for_spec_decode(query, num_reqs)
    assert (num_reqs, n, heads, dim) == by_request.shape
    for i in range(num_reqs):
        for j in range(n):
            assert query[i * n + j].tolist() == by_request[i, j].tolist()
    back = reshape_attn_output_for_spec_decode(by_request)
    assert (query.shape, query.tolist()) == (back.shape, back.tolist())
    if query.size:
        assert np.shares_memory(query, by_request)
        assert np.shares_memory(query, back)


def test_views_are_written_through() -> None:
    """What is written to the views is written to the array."""
    query = numbered((4, 1, 1))
    by_request = reshape_query_for_spec_decode(query, 2)
    by_request[1, 0] = 70
    reshape_attn_output_for_spec_decode(by_request)[3] = 80
    assert [0, 1, 70, 80] == query.ravel().tolist()


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2, bool])
def test_any_dtype(dtype: type[Any]) -> None:
    """The dtype is kept, whichever it is."""
    by_request = reshape_query_for_spec_decode(np.zeros((4, 2, 2), dtype), np.int64(2))
    assert np.dtype(dtype) == by_request.dtype
    assert np.dtype(dtype) == reshape_attn_output_for_spec_decode(by_request).dtype


def test_no_tokens() -> None:
    """No tokens are none of each request, and no requests or tokens give none."""
    assert (3, 0, 8, 4) == reshape_query_for_spec_decode(np.zeros((0, 8, 4)), 3).shape
    assert (0, 8, 4) == reshape_attn_output_for_spec_decode(np.zeros((0, 3, 8, 4))).shape


@pytest.mark.parametrize("shape", [(6, 8, 4), (0, 8, 4)])
def test_three_dimensions_are_as_they_are(shape: tuple[int, ...]) -> None:
    """An output of tokens in one dimension is handed back itself."""
    attn_output = np.zeros(shape)
    assert attn_output is reshape_attn_output_for_spec_decode(attn_output)


@pytest.mark.parametrize(
    ("attn_output", "expected"),
    [
        pytest.param(numbered((3, 4, 2, 2))[::2, :1], [0, 8], id="one token of each"),
        pytest.param(numbered((3, 4, 2, 2))[2:, ::2], [8, 10], id="one request"),
        pytest.param(numbered((2, 4, 2, 2))[:, ::2], [0, 2, 4, 6], id="every other token"),
        pytest.param(numbered((2, 3, 2, 2))[::-1, ::-1], [5, 4, 3, 2, 1, 0], id="backwards"),
        pytest.param(numbered((2, 3, 2, 2)), [0, 1, 2, 3, 4, 5], id="contiguous"),
        pytest.param(np.broadcast_to(numbered((1, 1, 2, 2)), (2, 2, 2, 2)), [0] * 4, id="repeated"),
        pytest.param(numbered((2, 3, 4, 2))[:, :, ::3], [0, 2, 4, 6, 8, 10], id="strided heads"),
        pytest.param(numbered((2, 3, 2, 2))[:, :2, :0], None, id="no heads"),
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


QUERY = np.zeros((6, 2, 2))


@pytest.mark.parametrize(
    ("query", "batch_size", "error", "message"),
    [
        (QUERY.tolist(), 2, TypeError, "query must be an array, got list"),
        (QUERY[0], 2, ValueError, "query must have 3 dimensions, got shape (2, 2)"),
        (QUERY[None], 2, ValueError, "query must have 3 dimensions, got shape (1, 6, 2, 2)"),
        (QUERY, 4, ValueError, "batch_size is 4, expected a divisor of the 6 tokens of query"),
        (QUERY, 12, ValueError, "batch_size is 12, expected a divisor of the 6 tokens of query"),
        (QUERY, 0, ValueError, "batch_size is 0, expected 1 to 2147483647"),
        (QUERY, -2, ValueError, "batch_size is -2, expected 1 to 2147483647"),
        (QUERY[:0], 2**63, ValueError, f"batch_size is {2**63}, expected 1 to {2**31 - 1}"),
        (QUERY, 2.0, TypeError, "batch_size must be an int, got 2.0 of float"),
        (QUERY, True, TypeError, "batch_size must be an int, got True of bool"),
    ],
)
def test_refusals_of_reshape_query(
    query: Any,  # noqa: ANN401  # of any type
    batch_size: Any,  # noqa: ANN401  # likewise
    error: type[Exception],
    message: str,
) -> None:
    """Each wrong argument is refused, in these words."""
    with pytest.raises(error) as caught:
        reshape_query_for_spec_decode(query, batch_size)
    assert message == str(caught.value)


@pytest.mark.parametrize(
    ("attn_output", "error", "message"),
    [
        (None, TypeError, "attn_output must be an array, got NoneType"),
        (
            QUERY[0],
            ValueError,
            "attn_output must have 3 or 4 dimensions, got shape (2, 2)",
        ),
        (
            QUERY[None, None],
            ValueError,
            "attn_output must have 3 or 4 dimensions, got shape (1, 1, 6, 2, 2)",
        ),
        (
            np.zeros((2, 3, 2, 2))[:, :2],
            ValueError,
            (
                "attn_output of shape (2, 2, 2, 2) cannot be viewed as (4, 2, 2): its requests are "
                "not contiguous"
            ),
        ),
        (
            np.zeros((3, 2, 2, 2)).transpose(1, 0, 2, 3),
            ValueError,
            (
                "attn_output of shape (2, 3, 2, 2) cannot be viewed as (6, 2, 2): its requests are "
                "not contiguous"
            ),
        ),
    ],
)
def test_refusals_of_reshape_attn_output(
    attn_output: Any,  # noqa: ANN401  # of any type
    error: type[Exception],
    message: str,
) -> None:
    """What has other dimensions, or cannot be a view, is refused, in these words."""
    with pytest.raises(error) as caught:
        reshape_attn_output_for_spec_decode(attn_output)
    assert message == str(caught.value)
