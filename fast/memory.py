"""Compute how much of a device's memory the engine may use."""

import math
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import torch

from fast._checks import MAX_INT64, check_device, check_int, check_type, is_int

GIB: Final = 2**30
MEMINFO: Final = Path("/proc/meminfo")


@dataclass
class MemorySnapshot:
    """The memory of a device at one moment.

    Definition: `reference.MemorySnapshot`.
    """

    free_memory: int
    total_memory: int
    device: torch.device | str | None = None

    @classmethod
    def measure(cls, device: torch.device | str) -> Self:
        """Measure a device's memory now, as its driver or the operating system reports it.

        `reference` has no such method.

        Args:
            device: A CUDA device or the CPU.

        Raises:
            TypeError: The argument is not a device.
            ValueError: A device of another type, or one that does not exist.
            OSError: The operating system does not report it.

        Example:
            >>> snapshot = MemorySnapshot.measure("cpu")
            >>> 0 < snapshot.free_memory <= snapshot.total_memory
            True
        """
        device = check_device("device", device)
        if device.type == "cpu":
            free, total = read_meminfo(MEMINFO) if MEMINFO.exists() else read_sysconf()
        elif device.type == "cuda":
            free, total = torch.cuda.mem_get_info(device)
        else:
            raise ValueError(f"device is {device}, expected a CUDA device or the CPU")
        return cls(free_memory=free, total_memory=total, device=device)


def request_memory(init_snapshot: MemorySnapshot, cache_config: Any) -> int:
    """Return how much memory an engine may use: its share of the total, which must be free.

    Definition: `reference.request_memory`.
    """
    free = check_int("init_snapshot.free_memory", init_snapshot.free_memory, 0, MAX_INT64)
    total = check_int("init_snapshot.total_memory", init_snapshot.total_memory, 0, MAX_INT64)
    utilization = cache_config.gpu_memory_utilization
    name = "cache_config.gpu_memory_utilization"
    if not is_int(utilization):
        check_type(name, utilization, float | np.floating, "an int or float")
    if not 0 < utilization <= 1:
        raise ValueError(f"{name} is {utilization}, expected more than 0 and at most 1")
    desired = math.ceil(total * float(utilization))
    if free < desired:
        raise ValueError(
            f"init_snapshot.free_memory on device {init_snapshot.device} is {free / GIB:.2f} GiB "
            f"of {total / GIB:.2f} GiB, less than the desired {desired / GIB:.2f} GiB "
            f"({name} {utilization}): lower gpu_memory_utilization or free memory"
        )
    return desired


def read_meminfo(path: Path) -> tuple[int, int]:
    """Return free and total memory in bytes from Linux's `meminfo`; or raise OSError."""
    text = path.read_text(encoding="ascii")
    kib = dict(re.findall(r"^(MemAvailable|MemTotal): *([0-9]+) kB$", text, re.MULTILINE))
    try:
        return int(kib["MemAvailable"]) * 1024, int(kib["MemTotal"]) * 1024
    except KeyError as error:
        raise OSError(f"{path} has no line {error}") from error


def read_sysconf() -> tuple[int, int]:
    """Return free and total memory in bytes from POSIX counts of pages; or raise OSError."""
    try:
        page = os.sysconf("SC_PAGE_SIZE")
        return os.sysconf("SC_AVPHYS_PAGES") * page, os.sysconf("SC_PHYS_PAGES") * page
    except ValueError as error:
        raise OSError("this operating system does not tell its free memory") from error
