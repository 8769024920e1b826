"""Arrays that live on the host and on a device."""

import math
from typing import Any, Final

import numpy.typing as npt
import torch

from fast._checks import check_bool, check_device, check_dtype, check_int, get_dtype_name

MAX_BYTES: Final = 2**63 - 1
"""No buffer can be larger."""


class CpuGpuBuffer:
    """One zeroed array twice: on the CPU and on a device.

    Attributes:
        cpu: the half on the CPU, pinned when asked and where there is a GPU.
        gpu: the half on `device`; on "cpu" a tensor of its own all the same.
        np: a NumPy view of `cpu`.

    Args:
        size: the shape, at least one dimension.
        dtype: of both halves, a torch dtype.
        device: where `gpu` is.
        pin_memory: whether to pin `cpu`, so that copies don't block.

    Raises:
        TypeError: an argument of another type.
        ValueError: no dimension, a negative one, or one past `2**63 - 1`; the dimensions other than
            0 are more bytes than that.

    Example:
        >>> import torch
        >>> buffer = CpuGpuBuffer(4, dtype=torch.int32, device="cpu", pin_memory=False)
        >>> buffer.np[:2] = [7, 8]
        >>> buffer.copy_to_gpu(2).tolist()
        [7, 8]

    Source: the definition is kvtwin's own; the name is vLLM's.
    """

    def __init__(
        self, *size: int, dtype: torch.dtype, device: torch.device | str, pin_memory: bool
    ) -> None:
        if not size:
            raise ValueError("size is empty, expected at least 1 dimension")
        shape = [check_int(f"size[{i}]", length, 0, 2**63 - 1) for i, length in enumerate(size)]
        check_dtype("dtype", dtype)
        if math.prod(length or 1 for length in shape) * dtype.itemsize > MAX_BYTES:
            raise ValueError(
                f"size {tuple(shape)} of {get_dtype_name(dtype)}: the dimensions other than 0 are"
                f" more than {MAX_BYTES} bytes"
            )
        check_bool("pin_memory", pin_memory)
        device = check_device("device", device)
        pinned = bool(pin_memory) and torch.cuda.is_available()
        with torch.inference_mode(mode=False):  # a buffer outlives the mode in which it is made
            self.cpu = torch.zeros(shape, dtype=dtype, device="cpu", pin_memory=pinned)
            self.gpu = torch.zeros(shape, dtype=dtype, device=device)

    @property
    def np(self) -> npt.NDArray[Any]:
        """A NumPy view of `cpu`.

        Raises:
            TypeError: NumPy has no such dtype (bfloat16, the float8s).
        """
        try:
            return self.cpu.numpy()
        except TypeError as error:
            name = get_dtype_name(self.cpu.dtype)
            raise TypeError(f"dtype {name} has no NumPy view; use cpu") from error

    def copy_to_gpu(self, n: int | None = None) -> torch.Tensor:
        """Copy the first entries to the device, without blocking.

        What is written to them in `cpu` before the copy has ended may travel or not.

        Args:
            n: entries of the first dimension; None: all.

        Returns:
            That part of `gpu`.

        Raises:
            TypeError: not an int.
            ValueError: out of range.

        Example:
            >>> import torch
            >>> buffer = CpuGpuBuffer(2, 2, dtype=torch.int64, device="cpu", pin_memory=False)
            >>> buffer.copy_to_gpu().shape
            torch.Size([2, 2])

        Source: the definition is kvtwin's own; the name is vLLM's.
        """
        n = self._check_count(n)
        return self.gpu[:n].copy_(self.cpu[:n], non_blocking=True)

    def copy_to_cpu(self, n: int | None = None) -> torch.Tensor:
        """Copy the first entries to the CPU, without blocking: synchronise before you read them.

        Args:
            n: entries of the first dimension; None: all.

        Returns:
            That part of `cpu`.

        Raises:
            TypeError: not an int.
            ValueError: out of range.

        Example:
            >>> import torch
            >>> buffer = CpuGpuBuffer(2, dtype=torch.int64, device="cpu", pin_memory=False)
            >>> buffer.gpu += 3
            >>> buffer.copy_to_cpu(1).tolist()
            [3]

        Source: the definition is kvtwin's own; the name is vLLM's.
        """
        n = self._check_count(n)
        return self.cpu[:n].copy_(self.gpu[:n], non_blocking=True)

    def _check_count(self, n: int | None) -> int:
        return len(self.cpu) if n is None else check_int("n", n, 0, len(self.cpu))
