"""vLLM as the baseline, `kvtwin bench --baseline vllm`: its functions, without the adapter's work.

Arguments are converted, and a block table is filled, before a call is timed. Only vLLM's function
is timed, or its method if there is no function.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import partial
from types import MethodType, SimpleNamespace
from typing import Any

import numpy as np
import torch

from conformance.adapters.base import Unsupported
from conformance.adapters.vllm import second_runner
from conformance.adapters.vllm.objects import VllmAdapter
from conformance.adapters.vllm.places import find
from kvtwin.bench.jobs import (
    BLOCK_SIZE,
    MAX_MODEL_LEN,
    MAX_NUM_REQS,
    TOKEN_BUDGET,
    Appends,
    Batch,
    Builder,
    Call,
    Job,
    Prepared,
    new_blocks,
)
from kvtwin.bench.steps import BY_PARTS, STEP, make_state


def _prepare_slots(
    block_table: torch.Tensor, query_start_loc: torch.Tensor, positions: torch.Tensor, size: int
) -> Call:
    """Make the `BlockTable` of a KV cache group as vLLM's runner for CPUs does."""
    num_reqs, num_columns = block_table.shape
    device = torch.device("cpu")
    table = find("BlockTable")(size, num_reqs, num_columns, len(positions), False, device, 1)
    for buffer in (table.block_table, table.slot_mapping):
        buffer.gpu = buffer.cpu
    table.block_table.cpu.copy_(block_table)
    slots: torch.Tensor = table.slot_mapping.gpu

    def call() -> torch.Tensor:
        table.compute_slot_mapping(num_reqs, query_start_loc, positions)
        return slots

    return call


def _prepare_reorder(
    input_batch: Any, scheduler_output: Any, decode_threshold: int, **options: Any
) -> Call:
    if options != {"regions": 4}:
        raise Unsupported("other than four regions, or an array of counts")
    found = find("reorder_batch_to_split_decodes_and_prefills")
    return lambda: found(input_batch, scheduler_output, decode_threshold)


def _prepare_conv1d(query_start_loc_p: torch.Tensor) -> Call:
    found, device = find("compute_causal_conv1d_metadata"), query_start_loc_p.device
    return lambda: found(query_start_loc_p, device=device)


def _prepare_build(
    attn_metadata_builders: list[Any],
    num_reqs: int,
    num_tokens: int,
    query_start_loc: Any,
    seq_lens: Any,
    num_computed_tokens_cpu: torch.Tensor,
    block_tables: Any,
    slot_mappings: torch.Tensor,
    kv_cache_config: Any,
    max_query_len: int | None = None,
    max_seq_len: int | None = None,
) -> Call:
    """Make vLLM's attention groups, one for each builder."""
    del num_computed_tokens_cpu  # vLLM has no such field
    if max_query_len is None or max_seq_len is None:
        raise Unsupported("maxima that are not given")
    group_class = importlib.import_module("vllm.v1.worker.utils").AttentionGroup
    groups = []
    for builder, group in zip(attn_metadata_builders, kv_cache_config.kv_cache_groups, strict=True):
        theirs = SimpleNamespace(build=builder.build, supports_update_block_table=False)
        groups.append([group_class(None, group.layer_names, None, 0, metadata_builders=[theirs])])
    build = find("build_attn_metadata")
    # With keywords, as vLLM's runner calls it; the timed call makes the views, as that of `fast`.
    return lambda: build(
        attn_groups=groups,
        num_reqs=num_reqs,
        num_tokens=num_tokens,
        query_start_loc_gpu=query_start_loc.gpu[: num_reqs + 1],
        query_start_loc_cpu=query_start_loc.cpu[: num_reqs + 1],
        max_query_len=max_query_len,
        seq_lens=seq_lens.gpu,
        max_seq_len=max_seq_len,
        block_tables=block_tables,
        slot_mappings=slot_mappings,
        kv_cache_config=kv_cache_config,
        seq_lens_cpu_upper_bound=seq_lens.cpu,
    )


_PREPARED: Mapping[str, Callable[..., Call]] = {
    "compute_slot_mapping": _prepare_slots,
    "reorder_batch_to_split_decodes_and_prefills": _prepare_reorder,
    "compute_causal_conv1d_metadata": _prepare_conv1d,
    "build_attn_metadata": _prepare_build,
}
"""How calls are prepared whose parameters differ from those of `reference`."""


