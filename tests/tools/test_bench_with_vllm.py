"""The benchmark against vLLM, with stubs of vLLM's classes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from conformance.targets.implementations import load_implementation
from kvtwin.bench import command_line
from kvtwin.bench.command_line import main
from kvtwin.bench.record import read_record
from tests import vllm_stand_in
from tests.vllm_stand_in import CommonAttentionMetadata

PACKAGES = ("conformance.adapters.vllm", "kvtwin.baselines.vllm")


class Buffer:
    """A buffer with a CPU tensor, and a separate GPU tensor."""

    def __init__(self, *shape: int, dtype: torch.dtype) -> None:
        self.cpu = torch.zeros(shape, dtype=dtype)
        self.gpu: torch.Tensor | None = None


class BlockTable(vllm_stand_in.BlockTable):
    """A block table with the constructor of vLLM's."""

    def __init__(
        self,
        block_size: int,
        max_num_reqs: int,
        max_num_blocks_per_req: int,
        max_num_batched_tokens: int,
        pin_memory: bool,
        device: torch.device,
        cp_kv_cache_interleave_size: int,
        slot_mapping_mode: str = "slots",
    ) -> None:
        assert (False, "cpu", 1) == (pin_memory, device.type, cp_kv_cache_interleave_size)
        self.block_size, self.slot_mapping_mode = block_size, slot_mapping_mode
        self.block_table = Buffer(max_num_reqs, max_num_blocks_per_req, dtype=torch.int32)
        self.slot_mapping = Buffer(max_num_batched_tokens, dtype=torch.int64)


@dataclass
class AttentionGroup:
    """The layers of a KV cache group, and their builders."""

    backend: object
    layer_names: list[str]
    kv_cache_spec: object
    kv_cache_group_id: int
    metadata_builders: list[Any] = field(default_factory=list)


def build_attn_metadata(
    attn_groups: list[list[AttentionGroup]],
    num_reqs: int,
    num_tokens: int,
    query_start_loc_gpu: torch.Tensor,
    query_start_loc_cpu: torch.Tensor,
    max_query_len: int,
    seq_lens: torch.Tensor,
    max_seq_len: int,
    block_tables: list[torch.Tensor],
    slot_mappings: torch.Tensor,
    kv_cache_config: object,
    seq_lens_cpu_upper_bound: torch.Tensor,
) -> dict[str, Any]:
    """Build the metadata of each layer, with vLLM's parameters."""
    del kv_cache_config
    built = {}
    for [group], table, slots in zip(attn_groups, block_tables, slot_mappings, strict=True):
        batch = CommonAttentionMetadata(
            query_start_loc_gpu,
            query_start_loc_cpu,
            seq_lens[:num_reqs],
            num_reqs,
            num_tokens,
            max_query_len,
            max_seq_len,
            table,
            slots,
            seq_lens_cpu_upper_bound=seq_lens_cpu_upper_bound[:num_reqs],
        )
        [builder] = group.metadata_builders
        metadata = builder.build(common_prefix_len=0, common_attn_metadata=batch)
        built.update(dict.fromkeys(group.layer_names, metadata))
    return built


@pytest.fixture(autouse=True)
def vllm(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install the stubs as vLLM, and import the adapter's modules anew for them."""
    before = {name: sys.modules.pop(name) for name in [*sys.modules] if name.startswith(PACKAGES)}
    members = {
        **vllm_stand_in.MODULES,
        "v1.worker.block_table": (BlockTable,),
        "v1.worker.gpu.attn_utils": (build_attn_metadata,),
        "v1.worker.utils": (AttentionGroup,),
    }
    monkeypatch.setattr(vllm_stand_in, "MODULES", members)
    for name, module in vllm_stand_in.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(command_line, "ENGINE_BLOCKS", 1)
    monkeypatch.setattr(command_line, "ENGINE_SIZES", (8,))
    yield
    for name in [name for name in sys.modules if name.startswith(PACKAGES)]:
        del sys.modules[name]
    sys.modules.update(before)


def test_what_both_have_is_compared_and_timed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Functions that vLLM lacks, or with arguments that it does not take, have no row."""
    stored = tmp_path / "run.json"
    main(["--baseline", "vllm", "--json", str(stored)])
    read = read_record(stored)
    assert [
        "compute_slot_mapping",
        "build_attn_metadata (bounds given)",
        "split_decodes_and_prefills",
        "reorder_batch_to_split_decodes_and_prefills, 4 regions",
        "make_local_attention_virtual_batches, chunk 8192",
        "make_local_attention_virtual_batches, chunk 512",
    ] == [row.job for row in read.rows]
    assert {("mixed", 8)} == {(row.kind, row.num_reqs) for row in read.rows}
    printed = capsys.readouterr().out
    assert "fast / vllm, µs, mixed batches" in printed
    assert "over 6 rows" in printed


def test_a_wrong_answer_of_vllm_is_not_timed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Slots are compared, although vLLM's method returns none."""
    monkeypatch.setattr(BlockTable, "compute_slot_mapping", lambda *_: None)
    assert 1 == main(["--baseline", "vllm", "--functions", "compute_slot_mapping"])
    assert "WRONG: baseline: compute_slot_mapping, mixed, 8: result" in capsys.readouterr().out


def test_nothing_of_the_adapter_is_timed() -> None:
    """A prepared call reuses its converted objects, so that no conversion is timed."""
    from kvtwin.baselines.vllm import VllmBaseline  # noqa: PLC0415  # of the stand-in

    baseline = VllmBaseline(load_implementation("vllm").module)
    starts = torch.tensor([0, 2], dtype=torch.int32)
    table = torch.tensor([[3, 4]], dtype=torch.int32)
    call = baseline.prepare("compute_slot_mapping", table, starts, torch.tensor([1, 2]), 2)
    assert [7, 8] == call().tolist()
    assert call() is call()
