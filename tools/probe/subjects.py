"""What is probed, by name, and the valid calls from which cases are made."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

import fast
import reference
from conformance.contracts import Call, Contract
from conformance.strategies.presets import MINIMAL, REAL
from conformance.vectors.drawing import drawn
from conformance.vectors.subjects import contracts
from tools.probe.sites import sites_of

NUM_MINIMAL, NUM_REAL = 60, 12
"""Valid calls drawn for each function, of the sizes of tests and of engines."""

NO_FUNCTIONS = {
    "AttentionBackend": "abstract; its subclasses are arguments of others",
    "AttentionCGSupport": "an enum",
    "AttentionMetadata": "an empty class, to be extended",
    "AttentionType": "four constants",
    "KVCacheLayoutType": "a type for annotations",
    "KVSharingFastPrefillMetadata": "a protocol",
    "KV_SHARING_FAST_PREFILL_METADATA_FIELDS": "a constant",
    "NULL_BLOCK_ID": "a constant",
    "PAD_SLOT_ID": "a constant",
    "get_kv_cache_layout": "called by each case of set_kv_cache_layout",
    "warmup": "takes nothing and returns nothing; called once by each worker",
}
"""Public names of `fast` that no case calls, each with the reason."""


@dataclasses.dataclass(frozen=True)
class Subject:
    """A function, and what is stated about it.

    Attributes:
        name: its name; a method's is `Class.method`.
        contract: what it may change, what is compared.
        calls: valid calls.
    """

    name: str
    contract: Contract
    calls: list[Call]

    @property
    def is_compared(self) -> bool:
        """Whether its answers to bad calls are compared with those of `reference`.

        Not of classes that keep what they are given unchecked, and of what hands it through to
        the caller's own builder.
        """
        return bool(self.contract.situations) and ".build_for_" not in self.name


def names() -> list[str]:
    """Return the names of all that is probed, sorted."""
    found = {*contracts(), *_by_hand(), *_constructors()}
    return sorted(found)


def unprobed() -> list[str]:
    """Return public names of `fast` that are neither probed nor have a reason not to be."""
    probed = {name.split(".")[0] for name in names()}
    return sorted(set(fast.__all__) - probed - set(NO_FUNCTIONS))


def prepare(chosen: Sequence[str]) -> None:
    """Draw what several workers need, so that each is forked with it."""
    if set(chosen) & set(_constructors()):
        for function in contracts():
            _few_calls(function)


def make_subject(name: str) -> Subject:
    """Return a function with its valid calls, the same each time.

    Raises:
        ValueError: Nothing of this name is probed.
    """
    contract = contracts().get(name)
    if contract is not None:
        calls = drawn(contract.calls(MINIMAL), NUM_MINIMAL, f"{name} probe")
        calls += drawn(contract.calls(REAL), NUM_REAL, f"{name} probe real")
    elif name in _by_hand():
        calls = _by_hand()[name]
    elif name in _constructors():
        calls = _made_by_strategies(name)
    else:
        raise ValueError(f"{name!r} is unknown")
    distinct = {repr((call, call.hints)): call for call in calls}
    empty = Contract(name, lambda _: None, {})  # type: ignore[arg-type, return-value]  # not drawn
    if name == "BlockTables":  # its sessions are compared, by `SessionProber`
        empty = contract = dataclasses.replace(empty, shows=lambda made: type(made).__name__)
    return Subject(name, contract or empty, list(distinct.values()))


@cache
def _by_hand() -> dict[str, list[Call]]:
    """Return calls of what has no contract, by name."""
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


def _constructors() -> list[str]:
    """Return the public dataclasses, whose constructors are called with what was drawn."""
    contracted = {*contracts(), *_by_hand()}
    return [
        name
        for name in fast.__all__
        if inspect.isclass(getattr(reference, name, None))
        and dataclasses.is_dataclass(getattr(reference, name))
        and name not in contracted
    ]


def _made_by_strategies(name: str) -> list[Call]:
    """Return calls of a constructor: the objects of the class that others are called with."""
    found = []
    cls = getattr(reference, name)
    for contract in contracts().values():
        for call in _few_calls(contract.function):
            for value in _objects(call):
                if type(value) is cls:
                    fields = {f.name for f in dataclasses.fields(cls) if f.init}
                    arguments = {n: v for n, v in vars(value).items() if n in fields}
                    found.append(Call(name, arguments))
    return found[:200] or [Call(name, {})]


@cache
def _few_calls(function: str) -> list[Call]:
    return drawn(contracts()[function].calls(MINIMAL), 20, f"{function} probe objects")


def _objects(call: Call) -> Iterator[Any]:
    own = call.arguments.get("self")
    if dataclasses.is_dataclass(own) and not isinstance(own, type):
        yield own
    for site in sites_of(call):
        if dataclasses.is_dataclass(site.value) and not isinstance(site.value, type):
            yield site.value
