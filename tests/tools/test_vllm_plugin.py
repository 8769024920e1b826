"""The plugin with a stand-in for vLLM, whose functions return "vLLM's".

`test_vllm_engine.py` runs it in real engines.
"""

from __future__ import annotations

import importlib.util
import inspect
import logging
import sys
from collections import defaultdict
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import fast
import kvtwin_vllm
from kvtwin_vllm import (
    ORIGINALS,
    REPLACEMENTS,
    functions,
    read_selection,
)
from tests import vllm_stand_in

Modules = dict[str, ModuleType]
LOGGED = "kvtwin-vllm: "


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Iterator[Modules]:
    """Return the stand-in's modules; the plugin is not yet registered in them."""
    contents: dict[str, list[Any]] = defaultdict(list)
    classes: dict[tuple[str, str], dict[str, Any]] = defaultdict(
        lambda: {"__hash__": object.__hash__}
    )
    for replacement in REPLACEMENTS.values():
        module = replacement.module.removeprefix("vllm.")
        original = make_original(replacement.function)
        if replacement.in_class is None:
            contents[module].append(original)
        else:
            classes[module, replacement.in_class][original.__name__] = original
    for (module, name), members in classes.items():
        contents[module].append(type(name, (SimpleNamespace,), members))
    contents["v1.attention.backend"].append(vllm_stand_in.CommonAttentionMetadata)
    contents["v1.worker.worker_base"].append(type("WorkerWrapperBase", (Worker,), {}))
    contents["logger"].append(init_logger)
    # A backend that imports a function by name.
    by_name = {original.__name__: original for original in contents["v1.attention.backends.utils"]}
    contents["v1.attention.backends.flash_attn"].append(by_name["split_decodes_and_prefills"])
    modules = vllm_stand_in.modules(contents)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delenv("KVTWIN_VLLM", raising=False)
    monkeypatch.setattr(fast, "warmup", lambda: None)  # it takes seconds
    caplog.set_level(logging.INFO, "vllm.kvtwin")
    ORIGINALS.clear()
    yield modules
    ORIGINALS.clear()


def make_original(replacement: Any) -> Any:
    def original(*_args: Any, **_kwargs: Any) -> str:
        return "vLLM's"

    original.__name__ = replacement.__name__
    original.__signature__ = inspect.signature(replacement)  # type: ignore[attr-defined]
    return original


def init_logger(name: str) -> logging.Logger:
    return logging.getLogger(name)


class Worker:
    """A worker that stores its backend's function when it is initialized."""

    def __init__(self, device_type: str = "cpu", speculative_config: object = None) -> None:
        self.vllm_config = SimpleNamespace(
            device_config=SimpleNamespace(device_type=device_type),
            speculative_config=speculative_config,
        )

    def initialize_from_config(self, _kv_cache_configs: list[object]) -> None:
        backend = sys.modules["vllm.v1.attention.backends.flash_attn"]
        self.split = vars(backend)["split_decodes_and_prefills"]


def start(modules: Modules, **worker: Any) -> Any:
    """Register the plugin, as vLLM does, and initialize a worker."""
    kvtwin_vllm.register()
    made = vars(modules["vllm.v1.worker.worker_base"])["WorkerWrapperBase"](**worker)
    made.initialize_from_config([])
    return made


def function_of(modules: Modules, name: str) -> Any:
    return vars(modules[REPLACEMENTS[name].module])[name]


def class_of(modules: Modules, name: str) -> Any:
    [module] = {r.module for r in REPLACEMENTS.values() if r.in_class == name}
    return vars(modules[module])[name]


def make_metadata(**others: Any) -> Any:
    """Make the metadata of a decode at position 4 and a prefill of 3 tokens, blocks of 2."""
    starts = torch.tensor([0, 1, 4], dtype=torch.int32)
    seq_lens = torch.tensor([5, 3], dtype=torch.int32)
    return vllm_stand_in.CommonAttentionMetadata(
        query_start_loc=starts,
        query_start_loc_cpu=starts,
        seq_lens=seq_lens,
        seq_lens_cpu_upper_bound=seq_lens,
        num_reqs=2,
        num_actual_tokens=4,
        max_query_len=3,
        max_seq_len=5,
        block_table_tensor=torch.tensor([[5, 6, 7], [8, 9, 0]], dtype=torch.int32),
        slot_mapping=torch.tensor([14, 16, 17, 18]),
        **others,
    )


# When functions are replaced.


@pytest.mark.parametrize("release", kvtwin_vllm.KNOWN_RELEASES)
def test_functions_are_replaced_when_a_worker_is_initialized(
    vllm: Modules,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    release: str,
) -> None:
    monkeypatch.setattr(vllm["vllm"], "__version__", f"{release}.1")
    kvtwin_vllm.register()
    assert "vLLM's" == function_of(vllm, "split_decodes_and_prefills")(None)
    for _ in range(2):
        worker = start(vllm)
        assert functions.split_decodes_and_prefills is worker.split
        assert "vLLM's" == ORIGINALS["split_decodes_and_prefills"](None)
    [line] = caplog.messages
    assert line.startswith(f"{LOGGED}fast replaces 17 functions: BlockTable.compute_slot_mapping, ")
    assert sorted(REPLACEMENTS) == list(ORIGINALS)


