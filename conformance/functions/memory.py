"""The memory of a device, and how much of it an engine may use."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from hypothesis import strategies as st

import reference
from conformance.harness.contract import Arguments, Contract
from conformance.harness.objects import Twin, attempt
from conformance.laws.batches import deferred

if TYPE_CHECKING:
    from conformance.harness.targets import Target

MAX_INT64: Final = 2**63 - 1

DEVICES: Final = (None, "cuda:0", "cpu", 3)

TOTALS: Final = (
    st.integers(0, 100)
    | st.integers(1, 2**20).map(lambda n: n * 2**20 + n % 7)
    | st.integers(2**53, 2**61)  # a double rounds them
    | st.integers(MAX_INT64 - 3, MAX_INT64)
)

SHARES: Final[st.SearchStrategy[Any]] = (
    st.sampled_from((0.9, 0.5, 0.1, 1.0, 1 / 3, 0.55, 5e-324, 1))
    | st.sampled_from((np.float32(0.9), np.float16(0.1), np.float64(0.7), np.int64(1)))
    | st.floats(0, 1, exclude_min=True)
)


def _requests(draw: st.DrawFn) -> Arguments:
    """Draw the memory of a device: just enough is free, or more."""
    total, share = draw(TOTALS), draw(SHARES)
    if math.ceil(total * float(share)) > MAX_INT64:
        total //= 2
    wanted = math.ceil(total * float(share))
    free = draw(st.just(wanted) | st.integers(wanted, max(wanted, total)) | st.just(MAX_INT64))
    snapshot = reference.MemorySnapshot(free, total, draw(st.sampled_from(DEVICES)))
    config = reference.CacheConfig(gpu_memory_utilization=share)
    return {"init_snapshot": snapshot, "cache_config": config}


def _snapshots(draw: st.DrawFn) -> Arguments:
    arguments = {"free_memory": draw(TOTALS), "total_memory": draw(TOTALS)}
    device = draw(st.sampled_from(DEVICES))
    return arguments if device is None else {**arguments, "device": device}


def _made(twin: Twin, **arguments: Any) -> Any:
    numbers = {name: int(n) for name, n in arguments.items() if isinstance(n, np.integer)}
    return twin.function("MemorySnapshot")(**{**arguments, **numbers})


def a_snapshot_can_be_changed(target: Target, arguments: Arguments) -> None:
    """It checks nothing, and is compared by value."""
    make: Any = target.function("MemorySnapshot")
    snapshot, wanted = make(**arguments), make(-1, "many", "meta")
    assert snapshot == make(**arguments) != wanted, "snapshots are not compared by value"
    assert attempt(setattr, snapshot, "free_memory", -1).error is None, "it cannot be changed"
    snapshot.total_memory, snapshot.device = "many", "meta"
    assert snapshot == wanted, f"{snapshot} after a change"


def the_memory_of_the_cpu_is_measured(target: Target, _: Arguments) -> None:
    """An implementation may have `measure`; it refuses what it cannot measure."""
    measure = getattr(target.find("MemorySnapshot"), "measure", None)
    if measure is None:
        return
    for device in ("meta", "cuda:99", "nonsense", 0, b"cpu"):
        error = attempt(measure, device).error
        wanted = ValueError if isinstance(device, str) else TypeError
        assert type(error) is wanted, f"{error!r} for the device {device!r}"
    snapshot, page = measure("cpu"), os.sysconf("SC_PAGE_SIZE")
    total, unused = (os.sysconf(name) * page for name in ("SC_PHYS_PAGES", "SC_AVPHYS_PAGES"))
    assert snapshot.total_memory == total, f"{snapshot.total_memory} bytes, expected {total}"
    # What is available is unused memory, and caches that can be dropped.
    assert unused // 2 <= snapshot.free_memory <= total, f"{snapshot}, {unused} bytes are unused"


CONTRACTS = [
    Contract(
        function="MemorySnapshot",
        calls=st.just(deferred(_snapshots)),
        run=_made,
        properties=(a_snapshot_can_be_changed, the_memory_of_the_cpu_is_measured),
        examples=0.3,
    ),
    Contract(
        function="request_memory",
        calls=st.just(deferred(_requests)),
        hard_cases={
            "just enough is free, and a double rounds it": lambda args: (
                args["init_snapshot"].total_memory > 2**53
                and args["init_snapshot"].free_memory < args["init_snapshot"].total_memory
            ),
        },
        takes_own_objects=True,
    ),
]
