"""Memory of KV caches and buffers that no batch has: its size, device, alignment, pinning."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import fast
from fast import kv_cache, memory
from tests.fast.conftest import FULL, make_config


class Backend:
    """A backend whose shape is (K/V, blocks, tokens, heads, head size)."""

    @staticmethod
    def get_kv_cache_shape(*sizes: int) -> tuple[int, ...]:
        return (2, *sizes)


def make_view(raw: torch.Tensor) -> torch.Tensor:
    return fast._reshape_kv_cache(make_config((["a"], FULL)), {"a": raw}, {"a": Backend})["a"]


def make_raw(num_bytes: int, device: str = "cpu") -> torch.Tensor:
    return torch.zeros(num_bytes, dtype=torch.int8, device=device)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (make_raw(481)[1:], "is not aligned for float16"),
        (torch.from_numpy(np.zeros(481, np.int8)[1:]), "is not aligned for float16"),
        (torch._neg_view(make_raw(480)), "is a lazy negation"),
        (make_raw(480)[:0], (2, 0, 4, 5, 6)),
        (make_raw(9)[::3][:0], (2, 0, 4, 5, 6)),
        (make_raw(480, "meta"), (2, 1, 4, 5, 6)),
    ],
)
def test_views_of_memory(raw: torch.Tensor, expected: str | tuple[int, ...]) -> None:
    if isinstance(expected, str):
        with pytest.raises(ValueError, match=rf"^kv_cache_raw_tensors\['a'\] {expected}"):
            make_view(raw)
    else:
        cache = make_view(raw)
        assert (raw.device, expected) == (cache.device, tuple(cache.shape))


def test_caches_lie_on_a_device() -> None:
    raws = fast._allocate_kv_cache(make_config((["a"], FULL), tensors=[(7, ["a"])]), "meta")
    assert torch.device("meta") == raws["a"].device


@pytest.mark.parametrize(
    ("changes", "error", "num_allocated"),
    [
        ({"runner_kv_caches": [1]}, ValueError, 0),
        ({"runner_kv_caches": None}, TypeError, 0),
        ({"forward_context": {}}, KeyError, 0),
        ({"num_attn_module": 0}, ValueError, 0),
        ({"attn_backends": {}}, KeyError, 1),
        ({"kernel_block_sizes": [3]}, ValueError, 1),
    ],
)
def test_nothing_is_allocated_for_what_is_refused(
    changes: dict[str, Any],
    error: type[Exception],
    num_allocated: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    layer = SimpleNamespace(kv_cache="old")
    arguments = {
        "runner_kv_caches": [],
        "forward_context": {"0.attn": layer},
        "kv_cache_config": make_config((["0.attn"], FULL), tensors=[(480, ["0.attn"])]),
        "attn_backends": {"0.attn": Backend},
        "device": "cpu",
    }
    allocated: list[object] = []
    allocate = kv_cache._allocate_kv_cache
    monkeypatch.setattr(
        kv_cache, "_allocate_kv_cache", lambda *args: allocated.append(args) or allocate(*args)
    )
    with pytest.raises(error):
        fast.init_kv_cache(**arguments | changes)
    assert ("old", []) == (layer.kv_cache, arguments["runner_kv_caches"])
    assert len(allocated) <= num_allocated


@pytest.mark.parametrize(
    "dtype", ["float16", np.float16, np.dtype("float16"), ml_dtypes.bfloat16, float, None, 2]
)
def test_dtypes_are_torchs(dtype: Any) -> None:
    with pytest.raises(TypeError, match=r"^dtype must be a supported dtype, got "):
        fast.AttentionSpec(16, 3, 10, dtype)
    with pytest.raises(TypeError, match=r"dtypes\[0\] must be a supported dtype"):
        fast.MambaSpec(16, ((1,),), (dtype,))


def test_buffers_are_pinned_where_they_can_be() -> None:
    buffer = fast.CpuGpuBuffer(2, dtype=torch.int64, device=torch.device("cpu"), pin_memory=True)
    assert buffer.cpu.is_pinned() == torch.cuda.is_available()


def test_the_cpu_is_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    snapshot = fast.MemorySnapshot.measure("cpu")
    assert 0 < snapshot.free_memory <= snapshot.total_memory
    assert os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") == snapshot.total_memory
    path = tmp_path / "meminfo"
    path.write_text("MemTotal:     10 kB\nMemFree:   1 kB\nMemAvailable:   7 kB\nHugePages:  0\n")
    assert (7 * 1024, 10 * 1024) == memory.read_meminfo(path)
    path.write_text("MemTotal:     10 kB\nMemFree:   1 kB\n")
    with pytest.raises(OSError, match="has no line 'MemAvailable'"):
        memory.read_meminfo(path)
    # Without such a file:
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "none")
    pages = {"SC_PAGE_SIZE": 4096, "SC_AVPHYS_PAGES": 3, "SC_PHYS_PAGES": 5}
    monkeypatch.setattr(os, "sysconf", lambda name: pages.get(name) or int(name))
    expected = fast.MemorySnapshot(3 * 4096, 5 * 4096, torch.device("cpu"))
    assert expected == fast.MemorySnapshot.measure("cpu")
    del pages["SC_AVPHYS_PAGES"]
    with pytest.raises(OSError, match="does not tell its free memory"):
        fast.MemorySnapshot.measure("cpu")


def test_a_gpu_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast.memory, "check_device", lambda _name, value: torch.device(value))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (device.index, 9))
    device = torch.device("cuda:1")
    assert fast.MemorySnapshot(1, 9, device) == fast.MemorySnapshot.measure("cuda:1")
