"""Kernels compiled for each kind of GPU, as machine code."""

from __future__ import annotations

import dataclasses
import functools

import pytest

from conformance.generation.profiles import PROFILES, Kind
from conformance.native import launch
from conformance.targets.simulated_launches import native_launches
from conformance.targets.target import TARGETS
from kvtwin.kernels.usage import find_kernels
from tools.bugs.evaluation import all_checks

pytest.importorskip("numba_cuda")

FEW = dataclasses.replace(PROFILES["dev"], other_examples=8)


@pytest.mark.parametrize("arch", ["sm_80", "sm_100", "sm_120"])
def test_kernels_give_the_same_answers(arch: str) -> None:
    """Every kernel, as NVVM compiles it for a GPU, gives the answers of `reference`.

    The conformance run on `native` compiles kernels for sm_90.
    """
    target = dataclasses.replace(
        TARGETS["native"], simulation=functools.partial(native_launches, arch=arch)
    )
    for _, _, check in all_checks():
        if check.has_kernel and check.kind is Kind.SAME_ANSWER:
            for size in check.sizes(target):
                check.bind(target, FEW, size, shrink=False)()
    compiled = {kernel for kernel in find_kernels() if arch in launch.archs_of(kernel)}
    assert set(find_kernels()) == compiled
