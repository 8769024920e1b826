"""The plugin with stubs of vLLM: which functions it replaces, which it keeps, their results.

`python -m tools.engine_demo` runs it in a real engine.
"""

from __future__ import annotations

import importlib.util
import logging
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import fast
import kvtwin_vllm
from kvtwin_vllm import installation
from kvtwin_vllm.options import read_selection
from kvtwin_vllm.registry import ORIGINALS, REPLACEMENTS
from tests.tools import vllm_stand_in
from tools.engine_demo.own_process import CASES, RELEASE, Case, is_logged

Modules = dict[str, ModuleType]


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Iterator[Modules]:
    """Return the stub's modules; the plugin is not yet registered in them."""
    modules: Modules = vllm_stand_in.make_modules("0.32.0")
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(installation, "INSTALLED", None)
    monkeypatch.delenv("KVTWIN_VLLM", raising=False)
    monkeypatch.setattr(fast, "warmup", lambda: None)  # it takes seconds
    caplog.set_level(logging.INFO, "vllm.kvtwin")
    yield modules
    ORIGINALS.clear()


def start(modules: Modules, **worker: Any) -> Any:  # noqa: ANN401  # a worker of the stand-in
    """Register the plugin, as vLLM does, and initialize a worker."""
    kvtwin_vllm.register()
    made = vars(modules["vllm.v1.worker.worker_base"])["WorkerWrapperBase"](**worker)
    made.initialize_from_config([])
    return made


def function_of(modules: Modules, name: str) -> Any:  # noqa: ANN401  # a function of vLLM
    """Return the function that vLLM calls by a name."""
    return vars(modules[REPLACEMENTS[name].module])[name]


def make_metadata(**others: Any) -> Any:  # noqa: ANN401  # the stand-in's class
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


def test_functions_are_replaced_when_a_worker_is_initialized(
    vllm: Modules, caplog: pytest.LogCaptureFixture
) -> None:
    """Then they are replaced, also in modules that imported them by name, and logged."""
    plain = function_of(vllm, "split_decodes_and_prefills")
    kvtwin_vllm.register()
    assert plain is function_of(vllm, "split_decodes_and_prefills")
    worker = start(vllm)
    assert REPLACEMENTS["split_decodes_and_prefills"].function is worker.split
    [line] = caplog.messages
    assert line.startswith(f"kvtwin-vllm: fast replaces {len(REPLACEMENTS)} functions: BlockTable.")
    assert line.endswith(", split_decodes_prefills_and_extends")


def test_a_second_registration_changes_nothing(vllm: Modules) -> None:
    """A second registration has no effect: vLLM loads plugins twice in some processes."""
    start(vllm)
    initialize = vars(vllm["vllm.v1.worker.worker_base"])[
        "WorkerWrapperBase"
    ].initialize_from_config
    originals = dict(ORIGINALS)
    start(vllm)
    again = vars(vllm["vllm.v1.worker.worker_base"])["WorkerWrapperBase"].initialize_from_config
    assert initialize is again
    assert originals == ORIGINALS


def test_an_installation_can_be_deactivated(vllm: Modules) -> None:
    """Deactivation restores vLLM's functions in all modules."""
    worker = start(vllm)
    assert installation.INSTALLED is not None
    installation.INSTALLED.deactivate()
    worker.initialize_from_config([])
    assert ORIGINALS["split_decodes_and_prefills"] is worker.split
    assert "vLLM's" == worker.split(None)


# When vLLM's functions are kept.


def test_an_unknown_release_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, vllm: Modules, caplog: pytest.LogCaptureFixture
) -> None:
    """The engine runs, and a warning says why nothing is replaced."""
    monkeypatch.setattr(vllm["vllm"], "__version__", "0.33.1")
    assert "vLLM's" == start(vllm).split(None)
    assert [
        "kvtwin-vllm: nothing is replaced, as this is vLLM 0.33.1, and it knows only 0.32"
    ] == caplog.messages


