"""Causal convolutions: which program of the kernel does which tokens."""

from __future__ import annotations

import numpy as np

from reference import compute_causal_conv1d_metadata


def test_read_only_starts() -> None:
    """A read-only input is taken, and stays as it was."""
    starts = np.array([0, 9, 9, 25], np.int32)
    starts.flags.writeable = False
    compute_causal_conv1d_metadata(starts)
    assert [0, 9, 9, 25] == starts.tolist()
