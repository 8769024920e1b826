"""The checks of `CpuGpuBuffer` with asynchronous copies."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from conformance.strategies.buffers import Copies
from conformance.targets.implementations import Implementation
from conformance.targets.target import REFERENCE, Target
from conformance.test_buffers import _play
from conformance.values.comparison import first_difference

PENDING: list[Callable[[], object]] = []
"""Copies in flight."""


def synchronize() -> None:
    """Complete all copies."""
    while PENDING:
        PENDING.pop(0)()


class SlowBuffer:
    """A buffer whose copies complete at the next synchronisation."""

    def __init__(self, *size: int, dtype: torch.dtype, device: str, pin_memory: bool) -> None:
        del device, pin_memory
        self.cpu, self.gpu = (torch.zeros(size, dtype=dtype) for _ in range(2))

    def copy_to_gpu(self, n: int | None = None) -> torch.Tensor:
        """Start a copy from `cpu`."""
        return self._copy(self.gpu[:n], self.cpu[:n])

    def copy_to_cpu(self, n: int | None = None) -> torch.Tensor:
        """Start a copy from `gpu`."""
        return self._copy(self.cpu[:n], self.gpu[:n])

    def _copy(self, there: torch.Tensor, here: torch.Tensor) -> torch.Tensor:
        PENDING.append(lambda: there.copy_(here))
        return there


def test_copies_are_awaited_before_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU the pinned half is only read or overwritten after its copy has completed."""
    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    slow: Any = ModuleType("slow")
    slow.CpuGpuBuffer = SlowBuffer
    steps = (("cpu", 7, None), ("gpu", 9, 2), ("cpu", 3, 1), ("gpu", 4, None))
    example = Copies((3, 2), np.int32, steps)
    got = _play(Target("cuda", Implementation("slow", slow), "cuda"), example)
    assert first_difference(_play(REFERENCE, example), got) is None
    assert [] == PENDING


def test_one_half_must_be_on_the_cpu_and_the_other_on_the_device() -> None:
    """Of a buffer made for a GPU whose halves are both on the CPU, only `gpu` is wrong."""
    buffer = {"cpu": torch.zeros(1), "gpu": torch.zeros(1)}
    expected = {half: np.zeros(1, np.float32) for half in buffer}
    found = first_difference(expected, buffer, device="cuda")
    assert found is not None
    assert "result['gpu'].device = cpu, but should be cuda" == found.line