def test_other_parameters_keep_a_function(
    monkeypatch: pytest.MonkeyPatch, vllm: Modules, caplog: pytest.LogCaptureFixture
) -> None:
    """A function of a patched vLLM with a new parameter is not replaced; the others are."""

    def split_attn_metadata(ubatch_slices: Any, common_attn_metadata: Any, new: Any) -> None:  # noqa: ANN401
        """A function with one more parameter."""

    monkeypatch.setattr(vllm[vllm_stand_in.UBATCH], "split_attn_metadata", split_attn_metadata)
    start(vllm)
    assert split_attn_metadata is function_of(vllm, "split_attn_metadata")
    assert (
        "kvtwin-vllm: vLLM's own split_attn_metadata is kept: it has other parameters: "
        "ubatch_slices, common_attn_metadata, new" in caplog.messages
    )


def test_speculative_decoding_keeps_what_needs_exact_lengths(vllm: Modules) -> None:
    """The host only has upper bounds of the lengths, so vLLM's function is kept."""
    start(vllm, speculative_config=SimpleNamespace())
    assert "vLLM's" == function_of(vllm, "split_attn_metadata")([], None)
    assert installation.INSTALLED is not None
    assert "split_attn_metadata" in installation.INSTALLED.kept


def test_a_gpu_without_numba_cuda_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, vllm: Modules, caplog: pytest.LogCaptureFixture
) -> None:
    """Without numba-cuda nothing is replaced, and the warning has the command to install it."""
    monkeypatch.setattr(importlib.util, "find_spec", {"numba_cuda": None}.__getitem__)
    assert "vLLM's" == start(vllm, device_type="cuda").split(None)
    assert "a GPU needs numba-cuda: pip install -e '.[cuda]'" in caplog.text


def test_a_failed_installation_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, vllm: Modules, caplog: pytest.LogCaptureFixture
) -> None:
    """The engine runs with vLLM's functions, and the log has the error."""

    def fail() -> None:
        raise OSError("no space for compiled loops")

    monkeypatch.setattr(fast, "warmup", fail)
    assert "vLLM's" == start(vllm).split(None)
    assert "no space for compiled loops" in caplog.text


# The environment variable.


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("", {"a", "b", "c"}),
        ("on", {"a", "b", "c"}),
        ("off", set()),
        ("a, b", {"a", "b"}),
        ("-a,-b", {"c"}),
    ],
)
def test_the_variable_selects(value: str, expected: set[str]) -> None:
    """The variable selects all, no or some functions, or all but some."""
    assert expected == read_selection(["a", "b", "c"], value)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("a,d", "KVTWIN_VLLM has 'd', expected on, off, or names of a, b"),
        ("a,-b", "KVTWIN_VLLM is 'a,-b', expected a minus before every name or before none"),
    ],
)
def test_a_wrong_variable_is_an_error(value: str, message: str) -> None:
    """An unknown name is an error, so that a typo does not leave a function unreplaced."""
    with pytest.raises(ValueError) as raised:  # noqa: PT011  # the message is compared
        read_selection(["a", "b"], value)
    assert message == str(raised.value)


@pytest.mark.parametrize(
    ("value", "replaced"),
    [("off", False), ("slice_query_start_locs", False), ("split_decodes_and_prefills", True)],
)
def test_functions_are_deselected(
    monkeypatch: pytest.MonkeyPatch, vllm: Modules, value: str, replaced: bool
) -> None:
    """A function that the variable does not select stays vLLM's."""
    monkeypatch.setenv("KVTWIN_VLLM", value)
    split = start(vllm).split
    assert replaced == (split is REPLACEMENTS["split_decodes_and_prefills"].function)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_log_says_what_the_demo_expects(
    monkeypatch: pytest.MonkeyPatch,
    vllm: Modules,
    caplog: pytest.LogCaptureFixture,
    case: Case,
) -> None:
    """`--own-process` of the demo looks for these messages in the log of a real engine."""
    for name, value in case.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(vllm["vllm"], "__version__", case.environment.get(RELEASE, "0.32.0"))
    start(vllm, speculative_config=SimpleNamespace() if case.speculates else None)
    messages = [message.removeprefix("kvtwin-vllm: ") for message in caplog.messages]
    assert is_logged(case, messages)
    assert not is_logged(case, [*messages, "another"])
    assert not is_logged(case, messages[1:])


