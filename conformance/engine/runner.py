"""A worker's part of a step, by the functions under test: from a schedule to tables and slots."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from conformance.engine.batch import BatchBuffers, InputBatch, TableRows
from conformance.engine.scheduler import EngineSettings, SchedulerOutput


class Runner:
    """What a worker keeps from step to step; for each step its methods are called in order.

    A row of the block tables can be a position in the batch, or it can be looked up. A runner does
    one of both; the stateful test alternates.
    """

    def __init__(
        self,
        settings: EngineSettings,
        call_tables: Callable[..., Any],  # a method of the block tables, by its name
        reorder: Callable[..., bool],  # reorder_batch_to_split_decodes_and_prefills
        make_buffer: Callable[[int, str], Any],  # a CpuGpuBuffer, of a length and a dtype
    ) -> None:
        max_num_reqs = settings.padded(settings.max_num_seqs)
        self.rows = TableRows(call_tables, max_num_reqs, len(settings.block_sizes))
        self.batch = InputBatch(max_num_reqs)
        self.buffers = BatchBuffers(settings, make_buffer)
        self._call_tables = call_tables
        self._reorder = reorder

    def update(self, step: SchedulerOutput, *, compacts: bool = False) -> None:
        """Remove and add requests; with `compacts`, rows stay the first ones."""
        self.rows.remove(step.removed_req_ids, compacts=compacts)
        self.rows.append(step)
        self.batch.update(step)

    def reorder(
        self, step: SchedulerOutput, decode_threshold: int, *, swaps_rows: bool = False
    ) -> bool:
        self.batch.rows = self.rows if swaps_rows else None
        return self._reorder(self.batch, step, decode_threshold)

    def gather(self, step: SchedulerOutput) -> tuple[Any, Any]:
        """Fill the buffers, and return the batch's block tables and slots, padded, by group."""
        buffers = self.buffers
        buffers.fill(step, self.batch, self.rows)
        rows = buffers.idx_mapping.copy_to_gpu(buffers.num_padded_reqs)
        tables = self._call_tables("gather_block_tables", rows)
        slots = self._call_tables(
            "compute_slot_mappings",
            buffers.query_start_loc.copy_to_gpu(buffers.num_padded_reqs + 1),
            buffers.positions.copy_to_gpu(buffers.num_padded_tokens),
        )
        return tables, slots
