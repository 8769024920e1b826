import contextlib
import functools
import importlib.metadata
import inspect
import os
import re
import site
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import FunctionType, ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch

from fast import direct_launch, numba_cuda
from fast.kernels import (
    block_table,
    causal_conv1d,
    cuda,
    fast_prefill,
    local_attention,
    moves,
    multimodal,
    unsigned,
)
from fast.kernels.cuda import KERNELS, DeviceFunction, Kernel
from fast.launch import launch_blocks, launch_threads, simulated_by
from fast.launchers import load
from fast.sentinels import NULL_BLOCK_ID
from fast.slots import flat
from kvtwin.kernels import ARCHITECTURES, compile_for
from tests.fast.conftest import int32

MODULES = (block_table, causal_conv1d, fast_prefill, local_attention, multimodal)


def test_every_kernel_is_registered() -> None:
    declared = [
        value for module in MODULES for value in vars(module).values() if isinstance(value, Kernel)
    ]
    assert len(declared) >= 13
    assert {id(kernel) for kernel in declared} == {id(kernel) for kernel in KERNELS}
    assert len(KERNELS) == len({kernel.name for kernel in KERNELS})


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_signatures_name_every_parameter(kernel: Kernel) -> None:
    assert len(inspect.signature(kernel.py_func).parameters) == len(kernel.parameters)
    assert "Reads" in kernel.py_func.__doc__
    assert "rites" in kernel.py_func.__doc__


def test_names_in_kernels() -> None:
    allowed = (int, DeviceFunction, type(np), type(cuda.cuda))
    for kernel in KERNELS:
        names = kernel.py_func.__globals__
        used = [names[name] for name in kernel.py_func.__code__.co_names if name in names]
        assert all(isinstance(value, allowed) for value in used), kernel.name


def gather_columns(
    table: torch.Tensor, rows: list[int], first: list[int], num_columns: int
) -> torch.Tensor:
    gathered = torch.full((len(rows), num_columns), 77, dtype=torch.int32)
    launch_blocks(
        local_attention.gather_columns, len(rows), 1, flat(table), *table.stride(), *table.shape,
        int32(rows), int32(first), gathered,
    )  # fmt: skip
    return gathered


def run_columns() -> list[torch.Tensor]:
    """Gather columns of a strided table, past its last and out of all bounds too."""
    table = torch.arange(60, dtype=torch.int32).view(6, 10)[::2, 1::3]
    return [gather_columns(table, [2, 0, 0, 1, 3, -1, 1], [0, 1, 2, 2**31 - 2, 0, 0, -7], 9)]


MASK = (torch.arange(150) % 7 < 5).to(torch.uint8)
NUM_EMBEDS = int(MASK.sum())


def rank() -> tuple[torch.Tensor, torch.Tensor]:
    """Count the embeddings of tiles, and number them."""
    counts, ranks = torch.zeros(19, dtype=torch.int32), torch.zeros(151, dtype=torch.int32)
    launch_threads(multimodal.count_embeds, 19, 1, MASK, 1, 150, counts)
    launch_threads(multimodal.rank_embeds, 19, 1, MASK, 1, 150, counts, ranks)
    return counts, ranks


def run_count() -> list[torch.Tensor]:
    """Count embeddings; how many each tile has depends on the threads."""
    return [rank()[0].sum()]


def run_rank() -> list[torch.Tensor]:
    return [rank()[1]]


def run_scatter() -> list[torch.Tensor]:
    """Put rows of 24 bytes, which begin every 32, where they belong; two blocks for each."""
    embeds = torch.arange(32 * NUM_EMBEDS).to(torch.uint8)
    placeholders = torch.zeros(24 * 150, dtype=torch.uint8)
    launch_threads(
        multimodal.scatter_rows, 16, 2, embeds, 32, NUM_EMBEDS, rank()[1], 150, placeholders,
        3, 2, 8, 0x7FF8000000000000,
    )  # fmt: skip
    return [placeholders]


def run_gather_rows() -> list[torch.Tensor]:
    """Take rows of 6 bytes, 3 more than there are."""
    placeholders = torch.arange(6 * 150).to(torch.uint8)
    embeds = torch.full((6 * (NUM_EMBEDS + 3),), 9, dtype=torch.uint8)
    launch_threads(
        multimodal.gather_rows, 16, 2, placeholders, 6, NUM_EMBEDS + 3, rank()[1], 150, embeds,
        3, 2, 2,
    )  # fmt: skip
    return [embeds]


