"""Kernels compiled for each kind of GPU, as machine code."""

from __future__ import annotations

import contextlib
import functools
import sys
from typing import Any

import pytest

from conformance.functions import contracts
from conformance.harness import targets
from conformance.harness.checks import PROFILES, answers
from conformance.harness.launches import native_launches
from conformance.native import compiled, launch
from fast import numba_cuda
from kvtwin.kernels import find_kernels

pytest.importorskip("numba_cuda")


@pytest.mark.parametrize("arch", ["sm_80", "sm_120"])
def test_kernels_give_the_same_answers(arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    launches = functools.partial(native_launches, arch=arch)
    monkeypatch.setattr(targets, "native_launches", launches)
    for contract in contracts():
        if contract.has_kernel:
            answers(contract, targets.Target("native"), PROFILES["brief"])()
    compiled = {kernel for kernel in find_kernels() if arch in launch.archs_of(kernel)}
    assert set(find_kernels()) == compiled


def test_numba_is_left_as_it_was() -> None:
    def functions() -> list[Any]:
        modules = [module for name, module in sys.modules.items() if name.startswith("numba.cuda")]
        return [vars(module).get("get_current_device") for module in modules]

    numba_cuda.import_cuda()
    before = functions()
    with contextlib.suppress(ZeroDivisionError), compiled.pretended_gpu((9, 0)):
        assert before != functions()
        raise ZeroDivisionError
    assert before == functions()
