"""How much of a device's memory the engine asks for."""

import math
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import torch

from fast._checks import check_device, check_int, check_type, is_int

MAX_BYTES: Final = 2**63 - 1
GIB: Final = 2**30
MEMINFO: Final = Path("/proc/meminfo")


@dataclass
class MemorySnapshot:
    """The memory of a device at one moment.

    Attributes:
        free_memory: what is free, in bytes.
        total_memory: what there is, in bytes.
        device: which device, for messages.

    Example:
        >>> MemorySnapshot(free_memory=70 * 2**30, total_memory=80 * 2**30).device is None
        True

    Source: the definition is kvtwin's own; the name is vLLM's.
    """

    free_memory: int
    total_memory: int
    device: torch.device | str | None = None

    @classmethod
    def measure(cls, device: torch.device | str) -> Self:
        """Return a device's memory now, as its driver tells; the CPU's, as the system tells.

        Args:
            device: a CUDA device or the CPU.

        Returns:
            A new snapshot.

        Raises:
            TypeError: no device.
            ValueError: a device of another type, or one that is not there.
            OSError: the operating system does not tell.

        Example:
            >>> snapshot = MemorySnapshot.measure("cpu")
            >>> 0 < snapshot.free_memory <= snapshot.total_memory
            True

        Source: kvtwin's own.
        """
        device = check_device("device", device)
        if device.type == "cpu":
            free, total = read_meminfo(MEMINFO) if MEMINFO.exists() else read_sysconf()
        elif device.type == "cuda":
            if not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count():
                raise ValueError(f"device is {device}, which this machine does not have")
            free, total = torch.cuda.mem_get_info(device)
        else:
            raise ValueError(f"device is {device}, expected a CUDA device or the CPU")
        return cls(free_memory=free, total_memory=total, device=device)


def request_memory(init_snapshot: MemorySnapshot, cache_config: Any) -> int:  # noqa: ANN401  (own)
    """Return the memory that the engine asks for: a share of all that the device has.

    Args:
        init_snapshot: the device's memory before anything is loaded, in bytes.
        cache_config: its `gpu_memory_utilization` is read, more than 0 and at most 1.

    Returns:
        The share, in bytes, rounded up.

    Raises:
        TypeError: a number of another type.
        ValueError: a number out of range, or less memory is free than is asked for.
        AttributeError: an argument lacks what is read.

    Example:
        >>> from fast.config import CacheConfig
        >>> snapshot = MemorySnapshot(free_memory=95, total_memory=99)
        >>> request_memory(snapshot, CacheConfig(gpu_memory_utilization=0.5))
        50

    Source: the definition is kvtwin's own; the name is vLLM's.
    """
    free = check_int("init_snapshot.free_memory", init_snapshot.free_memory, 0, MAX_BYTES)
    total = check_int("init_snapshot.total_memory", init_snapshot.total_memory, 0, MAX_BYTES)
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
    """Return the free and the total memory in bytes, as Linux lists them, in KiB.

    Raises:
        OSError: the list lacks them.
    """
    text = path.read_text(encoding="ascii")
    kib = dict(re.findall(r"^(MemAvailable|MemTotal): *([0-9]+) kB$", text, re.MULTILINE))
    try:
        return int(kib["MemAvailable"]) * 1024, int(kib["MemTotal"]) * 1024
    except KeyError as error:
        raise OSError(f"{path} has no line {error}") from error


def read_sysconf() -> tuple[int, int]:
    """Return the free and the total memory in bytes, as POSIX systems count them, in pages.

    Raises:
        OSError: this system does not count them.
    """
    try:
        page = os.sysconf("SC_PAGE_SIZE")
        return os.sysconf("SC_AVPHYS_PAGES") * page, os.sysconf("SC_PHYS_PAGES") * page
    except ValueError as error:
        raise OSError("this operating system does not tell its free memory") from error
