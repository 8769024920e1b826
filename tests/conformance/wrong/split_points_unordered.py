"""`fast`, but split points may come in any order: a refusal that is missing."""

# ruff: noqa: F403  # it is what the file is for

import numpy as np

import fast
from fast import *


def create_ubatch_slices(
    num_scheduled_tokens: np.ndarray, split_points: int | list[int]
) -> list[fast.UBatchSlice]:
    """Return micro-batches, and put the split points in order where they are not."""
    if isinstance(split_points, list) and all(type(point) is int for point in split_points):
        split_points = sorted(split_points)
    return fast.create_ubatch_slices(num_scheduled_tokens, split_points)
