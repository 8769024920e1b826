"""Large launches: every kernel has them, with every property."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

import fast.kernels
from conformance import test_large_launches as large
from fast.kernels.cuda import KERNELS


def test_every_kernel_is_launched() -> None:
    """The table of the check has all kernels of `fast`."""
    for module in pkgutil.iter_modules(fast.kernels.__path__):
        importlib.import_module(f"fast.kernels.{module.name}")
    listed = {kernel for kernels in large.KERNELS.values() for kernel in kernels}
    assert {kernel.name for kernel in KERNELS} == listed
    assert set(large.LAUNCHES) == set(large.KERNELS)


@pytest.mark.parametrize("function", large.LAUNCHES)
def test_launches_have_long_rows_and_many_requests(function: str) -> None:
    """Some launch has a row longer than its block, and some more than 64 requests."""
    made = large.LAUNCHES[function]()
    assert [64, 128] == [launches.threads for launches in made]
    assert all(launches.row > launches.threads for launches in made)
    assert max(launches.num_reqs for launches in made) > 64
