import re
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fast import direct_launch
from fast.direct_launch import ARRAY_MEMBERS, UnfitError, check_entry, check_installed, make_flatten
from fast.kernels.cuda import KERNELS, Array, Kernel, array_members
from kvtwin.kernels.usage import ARCHITECTURES, compile_for

DTYPES = {1: torch.uint8, 4: torch.int32, 8: torch.int64}


def double(x: torch.Tensor) -> None:
    """Stand for a kernel."""


def make_kernel() -> Kernel:
    """Return a kernel of two arrays and an int."""
    return Kernel(double, "void(int32[::1], int64[:, ::1], int64)", threads=64)


def words_of_tensor(x: torch.Tensor) -> list[int]:
    """Return what numba's kernels take for a tensor, as the tensor itself says it."""
    size = x.element_size()
    return [0, 0, x.numel(), size, x.data_ptr(), *x.shape, *(size * one for one in x.stride())]


def test_words_of_arguments() -> None:
    """Arrays are flattened as numba's kernels take them, and a NumPy int becomes Python's."""
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
    """Other scalars than int64, strided arrays, and other items or dimensions, have no words."""
    with pytest.raises(ValueError, match=re.escape(f"dimensions, not {signature}")):
        _ = Kernel(double, signature, 64).parameters


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_kernels_take_the_words_that_are_launched(kernel: Kernel, arch: str) -> None:
    """The compiled entry takes as many words of 8 bytes as are made, addresses among them."""
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
    """Return the PTX of `double`, whose parameters are all as this one."""
    parameters = ",\n".join(f"\t.param {word} double_param_{number}" for number in range(17))
    return f".visible .entry double(\n{parameters}\n)\n{{\n}}"


@pytest.mark.parametrize("word", [".u64", ".u64 .ptr", ".u64 .ptr .align 1", ".u64 .ptr .align 16"])
def test_words_may_be_marked_as_pointers(word: str) -> None:
    """For Blackwell NVVM says which parameters are pointers; a word is a word."""
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
    """A kernel that takes fewer words, or other ones, is not launched past numba."""
    with pytest.raises(UnfitError, match=re.escape(message)):
        check_entry(make_kernel(), ptx, "double")


def test_numba_says_what_is_pinned() -> None:
    """The numba-cuda that is installed is one of those tested, and an array is what is pinned."""
    pytest.importorskip("numba_cuda")
    check_installed()
    for array in (Array(1, 1), Array(2, 4), Array(1, 8)):
        assert array_members(array) == ARRAY_MEMBERS


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
    """A version that was not tested is refused."""
    pytest.importorskip("numba_cuda")
    versions = {"numba-cuda": "0.30.4", "cuda-core": "1.2.2"}
    monkeypatch.setattr(direct_launch, "_version", versions.__getitem__)
    check_installed()
    versions[package] = version
    with pytest.raises(UnfitError, match=message):
        check_installed()


def test_another_array_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where numba has changed what an array is, or no longer says so, it is not guessed."""
    pytest.importorskip("numba_cuda")
    monkeypatch.setattr(direct_launch, "array_members", lambda _: ("data", "shape"))
    with pytest.raises(UnfitError, match="an array is data, shape; tested is meminfo, parent"):
        check_installed()

    def moved(_: Array) -> tuple[str, ...]:
        raise AttributeError("no such name")

    monkeypatch.setattr(direct_launch, "array_members", moved)
    with pytest.raises(UnfitError, match="numba-cuda does not say what an array is: no such name"):
        check_installed()


def test_another_cuda_core_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names that cuda.core no longer has are found before anything is launched."""
    pytest.importorskip("numba_cuda")
    monkeypatch.setattr(direct_launch, "_core", lambda: SimpleNamespace(Device=1, LaunchConfig=2))
    with pytest.raises(UnfitError, match=r"cuda\.core has no Linker, LinkerOptions, ObjectCode"):
        check_installed()


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
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    """Put a stand-in in the place of cuda.core's devices and launches, and of torch's stream."""
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
    """Launch a kernel that is compiled already."""
    kernel = make_kernel()
    kernel.loaded[index] = "machine code", make_flatten(kernel.parameters)
    direct_launch.launch(kernel, index, (5, 2), 64, args)


def test_a_launch_on_a_gpu(gpu: Gpu) -> None:
    """A launch goes to torch's current stream with the kernel of that GPU, once compiled."""
    x, y = torch.zeros(2, dtype=torch.int32), torch.zeros(1, 1, dtype=torch.int64)
    launch_double(1, x, y, 3)
    [(on, shape, code, *words)] = gpu.launched
    assert ((1, 71), "machine code") == (on, code)
    assert [*words_of_tensor(x), *words_of_tensor(y), 3] == words
    assert (5, 2, 1) == shape.grid
    assert (64, 1, 1) == shape.block


def test_each_thread_enters_the_context(gpu: Gpu) -> None:
    """A thread's first launch on a GPU enters its context: a new thread of Python's has none."""
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
    """The first launch on a GPU compiles, checks, links and loads a kernel; later calls do not."""
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
    monkeypatch.setattr(kernel, "compile_ptx", lambda _: (ptx, "e"))
    for word in (3, 4):
        direct_launch.launch(kernel, 0, (1, 1), 64, (word,))
    num_entered = len(entered)
    assert kernel.loaded[0] == direct_launch.load(kernel, 0)
    assert num_entered == len(entered)  # the caller's context is left alone
    assert [(".visible .entry e", "sm_90")] == linked
    assert [(("cubin", "e"), 3), (("cubin", "e"), 4)] == [args[2:] for args in gpu.launched]
    monkeypatch.setattr(kernel, "compile_ptx", lambda _: (ptx.replace("u64", "u32"), "e"))
    with pytest.raises(UnfitError, match="double takes 1 words"):
        direct_launch.launch(kernel, 1, (1, 1), 64, (3,))
    assert {0} == set(kernel.loaded)
