import os
from pathlib import Path

import pytest
import torch

import fast
from fast import memory


def test_measures_the_cpu() -> None:
    snapshot = fast.MemorySnapshot.measure("cpu")
    assert torch.device("cpu") == snapshot.device
    assert type(snapshot.free_memory) is type(snapshot.total_memory) is int
    assert 0 < snapshot.free_memory <= snapshot.total_memory
    assert os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") == snapshot.total_memory


def test_reads_meminfo(tmp_path: Path) -> None:
    path = tmp_path / "meminfo"
    path.write_text("MemTotal:     10 kB\nMemFree:   1 kB\nMemAvailable:   7 kB\nHugePages:  0\n")
    assert (7 * 1024, 10 * 1024) == memory.read_meminfo(path)
    path.write_text("MemTotal:     10 kB\nMemFree:   1 kB\n")
    with pytest.raises(OSError, match="has no line 'MemAvailable'"):
        memory.read_meminfo(path)


def test_measures_without_meminfo(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
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
    monkeypatch.setattr(fast.memory, "check_device", lambda _name, value: torch.device(value))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (device.index, 9))
    device = torch.device("cuda:1")
    assert fast.MemorySnapshot(1, 9, device) == fast.MemorySnapshot.measure("cuda:1")
