"""Keep a buffer on the host and on a device."""

import math
from typing import Any

import numpy.typing as npt
import torch

from fast._checks import (
    MAX_INT64,
    check_bool,
    check_device,
    check_dtype,
    check_int,
    check_not_empty,
    get_dtype_name,
)


class CpuGpuBuffer:
    """A zeroed buffer that exists twice: on the CPU and on a device.

    `cpu` and `gpu` are two tensors even if `device` is the CPU. `dtype` is a torch dtype.
    `pin_memory` pins `cpu` if there is a GPU, so that copies do not block.

    Definition: `reference.CpuGpuBuffer`.
    """

    def __init__(
        self, *size: int, dtype: torch.dtype, device: torch.device | str, pin_memory: bool
    ) -> None:
        check_not_empty("size", size, "dimension")
        shape = [check_int(f"size[{i}]", length, 0, MAX_INT64) for i, length in enumerate(size)]
        check_dtype("dtype", dtype)
        if math.prod(length or 1 for length in shape) * dtype.itemsize > MAX_INT64:
            raise ValueError(
                f"size {tuple(shape)} of {get_dtype_name(dtype)}: the dimensions other than 0 are"
                f" more than {MAX_INT64} bytes"
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

        Definition: `reference.CpuGpuBuffer.np`.
        """
        try:
            return self.cpu.numpy()
        except TypeError as error:
            name = get_dtype_name(self.cpu.dtype)
            raise TypeError(f"dtype {name} has no NumPy view; use cpu") from error

    def copy_to_gpu(self, n: int | None = None) -> torch.Tensor:
        """Copy the first entries from the CPU to the device, without blocking.

        A value written to `cpu` before the copy has ended may or may not be copied.

        Definition: `reference.CpuGpuBuffer.copy_to_gpu`.
        """
        n = self._check_count(n)
        return self.gpu[:n].copy_(self.cpu[:n], non_blocking=True)

    def copy_to_cpu(self, n: int | None = None) -> torch.Tensor:
        """Copy the first entries from the device to the CPU, without blocking.

        Synchronise before you read them.

        Definition: `reference.CpuGpuBuffer.copy_to_cpu`.
        """
        n = self._check_count(n)
        return self.cpu[:n].copy_(self.gpu[:n], non_blocking=True)

    def _check_count(self, n: int | None) -> int:
        return len(self.cpu) if n is None else check_int("n", n, 0, len(self.cpu))
