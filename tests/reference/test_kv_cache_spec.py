"""Specs: which dtypes `reference` takes."""

from __future__ import annotations

import numpy as np
import pytest

from reference import AttentionSpec


@pytest.mark.parametrize(
    "dtype", [None, "float16", float, np.floating, np.object_, np.dtype(">f4"), np.str_]
)
def test_refusals_of_dtypes(dtype: object) -> None:
    """What is not a dtype, or none that torch has, is a TypeError."""
    with pytest.raises(TypeError, match=r"^dtype must be a supported dtype, got "):
        AttentionSpec(16, 3, 5, dtype)  # type: ignore[arg-type]  # that is the test
