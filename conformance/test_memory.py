"""The memory of a device, and how much of it an engine may use."""

from __future__ import annotations

import contextlib
import os
from fractions import Fraction
from typing import Any

import numpy as np

from conformance.contracts.check import property_check
from conformance.contracts.contract import Contract
from conformance.contracts.evaluation import exception_of
from conformance.coverage.size_axes import Axis
from conformance.execution.invocations import Invocation
from conformance.invalid_inputs.memory import REQUEST_INVALID_INPUTS
from conformance.strategies import cached as st
from conformance.strategies.memory import (
    FREE_MEMORY,
    MAX_INT64,
    TOTAL_MEMORY,
    request_calls,
    snapshot_calls,
)
from conformance.targets.target import Target
from conformance.values.call import Call

test_memory_snapshot = Contract(
    "MemorySnapshot",
    snapshot_calls,
    {
        "more is free than there is": lambda call: call["free_memory"] > call["total_memory"],
        "no device": lambda call: call.get("device") is None,
        "a device": lambda call: call.get("device") is not None,
    },
    axes={
        TOTAL_MEMORY: Axis(lambda call: call["total_memory"], MAX_INT64),
        FREE_MEMORY: Axis(lambda call: call["free_memory"], MAX_INT64),
    },
)


def _share(call: Call) -> object:
    return call["cache_config"].gpu_memory_utilization


def _total(call: Call) -> int:
    return int(call["init_snapshot"].total_memory)


def _exact(call: Call) -> Fraction:
    """Return the product without rounding."""
    return _total(call) * Fraction(float(_share(call)))  # type: ignore[arg-type]  # a number


test_request_memory = Contract(
    "request_memory",
    request_calls,
    {
        "no memory at all": lambda call: _total(call) == 0,
        "just enough is free": lambda call: (
            call["init_snapshot"].free_memory - 1 < _exact(call) and _total(call) > 0
        ),
        "the whole memory is requested": lambda call: _share(call) == 1,
        "a share that is an int": lambda call: isinstance(_share(call), int | np.integer),
        "a share in single precision": lambda call: isinstance(_share(call), np.float32),
        "a product that is not an int": lambda call: _exact(call).denominator > 1,
        "a product that a double rounds": lambda call: (
            Fraction(_total(call) * float(_share(call))) != _exact(call)  # type: ignore[arg-type]  # a number
        ),
        "past 2**53": lambda call: _total(call) > 2**53,
        "the most that there can be": lambda call: _total(call) >= MAX_INT64 // 2,
    },
    axes={
        TOTAL_MEMORY: Axis(_total, MAX_INT64 // 2),
        FREE_MEMORY: Axis(lambda call: call["init_snapshot"].free_memory, MAX_INT64, first=1),
    },
    invalid_inputs=REQUEST_INVALID_INPUTS,
    takes_objects=True,
)


@property_check("request_memory", request_calls)
def test_the_least_int_that_holds_the_share(target: Target, call: Call) -> None:
    """The result is the smallest int that is at least the product in double precision."""
    found = Invocation(target, call).run()
    product = float(_total(call)) * float(_share(call))  # type: ignore[arg-type]  # a number
    assert type(found) is int
    assert found - 1 < product <= found
    assert found <= call["init_snapshot"].free_memory


@property_check("MemorySnapshot", lambda _: st.just("cpu"))
def test_a_snapshot_holds_what_it_is_given(target: Target, device: str) -> None:
    """A snapshot checks nothing, can be changed, and compares by value."""
    make = target.lookup("MemorySnapshot")
    snapshot = make(-1, "many", device)
    assert make(free_memory=-1, total_memory="many", device=device) == snapshot
    with contextlib.suppress(AttributeError):
        snapshot.free_memory = 7
    assert (snapshot.free_memory, snapshot.total_memory, snapshot.device) == (7, "many", device)
    assert make(1, 2).device is None


DEVICES = ("cpu", "meta", "cuda:99", "nonsense", 0, b"cpu")
"""A device that can be measured, devices that cannot, and values that are not devices."""


@property_check("MemorySnapshot", lambda _: st.sampled_from(DEVICES))
def test_what_is_measured_is_what_the_system_says(target: Target, device: Any) -> None:
    """The memory of the CPU is measured; a device that does not exist is refused."""
    make = target.lookup("MemorySnapshot")
    if not hasattr(make, "measure"):
        return  # only implementations with devices
    if device != "cpu":
        error = ValueError if isinstance(device, str) else TypeError
        assert error is type(exception_of(lambda: make.measure(device)))
        return
    snapshot = make.measure(device)
    page = os.sysconf("SC_PAGE_SIZE")
    assert snapshot.total_memory == os.sysconf("SC_PHYS_PAGES") * page
    # Available memory is free memory plus caches that can be dropped.
    assert os.sysconf("SC_AVPHYS_PAGES") * page // 2 <= snapshot.free_memory
    assert snapshot.free_memory <= snapshot.total_memory
    assert snapshot.free_memory % 1024 == 0  # the system counts in KiB, or in pages
