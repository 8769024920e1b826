"""Views of a uniform batch, as one writes them in a hurry."""

# ruff: noqa: PLR0911  # a branch for each bug

from __future__ import annotations

from collections.abc import Callable

import torch

import fast
from known_bad.entries import rewritten

REAL_QUERY = fast.reshape_query_for_spec_decode
REAL_OUTPUT = fast.reshape_attn_output_for_spec_decode


def _make_query(bug: str | None) -> Callable[..., torch.Tensor]:
    def reshape_query_for_spec_decode(query: torch.Tensor, batch_size: int) -> torch.Tensor:
        if bug == "tokens left over are cut" and isinstance(query, torch.Tensor):
            number = batch_size if type(batch_size) is int and batch_size > 0 else 1
            query = query[: len(query) // number * number]
        if bug == "True is a batch of one" and batch_size is True:
            batch_size = 1
        REAL_QUERY(query, batch_size)
        tokens = len(query) // batch_size
        if bug == "requests are interleaved":
            return query.view(tokens, batch_size, *query.shape[1:]).transpose(0, 1)
        if bug == "a copy":
            query = query.clone()
        if bug == "a copy of what is strided":
            query = query.contiguous()
        if bug == "the number of tokens comes first":
            return query.view(tokens, batch_size, *query.shape[1:])
        return query.view(batch_size, tokens, *query.shape[1:])

    return reshape_query_for_spec_decode


def _make_output(bug: str | None) -> Callable[..., torch.Tensor]:
    def reshape_attn_output_for_spec_decode(attn_output: torch.Tensor) -> torch.Tensor:
        is_tensor = isinstance(attn_output, torch.Tensor)
        if bug == "what cannot be viewed is copied" and is_tensor and attn_output.dim() == 4:
            return attn_output.reshape(-1, *attn_output.shape[2:])
        if bug == "all that is not of four dimensions is as it is" and is_tensor:
            if attn_output.dim() != 4:
                return attn_output
        elif bug == "two dimensions are one head" and is_tensor and attn_output.dim() == 2:
            return attn_output[:, None]
        REAL_OUTPUT(attn_output)
        if attn_output.dim() == 3:
            return attn_output[:] if bug == "three dimensions are a view" else attn_output
        if bug == "one token of each is squeezed" and attn_output.shape[1] == 1:
            return attn_output.squeeze()
        if bug == "only what is dense is viewed" and not attn_output.is_contiguous():
            attn_output = attn_output.clone(memory_format=torch.contiguous_format)
        if bug == "requests are interleaved":
            return attn_output.transpose(0, 1).reshape(-1, *attn_output.shape[2:])
        return REAL_OUTPUT(attn_output)

    return reshape_attn_output_for_spec_decode


SPEC_DECODE = [
    *rewritten(
        "reshape_query_for_spec_decode",
        _make_query,
        answers={
            "requests are interleaved": "The right shape.",
            "a copy": "Equal; only slower.",
            "a copy of what is strided": "`reshape`: the kernel writes what nobody reads.",
            "the number of tokens comes first": "Right where both are alike.",
        },
        refusals={
            "tokens left over are cut": "They have no output then.",
            "True is a batch of one": "bool is an int.",
        },
    ),
    *rewritten(
        "reshape_attn_output_for_spec_decode",
        _make_output,
        answers={
            "three dimensions are a view": "Equal; but it is another object.",
            "one token of each is squeezed": "Right with several heads.",
            "only what is dense is viewed": "Outputs are dense, mostly.",
            "requests are interleaved": "The right shape.",
        },
        refusals={
            "what cannot be viewed is copied": "`reshape`: what is written there is lost.",
            "all that is not of four dimensions is as it is": "An `if` without an `else`.",
            "two dimensions are one head": "Helpful.",
        },
    ),
]
