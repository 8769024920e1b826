"""Memory: the share of a device that is requested, to the byte."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

GIB = 2**30


def request(twin: Any, free: object, total: object, utilization: object) -> int:
    snapshot = twin.MemorySnapshot(free, total, "cuda:3")
    return twin.request_memory(snapshot, SimpleNamespace(gpu_memory_utilization=utilization))


@pytest.mark.parametrize(
    ("total", "utilization", "expected"),
    [
        (1000, 0.9, 900),
        (1001, 0.9, 901),
        (10, 0.7, 7),
        (80 * GIB, 1, 80 * GIB),
        (3, 1e-300, 1),
        (0, 0.5, 0),
        (100, np.float32(0.1), 11),
        (np.int64(8), 0.5, 4),
        (2**53 + 1, 1.0, 2**53),
        (80 * GIB, 0.9, 77309411328),
    ],
)
def test_share(twin: Any, total: int, utilization: float, expected: int) -> None:
    requested = request(twin, 2**62, total, utilization)
    assert expected == requested == math.ceil(float(total) * float(utilization))
    assert type(requested) is int


def test_all_that_is_free_is_enough(twin: Any) -> None:
    assert request(twin, 900, 1000, 0.9) == 900
    assert twin.request_memory(twin.MemorySnapshot(900, 1000), twin.CacheConfig()) == 900
    with pytest.raises(ValueError, match="lower gpu_memory_utilization or free memory"):
        request(twin, 899, 1000, 0.9)


def test_more_than_is_free(twin: Any) -> None:
    with twin.refuses(
        "ValueError: init_snapshot.free_memory on device cuda:3 is 60.00 GiB of 79.50 GiB, less "
        "than the desired 71.55 GiB (cache_config.gpu_memory_utilization 0.9): lower "
        "gpu_memory_utilization or free memory"
    ):
        request(twin, 60 * GIB, int(79.5 * GIB), 0.9)
