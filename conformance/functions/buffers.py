"""A buffer that exists twice: on the host, where a step is prepared, and on the device."""

from __future__ import annotations

import math
from typing import Any, Final

import ml_dtypes
import numpy as np
import torch
from hypothesis import strategies as st

from conformance.harness.contract import Arguments, Contract
from conformance.harness.objects import Device, Twin, attempt, frozen
from conformance.harness.sizes import fit, sizes
from conformance.laws.batches import deferred

DTYPES: Final = (
    *(np.int32, np.int64, np.float32, np.float16, np.bool_, np.uint8),
    *(ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2),
)
"""Dtypes of both twins; NumPy lacks the last three."""

HUGE: Final = ((0, 2**31), (2**40, 0), (0, 2**63 - 1))
"""Shapes without elements."""


@st.composite
def calls(draw: st.DrawFn) -> st.SearchStrategy[Arguments]:
    """Draw a buffer, and copies from one half to the other and back, up to a thousand of them."""
    rows, others = draw(sizes(0, 8193, small=4)), draw(st.lists(sizes(0, small=3), max_size=2))
    size = fit(40_000, rows, *others)
    kind = draw(st.integers(0, 19))
    if kind > 17:
        size = (2,) + (1,) * 31 if kind == 18 else draw(st.sampled_from(HUGE))
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    is_long = draw(st.integers(0, 39)) == 39
    rounds = draw(st.integers(1, 300)) if is_long and math.prod(size) < 1000 else 1
    number = st.none() | st.integers(0, min(size[0], 99)) | st.just(size[0])
    copies = st.lists(st.tuples(st.sampled_from(("cpu", "gpu")), st.integers(0, 7), number))

    def contents(draw: st.DrawFn) -> Arguments:
        options = {"dtype": dtype, "device": Device(), "pin_memory": draw(st.booleans())}
        return {"size": list(size), **options, "copies": draw(copies) * rounds}

    return deferred(contents)


def copy_in_turn(
    twin: Twin, *, size: list[int], copies: list[tuple[str, int, int | None]], **options: Any
) -> list[Any]:
    """Write each half, copy entries to the other, write into these, and copy them back.

    Returns what is defined of each half, after each of these steps.
    """
    buffer = twin.function("CpuGpuBuffer")(*size, **options)
    halves = {"cpu": buffer.cpu, "gpu": buffer.gpu}
    seen: list[Any] = []

    def see(half: str, values: Any) -> None:
        if twin.device == "cuda":  # a copy returns before the half on the CPU is written
            torch.cuda.synchronize()
        seen.append({f"half_{half}": frozen(values)})

    for half in halves:
        see(half, halves[half])
    for half, number, n in copies:
        other = "cpu" if half == "gpu" else "gpu"
        numbers = ((np.arange(math.prod(size)) + number) % 8).reshape(size)
        is_torch = isinstance(halves[half], torch.Tensor)
        halves[half][...] = torch.from_numpy(numbers) if is_torch else numbers
        copied = getattr(buffer, f"copy_to_{other}")(n)
        see(other, copied)
        see(half, halves[half])
        copied[...] = number % 2
        see(half, getattr(buffer, f"copy_to_{half}")(n))
    view = attempt(lambda: buffer.np)
    if view.error is None:
        view.value[...] = 1
        seen.append({"np": view.value})
        see("cpu", buffer.cpu)
    return [*seen, type(view.error)]


CONTRACTS = [
    Contract(
        function="CpuGpuBuffer",
        calls=calls(),
        run=copy_in_turn,
        has_objects=True,
        host=frozenset({"np"}),
        is_affordable=lambda args: not 10**6 < math.prod(args["size"]) < 2**60,
        examples=0.5,
        hard_cases={
            "a part is copied": lambda args: any(
                n not in {None, 0, args["size"][0]} for _, _, n in args["copies"]
            ),
            "a dtype that NumPy lacks": lambda args: args["dtype"].isbuiltin != 1,
            "hundreds of copies": lambda args: len(args["copies"]) > 256,
            "more than 1,024 rows": lambda args: 1024 < args["size"][0] < 2**20,
        },
    )
]
