"""Queries and outputs of speculative decoding, one row of tokens for each request."""

import torch

from fast._checks import check_dense, check_int, not_a_tensor


def reshape_query_for_spec_decode(query: torch.Tensor, batch_size: int) -> torch.Tensor:
    """View the queries of a uniform batch as a row of tokens for each request.

    Args:
        query: any dtype[tokens, heads, dim], each request's tokens behind those of the one before.
        batch_size: requests, all of the same number of tokens.

    Returns:
        The same memory as [batch_size, tokens / batch_size, heads, dim].

    Raises:
        TypeError: an argument of another type.
        ValueError: another number of dimensions, a batch size below 1, past an int32, or one that
            does not divide the tokens.

    Example:
        >>> import torch
        >>> reshape_query_for_spec_decode(torch.zeros(6, 8, 64), 2).shape
        torch.Size([2, 3, 8, 64])

    Source: the definition is kvtwin's own; the name is vLLM's.
    """
    _check_tensor("query", query)
    if query.dim() != 3:
        raise ValueError(f"query must have 3 dimensions, got shape {tuple(query.shape)}")
    batch_size = check_int("batch_size", batch_size)
    num_tokens, num_heads, dim = query.shape
    if num_tokens % batch_size:
        raise ValueError(
            f"batch_size is {batch_size}, expected a divisor of the {num_tokens} tokens of query"
        )
    return query.view(batch_size, num_tokens // batch_size, num_heads, dim)


def reshape_attn_output_for_spec_decode(attn_output: torch.Tensor) -> torch.Tensor:
    """View what attention gave for a row of tokens for each request as tokens again.

    Args:
        attn_output: any dtype[batch_size, tokens / batch_size, heads, dim], or [tokens, heads,
            dim].

    Returns:
        The same memory as [tokens, heads, dim]; `attn_output` itself where it is that.

    Raises:
        TypeError: an argument of another type.
        ValueError: another number of dimensions, or strides that do not allow a view.

    Example:
        >>> import torch
        >>> reshape_attn_output_for_spec_decode(torch.zeros(2, 3, 8, 64)).shape
        torch.Size([6, 8, 64])

    Source: the definition is kvtwin's own; the name is vLLM's.
    """
    _check_tensor("attn_output", attn_output)
    if attn_output.dim() == 3:
        return attn_output
    if attn_output.dim() != 4:
        shape = tuple(attn_output.shape)
        raise ValueError(f"attn_output must have 3 or 4 dimensions, got shape {shape}")
    batch_size, num_tokens, num_heads, dim = attn_output.shape
    try:
        return attn_output.view(batch_size * num_tokens, num_heads, dim)
    except RuntimeError as error:
        raise ValueError(
            f"attn_output of shape {tuple(attn_output.shape)} cannot be viewed as"
            f" {(batch_size * num_tokens, num_heads, dim)}: its requests are not contiguous"
        ) from error


def _check_tensor(name: str, value: object) -> None:
    if not isinstance(value, torch.Tensor):
        raise TypeError(not_a_tensor(name, value))
    check_dense(name, value)
