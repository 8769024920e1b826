import inspect
import sys
from types import FunctionType

import numpy as np
import pytest
import torch

from fast.kernels import block_table, cuda
from fast.kernels.cuda import KERNELS, DeviceFunction, Kernel
from fast.launch import flatten
from tools.kernels import pretended_gpu

SAMPLES = {
    "int32[::1]": torch.zeros(3, dtype=torch.int32),
    "int32[:, ::1]": torch.zeros(2, 3, dtype=torch.int32),
    "int64[::1]": torch.zeros(3, dtype=torch.int64),
    "int64[:, ::1]": torch.zeros(2, 3, dtype=torch.int64),
    "int64": 7,
}


def types_of(kernel: Kernel) -> list[str]:
    """Return the types in a kernel's signature."""
    assert kernel.signature.startswith("void(")
    text = kernel.signature.removeprefix("void(").removesuffix(")")
    return text.replace("[:, ", "[:,").replace(", ", "\n").replace("[:,", "[:, ").split("\n")


def test_every_kernel_is_registered() -> None:
    """What is declared in a module of kernels is found in `KERNELS`."""
    declared = [value for value in vars(block_table).values() if isinstance(value, Kernel)]
    assert len(declared) >= 6
    assert all(kernel in KERNELS for kernel in declared)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_signatures_name_every_parameter(kernel: Kernel) -> None:
    """A signature has a type for each parameter of the function, and the docstring is there."""
    assert len(inspect.signature(kernel.py_func).parameters) == len(types_of(kernel))
    assert "Reads" in kernel.py_func.__doc__
    assert "rites" in kernel.py_func.__doc__


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_kernels_take_the_words_that_are_launched(kernel: Kernel) -> None:
    """The compiled entry has one parameter for each word that `flatten` makes."""
    pytest.importorskip("numba_cuda")
    with pretended_gpu((9, 0)):
        ptx, entry = kernel.compile_ptx((9, 0))
    arguments = [SAMPLES[name] for name in types_of(kernel)]
    assert len(flatten(tuple(arguments))) == ptx.count(f".param .u64 {entry}_param_")


def test_names_in_kernels() -> None:
    """A kernel names NumPy, constants, device functions and `cuda`, and nothing else."""
    allowed = (int, DeviceFunction, type(np), type(cuda.cuda))
    for kernel in KERNELS:
        names = kernel.py_func.__globals__
        used = [names[name] for name in kernel.py_func.__code__.co_names if name in names]
        assert all(isinstance(value, allowed) for value in used), kernel.name


def test_binding_leaves_the_kernel_alone() -> None:
    """Numba's copy has numba's `cuda`; the kernel keeps the placeholder that simulators replace."""
    pytest.importorskip("numba_cuda")
    kernel = block_table.compute_slot_mapping
    bound = kernel.for_numba()
    assert isinstance(bound, FunctionType)
    assert bound.__globals__["cuda"] is cuda.import_cuda()
    assert kernel.py_func.__globals__["cuda"] is cuda.cuda
    assert isinstance(kernel.py_func.__globals__["find_request"], DeviceFunction)


def test_kernels_are_no_functions() -> None:
    """Outside a launch the names in kernels refuse, with a message that says why."""
    with pytest.raises(AttributeError, match=r"cuda\.grid is for kernels"):
        cuda.cuda.grid(1)
    with pytest.raises(TypeError, match="find_request is called by kernels only"):
        block_table.find_request(None, 1, 1, 0)


def test_without_numba_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where numba-cuda is not installed a launch says what to install."""
    cuda.import_cuda.cache_clear()
    monkeypatch.setitem(sys.modules, "numba_cuda", None)
    with pytest.raises(ImportError, match=r"pip install kvtwin\[cuda\]"):
        block_table.move_row.loaded(0)
    monkeypatch.undo()
    cuda.import_cuda.cache_clear()
