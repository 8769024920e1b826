"""Memory: the share of a device that is asked for, to the byte."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest

from reference import CacheConfig, MemorySnapshot, request_memory

GIB = 2**30


def request(free: object, total: object, utilization: object) -> int:
    """Ask for a share of a device's memory."""
    snapshot = MemorySnapshot(free, total, "cuda:3")
    return request_memory(snapshot, SimpleNamespace(gpu_memory_utilization=utilization))


def test_snapshot() -> None:
    """A snapshot is an ordinary dataclass of two numbers and perhaps a device."""
    snapshot = MemorySnapshot(free_memory=5, total_memory=7)
    assert MemorySnapshot(5, 7, None) == snapshot
    snapshot.free_memory = 6
    assert snapshot.free_memory == 6


@pytest.mark.parametrize(
    ("total", "utilization", "expected"),
    [
        (1000, 0.9, 900),
        (1001, 0.9, 901),
        (10, 0.7, 7),
        (80 * GIB, 1, 80 * GIB),
        (80 * GIB, 1.0, 80 * GIB),
        (3, 1e-300, 1),
        (0, 0.5, 0),
        (100, np.float32(0.1), 11),
        (100, np.float64(0.1), 10),
        (100, np.int32(1), 100),
        (np.int64(8), 0.5, 4),
        (2**53 + 1, 1.0, 2**53),
    ],
)
def test_share(total: int, utilization: float, expected: int) -> None:
    """It is the ceiling of the product in double precision, a Python int."""
    requested = request(2**62, total, utilization)
    assert expected == requested == math.ceil(float(total) * float(utilization))
    assert type(requested) is int


def test_all_that_is_free_is_enough() -> None:
    """The share may be just what is free."""
    assert request(900, 1000, 0.9) == 900
    assert request_memory(MemorySnapshot(900, 1000), CacheConfig()) == 900
    with pytest.raises(ValueError, match="lower gpu_memory_utilization or free memory"):
        request(899, 1000, 0.9)


@pytest.mark.parametrize(
    ("free", "total", "utilization", "error", "message"),
    [
        (
            60 * GIB,
            80 * GIB,
            0.9,
            ValueError,
            (
                "init_snapshot.free_memory on device cuda:3 is 60.00 GiB of 80.00 GiB, "
                "less than the desired 72.00 GiB (cache_config.gpu_memory_utilization "
                "0.9): lower gpu_memory_utilization or free memory"
            ),
        ),
        (
            1,
            1,
            0,
            ValueError,
            ("cache_config.gpu_memory_utilization is 0, expected more than 0 and at most 1"),
        ),
        (
            1,
            1,
            -0.0,
            ValueError,
            ("cache_config.gpu_memory_utilization is -0.0, expected more than 0 and at most 1"),
        ),
        (
            1,
            1,
            1.01,
            ValueError,
            ("cache_config.gpu_memory_utilization is 1.01, expected more than 0 and at most 1"),
        ),
        (
            1,
            1,
            10**400,
            ValueError,
            f"cache_config.gpu_memory_utilization is {10**400}, expected more than 0 and at most 1",
        ),
        (
            1,
            1,
            math.nan,
            ValueError,
            ("cache_config.gpu_memory_utilization is nan, expected more than 0 and at most 1"),
        ),
        (
            1,
            1,
            math.inf,
            ValueError,
            ("cache_config.gpu_memory_utilization is inf, expected more than 0 and at most 1"),
        ),
        (
            1,
            1,
            True,
            TypeError,
            ("cache_config.gpu_memory_utilization must be an int or float, got True of bool"),
        ),
        (
            1,
            1,
            "0.9",
            TypeError,
            ("cache_config.gpu_memory_utilization must be an int or float, got '0.9' of str"),
        ),
        (
            1,
            1,
            None,
            TypeError,
            ("cache_config.gpu_memory_utilization must be an int or float, got None of NoneType"),
        ),
        (
            -1,
            1,
            0.5,
            ValueError,
            ("init_snapshot.free_memory is -1, expected 0 to 9223372036854775807"),
        ),
        (
            1,
            -1,
            0.5,
            ValueError,
            ("init_snapshot.total_memory is -1, expected 0 to 9223372036854775807"),
        ),
        (
            2**63,
            1,
            0.5,
            ValueError,
            ("init_snapshot.free_memory is 9223372036854775808, expected 0 to 9223372036854775807"),
        ),
        (
            1,
            2**63,
            0.5,
            ValueError,
            (
                "init_snapshot.total_memory is 9223372036854775808, "
                "expected 0 to 9223372036854775807"
            ),
        ),
        (1.0, 1, 0.5, TypeError, "init_snapshot.free_memory must be an int, got 1.0 of float"),
        (1, True, 0.5, TypeError, "init_snapshot.total_memory must be an int, got True of bool"),
    ],
)
def test_refusals(
    free: object, total: object, utilization: object, error: type[Exception], message: str
) -> None:
    """Each precondition broken in turn is refused, in these words."""
    with pytest.raises(error) as caught:
        request(free, total, utilization)
    assert str(caught.value).startswith(message)


def test_attributes_that_are_read() -> None:
    """A snapshot or a configuration without what is read says so."""
    with pytest.raises(AttributeError, match="gpu_memory_utilization"):
        request_memory(MemorySnapshot(1, 1), SimpleNamespace())
    with pytest.raises(AttributeError, match="total_memory"):
        request_memory(SimpleNamespace(free_memory=1), CacheConfig())
