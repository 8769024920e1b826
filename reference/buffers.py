"""A buffer that exists twice: on the host, where a step is prepared, and on the device."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from reference._checks import (
    MAX_INT64,
    NO_NUMPY_VIEW,
    Array,
    check_bool,
    check_dtype,
    check_int,
    check_not_empty,
)


class CpuGpuBuffer:
    """Keep one zeroed array twice: on the CPU and on a device.

    Until an entry is copied, its value in the other half is undefined. `reference` has no devices:
    both halves are the same array.

    Args:
        *size: The shape; at least one dimension.
        dtype: A NumPy dtype or scalar type, `ml_dtypes`' among them.
        device: Ignored, since `reference` has no devices.
        pin_memory: Ignored, except for its type.

    Attributes:
        cpu: The array on the host.
        gpu: The array on the device.

    Raises:
        TypeError: An argument of the wrong type, a dtype that torch does not have.
        ValueError: No dimensions; a dimension outside 0 .. `2**63 - 1`; more bytes than that, zero
            dimensions counted as 1, since strides would overflow.

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
        check_not_empty("size", size, "dimension")
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
        """A NumPy view of `cpu`.

        Raises:
            TypeError: The dtype is bfloat16, float8_e4m3fn or float8_e5m2, which NumPy does not
                have.
        """
        if self.cpu.dtype.name in NO_NUMPY_VIEW:
            raise TypeError(f"dtype {self.cpu.dtype.name} has no NumPy view; use cpu")
        return self.cpu

    def copy_to_gpu(self, n: int | None = None) -> Array:
        """Copy the first entries from the CPU to the device, without blocking.

        Args:
            n: How many entries of the first dimension to copy, in 0 .. its length; None: all.

        Returns:
            A view of these entries of `gpu`.

        Raises:
            TypeError: A number that is not an int.
            ValueError: A number out of range.
        """
        return self.gpu[: self._check_number(n)]

    def copy_to_cpu(self, n: int | None = None) -> Array:
        """Copy the first entries from the device to the CPU; synchronise before reading them.

        Args:
            n: How many entries of the first dimension to copy, in 0 .. its length; None: all.

        Returns:
            A view of these entries of `cpu`.

        Raises:
            TypeError: A number that is not an int.
            ValueError: A number out of range.
        """
        return self.cpu[: self._check_number(n)]

    def _check_number(self, n: object) -> int:
        """Return the number of entries to copy."""
        return len(self.cpu) if n is None else check_int("n", n, 0, len(self.cpu))