def test_what_cannot_work_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, vllm: Modules, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise OSError("no space for compiled loops")

    with monkeypatch.context() as patch:
        patch.setattr(vllm["vllm"], "__version__", "0.34.0")
        assert "vLLM's" == start(vllm).split(None)
    with monkeypatch.context() as patch:
        patch.setattr(importlib.util, "find_spec", {"numba_cuda": None}.__getitem__)
        assert "vLLM's" == start(vllm, device_type="cuda").split(None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: "installed")
    for failing, device in (("fast.warmup", "cpu"), ("fast.launch.launcher", "cuda")):
        with monkeypatch.context() as patch:
            patch.setattr(failing, fail)
            assert "vLLM's" == start(vllm, device_type=device).split(None)
    for said, message in zip(
        (
            "nothing is replaced, as this is vLLM 0.34.0, and it knows only 0.32, 0.33",
            "a GPU needs numba-cuda: pip install -e '.[cuda]'",
            *["nothing is replaced, as the installation failed"] * 2,
        ),
        caplog.messages,
        strict=True,
    ):
        assert said in message
    assert 2 == caplog.text.count("OSError: no space for compiled loops")


def test_a_function_with_other_parameters_is_kept(
    monkeypatch: pytest.MonkeyPatch, vllm: Modules, caplog: pytest.LogCaptureFixture
) -> None:
    def split_attn_metadata(_ubatch_slices: Any, _new: Any) -> None:
        """A function with other parameters."""

    module = vllm["vllm.v1.worker.ubatch_utils"]
    monkeypatch.setattr(module, "split_attn_metadata", split_attn_metadata)
    monkeypatch.delattr(module, "slice_query_start_locs")
    start(vllm)
    assert split_attn_metadata is function_of(vllm, "split_attn_metadata")
    _, no_such, other = caplog.messages
    assert f"{LOGGED}vLLM's own slice_query_start_locs is kept: module " in no_such
    reason = "it has other parameters: _ubatch_slices, _new"
    assert f"{LOGGED}vLLM's own split_attn_metadata is kept: {reason}" == other
    assert len(REPLACEMENTS) - 2 == len(ORIGINALS)


def test_speculative_decoding_keeps_what_needs_exact_lengths(
    vllm: Modules, caplog: pytest.LogCaptureFixture
) -> None:
    start(vllm, speculative_config=SimpleNamespace())
    assert "vLLM's" == function_of(vllm, "split_attn_metadata")([], None)
    reason = "with speculative decoding the host has no exact lengths"
    assert [f"{LOGGED}vLLM's own split_attn_metadata is kept: {reason}"] == caplog.messages[1:]


def test_the_variable_selects() -> None:
    every = ["a", "b", "c"]
    for value, expected in (("", {*every}), ("on", {*every}), ("off", set()), ("-a,-b", {"c"})):
        assert expected == read_selection(every, value)
    assert {"a", "b"} == read_selection(every, "a, b")
    for value, message in (
        ("a,d", "KVTWIN_VLLM has 'd', expected on, off, or names of a, b, c"),
        ("a,-b", "KVTWIN_VLLM is 'a,-b', expected a minus before every name or before none"),
    ):
        with pytest.raises(ValueError, match=f"^{message}$"):
            read_selection(every, value)


@pytest.mark.parametrize(
    ("value", "replaced", "logged"),
    [
        ("off", False, "nothing is replaced, as KVTWIN_VLLM says"),
        ("-split_decodes_and_prefills", False, "own split_decodes_and_prefills is kept: deselect"),
        ("split_decodes_and_prefills", True, "fast replaces 1 functions"),
    ],
)
def test_functions_are_deselected(
    monkeypatch: pytest.MonkeyPatch,
    vllm: Modules,
    caplog: pytest.LogCaptureFixture,
    value: str,
    replaced: bool,
    logged: str,
) -> None:
    monkeypatch.setenv("KVTWIN_VLLM", value)
    assert replaced == (start(vllm).split is functions.split_decodes_and_prefills)
    assert logged in caplog.text


# Results of the replacements.


def make_table(vllm: Modules, mode: str = "TOKEN_TO_KV_SLOT") -> Any:
    """Make vLLM's table of a group, of three requests of three blocks each and six tokens."""
    blocks = torch.tensor([[5, 6, 7], [8, 9, 0], [0, 0, 0]], dtype=torch.int32)
    return class_of(vllm, "BlockTable")(
        slot_mapping_mode=SimpleNamespace(name=mode),
        block_table=SimpleNamespace(gpu=blocks),
        slot_mapping=SimpleNamespace(gpu=torch.zeros(6, dtype=torch.int64)),
        block_size=2,
        dcp_world_size=1,
        dcp_rank=0,
        cp_kv_cache_interleave_size=1,
    )


