import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fast import direct_launch, numba_cuda
from fast.direct_launch import check_installed
from fast.kernels.cuda import Kernel
from fast.numba_cuda import UnfitError, make_flatten
from tests.fast.conftest import double, make_kernel, words_of_tensor


@pytest.mark.parametrize(
    ("package", "version", "message"),
    [
        ("numba-cuda", "0.29.9", r"numba-cuda is 0\.29\.9, tested is 0\.30 to below 0\.31"),
        ("numba-cuda", "0.31.0", "numba-cuda is 0.31.0"),
        ("numba-cuda", "1.0", "numba-cuda is 1.0"),
        ("numba-cuda", "", "numba-cuda is not installed"),
        ("cuda-core", "0.5.0", r"cuda-core is 0\.5\.0, tested is 0\.5\.1 to below 2\.0"),
        ("cuda-core", "2.0.0rc1", "cuda-core is 2.0.0rc1"),
    ],
)
def test_untested_versions_are_refused(
    package: str, version: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("numba_cuda")
    versions = {"numba-cuda": "0.30.4", "cuda-core": "1.2.2"}
    monkeypatch.setattr(direct_launch, "_version", versions.__getitem__)
    check_installed()
    versions[package] = version
    with pytest.raises(UnfitError, match=message):
        check_installed()


def test_another_cuda_core_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba_cuda")
    monkeypatch.setattr(direct_launch, "_core", lambda: SimpleNamespace(Device=1, LaunchConfig=2))
    with pytest.raises(UnfitError, match=r"cuda\.core has no Linker, LinkerOptions, ObjectCode"):
        check_installed()


class Gpu:
    """Fake GPUs: a record of launches, and of the threads that entered each context."""

    def __init__(self) -> None:
        self.entered: list[tuple[int, str]] = []
        self.launched: list[tuple[Any, ...]] = []

    def device(self, index: int) -> SimpleNamespace:
        """Return a fake `cuda.core.Device`."""
        name = threading.current_thread().name
        return SimpleNamespace(set_current=lambda: self.entered.append((index, name)))

    def launch(self, *args: object) -> None:
        """Record a call of `cuda.core.launch`."""
        self.launched.append(args)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    """Replace the devices and launches of cuda.core, and torch's stream, by fakes."""
    core = pytest.importorskip("cuda.core")
    gpu = Gpu()
    monkeypatch.setattr(core, "Device", gpu.device)
    monkeypatch.setattr(core, "launch", gpu.launch)
    monkeypatch.setattr(direct_launch, "current_stream", lambda index: 70 + index)
    monkeypatch.setattr(direct_launch, "_stream", lambda index, handle: (index, handle))
    monkeypatch.setattr(direct_launch, "_THREAD", type(direct_launch._THREAD)())
    direct_launch._place.cache_clear()
    yield gpu
    direct_launch._place.cache_clear()


def launch_double(index: int, *args: torch.Tensor | int) -> None:
    kernel = make_kernel()
    kernel.loaded[index] = "machine code", make_flatten(kernel.parameters)
    direct_launch.launch(kernel, index, (5, 2), 64, args)


def test_a_launch_on_a_gpu(gpu: Gpu) -> None:
    x, y = torch.zeros(2, dtype=torch.int32), torch.zeros(1, 1, dtype=torch.int64)
    launch_double(1, x, y, 3)
    [(on, shape, code, *words)] = gpu.launched
    assert ((1, 71), "machine code") == (on, code)
    assert [*words_of_tensor(x), *words_of_tensor(y), 3] == words
    assert (5, 2, 1) == shape.grid
    assert (64, 1, 1) == shape.block


def test_each_thread_enters_the_context(gpu: Gpu) -> None:
    args = torch.zeros(2, dtype=torch.int32), torch.zeros(1, 1, dtype=torch.int64), 3
    for index in (1, 1, 0, 1):
        launch_double(index, *args)
    other = threading.Thread(target=launch_double, args=(1, *args), name="other")
    other.start()
    other.join()
    this = threading.current_thread().name
    assert [(1, this), (0, this), (1, "other")] == gpu.entered
    assert 5 == len(gpu.launched)


def test_a_kernel_is_loaded_once(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    linked: list[tuple[str, str]] = []
    entered: list[int] = []

    class Linker:
        def __init__(self, code: bytes, options: str) -> None:
            linked.append((code.decode().split("(")[0], options))

        def link(self, kind: str) -> SimpleNamespace:
            return SimpleNamespace(get_kernel=lambda entry: (kind, entry))

    device = SimpleNamespace(
        set_current=lambda: entered.append(0),
        compute_capability=SimpleNamespace(major=9, minor=0),
    )
    core = SimpleNamespace(
        Device=lambda _: device,
        LaunchConfig=lambda **sizes: sizes,
        Linker=Linker,
        LinkerOptions=lambda arch: arch,
        ObjectCode=SimpleNamespace(from_ptx=lambda ptx: ptx),
        launch=gpu.launch,
    )
    monkeypatch.setattr(direct_launch, "_core", lambda: core)
    kernel = Kernel(double, "void(int64)", 64)
    ptx = ".visible .entry e(\n\t.param .u64 e_param_0\n)"
    monkeypatch.setattr(numba_cuda, "compile_ptx", lambda *_: (ptx, "e"))
    for word in (3, 4):
        direct_launch.launch(kernel, 0, (1, 1), 64, (word,))
    num_entered = len(entered)
    assert kernel.loaded[0] == direct_launch.load(kernel, 0)
    assert num_entered == len(entered)  # the caller's context is left alone
    assert [(".visible .entry e", "sm_90")] == linked
    assert [(("cubin", "e"), 3), (("cubin", "e"), 4)] == [args[2:] for args in gpu.launched]
    ptx = ptx.replace("u64", "u32")
    with pytest.raises(UnfitError, match="double takes 1 words"):
        direct_launch.launch(kernel, 1, (1, 1), 64, (3,))
    assert {0} == set(kernel.loaded)
