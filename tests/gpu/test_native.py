"""Kernels on the GPU and natively: the same launches leave the same arrays."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

from conformance.native import launch_natively
from fast.launch import launcher
from kvtwin.kernels import ELEMENTS, run_standard_batches

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")


def test_kernels_do_the_same_natively() -> None:
    major, minor = torch.cuda.get_device_capability()
    launched: Counter[str] = Counter()

    def launch_both(kernel: Any, grid: tuple[int, int], threads: int, args: Any) -> None:
        copies = [
            arg.to("cpu", copy=True) if isinstance(arg, torch.Tensor) else arg for arg in args
        ]
        launcher().launch(kernel, torch.cuda.current_device(), grid, threads, args)
        arch, seed = f"sm_{major}{minor}", launched[kernel.name]
        launch_natively(kernel, grid, threads, copies, seed=seed, has_shadow=False, arch=arch)
        launched[kernel.name] += 1
        for number, (arg, copy) in enumerate(zip(args, copies, strict=True)):
            if isinstance(arg, torch.Tensor):
                assert torch.equal(copy, arg.cpu()), f"{kernel.name}: argument {number} differs"

    for _ in range(10):
        run_standard_batches("cuda", launch_both)
    assert set(ELEMENTS) == set(launched)
