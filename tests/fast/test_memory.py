import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import fast
from fast import memory

GIB = 2**30


def request(free: object, total: object, utilization: object) -> int:
    """Ask for a share of a device's memory."""
    snapshot = SimpleNamespace(free_memory=free, total_memory=total, device="cuda:3")
    return fast.request_memory(snapshot, SimpleNamespace(gpu_memory_utilization=utilization))


@pytest.mark.parametrize(
    ("total", "utilization", "expected"),
    [
        (99, 0.5, 50),
        (100, 0.5, 50),
        (10, 0.1, 1),
        (10, 1, 10),
        (0, 0.9, 0),
        (80 * GIB, 0.9, 77309411328),
        (2**53 + 1, 1.0, 2**53),
        (100, np.float32(0.1), 11),
        (np.int64(100), np.int8(1), 100),
    ],
)
def test_rounds_up(total: int, utilization: float, expected: int) -> None:
    """The share is rounded up, of the product in double precision, and is a Python int."""
    result = request(total, total, utilization)
    assert expected == result
    assert type(result) is int


def test_refuses_more_than_is_free() -> None:
    """The message names the device, the sizes and the share, and says what to do."""
    assert 75 == request(75, 100, 0.75)
    message = (
        r"init_snapshot.free_memory on device cuda:3 is 60.00 GiB of 79.50 GiB, less than the "
        r"desired 71.55 GiB \(cache_config.gpu_memory_utilization 0.9\): lower "
        r"gpu_memory_utilization or free memory"
    )
    with pytest.raises(ValueError, match=message):
        request(60 * GIB, int(79.5 * GIB), 0.9)
    with pytest.raises(ValueError, match="lower gpu_memory_utilization"):
        request(74, 100, 0.75)


@pytest.mark.parametrize("utilization", [0, 0.0, -0.1, 1.0000001, 2, float("nan"), float("inf")])
def test_refuses_shares_out_of_range(utilization: float) -> None:
    """A share is more than 0 and at most 1."""
    with pytest.raises(ValueError, match=r"gpu_memory_utilization is .*, expected more than 0"):
        request(100, 100, utilization)


@pytest.mark.parametrize("utilization", [True, "0.9", None, 0.5j, [0.5], torch.tensor(0.5)])
def test_refuses_shares_of_other_types(utilization: object) -> None:
    """A share is an int or a float."""
    with pytest.raises(TypeError, match="gpu_memory_utilization must be an int or float"):
        request(100, 100, utilization)


@pytest.mark.parametrize("field", ["free_memory", "total_memory"])
def test_refuses_sizes(field: str) -> None:
    """Sizes are ints of 63 bits, and a snapshot has both."""
    sizes = {"free_memory": 1, "total_memory": 1}
    config = fast.CacheConfig()
    for value in (-1, 2**63):
        with pytest.raises(ValueError, match=f"init_snapshot.{field} is {value}"):
            fast.request_memory(fast.MemorySnapshot(**{**sizes, field: value}), config)
    for value in (True, 1.0, None):
        with pytest.raises(TypeError, match=f"init_snapshot.{field} must be an int"):
            fast.request_memory(fast.MemorySnapshot(**{**sizes, field: value}), config)
    del sizes[field]
    with pytest.raises(AttributeError, match=field):
        fast.request_memory(SimpleNamespace(**sizes), config)


def test_snapshot_checks_nothing() -> None:
    """A snapshot is an ordinary dataclass."""
    snapshot = fast.MemorySnapshot("free", None)
    snapshot.device = 7
    assert fast.MemorySnapshot("free", None, 7) == snapshot


def test_measures_the_cpu() -> None:
    """The CPU's memory is what the operating system tells, and some of it is free."""
    snapshot = fast.MemorySnapshot.measure("cpu")
    assert torch.device("cpu") == snapshot.device
    assert type(snapshot.free_memory) is type(snapshot.total_memory) is int
    assert 0 < snapshot.free_memory <= snapshot.total_memory
    assert os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") == snapshot.total_memory


def test_reads_meminfo(tmp_path: Path) -> None:
    """Linux lists available and total memory in KiB; a list without them is refused."""
    path = tmp_path / "meminfo"
    path.write_text("MemTotal:     10 kB\nMemFree:   1 kB\nMemAvailable:   7 kB\nHugePages:  0\n")
    assert (7 * 1024, 10 * 1024) == memory.read_meminfo(path)
    path.write_text("MemTotal:     10 kB\nMemFree:   1 kB\n")
    with pytest.raises(OSError, match="has no line 'MemAvailable'"):
        memory.read_meminfo(path)


def test_measures_without_meminfo(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where there is no such list, the counts of pages serve; where there are none, it says so."""
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "none")
    pages = {"SC_PAGE_SIZE": 4096, "SC_AVPHYS_PAGES": 3, "SC_PHYS_PAGES": 5}

    def sysconf(name: str) -> int:
        if name not in pages:
            raise ValueError("unrecognized configuration name")
        return pages[name]

    monkeypatch.setattr(os, "sysconf", sysconf)
    expected = fast.MemorySnapshot(3 * 4096, 5 * 4096, torch.device("cpu"))
    assert expected == fast.MemorySnapshot.measure("cpu")
    del pages["SC_AVPHYS_PAGES"]
    with pytest.raises(OSError, match="does not tell its free memory"):
        fast.MemorySnapshot.measure("cpu")


def test_measures_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CUDA device's memory is what its driver tells; one that is not there is refused."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (device.index, 9))
    device = torch.device("cuda:1")
    assert fast.MemorySnapshot(1, 9, device) == fast.MemorySnapshot.measure("cuda:1")
    with pytest.raises(ValueError, match="device is cuda:2, which this machine does not have"):
        fast.MemorySnapshot.measure("cuda:2")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="device is cuda, which this machine does not have"):
        fast.MemorySnapshot.measure("cuda")


def test_measure_refuses() -> None:
    """Other devices are refused, and so is what is none."""
    with pytest.raises(ValueError, match="device is meta, expected a CUDA device or the CPU"):
        fast.MemorySnapshot.measure("meta")
    with pytest.raises(ValueError, match="device is 'gpu'"):
        fast.MemorySnapshot.measure("gpu")
    with pytest.raises(TypeError, match="device must be a device, got None"):
        fast.MemorySnapshot.measure(None)
