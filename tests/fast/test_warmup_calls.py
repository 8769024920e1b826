"""`warmup` compiles and calls everything, whatever modes the caller has set."""

import re

import pytest
import torch

import fast
from fast import warmup_calls
from fast.kernels.cuda import KERNELS, Kernel

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


def test_every_hot_function_is_called(monkeypatch) -> None:  # noqa: ANN001
    called: dict[str, int] = {}

    def counting(name: str, function):  # noqa: ANN001, ANN202
        def call(*args, **kwargs):  # noqa: ANN002, ANN003, ANN202
            called[name] = called.get(name, 0) + 1
            return function(*args, **kwargs)

        return call

    for name in HOT:
        monkeypatch.setattr(warmup_calls, name, counting(name, getattr(warmup_calls, name)))
    methods = ["append_block_ids", "gather_block_tables", "compute_slot_mappings"]
    for name in methods:
        monkeypatch.setattr(fast.BlockTables, name, counting(name, getattr(fast.BlockTables, name)))
    fast.warmup()
    assert {*HOT, *methods} == set(called)
    assert min(called.values()) >= warmup_calls.NUM_REHEARSALS


def test_warms_up_in_any_mode() -> None:
    with fast.checks(True), torch.inference_mode(), torch.device("meta"):
        fast.warmup()


class Gpu:
    """A fake GPU onto which kernels are loaded."""

    def __init__(self) -> None:
        self.loaded: list[tuple[Kernel, int]] = []
        self.error: ImportError | None = None
        self.graphs_prepared = 0

    def load(self, kernel: Kernel, index: int) -> None:
        if self.error is not None:
            raise self.error
        self.loaded.append((kernel, index))

    def prepare_graphs(self) -> None:
        self.graphs_prepared += 1


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    gpu = Gpu()
    monkeypatch.setattr(warmup_calls, "load", gpu.load)
    monkeypatch.setattr(warmup_calls, "prepare_graphs", gpu.prepare_graphs)
    monkeypatch.setattr(warmup_calls, "is_installed", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    return gpu


def test_what_a_graph_needs_is_there(gpu: Gpu) -> None:
    fast.warmup()
    assert [(kernel, 1) for kernel in KERNELS] == gpu.loaded
    assert 1 == gpu.graphs_prepared


def test_without_a_compiler_the_host_path_is_warmed_up(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu.error = ImportError("set CUDA_HOME")
    runs: list[str] = []
    monkeypatch.setattr(warmup_calls._Rehearsal, "run", lambda _: runs.append("run"))
    message = "kernels are not loaded, so calls with CUDA tensors will fail: set CUDA_HOME"
    with pytest.warns(RuntimeWarning, match=f"^{re.escape(message)}$") as warned:
        fast.warmup()
    assert [__file__] == [one.filename for one in warned]
    assert warmup_calls.NUM_REHEARSALS == len(runs)


def test_without_numba_cuda_nothing_is_loaded(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warmup_calls, "is_installed", lambda: False)
    gpu.error = ImportError("not reached")
    fast.warmup()
    assert 0 == gpu.graphs_prepared
