"""The KV cache layout: the order of tokens and heads in a block, set for the whole process."""

from __future__ import annotations

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import numpy as np
from hypothesis import strategies as st

from conformance.adapters import Unsupported
from conformance.harness.contract import Arguments, Contract
from conformance.harness.objects import Operation, Twin, attempt
from conformance.harness.sizes import rngs, sizes
from conformance.laws.batches import deferred

VARIABLE: Final = "VLLM_KV_CACHE_LAYOUT"
OVERRIDE: Final = "_KV_CACHE_LAYOUT_OVERRIDE"
"""The attribute of kvtwin's modules, and of vLLM's, that engines set."""

TEXTS: Final = ("NHD", "HND", "nhd", "", "HND ", "NHD,HND", "DHN", "None")
OTHERS: Final = (0, True, 1.5, b"NHD", ["NHD"], ("NHD", "HND"), {"NHD": 1}, str, object())

LOCK: Final = threading.RLock()
"""Held by whoever changes the layout of the process."""


def _valid(draw: st.DrawFn) -> Arguments:
    """Draw values of any type; arrays stay NumPy's, whose comparison has no truth value."""
    array = st.sampled_from(([0, 1], [], [2.5], 1, ["NHD", "HND"], "NHD")).map(np.array)
    text = st.sampled_from(TEXTS) | sizes(0, 9000).map(lambda n: ("NHD" * n)[:n])
    return {"value": draw(text | st.sampled_from((None, *OTHERS)) | array)}


@st.composite
def histories(draw: st.DrawFn) -> st.SearchStrategy[Arguments]:
    """Draw steps, of a few kinds, in this or in another thread; the layout is read after each."""
    number = draw(sizes(1, 300))

    def contents(draw: st.DrawFn) -> Arguments:
        kinds = st.sampled_from(("set", "set", "environment", "attribute"))
        few = st.lists(st.tuples(kinds, st.integers(0, 15)), min_size=1, max_size=4)
        possible, threads = draw(few), draw(st.sampled_from((0, 0, 1)))
        rng, operations = draw(rngs()), list[Operation]()
        for _ in range(number):
            kind, at = possible[rng.integers(len(possible))]
            values = (*TEXTS, *((None,) * 8 if kind == "environment" else OTHERS))
            value = (*TEXTS[:2], None, *values)[at]
            operations.append(Operation(kind, {"value": value}))
            operations.append(Operation("get", {}, on=int(rng.integers(threads + 1))))
        return {"operations": operations[draw(st.integers(0, 1)) :]}

    return deferred(contents)


def _play(twin: Twin, *, operations: list[Operation]) -> list[Any]:
    """Do the steps in a process without a layout; return the answers, of errors what they name."""
    get, change = (twin.function(f"{verb}_kv_cache_layout") for verb in ("get", "set"))
    module: Any = sys.modules[change.__module__]

    def do(step: Operation) -> Any:
        if step.method == "get":
            return get()
        value = step.arguments["value"]
        if step.method == "set":
            return change(value)
        if step.method == "attribute":
            if not hasattr(module, OVERRIDE):
                raise Unsupported(f"{module.__name__} has no {OVERRIDE}")
            setattr(module, OVERRIDE, value)
        elif value is None:
            os.environ.pop(VARIABLE, None)
        else:
            os.environ[VARIABLE] = value
        return None

    found: list[Any] = []
    with LOCK, ThreadPoolExecutor(1) as other:  # it starts a thread when there is work
        before = os.environ.pop(VARIABLE, None)
        change(None)
        try:
            for step in operations:
                got = other.submit(attempt, do, step).result() if step.on else attempt(do, step)
                if isinstance(got.error, Unsupported):
                    raise got.error
                named = [text for text in TEXTS[:2] if text in str(got.error)]
                found.append(got.value if got.error is None else (type(got.error), named))
        finally:
            change(None)
            os.environ.pop(VARIABLE, None)
            if before is not None:
                os.environ[VARIABLE] = before
    return found


def _steps(arguments: Arguments, kind: str) -> list[Any]:
    return [step.arguments["value"] for step in arguments["operations"] if step.method == kind]


CONTRACTS = [
    Contract(
        function="is_valid_kv_cache_layout",
        calls=st.just(deferred(_valid)),
        host=frozenset({"value"}),
        examples=0.5,
    ),
    *[
        Contract(
            function=function,
            calls=histories(),
            run=_play,
            examples=0.5,
            hard_cases={
                "more than 16 layouts are set in a row": lambda args: (
                    len(_steps(args, "set")) > 16 and None not in _steps(args, "set")
                ),
                "set, and in the environment": lambda args: (
                    "HND" in _steps(args, "set") and "NHD" in _steps(args, "environment")
                ),
            },
        )
        for function in ("get_kv_cache_layout", "set_kv_cache_layout")
    ],
]
