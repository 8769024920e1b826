"""Launches and warmup without a driver: who launches, on which GPU, with which versions."""

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import fast
from fast import direct_launch, launch, numba_cuda, warmup_calls
from fast.kernels.cuda import KERNELS, Kernel
from fast.launch import launch_blocks, launcher


def double(x: torch.Tensor) -> None:
    """Stand in for a kernel."""


KERNEL = Kernel(double, "void(int32[::1], int64[:, ::1], int64)", threads=64)


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Fake two GPUs, the second one current, and return their launches, with the current GPU."""
    launched: list[tuple[Any, ...]] = []
    current = [1]

    @contextmanager
    def entered(index: int) -> Iterator[None]:
        current.append(index)
        yield
        current.pop()

    fake = SimpleNamespace(launch=lambda *args: launched.append((current[-1], *args)))
    monkeypatch.setattr(launch, "current_device", lambda: current[-1])
    monkeypatch.setattr(launch, "launcher", lambda: fake)
    monkeypatch.setattr(torch.cuda, "device", entered)
    monkeypatch.setattr(torch.Tensor, "get_device", lambda tensor: tensor.item())
    return launched


def test_the_tensors_gpu_is_current(gpus: list[tuple[Any, ...]]) -> None:
    for index in (1, 0, 1):
        args = torch.tensor(index), 7, torch.tensor(index)
        launch_blocks(KERNEL, 2, 3, *args)
        assert (index, KERNEL, index, (2, 3), 64, args) == gpus[-1]


@pytest.mark.parametrize("indices", [(0, 1), (1, -1), (-1, 1), (-1,), ()])
def test_tensors_of_no_common_gpu_are_refused(
    indices: tuple[int, ...], gpus: list[tuple[Any, ...]]
) -> None:
    with pytest.raises(ValueError, match=r"double needs tensors on one CUDA device, got \['?"):
        launch_blocks(KERNEL, 1, 1, *map(torch.tensor, indices))
    assert [] == gpus


@pytest.fixture
def versions(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Fake the installed versions, with no launcher chosen."""
    versions = {"numba-cuda": "0.30.4", "cuda-core": "1.2.2", "numpy": "2.4.6"}
    monkeypatch.setattr(direct_launch, "_version", versions.__getitem__)
    monkeypatch.setattr(numba_cuda, "import_cuda", lambda: None)
    monkeypatch.delenv("FAST_LAUNCHER", raising=False)
    launcher.cache_clear()
    yield versions
    launcher.cache_clear()


@pytest.mark.parametrize(
    ("package", "version", "message"),
    [
        ("numba-cuda", "0.29.9", "numba-cuda is 0.29.9, but kernels are launched with 0.30 to"),
        ("numba-cuda", "0.31.0", "numba-cuda is 0.31.0"),
        ("numba-cuda", "", "numba-cuda is not installed"),
        ("cuda-core", "0.5.0", "cuda-core is 0.5.0, but kernels are launched with 0.5.1 to below"),
        ("cuda-core", "2.0.0rc1", "cuda-core is 2.0.0rc1"),
        ("numpy", "2.5.2", "numpy is 2.5.2, but kernels are launched with 2.0 to below 2.5: pip"),
    ],
)
def test_untested_versions(
    package: str,
    version: str,
    message: str,
    versions: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    versions[package] = version
    with pytest.raises(ImportError, match=f"^{re.escape(message)}.*FAST_LAUNCHER=numba"):
        launcher()
    monkeypatch.setenv("FAST_LAUNCHER", "numba")
    assert numba_cuda is launcher()


def test_the_launcher_is_chosen_once(
    versions: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAST_LAUNCHER", "magic")
    with pytest.raises(ValueError, match="FAST_LAUNCHER is 'magic', expected direct or numba"):
        launcher()
    monkeypatch.setenv("FAST_LAUNCHER", "")
    assert direct_launch is launcher()
    versions["numba-cuda"] = "9.9"
    assert direct_launch is launcher()


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        (".param .u64", ".param .u64 .ptr .align 1", None),
        (".param .u64 e_param_14", ".param .u32 e_param_14", "17 words"),
        (",\n\t.param .u64 e_param_16", "", "16 words (.u64)"),
        (".param .u64", ".param .align 8 .b8", "17 words (.align)"),
    ],
)
def test_words_of_compiled_kernels(old: str, new: str, found: str | None) -> None:
    words = ",\n".join(f"\t.param .u64 e_param_{number}" for number in range(17))
    ptx = f".visible .entry e(\n{words}\n)\n{{\n\tld.param.u64 %rd1, [e_param_3];\n}}".replace(
        old, new
    )
    message = f"^numba-cuda compiles double to {re.escape(found or '')}.*, expected 17 "
    with nullcontext() if found is None else pytest.raises(ImportError, match=message):
        numba_cuda.check_entry(KERNEL, ptx.replace(old, new), "e")


