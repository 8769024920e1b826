import inspect
import os
import re
import site
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import FunctionType

import numpy as np
import pytest
import torch

from fast import numba_cuda
from fast.kernels import block_table, cuda, fast_prefill, local_attention, multimodal, step
from fast.kernels.cuda import KERNELS, DeviceFunction, Kernel
from fast.launch import launch_blocks, launch_threads, simulated_by
from fast.numba_cuda import check_entry, make_flatten
from fast.slots import flat
from kvtwin.kernels import ARCHITECTURES, compile_for
from tests.fast.conftest import int32

DTYPES = {1: torch.uint8, 4: torch.int32, 8: torch.int64}
each_kernel = pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)


@each_kernel
def test_a_kernel_says_what_it_reads_and_writes(kernel: Kernel) -> None:
    assert len(inspect.signature(kernel.py_func).parameters) == len(kernel.parameters)
    assert "Reads" in kernel.py_func.__doc__
    assert "rites" in kernel.py_func.__doc__
    names = kernel.py_func.__globals__
    used = [names[name] for name in kernel.py_func.__code__.co_names if name in names]
    assert all(isinstance(one, int | DeviceFunction | type(np) | type(cuda.cuda)) for one in used)


@each_kernel
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_kernel_as_ptx(kernel: Kernel, arch: str) -> None:
    pytest.importorskip("numba_cuda")
    ptx, entry = compile_for(kernel, arch)
    assert [] == re.findall(r"\.f(?:16|32|64)\b", ptx), "it computes with floats"
    assert ".local" not in ptx, "it has local memory"
    # Positions in a caller's table, or of several ranks, may need 64 bits.
    has_ranks = kernel in {
        *(block_table.compute_slot_mapping, block_table.compute_slot_mappings, step.prepare_step),
    }
    divided = {"u32", "u64"} if has_ranks else {"u32"}
    assert set(re.findall(r"\b(?:div|rem)\.(\w+)", ptx)) <= divided
    if kernel in {multimodal.scatter_rows, multimodal.gather_rows}:
        for word in ("v2.[ub]64", "[ub]64", "[ub]32", "[ub]16", "[ub]8"):
            assert re.search(rf"ld\.global\.{word}\b", ptx), word
            assert re.search(rf"st\.global\.{word}\b", ptx), word
    check_entry(kernel, ptx, entry)
    tensors = [
        array and torch.ones([2] * array[0], dtype=DTYPES[array[1]]) for array in kernel.parameters
    ]
    addresses = {tensor.data_ptr() for tensor in tensors if tensor is not None}
    args = [7 if tensor is None else tensor for tensor in tensors]
    words = make_flatten(kernel.parameters)(*args)
    loaded = dict(re.findall(rf"ld\.param\.[ub]64\s+(%\w+), \[{entry}_param_(\d+)\]", ptx))
    pointers = {
        int(loaded[one])
        for one in re.findall(r"cvta\.to\.global\.u64\s+%\w+, (%\w+)", ptx)
        if one in loaded
    }
    assert pointers
    assert pointers <= {number for number, word in enumerate(words) if word in addresses}


@pytest.mark.parametrize("num_columns", [3, 0])
def test_rows_that_a_table_does_not_have(num_columns: int, simulate: Callable[..., None]) -> None:
    table = torch.arange(2 * num_columns, dtype=torch.int32)
    gathered = torch.full((4, 5), 77, dtype=torch.int32)
    with simulated_by(simulate, threads=4):
        launch_blocks(
            local_attention.gather_columns, 4, 1,
            table.view(torch.uint8), num_columns, 1, 2, num_columns,
            int32([1, 2, -1, 0]), int32([1, 0, 0, -2]), gathered.view(-1).view(torch.uint8), 5, 4,
        )  # fmt: skip
    rows = {3: [[4, 5, 5, 5, 5], [0] * 5, [0] * 5, [0, 0, 0, 1, 2]], 0: [[0] * 5] * 4}
    assert rows[num_columns] == gathered.tolist()


def test_a_vector_ends_with_the_table(simulate: Callable[..., None]) -> None:
    table = torch.arange(16, dtype=torch.int32).view(2, 8)[:, :6]  # rows of two vectors of 16 bytes
    gathered = torch.full((2, 4), 77, dtype=torch.int32)
    with simulated_by(simulate, threads=4):
        launch_blocks(
            local_attention.gather_columns, 2, 1, flat(table).view(torch.uint8), 8, 1, *table.shape,
            int32([0, 1]), int32([0, 4]), gathered.view(-1).view(torch.uint8), 4, 16,
        )  # fmt: skip
    assert [[0, 1, 2, 3], [12, 13, 13, 13]] == gathered.tolist()


@pytest.mark.parametrize("step", [1, 3])
def test_positions_of_needed_tokens(step: int, simulate: Callable[..., None]) -> None:
    positions = torch.arange(100, 100 + 4 * step)[::step]
    starts, counted = int32([0, 3, 4]), int32([7, 7, 7])
    gathered = torch.full((3,), 7)
    with simulated_by(simulate, threads=2):
        launch_threads(
            fast_prefill.count_logits_indices, 3, 1, starts, 1, 2, int32([1, 3, 9]), 1, 3, counted,
            flat(positions), step, 4, gathered,
        )  # fmt: skip
    assert [0, 1, 2] == counted.tolist()
    assert [100 + step, 100 + 3 * step, 0] == gathered.tolist()


def test_binding_leaves_the_kernel_alone() -> None:
    pytest.importorskip("numba_cuda")
    kernel = block_table.compute_slot_mapping
    bound = numba_cuda.bind(kernel.py_func)
    assert isinstance(bound, FunctionType)
    assert bound.__globals__["cuda"] is numba_cuda.import_cuda()
    assert kernel.py_func.__globals__["cuda"] is cuda.cuda
    assert isinstance(kernel.py_func.__globals__["find_request"], DeviceFunction)


def test_kernels_are_no_functions() -> None:
    with pytest.raises(AttributeError, match=r"cuda\.grid is for compiled kernels"):
        cuda.cuda.grid(1)
    with pytest.raises(TypeError, match="find_request is called by kernels only"):
        block_table.find_request(None, 1, 1, 0)


@pytest.mark.parametrize("is_imported", [False, True])
def test_numba_cuda_without_its_pth_file(is_imported: bool) -> None:
    """Run Python with the installed packages in `PYTHONPATH`, where it reads no .pth files."""
    spec = pytest.importorskip("numba_cuda").__spec__
    folders = [Path(__file__).parents[2], Path(spec.origin).parents[1], *site.getsitepackages()]
    script = "from fast.numba_cuda import import_cuda; print(import_cuda().__file__)"
    if is_imported:
        script = f"from numba import cuda; {script}"
    done = subprocess.run(  # noqa: S603  # our own
        [sys.executable, "-S", "-c", script],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))},
        capture_output=True,
        text=True,
        check=False,
    )
    if is_imported:
        found = (
            r"ImportError: numba\.cuda is .*/numba/cuda/__init__\.py, expected that of numba-cuda"
        )
        assert re.search(found, done.stderr), done.stderr
    else:
        assert done.stdout.endswith("/numba_cuda/numba/cuda/__init__.py\n"), done.stderr
