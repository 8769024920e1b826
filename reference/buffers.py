"""A buffer that is held twice: on the host, where a step is prepared, and on the device."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from reference._checks import MAX_INT64, NO_NUMPY_VIEW, Array, check_bool, check_dtype, check_int


class CpuGpuBuffer:
    """One zeroed array twice, with copies between the two.

    What was written to one half and not copied is undefined in the other. In `reference`, which
    knows no device, the halves are one array.

    Args:
        *size: The shape; at least one dimension.
        dtype: A NumPy dtype or scalar type, `ml_dtypes`' among them.
        device: Ignored: `reference` knows no device.
        pin_memory: Ignored, but for its type.

    Attributes:
        cpu: The array on the host.
        gpu: The array on the device.

    Raises:
        TypeError: An argument of another type, a dtype that torch does not have.
        ValueError: No dimensions, a negative one or one past `2**63 - 1`; the dimensions other than
            0 are more bytes than that, so that strides overflow.

    Example:
        >>> import numpy as np
        >>> buffer = CpuGpuBuffer(4, dtype=np.int32, device=None, pin_memory=False)
        >>> buffer.np[:2] = [5, 7]
        >>> buffer.copy_to_gpu(2).tolist()
        [5, 7]

    Source: the definition is kvtwin's own; the names are vLLM's.
    """

    def __init__(
        self,
        *size: int,
        dtype: np.dtype[Any] | type[np.generic],
        device: object,  # noqa: ARG002  # the twins have the same parameters
        pin_memory: bool,
    ) -> None:
        if not size:
            raise ValueError("size is empty, expected at least 1 dimension")
        shape = tuple(
            check_int(f"size[{i}]", length, 0, MAX_INT64) for i, length in enumerate(size)
        )
        check_bool("pin_memory", pin_memory)
        kind = check_dtype("dtype", dtype)
        if math.prod(length or 1 for length in shape) * kind.itemsize > MAX_INT64:
            raise ValueError(
                f"size {shape} of {kind.name}: the dimensions other than 0 are more than"
                f" {MAX_INT64} bytes"
            )
        self.cpu: Array = np.zeros(shape, kind)
        self.gpu: Array = self.cpu

    @property
    def np(self) -> Array:
        """The array on the host as NumPy sees it.

        Raises:
            TypeError: bfloat16, float8_e4m3fn and float8_e5m2, which NumPy alone does not have.
        """
        if self.cpu.dtype.name in NO_NUMPY_VIEW:
            raise TypeError(f"dtype {self.cpu.dtype.name} has no NumPy view; use cpu")
        return self.cpu

    def copy_to_gpu(self, n: int | None = None) -> Array:
        """Copy the first entries from the host to the device, without blocking.

        Args:
            n: How many entries of the first dimension, in 0 .. its length; None: all.

        Returns:
            That part of `gpu`, a view.

        Raises:
            TypeError: A number that is no int.
            ValueError: A number out of range.
        """
        return self.gpu[: self._check_number(n)]

    def copy_to_cpu(self, n: int | None = None) -> Array:
        """Copy the first entries from the device to the host; synchronise before reading them.

        Args:
            n: How many entries of the first dimension, in 0 .. its length; None: all.

        Returns:
            That part of `cpu`, a view.

        Raises:
            TypeError: A number that is no int.
            ValueError: A number out of range.
        """
        return self.cpu[: self._check_number(n)]

    def _check_number(self, n: object) -> int:
        """Return how many entries are meant."""
        return len(self.cpu) if n is None else check_int("n", n, 0, len(self.cpu))