# Results of the replacements.


def make_table(vllm: Modules, *, gpu: bool = False, mode: str = "TOKEN_TO_KV_SLOT") -> Any:  # noqa: ANN401
    """Make vLLM's table of a group, of three requests of three blocks each and six tokens."""
    blocks = torch.tensor([[5, 6, 7], [8, 9, 0], [0, 0, 0]], dtype=torch.int32)
    slots = torch.zeros(6, dtype=torch.int64)
    on_device = SimpleNamespace(is_cpu=False) if gpu else blocks.clone()
    return vars(vllm["vllm.v1.worker.block_table"])["BlockTable"](
        slot_mapping_mode=SimpleNamespace(name=mode),
        block_table=SimpleNamespace(cpu=blocks, gpu=on_device),
        slot_mapping=SimpleNamespace(cpu=slots, np=slots.numpy(), gpu=slots.clone()),
        max_num_reqs=3,
        max_num_batched_tokens=6,
        block_size=2,
        dcp_world_size=1,
        dcp_rank=0,
        cp_kv_cache_interleave_size=1,
    )


STARTS = torch.tensor([0, 1, 4, 4], dtype=torch.int32)  # with padding, which is not read
POSITIONS = torch.tensor([4, 0, 1, 2])


def test_slots_of_a_group(vllm: Modules) -> None:
    """The slots are written into vLLM's buffer, followed by -1; Mamba groups have none."""
    start(vllm)
    table = make_table(vllm)
    table.compute_slot_mapping(2, STARTS, POSITIONS)
    assert [14, 16, 17, 18, -1, -1] == table.slot_mapping.gpu.tolist()
    states = make_table(vllm, mode="NONE")
    assert states.compute_slot_mapping(2, STARTS, POSITIONS) is None
    assert [0] * 6 == states.slot_mapping.gpu.tolist()


def test_slots_of_all_groups(vllm: Modules) -> None:
    """All groups but those of Mamba states get slots; tables on a GPU are left to vLLM."""
    start(vllm)
    tables = [make_table(vllm), make_table(vllm, mode="NONE"), make_table(vllm)]
    tables[2].block_table.cpu += 10
    make = vars(vllm["vllm.v1.worker.block_table"])["MultiGroupBlockTable"]
    for _ in range(2):  # the second time, the buffers are known
        groups = make(block_tables=tables)
        groups.compute_slot_mapping(2, STARTS, POSITIONS)
        assert [14, 16, 17, 18, -1, -1] == tables[0].slot_mapping.gpu.tolist()
        assert [0] * 6 == tables[1].slot_mapping.gpu.tolist()
        assert [34, 36, 37, 38, -1, -1] == tables[2].slot_mapping.gpu.tolist()
    on_gpu = make(block_tables=[make_table(vllm, gpu=True)])
    assert on_gpu.compute_slot_mapping(2, STARTS, POSITIONS) is None
    assert [0] * 6 == on_gpu.block_tables[0].slot_mapping.np.tolist()


@pytest.mark.parametrize(
    ("num_reqs", "num_tokens", "message"),
    [
        (4, 4, "num_reqs is 4, but query_start_loc has 4 entries, and block_table has 3 rows"),
        (2, 7, "positions has 7 entries, expected at most 6"),
        (2, 3, "positions has 3 entries, fewer than query_start_loc says"),
    ],
)
def test_slots_are_never_written_outside(
    vllm: Modules, num_reqs: int, num_tokens: int, message: str
) -> None:
    """A batch that does not fit the buffers is an error."""
    start(vllm)
    make = vars(vllm["vllm.v1.worker.block_table"])["MultiGroupBlockTable"]
    groups = make(block_tables=[make_table(vllm)])
    with pytest.raises(ValueError) as raised:  # noqa: PT011  # the message is compared
        groups.compute_slot_mapping(num_reqs, STARTS, torch.zeros(num_tokens, dtype=torch.int64))
    assert message == str(raised.value)


