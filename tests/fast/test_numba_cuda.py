import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from fast import numba_cuda
from fast.kernels.cuda import KERNELS, Array, Kernel
from fast.numba_cuda import (
    ARRAY_MEMBERS,
    UnfitError,
    array_members,
    check_arrays,
    check_entry,
    make_flatten,
)
from kvtwin.kernels import ARCHITECTURES, compile_for
from tests.fast.conftest import double, make_kernel, words_of_tensor

DTYPES = {1: torch.uint8, 4: torch.int32, 8: torch.int64}


class Numba:
    """A fake of numba's `cuda` that records compilations and launches."""

    def __init__(self) -> None:
        self.compiled: list[tuple[str, str, int]] = []
        self.launched: list[tuple[Any, ...]] = []
        self._entered = [None]
        self.gpus = [self._enter(index) for index in range(2)]

    def _enter(self, index: int) -> Any:  # noqa: ANN401  (a context that can be entered again)
        entered: Any = self._entered

        class Context:
            def __enter__(self) -> None:
                entered.append(index)

            def __exit__(self, *_: object) -> None:
                entered.pop()

        return Context()

    def jit(self, signature: str) -> Callable[..., Any]:
        def compile_it(function: Any) -> Any:  # noqa: ANN401  (so is numba's)
            self.compiled.append((function.__name__, signature, self._entered[-1]))
            return self

        return compile_it

    def __getitem__(self, configuration: tuple[Any, ...]) -> Callable[..., None]:
        warnings.warn("numba finds the grid small", UserWarning, stacklevel=2)
        return lambda *args: self.launched.append((self._entered[-1], *configuration, args))

    def external_stream(self, handle: int) -> str:
        return f"stream {handle}"

    def as_cuda_array(self, tensor: torch.Tensor, sync: bool) -> tuple[int, bool, bool]:
        return tensor.data_ptr(), tensor.requires_grad, sync


@pytest.fixture
def numba(monkeypatch: pytest.MonkeyPatch) -> Iterator[Numba]:
    numba = Numba()
    monkeypatch.setattr(numba_cuda, "import_cuda", lambda: numba)
    monkeypatch.setattr(numba_cuda, "bind", lambda function: function)
    monkeypatch.setattr(numba_cuda, "current_stream", lambda index: 70 * index)
    yield numba
    numba_cuda._dispatcher.cache_clear()
    numba_cuda._configured.cache_clear()


def test_a_launch_by_numba(numba: Numba) -> None:
    kernel = Kernel(double, "void(float32[::1], int64)", 64)
    x = torch.zeros(2, requires_grad=True)
    for _ in range(2):
        numba_cuda.launch(kernel, 1, (5, 2), 64, (x, np.int32(3)))
    assert [("double", kernel.signature, 1)] == numba.compiled
    assert [(1, (5, 2), 64, "stream 70", ((x.data_ptr(), False, False), 3))] * 2 == numba.launched
    assert int is type(numba.launched[0][-1][1])


def test_the_default_stream(numba: Numba) -> None:
    kernel = Kernel(double, "void(int64)", 64)
    numba_cuda.launch(kernel, 0, (1, 1), 64, (3,))
    assert [(0, (1, 1), 64, 0, (3,))] == numba.launched


def test_a_kernel_is_loaded_before_it_is_launched(numba: Numba) -> None:
    kernel = Kernel(double, "void(int64)", 64)
    for index in (1, 0):
        numba_cuda.load(kernel, index)
    numba_cuda.launch(kernel, 1, (1, 1), 64, (3,))
    assert [("double", "void(int64)", 1), ("double", "void(int64)", 0)] == numba.compiled


def test_words_of_arguments() -> None:
    x, y = torch.zeros(5, dtype=torch.int32), torch.zeros(2, 3, dtype=torch.int64)
    flatten = make_flatten(make_kernel().parameters)
    assert (*words_of_tensor(x), *words_of_tensor(y), 9) == flatten(x, y, np.int32(9))
    words = flatten(x[:0], y[:, :0], True)  # the launcher would pass a NumPy int in its own width
    assert [int] * len(words) == [type(word) for word in words]
    assert ((0, 0, 4), (0, 2, 0)) == ((words[2], *words[5:7]), (words[9], *words[12:14]))
    for args in ((x, y), (x, y, 1, 2)):
        with pytest.raises(TypeError, match="positional argument"):
            flatten(*args)


