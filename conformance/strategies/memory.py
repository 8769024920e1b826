"""Calls of `request_memory`, near the limits of the free memory and of a double."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

import reference
from conformance.coverage.presets import MINIMAL, Preset
from conformance.strategies import cached as st
from conformance.values.call import Arguments, Call

TOTAL_MEMORY: Final = "bytes of memory"
FREE_MEMORY: Final = "bytes that are free"

MAX_INT64 = 2**63 - 1

DEVICES = (None, "cuda:0", "cpu", 3)


def totals(preset: Preset) -> st.SearchStrategy[int]:
    """Return bytes of memory, in and out of the range of ints that a double represents."""
    if preset is MINIMAL:
        return st.integers(0, 100)
    gib = st.integers(1, 2**20).map(lambda n: n * 2**20 + n % 7)
    return st.one_of(gib, st.integers(2**53, 2**62), st.just(MAX_INT64))


def utilizations() -> st.SearchStrategy[Any]:
    """Return shares of memory in (0, 1], as ints and as floats of all widths."""
    plain = st.sampled_from((0.9, 0.5, 0.1, 1.0, 1 / 3, 0.55, 5e-324, 1))
    numpys = st.sampled_from((np.float32(0.9), np.float16(0.1), np.float64(0.7), np.int64(1)))
    return st.one_of(plain, numpys, st.floats(0, 1, exclude_min=True))


@st.composite
def snapshot_calls(draw: st.DrawFn, preset: Preset) -> Call:
    """Draw calls of `MemorySnapshot`."""
    free = draw(preset.sizes(FREE_MEMORY, totals(preset)))
    total = draw(preset.sizes(TOTAL_MEMORY, totals(preset)))
    arguments: Arguments = {"free_memory": free, "total_memory": total}
    if draw(st.booleans()):
        arguments["device"] = draw(st.sampled_from(DEVICES))
    return Call("MemorySnapshot", arguments)


@st.composite
def request_calls(draw: st.DrawFn, preset: Preset) -> Call:
    """Draw calls of `request_memory`: just enough is free, or more."""
    share = draw(utilizations())
    usual = st.just(1) if preset.axis == FREE_MEMORY else totals(preset)
    total = draw(preset.sizes(TOTAL_MEMORY, usual))
    if math.ceil(total * float(share)) > MAX_INT64:
        total //= 2
    requested = math.ceil(total * float(share))
    more = st.one_of(st.just(requested), st.integers(requested, max(total, requested)))
    free = max(draw(preset.sizes(FREE_MEMORY, more)), requested)
    snapshot = reference.MemorySnapshot(free, total, draw(st.sampled_from(DEVICES)))
    arguments: Arguments = {
        "init_snapshot": snapshot,
        "cache_config": reference.CacheConfig(gpu_memory_utilization=share),
    }
    return Call("request_memory", arguments)
