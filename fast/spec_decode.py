"""View queries and outputs of speculative decoding by request, and back."""

import torch

from fast._checks import check_dense, check_int, not_a_tensor


def reshape_query_for_spec_decode(query: torch.Tensor, batch_size: int) -> torch.Tensor:
    """View the tokens of a uniform batch request by request.

    Definition: `reference.reshape_query_for_spec_decode`.
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
    """View the tokens of all requests one after another.

    Definition: `reference.reshape_attn_output_for_spec_decode`.
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
