"""`fast`, but the query of speculative decoding is copied: an alias that should be a view."""

# ruff: noqa: F403  # it is what the file is for

import torch

import fast
from fast import *


def reshape_query_for_spec_decode(query: torch.Tensor, batch_size: int) -> torch.Tensor:
    """Return the query by requests, in memory of its own."""
    return fast.reshape_query_for_spec_decode(query, batch_size).clone()