def test_a_table_is_copied_only_to_a_device(vllm: Modules) -> None:
    """On a CPU the host and device tensors become the same, so nothing is copied."""
    start(vllm)
    table = make_table(vllm)
    table.commit_block_table(2)
    assert table.block_table.cpu is table.block_table.gpu
    assert table.slot_mapping.cpu is table.slot_mapping.gpu


def test_splits(vllm: Modules) -> None:
    """Both splits are replaced; vLLM's own function counts short extends as prefills."""
    start(vllm)
    split = function_of(vllm, "split_decodes_and_prefills")
    assert (1, 1, 1, 3) == split(make_metadata())
    assert "vLLM's" == split(make_metadata(), treat_short_extends_as_decodes=False)
    three_way = function_of(vllm, "split_decodes_prefills_and_extends")
    assert (1, 0, 1, 1, 0, 3) == three_way(make_metadata())


def test_virtual_batches(vllm: Modules) -> None:
    """A chunk of 2 each: metadata of vLLM's class, and the same rows of another group's table."""
    start(vllm)
    metadata = make_metadata()
    make = function_of(vllm, "make_local_attention_virtual_batches")
    virtual, make_block_table = make(2, metadata, 2)
    assert type(metadata) is type(virtual)
    assert [0, 1, 3, 4] == virtual.query_start_loc_cpu.tolist()
    assert [1, 2, 1] == virtual.seq_lens_cpu_upper_bound.tolist()
    assert [[7], [8], [9]] == virtual.block_table_tensor.tolist()
    other = metadata.block_table_tensor + 10
    assert [[17], [18], [19]] == make_block_table(other).tolist()


def test_fast_prefill(vllm: Modules) -> None:
    """The tokens 0 and 3 are selected; without a list of tokens vLLM's function is called."""
    start(vllm)
    make = function_of(vllm, "make_kv_sharing_fast_prefill_common_attn_metadata")
    wanted = torch.tensor([0, 3, 3, 3])
    cut = make(make_metadata(logits_indices_padded=wanted, num_logits_indices=2))
    assert [0, 1, 2] == cut.query_start_loc.tolist()
    assert (2, 1) == (cut.num_actual_tokens, cut.max_query_len)
    assert "vLLM's" == make(make_metadata())


def test_micro_batches(vllm: Modules) -> None:
    """The last slice also has the padding; padding alone is left to vLLM."""
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
    metadata = make_metadata(causal=False, is_prefilling=torch.tensor([False, True]))
    first, second = split(slices, metadata)
    assert ([0, 1, 3], [0, 1]) == (
        first.query_start_loc.tolist(),
        second.query_start_loc.tolist(),
    )
    assert ([5, 2], [3]) == (first.seq_lens.tolist(), second.seq_lens.tolist())
    assert [True] == second.is_prefilling.tolist()
    assert not second.causal
    assert "vLLM's" == split(slices, make_metadata(encoder_seq_lens=torch.tensor([1, 1])))


def test_convolutions(vllm: Modules) -> None:
    """Two sequences of 9 and 1 tokens have three programs; a GPU is left to vLLM."""
    start(vllm)
    compute = function_of(vllm, "compute_causal_conv1d_metadata")
    starts = torch.tensor([0, 9, 10], dtype=torch.int32)
    described, batch_ptr, _ = compute(starts, device=torch.device("cpu"))
    assert 3 == described[8]["tot"]
    assert [0, 0, 1, -1] == batch_ptr[:4].tolist()
    assert "vLLM's" == compute(starts, device=torch.device("cuda"))


