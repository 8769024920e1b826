"""View queries and outputs of speculative decoding by request, and back."""

import torch

from fast._checks import check_dense, check_int, check_ndim


def reshape_query_for_spec_decode(query: torch.Tensor, batch_size: int) -> torch.Tensor:
    """View the tokens of a uniform batch request by request.

    Definition: `reference.reshape_query_for_spec_decode`.
    """
    check_dense("query", query)
    check_ndim("query", query, 3)
    batch_size = check_int("batch_size", batch_size)
    num_tokens, num_heads, dim = query.shape
    if num_tokens % batch_size:
        raise ValueError(
            f"batch_size is {batch_size}, expected a divisor of the {num_tokens} tokens of query"
        )
    return query.view(batch_size, num_tokens // batch_size, num_heads, dim)


def reshape_attn_output_for_spec_decode(attn_output: torch.Tensor) -> torch.Tensor:
    """View the tokens of all requests one after another.

    Definition: `reference.reshape_attn_output_for_spec_decode`.
    """
    check_dense("attn_output", attn_output)
    check_ndim("attn_output", attn_output, 3, 4)
    if attn_output.dim() == 3:
        return attn_output
    batch_size, num_tokens, num_heads, dim = attn_output.shape
    try:
        return attn_output.view(batch_size * num_tokens, num_heads, dim)
    except RuntimeError as error:
        raise ValueError(
            f"attn_output of shape {tuple(attn_output.shape)} cannot be viewed as"
            f" {(batch_size * num_tokens, num_heads, dim)}: its requests are not contiguous"
        ) from error
