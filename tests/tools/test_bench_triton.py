"""The Triton kernels of `kvtwin bench --device cuda`, without a GPU: interpreted, and compiled.

Triton decides when a kernel is defined whether it is interpreted, so the modules are imported anew.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import kvtwin.bench
from conformance.adapters.implementations import Implementation
from kvtwin.bench.jobs import KINDS, Batch, Job, Side, make_batch
from kvtwin.bench.measure import WrongAnswerError, compare
from kvtwin.bench.steps import JOBS

triton = pytest.importorskip("triton", reason="Triton comes with .[bench-gpu]")

ON_HOST = {
    "split_decodes_and_prefills",
    "split_decodes_prefills_and_extends",
    "reorder_batch_to_split_decodes_and_prefills",
    "create_ubatch_slices",
    "split_attn_metadata",
}
"""Functions without a baseline on a GPU."""

NUM_REQS = 5


@contextmanager
def imported(*, is_interpreted: bool) -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TRITON_INTERPRET", str(int(is_interpreted)))
        forget()
        yield importlib.import_module("kvtwin.bench.triton_baseline")
        forget()


def forget() -> None:
    for name in ("triton_kernels", "triton_baseline"):
        sys.modules.pop(f"kvtwin.bench.{name}", None)
        vars(kvtwin.bench).pop(name, None)


def small_batch(kind: str) -> Batch:
    """Make a batch in which no row has its own number as its request slot."""
    made = make_batch(kind, NUM_REQS)
    return dataclasses.replace(made, arrival=np.roll(made.arrival, 2))


def side_of(module: ModuleType) -> Side:
    return Side("triton", Implementation("triton", module))


@pytest.fixture(scope="module")
def interpreted() -> Iterator[ModuleType]:
    pytest.importorskip("triton", minversion="3.7", reason="older interpreters need NumPy 2.3")
    with imported(is_interpreted=True) as module:
        yield module


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name)
def test_kernels_equal_reference(interpreted: ModuleType, job: Job, kind: str) -> None:
    calls = compare(job, small_batch(kind), [side_of(interpreted)])
    assert len(calls) == (job.function not in ON_HOST)


@pytest.mark.parametrize(
    ("function", "right", "wrong"),
    [
        ("BlockTables.compute_slot_mappings", "position % block_size,", "position % 8,"),
        ("BlockTables.gather_block_tables", "mask=at < count", "mask=at < count - 1"),
        ("post_update", "tl.load(rows + row).to(tl.int64)", "row.to(tl.int64)"),
        ("compute_causal_conv1d_metadata", "fill(offsets, start, length", "fill(offsets, start, 0"),
    ],
)
def test_a_wrong_kernel_is_found(
    interpreted: ModuleType,
    function: str,
    right: str,
    wrong: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = Path(interpreted.kernels.__file__).read_text()
    assert right in text
    path = tmp_path / "kernels.py"
    path.write_text(text.replace(right, wrong))
    spec = importlib.util.spec_from_file_location("kernels", path)
    assert spec is not None
    assert spec.loader is not None
    planted = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(planted)
    monkeypatch.setattr(interpreted, "kernels", planted)
    job = [job for job in JOBS if job.function == function][-1]
    with pytest.raises(WrongAnswerError, match=rf"triton: {job.function}.*, mixed, {NUM_REQS}"):
        compare(job, small_batch("mixed"), [side_of(interpreted)])


def test_kernels_compile_for_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is compiled as the benchmark launches it, to machine code."""
    from triton.backends.compiler import GPUTarget  # noqa: PLC0415
    from triton.compiler import ASTSource  # noqa: PLC0415
    from triton.runtime.jit import JITFunction  # noqa: PLC0415

    pointers = {torch.int32: "*i32", torch.int64: "*i64"}
    compiled: dict[tuple[Any, ...], Any] = {}

    def run(self: Any, *args: Any, grid: Any, warmup: bool) -> None:
        del grid, warmup
        types, constants = {}, {}
        for number, (parameter, value) in enumerate(zip(self.params, args, strict=True)):
            is_one = type(value) is int and value == 1 and not parameter.do_not_specialize
            if parameter.is_constexpr or is_one:
                types[parameter.name], constants[(number,)] = "constexpr", value
            else:
                is_tensor = isinstance(value, torch.Tensor)
                types[parameter.name] = pointers[value.dtype] if is_tensor else "i32"
        key = self.__name__, tuple(types.values()), tuple(constants.items())
        if key not in compiled:
            source = ASTSource(self, types, constants)
            compiled[key] = triton.compile(source, target=GPUTarget("cuda", 90, 32))

    monkeypatch.setattr(JITFunction, "run", run)
    with imported(is_interpreted=False) as module:
        side = side_of(module)
        for job in JOBS:
            if job.function not in ON_HOST:
                job.prepare(small_batch("mixed"), side).observe()
        names = {
            name for name, kernel in vars(module.kernels).items() if type(kernel) is JITFunction
        }
    assert {name for name, *_ in compiled} == names - {"fill", "write_slots"}
    assert all(kernel.asm["cubin"] for kernel in compiled.values())
