"""NumPy vectors for tables of arguments, which `twin.convert` makes of either twin."""

from __future__ import annotations

from typing import Any

import numpy as np


def int32(*values: int) -> np.ndarray[Any, Any]:
    """Return an int32 vector."""
    return np.array(values, np.int32)


def int64(*values: int) -> np.ndarray[Any, Any]:
    """Return an int64 vector."""
    return np.array(values, np.int64)