def test_lengths_of_ranks(vllm: Modules) -> None:
    """Lengths are of all ranks or of one; a rank in a tensor and int64 lengths are left to vLLM."""
    start(vllm)
    get = function_of(vllm, "get_dcp_local_seq_lens")
    seq_lens = torch.tensor([5, 8], dtype=torch.int32)
    assert [[3, 2], [4, 4]] == get(seq_lens, 2).tolist()
    assert [2, 4] == get(seq_lens, 2, 1).tolist()
    assert "vLLM's" == get(seq_lens, 2, torch.tensor(1, dtype=torch.int32))
    assert "vLLM's" == get(seq_lens.long(), 2)


def test_block_sizes(vllm: Modules) -> None:
    """A backend is queried with its own spec for the block sizes that it supports."""

    class Backend:
        """A backend that supports the sizes in its spec."""

        @staticmethod
        def get_supported_kernel_block_sizes(spec: list[int]) -> list[int]:
            """Return the sizes."""
            return spec

    start(vllm)
    select = function_of(vllm, "select_common_block_size")
    assert 32 == select(64, [Backend, Backend], [[16, 32], [32, 64]])


# The methods of a step.


def make_buffer(size: int, dtype: torch.dtype) -> SimpleNamespace:
    """Make a buffer like vLLM's on a CPU, with stale values."""
    memory = torch.full((size,), 9).to(dtype)
    return SimpleNamespace(cpu=memory, gpu=memory, np=memory.numpy())


class Builder:
    """A metadata builder that counts its builds."""

    supports_update_block_table = True

    def __init__(self) -> None:
        self.num_built = 0

    def update_block_table(self, metadata: Any, table: torch.Tensor, slots: torch.Tensor) -> Any:  # noqa: ANN401
        """Return the arguments as metadata."""
        return SimpleNamespace(of=metadata, table=table, slots=slots)


class Group:
    """An attention group of one layer."""

    def __init__(self, layer: str, spec: str) -> None:
        self.layer_names, self.kv_cache_spec = [layer], spec
        self.builder = Builder()

    def get_metadata_builder(self) -> Builder:
        """Return the builder."""
        return self.builder

    def build_metadata(self, metadata: Any) -> Any:  # noqa: ANN401
        """Count, and return the batch."""
        self.builder.num_built += 1
        return metadata

    def map_to_kernel_block_table(self, table: torch.Tensor) -> torch.Tensor:
        """Return the table."""
        return table


def make_runner(vllm: Modules, **others: Any) -> Any:  # noqa: ANN401  # the stand-in's class
    """Make a runner for up to 3 requests, with a decode at position 4 and a chunk of a prompt."""
    tables = [make_table(vllm), make_table(vllm)]
    tables[1].block_table.cpu += 10
    groups = vars(vllm["vllm.v1.worker.block_table"])["MultiGroupBlockTable"](block_tables=tables)
    groups.commit_block_table = lambda num_reqs: [t.commit_block_table(num_reqs) for t in tables]
    groups_by_index = _Indexed(groups)
    batch = SimpleNamespace(
        num_reqs=2,
        req_ids=["a", "b"],
        num_computed_tokens_cpu=np.array([4, 0, 7], dtype=np.int32),
        num_prompt_tokens=np.array([2, 5, 7], dtype=np.int32),
        num_tokens_no_spec=np.array([5, 5, 7], dtype=np.int32),
        token_ids_cpu=np.arange(24, dtype=np.int32).reshape(3, 8),
        block_table=groups_by_index,
        req_prompt_embeds={},
        prev_req_id_to_index=None,
        prev_sampled_token_ids=None,
    )
    usual = {
        "speculative_config": None,
        "num_accepted_tokens_event": None,
        "lora_config": None,
        "uses_mrope": False,
        "enable_prompt_embeds": False,
        "_pp_recv_work": None,
        "dcp_world_size": 1,
        "is_mm_prefix_lm": False,
        "model_config": SimpleNamespace(rswa_window=None, is_encoder_decoder=False),
        "cache_config": SimpleNamespace(use_replayssm=False, kv_sharing_fast_prefill=False),
    }
    sizes = {
        "query_start_loc": (4, torch.int32),
        "num_scheduled_tokens": (3, torch.int32),
        "req_indices": (6, torch.int64),
        "query_pos": (6, torch.int64),
        "input_ids": (6, torch.int32),
        "discard_request_mask": (3, torch.bool),
        "num_accepted_tokens": (3, torch.int32),
        "prev_positions": (3, torch.int64),
    }
    return vars(vllm["vllm.v1.worker.gpu_model_runner"])["GPUModelRunner"](
        **{name: make_buffer(*size) for name, size in sizes.items()},
        **usual | others,
        input_batch=batch,
        arange_np=np.arange(6),
        num_computed_tokens=torch.full((3,), 9, dtype=torch.int32),
        seq_lens=torch.full((3,), 9, dtype=torch.int32),
        optimistic_seq_lens_cpu=torch.full((3,), 9, dtype=torch.int32),
        positions=torch.full((6,), 9),
        attn_groups=[[Group("full", "spec")], [Group("also full", "spec")]],
    )


