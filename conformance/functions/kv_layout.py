"""The KV cache layout: the order of tokens and heads in a block, set for the whole process."""

from __future__ import annotations

import functools
import itertools
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
    # Of different shapes: one may be written into another.
    array = st.sampled_from(([], [2.5], ["NHD", "HND"], [0, 1, 2], "NHD", [[1]])).map(np.array)
    text = st.sampled_from(TEXTS) | sizes(0, 9000).map(lambda n: ("NHD" * n)[:n])
    return {"value": draw(text | st.sampled_from((None, *OTHERS)) | array)}


@st.composite
def histories(draw: st.DrawFn) -> st.SearchStrategy[Arguments]:
    """Draw steps of a few kinds, the last ones in another thread; the layout is read after each."""
    number = draw(sizes(1, 40))

    def contents(draw: st.DrawFn) -> Arguments:
        kinds = st.sampled_from(("set", "set", "environment", "attribute"))
        few = st.lists(st.tuples(kinds, st.integers(0, 15)), min_size=1, max_size=4)
        possible, in_this = draw(few), draw(st.sampled_from((1.0, 1.0, 0.7, 0.3)))
        rng, operations = draw(rngs()), list[Operation]()
        for k in range(number):
            kind, at = possible[rng.integers(len(possible))]
            values = (*TEXTS, *((None,) * 8 if kind == "environment" else OTHERS))
            value, on = (*TEXTS[:2], None, *values)[at], int(k > in_this * number)
            operations.append(Operation(kind, {"value": value}, int(k - 1 > in_this * number)))
            operations.append(Operation("get", {}, on))
        return {"operations": operations[draw(st.integers(0, 1)) :]}

    return deferred(contents)


def _do(twin: Twin, step: Operation) -> Any:
    if step.method == "get":
        return twin.function("get_kv_cache_layout")()
    value, change = step.arguments["value"], twin.function("set_kv_cache_layout")
    module: Any = sys.modules[change.__module__]
    if step.method == "set":
        change(value)
    elif step.method == "attribute":
        if not hasattr(module, OVERRIDE):
            raise Unsupported(f"{module.__name__} has no {OVERRIDE}")
        setattr(module, OVERRIDE, value)
    elif value is None:
        os.environ.pop(VARIABLE, None)
    else:
        os.environ[VARIABLE] = value
    return None


def _do_all(twin: Twin, steps: list[Operation]) -> list[Any]:
    """Do some steps in turn; return the answers, and of errors which layouts they name."""
    answers: list[Any] = []
    for step in steps:
        got = attempt(_do, twin, step)
        if isinstance(got.error, Unsupported):
            raise got.error
        named = [text for text in TEXTS[:2] if text in str(got.error)]
        answers.append(got.value if got.error is None else (type(got.error), named))
    return answers


def _play(twin: Twin, *, operations: list[Operation]) -> list[Any]:
    """Do the steps in a process without a layout."""
    change, found = twin.function("set_kv_cache_layout"), list[Any]()
    with LOCK, ThreadPoolExecutor(1) as other:  # it starts a thread when there is work
        before = os.environ.pop(VARIABLE, None)
        change(None)
        try:
            for is_other, steps in itertools.groupby(operations, lambda step: step.on):
                several = functools.partial(_do_all, twin, [*steps])
                found += other.submit(several).result() if is_other else several()
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
            examples=0.2,
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
