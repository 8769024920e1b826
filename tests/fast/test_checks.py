import contextlib
import importlib.util
from collections.abc import Callable
from contextvars import Context
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import fast
from fast import _checks, checked_mode
from fast._native.memory import locate


def load_checks_anew() -> ModuleType:
    """Run `fast/checked_mode.py` again, as at the first import."""
    spec = importlib.util.spec_from_file_location("checks_anew", Path(checked_mode.__file__))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("value", [None, "1", "0", ""])
def test_environment_variable(value: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FAST_CHECKS", raising=False)
    if value is not None:
        monkeypatch.setenv("FAST_CHECKS", value)
    assert (value == "1") is load_checks_anew().is_checked()


@pytest.mark.parametrize("value", ["yes", "true", "2", " 1", "on"])
def test_unknown_values_of_the_variable(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAST_CHECKS", value)
    with pytest.raises(ValueError, match=f"FAST_CHECKS is '{value}', expected '0' or '1'"):
        load_checks_anew()


def test_checks_act_at_once_and_restore() -> None:
    def run() -> None:
        before = checked_mode.is_checked()
        switch = fast.checks(not before)
        assert checked_mode.is_checked() is not before
        with contextlib.suppress(KeyError), switch, fast.checks(enabled=before):
            assert checked_mode.is_checked() is before
            raise KeyError
        assert checked_mode.is_checked() is before

    Context().run(run)  # outside of any block


def test_checks_takes_a_bool() -> None:
    with pytest.raises(TypeError, match="enabled must be a bool, got 1 of int"):
        fast.checks(1)  # type: ignore[arg-type]  # that is the test


def test_strided_values_are_checked_where_they_stand() -> None:
    values = np.array([0, -9, 5, -9, 4, -9])[::2]
    with pytest.raises(ValueError, match=r"query_start_loc\[2\] is 4, less than 5 before it"):
        _checks.check_starts("query_start_loc", values)


MAKERS: dict[str, Callable[[Any], object]] = {
    "BlockTables": lambda device: fast.BlockTables([1], 2, 2, 2, device, pin_memory=False),
    "CpuGpuBuffer": lambda device: fast.CpuGpuBuffer(
        2, dtype=torch.int8, device=device, pin_memory=False
    ),
    "MemorySnapshot.measure": fast.MemorySnapshot.measure,
    "_allocate_kv_cache": lambda device: fast._allocate_kv_cache(
        fast.KVCacheConfig(1, [], []), device
    ),
    "init_kv_cache": lambda device: fast.init_kv_cache(
        [], {}, fast.KVCacheConfig(1, [], []), {}, device
    ),
}


@pytest.mark.parametrize("device", ["nonsense", "cpu:x", "cuda:99", "hpu", "vulkan", "xla", "ve"])
@pytest.mark.parametrize("name", MAKERS)
def test_devices_that_torch_lacks(name: str, device: str) -> None:
    for given in (device, *([] if device in {"nonsense", "cpu:x"} else [torch.device(device)])):
        with pytest.raises(ValueError, match=r"^device is .*, expected a device that torch has"):
            MAKERS[name](given)


def test_host_copies_are_on_the_host() -> None:
    elsewhere = torch.zeros(2, dtype=torch.int32, device="meta")
    with pytest.raises(ValueError, match="seq_lens_cpu must be on the CPU, got meta"):
        locate("seq_lens_cpu", elsewhere, torch.int32, 2)


def test_later_switches_outlive_a_dropped_one() -> None:
    mode = checked_mode.ProcessMode(enabled=False)
    first, second, third = (fast.checks.__new__(fast.checks) for _ in range(3))
    for by, enabled in ((first, True), (second, False), (third, True)):
        mode.switch(by, enabled)
    del first, by
    mode.take_back(third)
    assert not mode.enabled