class _Indexed:
    """The tables of all groups, indexed by group."""

    def __init__(self, groups: Any) -> None:  # noqa: ANN401  # the stand-in's class
        self._groups = groups
        self.commit_block_table = groups.commit_block_table
        self.compute_slot_mapping = groups.compute_slot_mapping

    def __getitem__(self, index: int) -> SimpleNamespace:
        blocks = self._groups.block_tables[index].block_table.cpu
        return SimpleNamespace(get_device_tensor=lambda num_reqs: blocks[:num_reqs])


STEP = SimpleNamespace(total_num_scheduled_tokens=4)
TOKENS = np.array([1, 3], dtype=np.int32)


def test_inputs_of_a_step(vllm: Modules) -> None:
    """Every buffer that vLLM fills is filled, over the same range as in vLLM."""
    start(vllm)
    runner = make_runner(vllm)
    logits_indices, speculated, num_sampled = runner._prepare_inputs(STEP, TOKENS)
    assert ([0, 3], None, 1) == (logits_indices.tolist(), speculated, num_sampled)
    assert torch.int32 == logits_indices.dtype
    assert [0, 1, 4, 4] == runner.query_start_loc.cpu.tolist()
    assert [1, 3, 9] == runner.num_scheduled_tokens.cpu.tolist()
    assert [4, 0, 9] == runner.num_computed_tokens.tolist()
    assert [5, 3, 0] == runner.seq_lens.tolist() == runner.optimistic_seq_lens_cpu.tolist()
    assert [0, 1, 1, 1, 9, 9] == runner.req_indices.cpu.tolist()
    assert [0, 0, 1, 2, 9, 9] == runner.query_pos.cpu.tolist()
    assert [4, 0, 1, 2, 9, 9] == runner.positions.tolist()
    assert [4, 8, 9, 10, 9, 9] == runner.input_ids.cpu.tolist()
    assert [False, True, True] == runner.discard_request_mask.cpu.tolist()
    assert [1, 1, 1] == runner.num_accepted_tokens.cpu.tolist()
    assert [-1, -1, 9] == runner.prev_positions.cpu.tolist()


@pytest.mark.parametrize(
    "unusual",
    [
        {"speculative_config": SimpleNamespace()},
        {"lora_config": SimpleNamespace()},
        {"uses_mrope": True},
        {"enable_prompt_embeds": True},
    ],
    ids=str,
)
def test_unusual_inputs_are_left_to_vllm(vllm: Modules, unusual: dict[str, Any]) -> None:
    """Speculation, LoRA and the like, and steps with tokens on the device, are left to vLLM."""
    start(vllm)
    assert "vLLM's" == make_runner(vllm, **unusual)._prepare_inputs(STEP, TOKENS)
    overlapped = make_runner(vllm)
    overlapped.input_batch.prev_sampled_token_ids = torch.tensor([[1]])
    assert "vLLM's" == overlapped._prepare_inputs(STEP, TOKENS)


