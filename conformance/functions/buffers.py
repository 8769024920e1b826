"""A buffer that exists twice: on the host, where a step is prepared, and on the device."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import ml_dtypes
import numpy as np
import torch
from hypothesis import strategies as st

from conformance.harness.contract import Arguments, Contract
from conformance.harness.objects import Device, Twin, attempt, frozen
from conformance.harness.pair import Found, Pair
from conformance.harness.sizes import fit, sizes
from conformance.harness.story import Difference
from conformance.laws.batches import deferred

if TYPE_CHECKING:
    from conformance.harness.targets import Target

DTYPES: Final = (
    *(np.int32, np.int64, np.float32, np.float16, np.bool_, np.uint8),
    *(ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2),
)
"""Dtypes of both twins; NumPy lacks the last three."""

HUGE: Final = ((0, 2**31), (2**40, 0), (0, 2**63 - 1))
"""Shapes without elements."""


@st.composite
def calls(draw: st.DrawFn) -> st.SearchStrategy[Arguments]:
    """Draw a buffer, and copies from one half to the other and back."""
    rows, others = draw(sizes(0, 8193, small=4)), draw(st.lists(sizes(0, small=3), max_size=2))
    size = fit(40_000, rows, *others)
    kind = draw(st.integers(0, 19))
    if kind > 17:
        size = (2,) + (1,) * 31 if kind == 18 else draw(st.sampled_from(HUGE))
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    number = st.none() | st.integers(0, min(size[0], 99)) | st.just(size[0])
    copies = st.lists(st.tuples(st.sampled_from(("cpu", "gpu")), st.integers(0, 7), number))

    def contents(draw: st.DrawFn) -> Arguments:
        options = {"dtype": dtype, "device": Device(), "pin_memory": draw(st.booleans())}
        return {"size": list(size), **options, "copies": draw(copies)}

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

    for half, value in halves.items():
        see(half, value)
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


def a_thousand_copies_are_like_the_first(target: Target, arguments: Arguments) -> None:
    """A buffer still copies when a counter of a byte has wrapped."""
    copies = arguments["copies"]
    if len(copies) != 3 or math.prod(arguments["size"]) > 1000:  # it takes long
        return
    pair = Pair(CONTRACTS[0], target, {**arguments, "copies": copies * 333})
    expected, got = pair.expected(), pair.outcome()
    difference = pair.comparison.difference(expected.value, got.value)
    if got.error is not None or difference is not None:
        raise Found(difference or Difference("the call", got.error, "an answer", "raises"))


CONTRACTS = [
    Contract(
        function="CpuGpuBuffer",
        calls=calls(),
        run=copy_in_turn,
        has_objects=True,
        host=frozenset({"np"}),
        properties=(a_thousand_copies_are_like_the_first,),
        is_affordable=lambda args: not 10**6 < math.prod(args["size"]) < 2**60,
        examples=0.5,
        hard_cases={
            "a part is copied": lambda args: any(
                n not in {None, 0, args["size"][0]} for _, _, n in args["copies"]
            ),
            "a dtype that NumPy lacks": lambda args: args["dtype"].isbuiltin != 1,
            "more than 1,024 rows": lambda args: 1024 < args["size"][0] < 2**20,
        },
    )
]