@pytest.mark.parametrize(
    "signature",
    [
        "void(int32)",
        "void(int64[:])",
        "void(int64[:, :, ::1])",
        "void(float32[::1])",
        "int64(int64)",
    ],
)
def test_signatures_without_known_words_are_refused(signature: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"dimensions, not {signature}")):
        _ = Kernel(double, signature, 64).parameters


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_kernels_take_the_words_that_are_launched(kernel: Kernel, arch: str) -> None:
    pytest.importorskip("numba_cuda")
    ptx, entry = compile_for(kernel, arch)
    check_entry(kernel, ptx, entry)
    tensors = [
        array and torch.ones([2] * array[0], dtype=DTYPES[array[1]]) for array in kernel.parameters
    ]
    addresses = {tensor.data_ptr() for tensor in tensors if tensor is not None}
    args = [7 if tensor is None else tensor for tensor in tensors]
    words = make_flatten(kernel.parameters)(*args)
    assert len(words) == len(re.findall(rf"\.param \.u64 .*{re.escape(entry)}_param_\d+", ptx))
    loaded = dict(re.findall(rf"ld\.param\.[ub]64\s+(%\w+), \[{entry}_param_(\d+)\]", ptx))
    pointers = {
        int(loaded[one])
        for one in re.findall(r"cvta\.to\.global\.u64\s+%\w+, (%\w+)", ptx)
        if one in loaded
    }
    assert pointers
    assert pointers <= {number for number, word in enumerate(words) if word in addresses}


def make_ptx(word: str = ".u64") -> str:
    """Return the PTX of `double`, with this type for all parameters."""
    parameters = ",\n".join(f"\t.param {word} double_param_{number}" for number in range(17))
    return f".visible .entry double(\n{parameters}\n)\n{{\n}}"


@pytest.mark.parametrize("word", [".u64", ".u64 .ptr", ".u64 .ptr .align 1", ".u64 .ptr .align 16"])
def test_words_may_be_marked_as_pointers(word: str) -> None:
    check_entry(make_kernel(), make_ptx(word), "double")


@pytest.mark.parametrize(
    ("ptx", "message"),
    [
        *(
            (make_ptx(word), f"double takes 17 words ({word})")
            for word in (".u32 .ptr .align 1", ".u64 .ptr .shared .align 1", ".align 8 .b8")
        ),
        (make_ptx().replace(".u64 double_param_14", ".u32 double_param_14"), "words (.u32, .u64)"),
        (
            make_ptx().replace(",\n\t.param .u64 double_param_16", ""),
            "16 words (.u64), expected 17",
        ),
        (make_ptx().replace(".entry", ".func"), "double takes 0 words (), expected 17 (.u64)"),
    ],
)
def test_other_words_are_refused(ptx: str, message: str) -> None:
    with pytest.raises(UnfitError, match=re.escape(message)):
        check_entry(make_kernel(), ptx, "double")


def test_numba_says_what_is_pinned() -> None:
    pytest.importorskip("numba_cuda")
    check_arrays()
    for array in (Array(1, 1), Array(2, 4), Array(1, 8)):
        assert array_members(array) == ARRAY_MEMBERS


def test_another_array_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba_cuda")
    monkeypatch.setattr(numba_cuda, "array_members", lambda _: ("data", "shape"))
    with pytest.raises(UnfitError, match="an array is data, shape; tested is meminfo, parent"):
        check_arrays()

    def moved(_: Array) -> tuple[str, ...]:
        raise AttributeError("no such name")

    monkeypatch.setattr(numba_cuda, "array_members", moved)
    with pytest.raises(UnfitError, match="numba-cuda does not say what an array is: no such name"):
        check_arrays()