def test_metadata_of_a_step(vllm: Modules) -> None:
    """Metadata is built for one of the groups with equal specs, and updated for the other."""
    start(vllm)
    runner = make_runner(vllm)
    runner._prepare_inputs(STEP, TOKENS)
    slots = {0: torch.tensor([14, 16, 17, 18]), 1: torch.tensor([34, 36, 37, 38])}
    for step in (1, 2):
        by_layer, speculated = runner._build_attention_metadata(4, 2, 3, slot_mappings=slots)
        assert speculated is None
        assert [step, 0] == [group.builder.num_built for [group] in runner.attn_groups]
    built, updated = by_layer["full"], by_layer["also full"]
    assert [0, 1, 4] == built.query_start_loc.tolist() == built.query_start_loc_cpu.tolist()
    assert [5, 3] == built.seq_lens.tolist() == built.seq_lens_cpu_upper_bound.tolist()
    assert (2, 4, 3, 5) == (
        built.num_reqs,
        built.num_actual_tokens,
        built.max_query_len,
        built.max_seq_len,
    )
    assert [False, True] == built.is_prefilling.tolist()
    assert [4, 0, 1, 2] == built.positions.tolist()
    assert [[5, 6, 7], [8, 9, 0]] == built.block_table_tensor.tolist()
    assert slots[0] is built.slot_mapping
    assert built is updated.of
    assert [[15, 16, 17], [18, 19, 10]] == updated.table.tolist()
    assert slots[1] is updated.slots


def test_groups_with_other_specs_or_builders_share_nothing(vllm: Modules) -> None:
    """Such groups build their own metadata, as do builders that cannot update a block table."""
    start(vllm)
    runner = make_runner(vllm)
    third, fourth = Group("sliding", "other spec"), Group("fixed", "other spec")
    runner.attn_groups = [[Group("full", "spec"), third], [fourth]]
    fourth.builder.supports_update_block_table = False
    runner._prepare_inputs(STEP, TOKENS)
    slots = {0: torch.tensor([14, 16, 17, 18]), 1: torch.tensor([34, 36, 37, 38])}
    by_layer, _ = runner._build_attention_metadata(4, 2, 3, slot_mappings=slots)
    assert ["full", "sliding", "fixed"] == list(by_layer)
    assert [1, 1, 1] == [group.builder.num_built for pair in runner.attn_groups for group in pair]


@pytest.mark.parametrize(
    "unusual",
    [
        {"num_tokens_padded": 8},
        {"num_reqs_padded": 4},
        {"for_cudagraph_capture": True},
        {"ubatch_slices": [SimpleNamespace()]},
    ],
    ids=str,
)
def test_unusual_metadata_is_left_to_vllm(vllm: Modules, unusual: dict[str, Any]) -> None:
    """Padding, graph capture, micro-batches, context parallelism and encoders are left to vLLM."""
    start(vllm)
    runner = make_runner(vllm)
    assert "vLLM's" == runner._build_attention_metadata(4, 2, 3, slot_mappings={}, **unusual)
    runner.dcp_world_size = 2
    assert "vLLM's" == runner._build_attention_metadata(4, 2, 3, slot_mappings={})
    runner = make_runner(vllm)
    runner.attn_groups[1][0].kv_cache_spec = type("EncoderOnlyAttentionSpec", (), {})()
    assert "vLLM's" == runner._build_attention_metadata(4, 2, 3, slot_mappings={})


def test_a_cpu_builder_updates_a_copy(vllm: Modules) -> None:
    """A CPU builder updates a copy, so that the other group's metadata does not change."""
    start(vllm)
    builder = vars(vllm["vllm.v1.attention.backends.cpu_attn"])["CPUAttentionMetadataBuilder"]()
    metadata = SimpleNamespace(block_table="a", slot_mapping="b", seq_lens="c")
    updated = builder.update_block_table(metadata, "d", "e")
    assert SimpleNamespace(block_table="d", slot_mapping="e", seq_lens="c") == updated
    assert SimpleNamespace(block_table="a", slot_mapping="b", seq_lens="c") == metadata