@pytest.mark.parametrize("run", [run_columns, run_count, run_rank, run_scatter, run_gather_rows])
def test_any_block_and_any_order(
    run: Callable[[], list[torch.Tensor]], simulate: Callable[..., None]
) -> None:
    results = []
    for threads, seed in ((32, 0), (32, 1), (1, 2), (2, 3), (5, 4), (128, 5)):
        with simulated_by(functools.partial(simulate, seed=seed), threads=threads):
            results.append([tensor.tolist() for tensor in run()])
    assert all(results[0] == result for result in results)


def test_which_columns_are_gathered(simulate: Callable[..., None]) -> None:
    with simulated_by(simulate, threads=4):
        [gathered] = run_columns()
        nothing = gather_columns(torch.zeros(2, 0, dtype=torch.int32), [0, 1], [0, 5], 3)
    rows = [[41, 44, 47], [1, 4, 7], [1, 4, 7], [21, 24, 27]]
    assert [*rows[0], *[47] * 6] == gathered[0].tolist()
    assert [4, *[7] * 8] == gathered[1].tolist()
    assert [7] * 9 == gathered[2].tolist()
    assert [27] * 9 == gathered[3].tolist()
    assert [[NULL_BLOCK_ID] * 9] * 2 == gathered[4:6].tolist()  # there are no such rows
    assert [21] * 7 == gathered[6, :7].tolist()
    assert [21, 21, 24][1:] == gathered[6, 7:].tolist()
    assert [[NULL_BLOCK_ID] * 3] * 2 == nothing.tolist()


def test_what_the_scan_says(simulate: Callable[..., None]) -> None:
    with simulated_by(simulate, threads=4):
        counts, ranks = rank()
    assert NUM_EMBEDS == counts.sum()
    before = MASK.cumsum(0) - MASK
    assert [*torch.where(MASK == 1, before, -1).tolist(), NUM_EMBEDS] == ranks.tolist()


@pytest.mark.parametrize("size", [1, 2, 4, 8, 16])
def test_moves(size: int, simulate: Callable[..., None]) -> None:
    source, target = torch.arange(48).to(torch.uint8), torch.full((48,), 99, dtype=torch.uint8)
    names = {"copy_bytes": moves.copy_bytes, "fill_bytes": moves.fill_bytes}

    def move(target: object, source: object, size: int) -> None:
        copy_bytes(target, 0, source, 16, size)  # type: ignore[name-defined]  # noqa: F821  # given below
        fill_bytes(target, 32, 0x0706050403020100, size)  # type: ignore[name-defined]  # noqa: F821  # likewise

    simulate(FunctionType(move.__code__, names), 1, 1, (target, source, size))
    rest = [99] * (16 - size)
    expected = [*range(16, 16 + size), *rest, *[99] * 16, *[k % 8 for k in range(size)], *rest]
    assert expected == target.tolist()


def compiled(kernel: Kernel, arch: str) -> str:
    pytest.importorskip("numba_cuda")
    return compile_for(kernel, arch)[0]


on_all_architectures = pytest.mark.parametrize("arch", ARCHITECTURES)


@on_all_architectures
@pytest.mark.parametrize("kernel", [multimodal.scatter_rows, multimodal.gather_rows])
def test_rows_move_16_bytes_at_once(kernel: Kernel, arch: str) -> None:
    ptx = compiled(kernel, arch)
    for word in ("v2.[ub]64", "[ub]64", "[ub]32", "[ub]16", "[ub]8"):
        assert re.search(rf"ld\.global\.{word}\b", ptx), word
        assert re.search(rf"st\.global\.{word}\b", ptx), word


@on_all_architectures
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_kernels_compute_with_integers(kernel: Kernel, arch: str) -> None:
    assert [] == re.findall(r"\.f(?:16|32|64)\b", compiled(kernel, arch))


@on_all_architectures
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_kernels_use_no_local_memory(kernel: Kernel, arch: str) -> None:
    assert [] == re.findall(r"^.*\.local\b.*", compiled(kernel, arch), re.MULTILINE)


@on_all_architectures
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_kernels_divide_unsigned_32_bits(kernel: Kernel, arch: str) -> None:
    kinds = {"u32", "u64"} if kernel is block_table.compute_slot_mapping else {"u32"}
    assert set(re.findall(r"\b(?:div|rem)\.(\w+)", compiled(kernel, arch))) <= kinds


