import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from fast import numba_launch
from fast.kernels.cuda import Kernel


def double(x: torch.Tensor) -> None:
    """Stand for a kernel."""


class Numba:
    """Stands for numba's `cuda`: notes what is compiled, and what is launched where."""

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
        """Return a decorator that makes a dispatcher."""

        def compile_it(function: Any) -> Any:  # noqa: ANN401  (so is numba's)
            self.compiled.append((function.__name__, signature, self._entered[-1]))
            return self

        return compile_it

    def __getitem__(self, configuration: tuple[Any, ...]) -> Callable[..., None]:
        warnings.warn("numba finds the grid small", UserWarning, stacklevel=2)
        return lambda *args: self.launched.append((self._entered[-1], *configuration, args))

    def external_stream(self, handle: int) -> str:
        """Name a stream."""
        return f"stream {handle}"

    def as_cuda_array(self, tensor: torch.Tensor, sync: bool) -> tuple[int, bool, bool]:
        """Return a value that identifies a tensor's memory."""
        return tensor.data_ptr(), tensor.requires_grad, sync


@pytest.fixture
def numba(monkeypatch: pytest.MonkeyPatch) -> Iterator[Numba]:
    """Put a stand-in in numba's place."""
    numba = Numba()
    monkeypatch.setattr(numba_launch, "import_cuda", lambda: numba)
    monkeypatch.setattr(Kernel, "for_numba", lambda kernel: kernel.py_func)
    monkeypatch.setattr(numba_launch, "current_stream", lambda index: 70 * index)
    yield numba
    numba_launch._dispatcher.cache_clear()
    numba_launch._configured.cache_clear()


def test_a_launch_by_numba(numba: Numba) -> None:
    """A launch is in the GPU's context, on torch's stream, of tensors' memory and Python's ints."""
    kernel = Kernel(double, "void(float32[::1], int64)", 64)
    x = torch.zeros(2, requires_grad=True)
    for _ in range(2):
        numba_launch.launch(kernel, 1, (5, 2), 64, (x, np.int32(3)))
    assert [("double", kernel.signature, 1)] == numba.compiled
    assert [(1, (5, 2), 64, "stream 70", ((x.data_ptr(), False, False), 3))] * 2 == numba.launched
    assert int is type(numba.launched[0][-1][1])


def test_the_default_stream(numba: Numba) -> None:
    """Torch's default stream is numba's, which has no handle."""
    kernel = Kernel(double, "void(int64)", 64)
    numba_launch.launch(kernel, 0, (1, 1), 64, (3,))
    assert [(0, (1, 1), 64, 0, (3,))] == numba.launched


def test_a_kernel_is_loaded_before_it_is_launched(numba: Numba) -> None:
    """What is loaded onto each GPU is compiled then, and launched without being compiled again."""
    kernel = Kernel(double, "void(int64)", 64)
    for index in (1, 0):
        numba_launch.load(kernel, index)
    numba_launch.launch(kernel, 1, (1, 1), 64, (3,))
    assert [("double", "void(int64)", 1), ("double", "void(int64)", 0)] == numba.compiled