class Runner:
    """What the first runner of vLLM 0.32 does for a step on a CPU (`CPUModelRunner`).

    Its functions and methods are called as it calls them. Where the inputs are prepared in the
    middle of its methods `_prepare_inputs` and `_build_attention_metadata`, the same statements are
    here. It does not reorder a batch, since its backend for CPUs asks for no order.

    Only what yields the inputs of a step is counted. What it does beside that is left out: the mask
    of requests that are not sampled, the places of the step before, accepted tokens, whether a
    request is prefilling, slots and tables of padding, and slots by layer.
    """

    def __init__(self, batch: Batch, num_groups: int) -> None:
        self.batch, self.num_groups, state = batch, num_groups, make_state(batch)
        num_tokens, device = max(batch.num_tokens, TOKEN_BUDGET), torch.device("cpu")
        worker = importlib.import_module("vllm.v1.worker.block_table")
        self.block_table = worker.MultiGroupBlockTable(
            *(MAX_NUM_REQS, num_tokens, False, device, [BLOCK_SIZE] * num_groups),
            [MAX_MODEL_LEN // BLOCK_SIZE] * num_groups,
        )
        for table in self.block_table.block_tables:
            for buffer in (table.block_table, table.slot_mapping):
                buffer.gpu = buffer.cpu
        of_rows = [(tuple(ids), row) for row, ids in enumerate(new_blocks(batch, num_groups))]
        self.append = Appends(self.block_table.append_row, of_rows, self._fill)
        self._fill()

        def make(size: int, dtype: torch.dtype) -> Any:
            buffer = find("CpuGpuBuffer")(size, dtype=dtype, device=device, pin_memory=False)
            buffer.gpu = buffer.cpu
            return buffer

        self.arange_np = np.arange(max(MAX_NUM_REQS + 1, MAX_MODEL_LEN, num_tokens), dtype=np.int64)
        cls = importlib.import_module("vllm.v1.worker.gpu_model_runner").GPUModelRunner
        self._get_cumsum_and_arange = MethodType(cls._get_cumsum_and_arange, self)
        self.query_pos = make(len(self.arange_np), torch.int64)
        self.req_indices, self.input_ids = make(num_tokens, torch.int64), make(num_tokens, _INT32)
        self.query_start_loc = make(MAX_NUM_REQS + 1, _INT32)
        self.num_scheduled_tokens = make(MAX_NUM_REQS, _INT32)
        self.positions = torch.zeros(num_tokens, dtype=torch.int64)
        self.seq_lens, self.optimistic_seq_lens_cpu, self.num_computed_tokens = torch.zeros(
            3, MAX_NUM_REQS, dtype=_INT32
        ).unbind()
        # Its state: tokens that were sampled, and drafts, are among the tokens of a request.
        self.token_ids_cpu_tensor = torch.zeros(MAX_NUM_REQS, MAX_MODEL_LEN, dtype=_INT32)
        self.token_ids_cpu = self.token_ids_cpu_tensor.numpy()
        self.token_ids_cpu[: batch.num_reqs] = state.all_token_ids
        for row in np.flatnonzero(batch.seq_lens > state.prefill_len).tolist():
            tokens = [state.last_sampled_tokens[row], *state.draft_tokens[row]]
            first, end = batch.num_computed_tokens[row], batch.seq_lens[row]
            self.token_ids_cpu[row, first:end] = tokens[: end - first]
        self.num_computed_tokens_cpu_tensor = torch.zeros(MAX_NUM_REQS, dtype=_INT32)
        self.num_computed_tokens_cpu = self.num_computed_tokens_cpu_tensor.numpy()
        self.num_computed_tokens_cpu[: batch.num_reqs] = batch.num_computed_tokens
        group_class = importlib.import_module("vllm.v1.worker.utils").AttentionGroup
        names = [[f"layers.{i}.attn"] for i in range(num_groups)]
        self.kv_cache_config = SimpleNamespace(
            kv_cache_groups=[SimpleNamespace(layer_names=each) for each in names]
        )
        builder = SimpleNamespace(build=Builder().build, supports_update_block_table=False)
        self.attn_groups = [
            [group_class(None, each, None, 0, metadata_builders=[builder])] for each in names
        ]

    def _fill(self) -> None:
        ids = np.split(self.batch.block_ids, np.cumsum(self.batch.num_blocks)[:-1])
        self.block_table.clear()
        for row, of_row in enumerate(ids):
            self.block_table.add_row([of_row.tolist()] * self.num_groups, row)

    def prepare(self) -> Any:
        """Prepare the inputs; return the places of logits."""
        num_reqs, total_num_scheduled_tokens = self.batch.num_reqs, self.batch.num_tokens
        num_scheduled_tokens = self.batch.query_lens
        self.block_table.commit_block_table(num_reqs)
        req_indices = np.repeat(self.arange_np[:num_reqs], num_scheduled_tokens)
        cu_num_tokens = self._get_cumsum_and_arange(num_scheduled_tokens, self.query_pos.np)
        positions_np = (
            self.num_computed_tokens_cpu[req_indices] + self.query_pos.np[: cu_num_tokens[-1]]
        )
        token_indices = positions_np + req_indices * self.token_ids_cpu.shape[1]
        token_indices_tensor = torch.from_numpy(token_indices)
        torch.index_select(
            self.token_ids_cpu_tensor.flatten(),
            0,
            token_indices_tensor,
            out=self.input_ids.cpu[:total_num_scheduled_tokens],
        )
        self.query_start_loc.np[0] = 0
        self.query_start_loc.np[1 : num_reqs + 1] = cu_num_tokens
        self.query_start_loc.np[num_reqs + 1 :].fill(cu_num_tokens[-1])
        self.query_start_loc.copy_to_gpu()
        query_start_loc = self.query_start_loc.gpu[: num_reqs + 1]
        torch.add(
            self.num_computed_tokens_cpu_tensor[:num_reqs],
            torch.from_numpy(num_scheduled_tokens),
            out=self.optimistic_seq_lens_cpu[:num_reqs],
        )
        self.optimistic_seq_lens_cpu[num_reqs:].fill_(0)
        self.num_computed_tokens[:num_reqs].copy_(
            self.num_computed_tokens_cpu_tensor[:num_reqs], non_blocking=True
        )
        self.req_indices.np[:total_num_scheduled_tokens] = req_indices
        self.req_indices.copy_to_gpu(total_num_scheduled_tokens)
        req_indices_gpu = self.req_indices.gpu[:total_num_scheduled_tokens]
        self.query_pos.copy_to_gpu(total_num_scheduled_tokens)
        self.num_scheduled_tokens.np[:num_reqs] = num_scheduled_tokens
        self.num_scheduled_tokens.copy_to_gpu(num_reqs)
        num_scheduled_tokens_gpu = self.num_scheduled_tokens.gpu[:num_reqs]
        self.positions[:total_num_scheduled_tokens] = (
            self.num_computed_tokens[req_indices_gpu].to(torch.int64)
            + self.query_pos.gpu[:total_num_scheduled_tokens]
        )
        self.seq_lens[:num_reqs] = self.num_computed_tokens[:num_reqs] + num_scheduled_tokens_gpu
        self.seq_lens[num_reqs:].fill_(0)
        self.block_table.compute_slot_mapping(
            num_reqs,
            self.query_start_loc.gpu[: num_reqs + 1],
            self.positions[:total_num_scheduled_tokens],
        )
        self.input_ids.copy_to_gpu(total_num_scheduled_tokens)
        return query_start_loc[1:] - 1

    def build(self, longest_query: int, longest_sequence: int) -> Any:
        """Build the metadata, by vLLM's function for that, which its second runner calls."""
        num_reqs, num_tokens = self.batch.num_reqs, self.batch.num_tokens
        tables = self.block_table.block_tables
        return find("build_attn_metadata")(
            attn_groups=self.attn_groups,
            num_reqs=num_reqs,
            num_tokens=num_tokens,
            query_start_loc_gpu=self.query_start_loc.gpu[: num_reqs + 1],
            query_start_loc_cpu=self.query_start_loc.cpu[: num_reqs + 1],
            max_query_len=longest_query,
            seq_lens=self.seq_lens,
            max_seq_len=longest_sequence,
            block_tables=[table.get_device_tensor(num_reqs) for table in tables],
            slot_mappings=[table.slot_mapping.gpu[:num_tokens] for table in tables],
            kv_cache_config=self.kv_cache_config,
            seq_lens_cpu_upper_bound=self.optimistic_seq_lens_cpu,
        )

    def run(self) -> Any:
        """Do all that is between the schedule of a step and its forward pass."""
        self.append()
        longest_query = int(self.batch.query_lens.max())
        indices = self.prepare()
        lens = self.optimistic_seq_lens_cpu.numpy()[: self.batch.num_reqs]
        return indices, self.build(longest_query, lens.max().item())

    def inputs(self, indices: torch.Tensor) -> list[Any]:
        """Return the inputs, as `Step.observe` does."""
        num_reqs, num_tokens = self.batch.num_reqs, self.batch.num_tokens
        vectors = self.positions[:num_tokens], self.input_ids.gpu[:num_tokens]
        tables, slots = self.gathered(), self.slots()
        return [tables, slots, *vectors, self.seq_lens[:num_reqs], indices.long()]

    def gathered(self) -> tuple[torch.Tensor, ...]:
        tables, num_reqs = self.block_table.block_tables, self.batch.num_reqs
        return tuple(table.get_device_tensor(num_reqs) for table in tables)

    def slots(self) -> torch.Tensor:
        every = [table.slot_mapping.gpu for table in self.block_table.block_tables]
        return torch.stack(every)[:, : self.batch.num_tokens]


_INT32 = torch.int32


def _make_runner(batch: Batch, job: Job) -> Runner:
    if job.variant == BY_PARTS or batch.kind == "speculative":
        raise Unsupported("a step by its parts, or with drafts")
    return Runner(batch, job.num_groups or 1)


def _refuse(_batch: Batch, _job: Job) -> Prepared:
    raise Unsupported("kernels by Triton's interpreter, whose time says nothing")


def _append(batch: Batch, job: Job) -> Prepared:
    runner = _make_runner(batch, job)
    call = runner.append
    return Prepared(call, lambda: (call(), runner.gathered()), call.reset, call.most)


def _commit(batch: Batch, job: Job) -> Prepared:
    if job.variant:
        raise Unsupported("a table whose rows are other ones: vLLM moves rows before")
    runner = _make_runner(batch, job)
    call = partial(runner.block_table.commit_block_table, batch.num_reqs)
    return Prepared(call, lambda: (call(), runner.gathered())[1])


def _compute_slots(batch: Batch, job: Job) -> Prepared:
    runner = _make_runner(batch, job)
    given = batch.num_reqs, torch.from_numpy(batch.starts), torch.from_numpy(batch.positions)
    call = partial(runner.block_table.compute_slot_mapping, *given)
    return Prepared(call, lambda: (call(), runner.slots())[1])


def _prepare_all(batch: Batch, job: Job) -> Prepared:
    runner = _make_runner(batch, job)
    return Prepared(runner.prepare, lambda: runner.inputs(runner.prepare()))


def _run_step(adapter: VllmAdapter, batch: Batch, job: Job) -> Prepared:
    runner = _make_runner(batch, job)

    def observe() -> Any:
        indices, built = runner.run()
        return [*runner.inputs(indices), adapter.result("build_attn_metadata", built, {})]

    return Prepared(runner.run, observe, runner.append.reset, runner.append.most)


def _build_all(adapter: VllmAdapter, batch: Batch, job: Job) -> Prepared:
    runner = _make_runner(batch, job)
    runner.run()
    longest = int(batch.query_lens.max()), int(batch.seq_lens.max())
    call = partial(runner.build, *longest)
    return Prepared(call, lambda: adapter.result("build_attn_metadata", call(), {}))


class VllmBaseline(VllmAdapter):
    """The adapter of vLLM, with calls that are prepared once and made many times."""

    @property
    def jobs(self) -> Mapping[str, Callable[[Batch, Job], Prepared]]:
        """How the first runner does what a runner of today does by these functions."""
        interpreted = () if torch.cuda.is_available() else second_runner.PLACES
        return {
            **dict.fromkeys(interpreted, _refuse),
            STEP: partial(_run_step, self),
            "prepare_step": _prepare_all,
            "AttnMetadataPlan.build": partial(_build_all, self),
            "BlockTables.append_block_ids": _append,
            "BlockTables.gather_block_tables": _commit,
            "BlockTables.compute_slot_mappings": _compute_slots,
        }

    def prepare(self, function: str, *args: Any, **kwargs: Any) -> Call:
        """Return a call of a function, whose arguments are already converted to vLLM's.

        Raises:
            Unsupported: vLLM's function does not support an argument.
        """
        if function in _PREPARED:
            return _PREPARED[function](*args, **kwargs)
        found = find(function)
        return lambda: found(*args, **kwargs)

    def result(self, function: str, theirs: Any, arguments: Mapping[str, Any]) -> Any:
        if function == "make_local_attention_virtual_batches":
            theirs, _ = theirs  # without vLLM's function that makes other tables
        return super().result(function, theirs, arguments)