@pytest.mark.parametrize(
    ("dividend", "divisor", "expected"),
    [
        (7, 3, [2, 1, 3]),
        (6, 3, [2, 0, 2]),
        (0, 5, [0, 0, 0]),
        (2**31 - 1, 2**31 - 1, [1, 0, 1]),
        (2**31 - 1, 2, [2**30 - 1, 1, 2**30]),
    ],
)
def test_division(
    dividend: int, divisor: int, expected: list[int], simulate: Callable[..., None]
) -> None:
    results = torch.zeros(3, dtype=torch.int64)
    names = {"divide": unsigned.divide, "divide_up": unsigned.divide_up}

    def run(results: torch.Tensor, dividend: int, divisor: int) -> None:
        results[0], results[1] = divide(dividend, divisor)  # type: ignore[name-defined]  # noqa: F821  # given below
        results[2] = divide_up(dividend, divisor)  # type: ignore[name-defined]  # noqa: F821  # likewise

    simulate(FunctionType(run.__code__, names), 1, 1, (results, dividend, divisor))
    assert expected == results.tolist()


def test_binding_leaves_the_kernel_alone() -> None:
    pytest.importorskip("numba_cuda")
    kernel = block_table.compute_slot_mapping
    bound = numba_cuda.bind(kernel.py_func)
    assert isinstance(bound, FunctionType)
    assert bound.__globals__["cuda"] is numba_cuda.import_cuda()
    assert kernel.py_func.__globals__["cuda"] is cuda.cuda
    assert isinstance(kernel.py_func.__globals__["find_request"], DeviceFunction)


def test_kernels_are_no_functions() -> None:
    with pytest.raises(AttributeError, match=r"cuda\.grid is for kernels"):
        cuda.cuda.grid(1)
    with pytest.raises(TypeError, match="find_request is called by kernels only"):
        block_table.find_request(None, 1, 1, 0)


def test_without_numba_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    numba_cuda.import_cuda.cache_clear()
    monkeypatch.setitem(sys.modules, "numba_cuda", None)
    with pytest.raises(ImportError, match=r"in a checkout of kvtwin \(import of numba_cuda"):
        load(block_table.move_row, 0)
    monkeypatch.undo()
    numba_cuda.import_cuda.cache_clear()


WHERE_CUDA_IS = """
from fast.numba_cuda import import_cuda
print(import_cuda().__file__)
"""


def run_without_pth_files(script: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the installed packages in `PYTHONPATH`, where it reads no .pth files."""
    spec = pytest.importorskip("numba_cuda").__spec__
    folders = [Path(__file__).parents[2], Path(spec.origin).parents[1], *site.getsitepackages()]
    return subprocess.run(  # noqa: S603  # our own
        [sys.executable, "-S", "-c", script],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))},
        capture_output=True,
        text=True,
        check=False,
    )


def test_numba_cuda_is_found_in_pythonpath() -> None:
    done = run_without_pth_files(WHERE_CUDA_IS)
    assert done.stdout.endswith("/numba_cuda/numba/cuda/__init__.py\n"), done.stderr


def test_numbas_own_cuda_is_refused() -> None:
    done = run_without_pth_files(f"from numba import cuda{WHERE_CUDA_IS}")
    message = (
        r"ImportError: numba\.cuda is .*/numba/cuda/__init__\.py, expected that of numba-cuda in"
    )
    assert re.search(message, done.stderr), done.stderr
    assert "" == done.stdout


TOOLKIT = "kernels need a CUDA toolkit's compiler: set CUDA_HOME to the toolkit's folder"
OLD_NUMPY = f"numba-cuda 0.30.4 does not work with NumPy {np.__version__}: {numba_cuda.PIP_INSTALL}"


class DynamicLibNotFoundError(RuntimeError):
    """A fake of cuda.pathfinder's error of this name."""


@pytest.mark.parametrize("launcher", [direct_launch, numba_cuda])
@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (DynamicLibNotFoundError("no CUDA_HOME"), f"ImportError: {TOOLKIT} (no CUDA_HOME)"),
        (RuntimeError("something else"), "RuntimeError: something else"),
        (AttributeError("no row_stack", obj=np), f"ImportError: {OLD_NUMPY} (no row_stack)"),
        (AttributeError("something else", obj=torch), "AttributeError: something else"),
    ],
)
def test_numba_cannot_compile(
    launcher: ModuleType, error: Exception, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_args: object, **_named: object) -> None:
        raise error

    numba = SimpleNamespace(compile_ptx=fail, jit=fail, gpus={0: contextlib.nullcontext()})
    device = SimpleNamespace(
        set_current=lambda: None, compute_capability=SimpleNamespace(major=9, minor=0)
    )
    core = SimpleNamespace(Device=lambda _: device)
    monkeypatch.setattr(numba_cuda, "import_cuda", lambda: numba)
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "0.30.4")
    monkeypatch.setattr(direct_launch, "_core", lambda: core)
    with pytest.raises(type(error) if expected.endswith("else") else ImportError) as caught:
        launcher.load(Kernel(block_table.move_row.py_func, "void(int64)", 64), 0)
    assert expected == f"{type(caught.value).__name__}: {caught.value}"