STARTS = torch.tensor([0, 1, 4, 4], dtype=torch.int32)  # with padding, which is not read
POSITIONS = torch.tensor([4, 0, 1, 2])


def test_slots(vllm: Modules) -> None:
    start(vllm)
    table, of_states = make_table(vllm), make_table(vllm, mode="NONE")
    table.compute_slot_mapping(2, STARTS, POSITIONS)
    assert [14, 16, 17, 18, -1, -1] == table.slot_mapping.gpu.tolist()
    of_states.compute_slot_mapping(2, STARTS, POSITIONS)
    assert [0] * 6 == of_states.slot_mapping.gpu.tolist()


def test_splits_and_virtual_batches(vllm: Modules) -> None:
    start(vllm)
    metadata = make_metadata()
    split = function_of(vllm, "split_decodes_and_prefills")
    assert (1, 1, 1, 3) == split(metadata)
    assert "vLLM's" == split(metadata, treat_short_extends_as_decodes=False)
    metadata.is_prefilling = torch.tensor([True, True])
    assert (0, 2, 0, 4) == split(metadata, treat_short_extends_as_decodes=False)
    three_way = function_of(vllm, "split_decodes_prefills_and_extends")
    assert (1, 0, 1, 1, 0, 3) == three_way(metadata)
    make = function_of(vllm, "make_local_attention_virtual_batches")
    virtual, make_block_table = make(2, metadata, 2)
    assert type(metadata) is type(virtual)
    assert [0, 1, 3, 4] == virtual.query_start_loc_cpu.tolist()
    assert [1, 2, 1] == virtual.seq_lens_cpu_upper_bound.tolist()
    assert [[7], [8], [9]] == virtual.block_table_tensor.tolist()
    other = metadata.block_table_tensor + 10
    assert [[17], [18], [19]] == make_block_table(other).tolist()


def test_fast_prefill(vllm: Modules) -> None:
    start(vllm)
    make = function_of(vllm, "make_kv_sharing_fast_prefill_common_attn_metadata")
    wanted = torch.tensor([0, 3, 3, 3])
    cut = make(make_metadata(logits_indices_padded=wanted, num_logits_indices=2))
    assert [0, 1, 2] == cut.query_start_loc.tolist()
    assert (2, 1) == (cut.num_actual_tokens, cut.max_query_len)
    assert "vLLM's" == make(make_metadata())


def test_micro_batches(vllm: Modules) -> None:
    start(vllm)
    create = function_of(vllm, "maybe_create_ubatch_slices")
    tokens = np.array([1, 3], dtype=np.int32)
    assert (None, None) == create(False, tokens, 6, 3, 2)
    slices, padded = create(True, tokens, 6, 3, 2)
    assert [slice(0, 3), slice(3, 4)] == [piece.token_slice for piece in slices]
    assert [slice(0, 2), slice(1, 2)] == [piece.request_slice for piece in slices]
    assert [slice(0, 3), slice(3, 6)] == [piece.token_slice for piece in padded]
    assert [slice(0, 2), slice(1, 3)] == [piece.request_slice for piece in padded]
    assert "vLLM's" == create(True, tokens, 8, 3, 2)

    split = function_of(vllm, "split_attn_metadata")
    optional = {"is_prefilling": torch.tensor([False, True]), "positions": POSITIONS}
    metadata = make_metadata(causal=False, max_logits_per_req=1, **optional)
    first, second = split(slices, metadata)
    assert ([0, 1, 3], [5, 2]) == (first.query_start_loc.tolist(), first.seq_lens.tolist())
    assert ([0, 1], [3]) == (second.query_start_loc.tolist(), second.seq_lens.tolist())
    assert ([True], [2]) == (second.is_prefilling.tolist(), second.positions.tolist())
    assert 1 == second.max_logits_per_req
    assert not second.causal
    assert "vLLM's" == split(slices, make_metadata(encoder_seq_lens=torch.tensor([1, 1])))


def test_other_functions(vllm: Modules) -> None:
    start(vllm)
    compute = function_of(vllm, "compute_causal_conv1d_metadata")
    starts = torch.tensor([0, 9, 10], dtype=torch.int32)
    described, batch_ptr, _ = compute(starts, device=torch.device("cpu"))
    assert 3 == described[8]["tot"]
    assert [0, 0, 1, -1] == batch_ptr[:4].tolist()
    assert "vLLM's" == compute(starts, device=torch.device("cuda"))

    get = function_of(vllm, "get_dcp_local_seq_lens")
    seq_lens = torch.tensor([5, 8], dtype=torch.int32)
    assert [[3, 2], [4, 4]] == get(seq_lens, 2).tolist()
    assert [2, 4] == get(seq_lens, 2, 1).tolist()
    assert "vLLM's" == get(seq_lens, 2, torch.tensor(1, dtype=torch.int32))
    assert "vLLM's" == get(seq_lens.long(), 2)

    backend = SimpleNamespace(get_supported_kernel_block_sizes=lambda spec: spec)
    select = function_of(vllm, "select_common_block_size")
    assert 32 == select(64, [backend, backend], [[16, 32], [32, 64]])
