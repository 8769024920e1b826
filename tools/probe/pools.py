"""The pools of valid calls that cases start from; fifty cases share a pool."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import cache
from random import Random
from typing import Any, Final

import ml_dtypes
import numpy as np

import reference
from conformance.checks.registry import contracts
from conformance.coverage.presets import MINIMAL, REAL
from conformance.values.call import Call
from conformance.vectors.drawing import drawn
from tools.probe.calling import Outcome, call_reference
from tools.probe.sites import sites_of

CASES_FOR_A_POOL: Final = 50
"""The number of successive cases that share a pool: a short run draws few calls."""

NUM_MINIMAL, NUM_REAL = 8, 2
"""The numbers of valid calls in a pool, of the presets `MINIMAL` and `REAL`."""

NUM_FOR_OBJECTS: Final = 5
"""The number of calls of each function that are searched for arguments of constructors."""


class Pool:
    """Valid calls of one function, and the outcomes of `reference`.

    Args:
        name: The function.
        number: The number of the pool, which determines its calls.
    """

    def __init__(self, name: str, number: int) -> None:
        self.number = number
        if name in contracts():
            strategy = contracts()[name].calls
            found = drawn(strategy(MINIMAL), NUM_MINIMAL, f"{name} {number}")
            found += drawn(strategy(REAL), NUM_REAL, f"{name} {number} real")
        else:
            found = calls_by_hand().get(name) or _constructor_calls(name)
        self.calls = list({repr((call, call.hints)): call for call in found}.values())
        self._expected: dict[int, Outcome | None] = {}

    def choose(self, random: Random) -> tuple[Call, Outcome | None]:
        """Return a random call, and the outcome of `reference`; None if that takes too long."""
        number = random.randrange(len(self.calls))
        call = self.calls[number]
        if number not in self._expected:
            self._expected[number] = call_reference(call, seconds=10)
        return call, self._expected[number]


@cache
def calls_by_hand() -> dict[str, list[Call]]:
    """Return hand-written calls of functions without a contract, by name."""
    found: dict[str, list[Call]] = {}
    dtypes = (np.int32, np.int64, np.float32, np.bool_, ml_dtypes.bfloat16)
    sizes: tuple[list[int], ...] = ([4], [3, 2], [0], [1, 0, 5], [1000])
    for size in sizes:
        for dtype in dtypes:
            made = {"size": size, "dtype": np.dtype(dtype), "device": "cpu", "pin_memory": False}
            found.setdefault("CpuGpuBuffer", []).append(Call("CpuGpuBuffer", made))
            if dtype is not ml_dtypes.bfloat16:
                found.setdefault("CpuGpuBuffer.np", []).append(Call("CpuGpuBuffer.np", made))
            for method in ("CpuGpuBuffer.copy_to_gpu", "CpuGpuBuffer.copy_to_cpu"):
                for n in (None, 0, size[0]):
                    call = Call(method, {**made, "value": 1, "n": n})
                    found.setdefault(method, []).append(call)
    layouts = (None, "NHD", "HND")
    found["set_kv_cache_layout"] = [
        Call("set_kv_cache_layout", {"cache_layout": layout}) for layout in layouts
    ]
    found["checks"] = [Call("checks", {"enabled": enabled}) for enabled in (True, False)]
    spans = ((0, 1, 0, 4), (2, 2, 0, 0), (1, 5, 7, 19))
    slices = [reference.UBatchSlice(slice(a, b), slice(c, d)) for a, b, c, d in spans]
    found["UBatchSlice"] = [Call("UBatchSlice", vars(part)) for part in slices]
    for method in ("UBatchSlice.is_empty", "UBatchSlice.num_tokens"):
        found[method] = [Call(method, {"self": part}) for part in slices]
    return found


def _constructor_calls(name: str) -> list[Call]:
    """Return calls of a dataclass' constructor that create the objects other functions take."""
    cls = getattr(reference, name)
    fields = {field.name for field in dataclasses.fields(cls) if field.init}
    made = objects_in_calls().get(cls, [])
    calls = [Call(name, {n: v for n, v in vars(value).items() if n in fields}) for value in made]
    return calls[:200] or [Call(name, {})]


@cache
def objects_in_calls() -> dict[type, list[Any]]:
    """Return the dataclass objects in a few calls of all functions, by class."""
    found: dict[type, list[Any]] = {}
    for function, contract in contracts().items():
        for call in drawn(contract.calls(MINIMAL), NUM_FOR_OBJECTS, f"{function} objects"):
            for value in _dataclass_objects(call):
                found.setdefault(type(value), []).append(value)
    return found


def _dataclass_objects(call: Call) -> Iterator[Any]:
    for value in (call.arguments.get("self"), *(site.value for site in sites_of(call))):
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            yield value
