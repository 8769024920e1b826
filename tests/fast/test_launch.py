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


def double(x: torch.Tensor) -> None:
    """Stand in for a kernel."""


KERNEL = Kernel(double, "void(int32[::1])", threads=64)


@pytest.mark.parametrize(
    ("launch_them", "threads", "expected"),
    [
        (launch_threads, 4, [((3, 2), 4)]),  # whole blocks along x, and y as it is
        (launch_blocks, 4, [((9, 2), 4)]),  # one block for each place
        (launch_blocks, 1000, [((9, 2), 64)]),  # no more threads than a kernel is launched with
    ],
)
def test_what_a_simulator_launches(
    launch_them: Callable[..., None], threads: int, expected: list[tuple[tuple[int, int], int]]
) -> None:
    x, recorded = torch.zeros(3, dtype=torch.int32), []
    with simulated_by(lambda *launched: recorded.append(launched), threads=threads):
        for num_x, num_y in ((9, 2), (0, 3), (3, 0), (0, 0)):
            launch_them(KERNEL, num_x, num_y, x, 7)
    assert [(KERNEL, *sizes, (x, 7)) for sizes in expected] == recorded


def test_simulators_nest() -> None:
    x, recorded = torch.zeros(1), []

    def recorder(*launched: object) -> None:
        recorded.append(launched)

    assert not uses_kernels(x)
    with simulated_by(recorder, threads=2):
        with simulated_by(recorder, threads=8):
            launch_blocks(KERNEL, 1, 1)
        with pytest.raises(TypeError), simulated_by(recorder):
            launch_blocks(KERNEL, None, 1)  # type: ignore[arg-type]  # that is the error
        assert uses_kernels(x)
        launch_blocks(KERNEL, 1, 1)
    assert not uses_kernels(x)
    assert [8, 2] == [launched[2] for launched in recorded]


def test_a_gpu_gets_no_cpu_tensor() -> None:
    with pytest.raises(ValueError, match=r"double needs tensors on one CUDA device, got \['cpu'\]"):
        launch_blocks(KERNEL, 1, 1, torch.zeros(1, dtype=torch.int32), 3)


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Fake two GPUs, the second one current, and return the list of their launches."""
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
    for index in (1, 0, 1):
        launch_blocks(KERNEL, 2, 3, torch.tensor(index), 7, torch.tensor(index))
    assert [(1, 1), (0, 0), (1, 1)] == [launched[:1] + launched[2:3] for launched in gpus]
    assert [(KERNEL, (2, 3), 64)] * 3 == [(one[1], *one[3:5]) for one in gpus]


def test_tensors_of_two_gpus_are_refused(gpus: list[tuple[Any, ...]]) -> None:
    for tensors in ((torch.tensor(0), torch.tensor(1)), (torch.tensor(1), torch.tensor(-1)), ()):
        with pytest.raises(ValueError, match="double needs tensors on one CUDA device"):
            launch_blocks(KERNEL, 1, 1, *tensors)
    assert [] == gpus
