import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fast import launch
from fast.kernels.cuda import Kernel
from fast.launch import (
    flatten,
    launch_blocks,
    launch_threads,
    simulated_by,
    upload,
    uses_kernels,
)


@pytest.fixture
def recorded() -> list[tuple[object, ...]]:
    """Hold what a recording launcher is given."""
    return []


@pytest.fixture
def recorder(recorded: list[tuple[object, ...]]) -> Callable[..., None]:
    """Return a launcher that records."""

    def record(*launched: object) -> None:
        recorded.append(launched)

    return record


def double(x: torch.Tensor) -> None:
    """Stand for a kernel."""


KERNEL = Kernel(double, "void(int32[::1])", threads=64)


def test_threads_are_counted_in_blocks(
    recorded: list[tuple[object, ...]], recorder: Callable[..., None]
) -> None:
    """`launch_threads` rounds up to whole blocks along x, and takes y as it is."""
    x = torch.zeros(3, dtype=torch.int32)
    with simulated_by(recorder, threads=4):
        launch_threads(KERNEL, 9, 2, x, 7)
    assert [(KERNEL, (3, 2), 4, (x, 7))] == recorded


def test_blocks_are_counted_as_they_are(
    recorded: list[tuple[object, ...]], recorder: Callable[..., None]
) -> None:
    """`launch_blocks` launches one block for each place."""
    with simulated_by(recorder, threads=4):
        launch_blocks(KERNEL, 9, 2, 7)
    assert recorded == [(KERNEL, (9, 2), 4, (7,))]


def test_a_simulated_block_is_no_larger_than_the_kernels(
    recorded: list[tuple[object, ...]], recorder: Callable[..., None]
) -> None:
    """A kernel that asks for few threads gets no more from a simulator."""
    with simulated_by(recorder, threads=1000):
        launch_blocks(KERNEL, 1, 1)
    assert recorded[0][2] == 64


@pytest.mark.parametrize(("num_x", "num_y"), [(0, 3), (3, 0), (0, 0)])
def test_no_launch_without_work(
    num_x: int, num_y: int, recorded: list[tuple[object, ...]], recorder: Callable[..., None]
) -> None:
    """CUDA refuses an empty grid, so nothing is launched for one."""
    with simulated_by(recorder):
        launch_threads(KERNEL, num_x, num_y)
        launch_blocks(KERNEL, num_x, num_y)
    assert recorded == []


def test_simulators_nest(recorded: list[tuple[object, ...]], recorder: Callable[..., None]) -> None:
    """The innermost simulator launches, and an error in its block takes it away."""
    x = torch.zeros(1)
    assert not uses_kernels(x)
    with simulated_by(recorder, threads=2):
        with simulated_by(recorder, threads=8):
            launch_blocks(KERNEL, 1, 1)
        with pytest.raises(TypeError), simulated_by(recorder):
            launch_blocks(KERNEL, None, 1)  # type: ignore[arg-type]  # that is the error
        assert uses_kernels(x)
        launch_blocks(KERNEL, 1, 1)
    assert not uses_kernels(x)
    assert [launched[2] for launched in recorded] == [8, 2]


def test_a_gpu_gets_no_cpu_tensor() -> None:
    """Without a simulator a CPU tensor is refused: numba would launch its host pointer."""
    with pytest.raises(ValueError, match=r"double needs tensors on one CUDA device, got \['cpu'\]"):
        launch_blocks(KERNEL, 1, 1, torch.zeros(1, dtype=torch.int32), 3)


def test_words_of_arguments() -> None:
    """Arrays are flattened as numba's kernels take them."""
    x = torch.zeros(2, 3, dtype=torch.int32)
    assert [0, 0, 6, 4, x.data_ptr(), 2, 3, 12, 4, 9] == flatten((x, 9))


def test_flattened_ints_are_pythons() -> None:
    """A NumPy int becomes Python's: the launcher would pass it in its own width."""
    assert [int, int] == [type(word) for word in flatten((np.int32(3), 4))]


class Gpu:
    """Stands for the GPUs: who enters which one's context, and what is launched."""

    def __init__(self) -> None:
        self.entered: list[tuple[int, str]] = []
        self.launched: list[tuple[Any, ...]] = []

    def device(self, index: int) -> SimpleNamespace:
        """Stand for `cuda.core.Device`."""
        name = threading.current_thread().name
        return SimpleNamespace(set_current=lambda: self.entered.append((index, name)))

    def launch(self, *args: object) -> None:
        """Stand for `cuda.core.launch`."""
        self.launched.append(args)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    """Put a stand-in in the place of cuda.core's devices and launches."""
    core = pytest.importorskip("cuda.core")
    gpu, stream = Gpu(), SimpleNamespace(cuda_stream=77)
    monkeypatch.setattr(core, "Device", gpu.device)
    monkeypatch.setattr(core, "launch", gpu.launch)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: stream)
    monkeypatch.setattr(launch, "_stream", lambda index, handle: (index, handle))
    monkeypatch.setattr(launch, "_THREAD", type(launch._THREAD)())
    return gpu


def launch_double(index: int, *args: torch.Tensor | int) -> None:
    """Launch a kernel that is compiled already."""
    kernel = Kernel(double, "void(int32[::1])", threads=64)
    kernel._loaded[index] = "machine code"
    launch._launch_on_gpu(kernel, index, (5, 2), 64, args)


def test_a_launch_on_a_gpu(gpu: Gpu) -> None:
    """A real launch goes to torch's current stream with the kernel of that GPU, once compiled."""
    x = torch.zeros(2, dtype=torch.int32)
    launch_double(1, x, 3)
    [(on, shape, code, *words)] = gpu.launched
    assert (on, code, words) == ((1, 77), "machine code", flatten((x, 3)))
    assert shape.grid == (5, 2, 1)
    assert shape.block == (64, 1, 1)


def test_each_thread_enters_the_context(gpu: Gpu) -> None:
    """A thread's first launch on a GPU enters its context: a new thread of Python's has none."""
    for index in (1, 1, 0, 1):
        launch_double(index, 3)
    other = threading.Thread(target=launch_double, args=(1, 3), name="other")
    other.start()
    other.join()
    this = threading.current_thread().name
    assert gpu.entered == [(1, this), (0, this), (1, "other")]
    assert len(gpu.launched) == 5


def test_upload_to_the_cpu_copies_nothing() -> None:
    """Where host and device are one, the array travels nowhere."""
    array = torch.arange(3).numpy()
    tensor = upload(array, torch.device("cpu"), pin_memory=True)
    assert tensor.data_ptr() == array.ctypes.data
