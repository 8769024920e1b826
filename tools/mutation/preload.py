"""The imports of every process of a run, done once in the server that forks them."""

from __future__ import annotations

import hypothesis
import ml_dtypes  # noqa: F401
import numba
import pytest  # noqa: F401
import torch
from hypothesis import strategies

import tools.mutation.child  # noqa: F401

torch.set_num_threads(1)
numba.njit("int64(int64)")(lambda number: number)  # what numba sets up when it compiles first


@hypothesis.settings(max_examples=100, database=None, derandomize=True)
@hypothesis.given(strategies.text() | strategies.floats() | strategies.integers())
def _draw(_: object) -> None:
    """Let Hypothesis load its tables."""


_draw()
