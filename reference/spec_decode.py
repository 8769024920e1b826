"""Speculative decoding: view the tokens of a uniform batch request by request, and back."""

from __future__ import annotations

from reference._checks import Array, check_is_array, check_ndim, check_size


def reshape_query_for_spec_decode(query: Array, batch_size: int) -> Array:
    """View the tokens of a uniform batch request by request.

    All requests have the same number of tokens, `n = tokens / batch_size`, which may be 0. Request
    `i` has the tokens `i * n .. (i + 1) * n - 1`; its `j`-th token is `[i, j]` of the result.

    Args:
        query: [tokens, heads, dim], of any dtype and strides.
        batch_size: Number of requests, 1 .. 2**31 - 1; divides the number of tokens.

    Returns:
        [batch_size, tokens / batch_size, heads, dim], a view: nothing is copied.

    Raises:
        TypeError: A query that is not an array, a batch size that is not an int.
        ValueError: A query without exactly three dimensions; a batch size that is out of range or
            does not divide the number of tokens.

    Example:
        >>> import numpy as np
        >>> query = np.zeros((6, 8, 64), np.float16)
        >>> reshape_query_for_spec_decode(query, 2).shape
        (2, 3, 8, 64)

    Source: the definition is kvtwin's own; the name is vLLM's.
    """
    check_is_array("query", query)
    check_ndim("query", query, 3)
    num_tokens, num_heads, dim = query.shape
    num_reqs = check_size("batch_size", batch_size)
    if num_tokens % num_reqs != 0:
        raise ValueError(
            f"batch_size is {num_reqs}, expected a divisor of the {num_tokens} tokens of query"
        )
    return query.reshape(num_reqs, num_tokens // num_reqs, num_heads, dim)


def reshape_attn_output_for_spec_decode(attn_output: Array) -> Array:
    """View the tokens of all requests one after another.

    This is the inverse of `reshape_query_for_spec_decode`.

    Args:
        attn_output: [batch_size, n, heads, dim] or [tokens, heads, dim], of any dtype. With four
            dimensions its strides must allow a view with the first two merged: the stride of the
            requests is `n` times that of the tokens, or `batch_size` or `n` is 1, or there are no
            elements.

    Returns:
        [batch_size * n, heads, dim], a view: nothing is copied. With three dimensions, the array
        itself.

    Raises:
        TypeError: An argument that is not an array.
        ValueError: Neither three nor four dimensions; strides that allow no view.

    Example:
        >>> import numpy as np
        >>> attn_output = np.zeros((2, 3, 8, 64), np.float16)
        >>> reshape_attn_output_for_spec_decode(attn_output).shape
        (6, 8, 64)
        >>> reshape_attn_output_for_spec_decode(attn_output[:, :2])
        Traceback (most recent call last):
        ValueError: attn_output of shape (2, 2, 8, 64) cannot be viewed as (4, 8, 64): its \
requests are not contiguous

    Source: the definition is kvtwin's own; the name is vLLM's.
    """
    check_is_array("attn_output", attn_output)
    check_ndim("attn_output", attn_output, 3, 4)
    if attn_output.ndim == 3:
        return attn_output
    num_reqs, tokens_of_each, num_heads, dim = attn_output.shape
    shape = (num_reqs * tokens_of_each, num_heads, dim)
    follow_each_other = attn_output.strides[0] == tokens_of_each * attn_output.strides[1]
    is_trivial = num_reqs <= 1 or tokens_of_each <= 1 or attn_output.size == 0
    if not follow_each_other and not is_trivial:
        raise ValueError(
            f"attn_output of shape {attn_output.shape} cannot be viewed as {shape}: its requests "
            "are not contiguous"
        )
    return attn_output.reshape(shape)
