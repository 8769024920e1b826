"""One array twice: a buffer on the CPU and its twin on the device."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np
import torch

from conformance.checks.contract_checks import along_axes
from conformance.contracts.check import property_check
from conformance.contracts.evaluation import check_equal, exception_of, is_named
from conformance.coverage.presets import MINIMAL
from conformance.coverage.size_axes import Axis
from conformance.generation.profiles import Kind
from conformance.strategies.buffers import (
    DIMENSIONS,
    NO_NUMPY,
    ROW_LENGTH,
    ROWS,
    Copies,
    copies,
)
from conformance.targets.implementations import is_of_fast
from conformance.targets.target import REFERENCE, Target
from conformance.values.call import Call
from conformance.values.comparison import torch_dtype
from conformance.values.wording import compare_wording

LIMIT = 2**63 - 1
"""The longest possible axis."""

NUM_COPIES = 1000
"""The number of copies of one buffer, enough for an 8-bit counter to wrap."""


def _make(target: Target, example: Copies, **changes: Any) -> Any:
    dtype = example.dtype if target.device is None else torch_dtype(np.dtype(example.dtype))
    keywords = {"dtype": dtype, "device": target.device or "cpu", "pin_memory": True} | changes
    size: Any = keywords.pop("size", example.size)
    return target.lookup("CpuGpuBuffer")(*size, **keywords)


def _wide(target: Target) -> Any:
    """Return a dtype of more than a byte."""
    return np.int16 if target.device is None else torch_dtype(np.dtype(np.int16))


def _synchronize(target: Target) -> None:
    """Wait for the copies of a GPU."""
    if target.device == "cuda":
        torch.cuda.synchronize()


def _play(target: Target, example: Copies) -> list[Any]:
    """Return the defined contents of a buffer's halves after each copy.

    Each array is in a dict whose key says which half it is: `cpu` must be on the CPU.
    """
    buffer = _make(target, example)
    seen = [{"cpu": _copy(buffer.cpu), "gpu": _copy(buffer.gpu)}]
    for half, seed, number in example.copies:
        other = "gpu" if half == "cpu" else "cpu"
        getattr(buffer, half)[...] = seed % 2 if example.dtype is np.bool_ else seed
        copies = (buffer.copy_to_gpu, buffer.copy_to_cpu)
        copy, copy_back = copies if half == "cpu" else copies[::-1]
        copied = copy(number)
        _synchronize(target)  # the copy returns before the pinned half is written
        seen += [{other: _copy(copied)}, {half: _copy(getattr(buffer, half))}]
        copied[...] = 1  # the caller writes to a part of the other half
        back = copy_back(number)
        _synchronize(target)
        seen.append({half: _copy(back)})
    return seen


def _copy(array: Any) -> Any:
    """Return a copy of a half's current contents."""
    return array.copy() if isinstance(array, np.ndarray) else array.clone()


@property_check(
    "CpuGpuBuffer",
    copies,
    goals={
        "a part is copied": lambda e: any(n not in {None, e.size[0]} for _, _, n in e.copies),
        "nothing is copied": lambda e: any(n == 0 for _, _, n in e.copies),
        "copied both ways": lambda e: len({half for half, _, _ in e.copies}) == 2,
        "a dtype that NumPy lacks": lambda e: e.dtype in NO_NUMPY,
        "an empty buffer": lambda e: 0 in e.size,
        "an axis past 2**31": lambda e: max(e.size) >= 2**31,
        "several axes": lambda e: len(e.size) > 1,
    },
)
def test_buffers_copy(target: Target, example: Copies) -> None:
    """A buffer starts as zeros, and a copied part is then equal in both halves.

    The result of a copy is a view: a caller's writes to it are copied back.
    """
    with target.running(checked=True):
        expected, got = _play(REFERENCE, example), _play(target, example)
    check_equal(target, Call("CpuGpuBuffer", vars(example)), expected, got)


test_buffers_copy_of_all_sizes = along_axes(
    test_buffers_copy,
    {
        ROWS: Axis(lambda e: e.size[0], 65_537),
        ROW_LENGTH: Axis(lambda e: e.size[-1] if len(e.size) > 1 else 0, 65_537),
        DIMENSIONS: Axis(lambda e: len(e.size), 32, "NumPy 1 has no more", 1),
    },
    lambda example: example,
)


@property_check("CpuGpuBuffer", copies, presets=[MINIMAL], kind=Kind.CONDITIONS)
def test_buffers_copy_a_thousand_times(target: Target, example: Copies) -> None:
    """Copies are still correct after many copies."""
    number = NUM_COPIES // max(len(example.copies), 1)
    test_buffers_copy.body(target, dataclasses.replace(example, copies=example.copies * number))


@property_check("CpuGpuBuffer", copies)
def test_np_is_a_view_of_cpu(target: Target, example: Copies) -> None:
    """`.np` is a view of `.cpu`, and is refused for dtypes that NumPy lacks."""
    buffer = _make(target, example)
    if example.dtype in NO_NUMPY:
        assert type(exception_of(lambda: buffer.np)) is TypeError
        return
    buffer.np[...] = 1
    assert isinstance(buffer.np, np.ndarray)
    assert buffer.np.dtype == np.dtype(example.dtype)
    assert bool((buffer.cpu == 1).all())


@property_check("CpuGpuBuffer", copies)
def test_buffers_refuse(target: Target, example: Copies) -> None:
    """An impossible size or count, and an invalid dtype, are refused by name."""
    too_many = example.size[0] + 1
    cases: list[tuple[type[Exception], str, Any]] = [
        (ValueError, "n", lambda t: _make(t, example).copy_to_gpu(too_many)),
        (ValueError, "n", lambda t: _make(t, example).copy_to_cpu(too_many)),
        (ValueError, "n", lambda t: _make(t, example).copy_to_gpu(-1)),
        (TypeError, "n", lambda t: _make(t, example).copy_to_gpu(1.0)),
        (ValueError, "size", lambda t: _make(t, example, size=())),
        (ValueError, "size", lambda t: _make(t, example, size=(-1,))),
        (ValueError, "size", lambda t: _make(t, example, size=(0, LIMIT + 1))),
        (ValueError, "size", lambda t: _make(t, example, size=(0, LIMIT, LIMIT))),
        (ValueError, "size", lambda t: _make(t, example, size=(0, LIMIT), dtype=_wide(t))),
        (TypeError, "size", lambda t: _make(t, example, size=(2.0,))),
        (TypeError, "dtype", lambda t: _make(t, example, dtype="nonsense")),
        (TypeError, "pin_memory", lambda t: _make(t, example, pin_memory=1)),
    ]
    for error, name, make in cases:
        refusals: list[Any] = []
        for twin in (REFERENCE, target):
            refusal = exception_of(functools.partial(make, twin))
            assert is_named(error, name, refusal), f"{twin.name}: {refusal!r}"
            refusals.append(refusal)
        is_exact = is_of_fast(target.lookup("CpuGpuBuffer"))
        wording = compare_wording(*refusals, is_exact=is_exact)
        assert wording is None, wording.line


@property_check("CpuGpuBuffer", copies)
def test_an_axis_is_as_long_as_an_int64_counts(target: Target, example: Copies) -> None:
    """A buffer without elements may have an axis of the greatest length."""
    for twin in (REFERENCE, target):
        dtype = np.uint8 if twin.device is None else torch_dtype(np.dtype(np.uint8))
        assert (0, LIMIT) == tuple(_make(twin, example, size=(0, LIMIT), dtype=dtype).cpu.shape)
