"""The memory of a device, and how much of it an engine may use."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from reference._checks import MAX_INT64, check_int, describe
from reference.config import CacheConfig

GIB = 2**30


@dataclass
class MemorySnapshot:
    """The memory of a device at one moment. The constructor checks nothing.

    Attributes:
        free_memory: The free bytes.
        total_memory: All bytes.
        device: The device, for messages.

    Example:
        >>> MemorySnapshot(free_memory=2**30, total_memory=2**31, device="cuda:0").total_memory
        2147483648

    Source: the definition is kvtwin's own; the name is vLLM's.
    """

    free_memory: int
    total_memory: int
    device: object = None


def request_memory(init_snapshot: MemorySnapshot, cache_config: CacheConfig) -> int:
    """Return how much memory an engine may use: its share of the total, which must be free.

    Args:
        init_snapshot: The device's memory, `free_memory` and `total_memory` in bytes, both in 0 ..
            2**63 - 1.
        cache_config: Its `gpu_memory_utilization` is the share, an int or float in (0, 1].

    Returns:
        `ceil(total_memory * gpu_memory_utilization)` in bytes; the product is computed in float64.

    Raises:
        AttributeError: A snapshot or a configuration that lacks an attribute that is read.
        TypeError: A number of the wrong type.
        ValueError: A number out of range, or less free memory than the result.

    Example:
        >>> from reference.config import CacheConfig
        >>> snapshot = MemorySnapshot(free_memory=950, total_memory=1000)
        >>> request_memory(snapshot, CacheConfig(gpu_memory_utilization=0.9))
        900

    Source: the definition is kvtwin's own; the name is vLLM's.
    """
    free = check_int("init_snapshot.free_memory", init_snapshot.free_memory, 0, MAX_INT64)
    total = check_int("init_snapshot.total_memory", init_snapshot.total_memory, 0, MAX_INT64)
    share = _check_share("cache_config.gpu_memory_utilization", cache_config.gpu_memory_utilization)
    requested = math.ceil(total * share)
    if free < requested:
        raise ValueError(
            f"init_snapshot.free_memory on device {init_snapshot.device} is {free / GIB:.2f} GiB "
            f"of {total / GIB:.2f} GiB, less than the desired {requested / GIB:.2f} GiB "
            f"(cache_config.gpu_memory_utilization {cache_config.gpu_memory_utilization}): "
            "lower gpu_memory_utilization or free memory"
        )
    return requested


def _check_share(name: str, value: object) -> float:
    """Return an int or float in (0, 1] as a Python float."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise TypeError(f"{name} must be an int or float, got {describe(value)}")
    if not 0 < value <= 1:
        raise ValueError(f"{name} is {value}, expected more than 0 and at most 1")
    return float(value)