def test_each_thread_enters_the_context(monkeypatch: pytest.MonkeyPatch) -> None:
    entered: list[tuple[int, str]] = []

    def device(index: int) -> SimpleNamespace:
        name = threading.current_thread().name
        return SimpleNamespace(set_current=lambda: entered.append((index, name)))

    core = SimpleNamespace(Device=device, launch=lambda *_: None)
    monkeypatch.setattr(direct_launch, "_core", lambda: core)
    monkeypatch.setattr(direct_launch, "_place", lambda *_: ("stream", "shape"))
    monkeypatch.setattr(direct_launch, "_THREAD", type(direct_launch._THREAD)())
    monkeypatch.setattr(direct_launch, "current_stream", lambda _: 0)
    kernel = Kernel(double, "void(int64)", 64)
    kernel.loaded.update(dict.fromkeys((0, 1), ("code", lambda *words: words)))

    def run() -> None:
        for index in (1, 1, 0, 1):
            direct_launch.launch(kernel, index, (5, 2), 64, (3,))

    threads = [threading.Thread(target=run, name=name) for name in "ab"]
    for one in threads:
        one.start()
        one.join()
    assert [(1, "a"), (0, "a"), (1, "b"), (0, "b")] == entered


class DynamicLibNotFoundError(RuntimeError):
    """A fake of cuda.pathfinder's error of this name."""


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (DynamicLibNotFoundError("no nvvm"), f"ImportError: {numba_cuda.TOOLKIT} (no nvvm)"),
        (RuntimeError("something else"), "RuntimeError: something else"),
    ],
)
@pytest.mark.parametrize("name", launch.LAUNCHERS)
def test_no_compiler(
    name: str, error: Exception, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_args: object, **_named: object) -> None:
        raise error

    numba = SimpleNamespace(compile_ptx=fail, jit=fail, gpus={0: nullcontext()})
    capability = SimpleNamespace(major=9, minor=0)
    device = SimpleNamespace(set_current=lambda: None, compute_capability=capability)
    monkeypatch.setattr(numba_cuda, "import_cuda", lambda: numba)
    monkeypatch.setattr(direct_launch, "_core", lambda: SimpleNamespace(Device=lambda _: device))
    with pytest.raises((ImportError, RuntimeError)) as caught:
        launch.LAUNCHERS[name].load(Kernel(double, "void(int64)", 64), 0)
    assert expected == f"{type(caught.value).__name__}: {caught.value}"


HOT = [
    "compute_slot_mapping",
    "build_attn_metadata",
    "split_decodes_and_prefills",
    "split_decodes_prefills_and_extends",
    "reorder_batch_to_split_decodes_and_prefills",
    "create_ubatch_slices",
    "split_attn_metadata",
    "make_local_attention_virtual_batches",
    "make_kv_sharing_fast_prefill_common_attn_metadata",
    "compute_causal_conv1d_metadata",
    "get_dcp_local_seq_lens",
    "scatter_mm_placeholders",
    "gather_mm_placeholders",
]
METHODS = [
    "append_block_ids",
    "apply_staged_writes",
    "gather_block_tables",
    "compute_slot_mappings",
]


def test_warmup_calls_every_hot_function(monkeypatch: pytest.MonkeyPatch) -> None:
    called: dict[str, int] = {}

    def count(owner: Any, name: str) -> None:
        function: Callable[..., Any] = getattr(owner, name)

        def call(*args: object, **named: object) -> object:
            called[name] = called.get(name, 0) + 1
            return function(*args, **named)

        monkeypatch.setattr(owner, name, call)

    for name in HOT:
        count(warmup_calls, name)
    for name in METHODS:
        count(fast.BlockTables, name)
    count(fast.AttnMetadataPlan, "build")
    with fast.checks(True), torch.inference_mode(), torch.device("meta"):
        fast.warmup()
    assert {*HOT, *METHODS, "build"} == set(called)
    assert min(called.values()) >= warmup_calls.NUM_REHEARSALS


@pytest.mark.parametrize("error", [None, ImportError("set CUDA_HOME")])
@pytest.mark.parametrize("is_installed", [True, False])
def test_warmup_loads_kernels(
    error: ImportError | None, is_installed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[object] = []

    def load(*loaded: object) -> None:
        if error is not None:
            raise error
        done.append(loaded)

    monkeypatch.setattr(warmup_calls, "launcher", lambda: SimpleNamespace(load=load))
    monkeypatch.setattr(warmup_calls, "prepare_graphs", lambda: done.append("graphs"))
    monkeypatch.setattr(warmup_calls, "is_installed", lambda: is_installed)
    monkeypatch.setattr(warmup_calls, "_rehearse", lambda: done.append("call"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    message = "^kernels are not loaded, so calls with CUDA tensors will fail: set CUDA_HOME$"
    is_warned = is_installed and error is not None
    with pytest.warns(RuntimeWarning, match=message) if is_warned else nullcontext() as warned:
        fast.warmup()
    assert not warned or [__file__] == [one.filename for one in warned]
    is_loaded = is_installed and error is None
    loaded = [*((kernel, 1) for kernel in KERNELS), "graphs"] if is_loaded else []
    assert [*loaded, *["call"] * warmup_calls.NUM_REHEARSALS] == done
