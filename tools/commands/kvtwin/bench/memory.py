"""Measure the memory that a call allocates besides its result, with tracemalloc and torch."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

import torch
from torch.profiler import ProfilerActivity, profile

FREE_BYTES: Final = 64 * 1024
"""Scratch memory that any call may use."""

BYTES_PER_ITEM: Final = 100
"""Scratch for each request and each new token: some integers."""


@dataclass(frozen=True)
class Allocated:
    """The memory that a warm call allocates.

    Attributes:
        result_bytes: The memory of its result.
        scratch_bytes: The peak beyond that.
    """

    result_bytes: int
    scratch_bytes: int


def measure_memory(call: Callable[[], Any]) -> Allocated:
    """Measure what a warm call allocates: NumPy's and Python's memory, and torch's on the CPU.

    The two are measured in separate calls; the sum of their peaks is an upper bound.

    Example:
        >>> import numpy as np
        >>> allocated = measure_memory(lambda: np.ones(10_000) * 2)
        >>> 80_000 <= allocated.result_bytes < 90_000, 80_000 <= allocated.scratch_bytes < 90_000
        (True, True)
    """
    for _ in range(3):
        call()
    numpy_held, numpy_peak = _traced(call)
    torch_held, torch_peak = _profiled(call)
    held = numpy_held + torch_held
    return Allocated(held, max(0, numpy_peak + torch_peak - held))


def _traced(call: Callable[[], Any]) -> tuple[int, int]:
    """Return the bytes of NumPy and Python after a call, and their peak during it."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        result = call()
        after, peak = tracemalloc.get_traced_memory()
        del result
    finally:
        tracemalloc.stop()
    return after - before, peak - before


def _profiled(call: Callable[[], Any]) -> tuple[int, int]:
    """Return the bytes of torch after a call, and their peak during it."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = call()
    kineto: Any = profiler.profiler
    events = [e for e in kineto.kineto_results.events() if e.name() == "[memory]"]
    changes = [e.nbytes() for e in sorted(events, key=lambda event: event.start_ns())]
    totals = list(accumulate(changes, initial=0))
    del result
    return totals[-1], max(totals)


def allowed_scratch(num_items: int) -> int:
    """Return the most scratch of a call for so many requests and tokens."""
    return FREE_BYTES + BYTES_PER_ITEM * num_items


def device_memory(call: Callable[[], Any]) -> Allocated:
    """Measure what a warm call allocates on the current GPU, by torch's allocator."""
    call()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    result = call()
    torch.cuda.synchronize()
    held, peak = torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()
    del result
    return Allocated(held - before, peak - held)
