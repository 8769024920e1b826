"""The device path on a GPU: no synchronisation, graphs, side streams, the cost of a launch."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from on_gpu import call_behind_a_wait, captured, no_waiting

import fast
from kvtwin.bench.measure import host_cost_us

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")

NUM_REQS, BLOCK_SIZE = 64, 16


class Step:
    """Block tables of two groups on the GPU, and a decode step of `NUM_REQS` requests."""

    def __init__(self) -> None:
        sizes, widths = [BLOCK_SIZE, 2 * BLOCK_SIZE], [4096 // BLOCK_SIZE, 2048 // BLOCK_SIZE]
        self.tables = fast.BlockTables(sizes, NUM_REQS, 512, widths, "cuda")
        self.lens = [17 * i % 1000 + 1 for i in range(NUM_REQS)]
        self.append()
        self.idx_mapping = torch.arange(NUM_REQS, dtype=torch.int32, device="cuda")
        self.starts = torch.arange(NUM_REQS + 1, dtype=torch.int32, device="cuda")
        self.positions = torch.tensor(self.lens, device="cuda") - 1
        self.batch = self.metadata()
        self.buffer = fast.CpuGpuBuffer(NUM_REQS, dtype=torch.int32, device="cuda", pin_memory=True)

    def append(self) -> None:
        for row, length in enumerate(self.lens):
            counts = [-(-length // size) for size in self.tables.block_sizes]
            ids = [list(range(1 + row, 1 + row + count)) for count in counts]
            self.tables.append_block_ids(row, ids, overwrite=True)
        self.tables.apply_staged_writes()

    def gather(self) -> tuple[torch.Tensor, ...]:
        return self.tables.gather_block_tables(self.idx_mapping, NUM_REQS)

    def slots(self) -> torch.Tensor:
        batch = self.idx_mapping, self.starts, self.positions
        return self.tables.compute_slot_mappings(*batch, NUM_REQS)

    def build(self) -> dict[str, Any]:
        """Build the metadata of a step, by builders that take it as it is."""
        starts, lens = (
            fast.CpuGpuBuffer(NUM_REQS + 1, dtype=torch.int32, device="cuda", pin_memory=True)
            for _ in range(2)
        )
        starts.np[:] = range(NUM_REQS + 1)
        lens.np[:NUM_REQS] = self.lens
        starts.copy_to_gpu()
        lens.copy_to_gpu()
        builder = SimpleNamespace(build=lambda *_, **given: given["common_attn_metadata"])
        groups = [SimpleNamespace(layer_names=[name]) for name in "ab"]
        return fast.build_attn_metadata(
            [builder, builder],
            num_reqs=NUM_REQS,
            num_tokens=NUM_REQS,
            query_start_loc=starts,
            seq_lens=lens,
            num_computed_tokens_cpu=torch.tensor(self.lens, dtype=torch.int32) - 1,
            block_tables=self.gather(),
            slot_mappings=self.slots(),
            kv_cache_config=SimpleNamespace(kv_cache_groups=groups),
        )

    def metadata(self) -> fast.CommonAttentionMetadata:
        seq_lens = torch.tensor(self.lens, dtype=torch.int32)
        return fast.CommonAttentionMetadata(
            query_start_loc=self.starts,
            query_start_loc_cpu=torch.arange(NUM_REQS + 1, dtype=torch.int32),
            seq_lens=seq_lens.to("cuda"),
            seq_lens_cpu=seq_lens,
            num_computed_tokens_cpu=seq_lens - 1,
            num_reqs=NUM_REQS,
            num_actual_tokens=NUM_REQS,
            max_query_len=1,
            max_seq_len=max(self.lens),
            block_table_tensor=self.gather()[0],
            slot_mapping=self.slots()[0],
        )


@pytest.fixture(scope="module")
def step() -> Step:
    fast.warmup()
    return Step()


def reorder() -> bool:
    """Reorder a batch that a host keeps: a prefill before a decode."""
    requests = SimpleNamespace(
        req_ids=["prefill", "decode"],
        num_computed_tokens_cpu=np.array([0, 5], np.int32),
        swap_states=lambda *_: None,
    )
    scheduled = SimpleNamespace(num_scheduled_tokens={"prefill": 7, "decode": 1})
    return fast.reorder_batch_to_split_decodes_and_prefills(requests, scheduled)


HALVES = [
    fast.UBatchSlice(slice(0, 32), slice(0, 32)),
    fast.UBatchSlice(slice(32, 64), slice(32, 64)),
]

CALLS: dict[str, Callable[[Step], object]] = {
    "append_block_ids": lambda step: step.append(),
    "gather_block_tables": lambda step: step.gather(),
    "compute_slot_mappings": lambda step: step.slots(),
    "compute_slot_mapping": lambda step: fast.compute_slot_mapping(
        step.batch.block_table_tensor, step.starts, step.positions, BLOCK_SIZE
    ),
    "build_attn_metadata": lambda step: step.build(),
    "split_decodes_and_prefills": lambda step: fast.split_decodes_and_prefills(step.batch),
    "split_decodes_prefills_and_extends": lambda step: fast.split_decodes_prefills_and_extends(
        step.batch
    ),
    "reorder_batch_to_split_decodes_and_prefills": lambda _: reorder(),
    "create_ubatch_slices": lambda _: fast.create_ubatch_slices(np.ones(NUM_REQS, np.int32), 32),
    "split_attn_metadata": lambda step: fast.split_attn_metadata(HALVES, step.batch),
    "make_local_attention_virtual_batches": lambda step: fast.make_local_attention_virtual_batches(
        64, step.batch, BLOCK_SIZE
    ),
    "get_dcp_local_seq_lens": lambda step: fast.get_dcp_local_seq_lens(
        step.batch.seq_lens, 2, 0, 1
    ),
    "slice_query_start_locs": lambda step: fast.slice_query_start_locs(step.starts, slice(3, 9)),
    "map_to_kernel_blocks": lambda step: fast.map_to_kernel_blocks(
        step.batch.block_table_tensor, 2
    ),
    "CpuGpuBuffer": lambda step: (step.buffer.copy_to_gpu(), step.buffer.copy_to_cpu(3)),
    "unpadded": lambda step: step.batch.unpadded(32, 32),
}
"""A call of every hot function."""

ON_THE_HOST = {
    "split_decodes_and_prefills",
    "split_decodes_prefills_and_extends",
    "reorder_batch_to_split_decodes_and_prefills",
    "create_ubatch_slices",
    "unpadded",
}
"""Functions that only run on the host, so that streams do not matter."""


@pytest.mark.parametrize("name", CALLS)
def test_no_call_waits_for_the_device(step: Step, name: str) -> None:
    CALLS[name](step)
    with no_waiting():
        CALLS[name](step)


@pytest.mark.parametrize("name", CALLS)
def test_calls_run_on_a_side_stream(step: Step, name: str) -> None:
    CALLS[name](step)
    torch.cuda.synchronize()
    _, is_queued = call_behind_a_wait(torch.cuda.Stream(), lambda: CALLS[name](step))
    if name not in ON_THE_HOST:
        assert is_queued


def test_a_new_thread_launches(step: Step) -> None:
    expected = step.gather()[0].clone()
    torch.cuda.synchronize()
    with ThreadPoolExecutor(1) as pool:
        tables = pool.submit(step.gather).result()
    assert torch.equal(expected, tables[0])


WARM_AND_CAPTURE = """
import torch, fast
fast.warmup()
tables = fast.BlockTables([16], 4, 8, [4], "cuda")
mapping = torch.tensor([0, 1], dtype=torch.int32, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    tables.gather_block_tables(mapping, 2)
graph.replay()
torch.cuda.synchronize()
"""


def test_warmup_is_enough_for_a_capture() -> None:
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", WARM_AND_CAPTURE], cwd=root, check=True)  # noqa: S603  # our own


def test_a_replayed_gather_reads_the_new_mapping(step: Step) -> None:
    graph, table = captured(lambda: step.gather()[0])
    for mapping in (torch.arange(NUM_REQS), torch.arange(NUM_REQS).flip(0), -torch.ones(NUM_REQS)):
        step.idx_mapping.copy_(mapping)
        graph.replay()
        got = table.clone()
        torch.cuda.synchronize()
        fresh = Step()
        eager = fresh.tables.gather_block_tables(step.idx_mapping, NUM_REQS)[0]
        assert torch.equal(eager, got)
    step.idx_mapping.copy_(torch.arange(NUM_REQS))


def test_replayed_slots_read_the_new_positions(step: Step) -> None:
    step.gather()
    graph, slots = captured(step.slots)
    before = step.positions.clone()
    step.positions.copy_(before // 2)
    graph.replay()
    got = slots.clone()
    torch.cuda.synchronize()
    assert torch.equal(step.slots(), got)
    step.positions.copy_(before)


def test_replayed_slot_mapping_writes_its_out(step: Step) -> None:
    table = step.gather()[0]
    out = torch.empty(NUM_REQS + 8, dtype=torch.int64, device="cuda")
    graph, _ = captured(
        lambda: fast.compute_slot_mapping(table, step.starts, step.positions, BLOCK_SIZE, out=out)
    )
    out.fill_(77)
    graph.replay()
    eager = fast.compute_slot_mapping(table, step.starts, step.positions, BLOCK_SIZE)
    assert torch.equal(eager, out[:NUM_REQS])
    assert out[NUM_REQS:].eq(fast.PAD_SLOT_ID).all()


def test_replayed_local_attention_reads_the_new_blocks(step: Step) -> None:
    batch = step.metadata()
    graph, local = captured(
        lambda: fast.make_local_attention_virtual_batches(64, batch, BLOCK_SIZE)
    )
    batch.block_table_tensor.mul_(3)
    eager = fast.make_local_attention_virtual_batches(64, batch, BLOCK_SIZE)
    for _ in range(100):
        fast.make_local_attention_virtual_batches(32, batch, BLOCK_SIZE)
    for _ in range(2):
        local.block_table_tensor.fill_(77)
        local.seq_lens.fill_(77)
        graph.replay()
        torch.cuda.synchronize()
        for name in ("query_start_loc", "seq_lens", "block_table_tensor"):
            assert torch.equal(getattr(eager, name), getattr(local, name)), name


def test_replayed_micro_batches_are_those_of_the_capture(step: Step) -> None:
    batch = step.metadata()
    graph, parts = captured(lambda: fast.split_attn_metadata(HALVES, batch))
    eager = fast.split_attn_metadata(HALVES, batch)
    for part in parts:
        part.query_start_loc.fill_(77)
        part.seq_lens.fill_(77)
    graph.replay()
    torch.cuda.synchronize()
    for expected, part in zip(eager, parts, strict=True):
        for name in ("query_start_loc", "seq_lens", "block_table_tensor", "slot_mapping"):
            assert torch.equal(getattr(expected, name), getattr(part, name)), name


def test_replayed_local_lengths_read_the_new_lengths() -> None:
    seq_lens = torch.tensor([5, 8], dtype=torch.int32, device="cuda")
    graph, local = captured(lambda: fast.get_dcp_local_seq_lens(seq_lens, 2, 0, 2))
    seq_lens.copy_(torch.tensor([8, 6]))
    graph.replay()
    assert local.tolist() == [4, 4]


def test_replayed_writes_are_those_of_the_capture() -> None:
    step = Step()

    def write() -> None:
        step.tables.append_block_ids(1, [[7, 8], [9]], overwrite=True)
        step.tables.apply_staged_writes()

    graph, _ = captured(write)
    step.append()  # all rows as they were at first
    graph.replay()
    full, sliding = step.gather()
    assert [7, 8, 0, 0] == full[1, :4].tolist()
    assert [9, 0] == sliding[1, :2].tolist()


def test_a_compiled_step_gives_the_same(step: Step) -> None:
    table = step.gather()[0]
    mask = step.positions % 3 > 0
    num_embeds = int(mask.sum())

    def compute(positions: torch.Tensor, rows: torch.Tensor) -> list[torch.Tensor]:
        slots = fast.compute_slot_mapping(table, step.starts, positions, BLOCK_SIZE)
        local = fast.get_dcp_local_seq_lens((positions + 1).int(), 2, 0, 2)
        taken = fast.gather_mm_placeholders(rows, mask, num_embeds=num_embeds)
        put = fast.scatter_mm_placeholders(2 * taken, mask)
        return [slots, local, taken, put.nan_to_num(7)]

    graph = torch.compile(compute, fullgraph=True, backend="aot_eager")
    rows = torch.arange(NUM_REQS * 24, device="cuda").view(NUM_REQS, 24).bfloat16()
    graph(step.positions, rows)
    with no_waiting():
        found = graph(step.positions // 2, rows + 1)
    for expected, actual in zip(compute(step.positions // 2, rows + 1), found, strict=True):
        assert torch.equal(expected, actual)


def test_a_cpu_tensor_is_refused(step: Step) -> None:
    with pytest.raises(ValueError, match="idx_mapping"):
        step.tables.gather_block_tables(step.idx_mapping.cpu(), NUM_REQS)


def test_memory_is_measured() -> None:
    snapshot = fast.MemorySnapshot.measure("cuda")
    assert 0 < snapshot.free_memory <= snapshot.total_memory
    held = torch.empty(2**28, dtype=torch.uint8, device="cuda")
    assert fast.MemorySnapshot.measure("cuda").free_memory <= snapshot.free_memory
    assert held.numel() == 2**28


def test_what_a_launch_costs_the_host(step: Step) -> None:
    for name in ("gather_block_tables", "compute_slot_mappings", "compute_slot_mapping"):
        cost_us = host_cost_us(lambda name=name: CALLS[name](step))
        print(f"host cost of {name}: {cost_us:.1f} us")  # noqa: T201  # gpu_check.sh shows it
        assert cost_us < 100
