from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from fast import launch
from fast.kernels.cuda import Kernel
from fast.launch import (
    launch_blocks,
    launch_threads,
    simulated_by,
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
    """A kernel launched with few threads gets no more from a simulator."""
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


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Put stand-ins in the place of two GPUs, the second current; return what is launched there."""
    launched: list[tuple[Any, ...]] = []
    current = [1]

    @contextmanager
    def entered(index: int) -> Iterator[None]:
        current.append(index)
        yield
        current.pop()

    def launch_on_gpu(*args: object) -> None:
        launched.append((current[-1], *args))

    monkeypatch.setattr(launch, "current_device", lambda: current[-1])
    monkeypatch.setattr(torch.cuda, "device", entered)
    monkeypatch.setattr(launch, "launch_on_gpu", launch_on_gpu)
    monkeypatch.setattr(torch.Tensor, "get_device", lambda tensor: tensor.item())
    return launched


def test_the_tensors_gpu_is_current(gpus: list[tuple[Any, ...]]) -> None:
    """A launch makes the GPU of its tensors the current one, and takes the ints as they are."""
    for index in (1, 0, 1):
        launch_blocks(KERNEL, 2, 3, torch.tensor(index), 7, torch.tensor(index))
    assert [(1, 1), (0, 0), (1, 1)] == [launched[:1] + launched[2:3] for launched in gpus]
    assert [(KERNEL, (2, 3), 64)] * 3 == [(one[1], *one[3:5]) for one in gpus]


def test_tensors_of_two_gpus_are_refused(gpus: list[tuple[Any, ...]]) -> None:
    """Tensors on two GPUs, or on none, are no arguments of one launch."""
    for tensors in ((torch.tensor(0), torch.tensor(1)), (torch.tensor(1), torch.tensor(-1)), ()):
        with pytest.raises(ValueError, match="double needs tensors on one CUDA device"):
            launch_blocks(KERNEL, 1, 1, *tensors)
    assert [] == gpus
