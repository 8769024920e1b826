"""Runs an engine's steps as its worker does, with the functions of one implementation.

A `Runner` keeps a worker's state from step to step. In each step it calls every function of these
modules, so that a bug in one of them shows up in a named result. Two runners of the same steps must
have the same results.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from conformance.engine.input_batch import InputBatch
from conformance.engine.padded_batch import PADDED_REQUEST
from conformance.engine.scheduler_output import SchedulerOutput
from conformance.engine.settings import EngineSettings
from conformance.engine.table_rows import TableRows
from conformance.model_runner import derived, model_inputs
from conformance.model_runner.batch import Batch
from conformance.model_runner.buffers import NUM_CP_RANKS, Buffers
from conformance.model_runner.layers import build_for_layers, make_fast_prefill
from conformance.model_runner.locate import RequestIndex, request_index_of
from conformance.model_runner.model_inputs import make_budget
from conformance.targets.target import Answer, Target
from conformance.zoo.deployment import Deployment, observe
from conformance.zoo.groups import CacheGroup

STEPS_BETWEEN_DUMMY_RUNS = 16
STEPS_BETWEEN_OVERWRITES = 3
"""In every third step, even or odd, the runner overwrites results of earlier calls."""
STALE_SLOT = 7
"""The value it writes into slot mappings: a slot that a layer would take for a live one."""
SHORT_EXTEND_TOKENS = 64
"""The decode threshold of the order in four regions; with a lower one, short extends are rare."""


class Runner:
    """Runs steps in one implementation.

    It alternates between the two ways in which engines manage rows of the block tables. In even
    steps it does as if a row were the position in the batch: rows of requests that left are
    cleared, the last ones move into the holes, and a swap of two positions swaps their rows. In odd
    steps rows are looked up through `idx_mapping`: holes keep their content until a request
    overwrites them, and a swap moves no row.

    In every third step it writes into the tables and slots that earlier calls returned, as runners
    do with padded rows. The results of the next calls must not depend on that.

    Args:
        target: The implementation.
        settings: The settings of the engine.
        groups: The KV cache groups of the model to serve.
        deploy: Deploys it at the first step, so that an exception is reported as a step's.

    Attributes:
        deployment: The model's caches, backends and builders; None before the first step.
        results: The results of the last step; after an exception, those before it.
        batch: The last step's batch; None before it is put together.
        rows: The rows of the block tables, with the changes of the last step.
    """

    def __init__(
        self,
        target: Target,
        *,
        settings: EngineSettings,
        groups: tuple[CacheGroup, ...],
        deploy: Callable[[Target], Deployment],
    ) -> None:
        self.settings = settings
        self.target = target
        self.results: dict[str, Answer] = {}
        self.batch: Batch | None = None
        self.deployment: Deployment | None = None
        self._deploy = deploy
        self._groups = groups
        self._persistent: Buffers  # made at the first step
        self._fast_prefill: list[Answer] = []
        max_num_reqs = self.settings.padded(self.settings.max_num_seqs)
        self.rows = TableRows(self.call_tables, max_num_reqs, len(self._groups))
        self._input_batch = InputBatch(max_num_reqs)
        self._coordinates: dict[str, RequestIndex] = {}
        self._overwrites = False

    def execute(self, step: SchedulerOutput) -> dict[str, Answer]:
        """Run a step, the next one of the scheduler.

        Returns:
            The results by name, in the order in which they were computed. Most are views of buffers
            that the next step writes.
        """
        self.results = {}
        self.batch = None
        self._coordinates = {"": RequestIndex(list(step.num_scheduled_tokens))}
        deployment = self.deployment or self._start()
        if step.step_index % STEPS_BETWEEN_DUMMY_RUNS == 0:
            self._run_dummy(step)
        self._overwrites = (
            step.step_index % STEPS_BETWEEN_OVERWRITES == STEPS_BETWEEN_OVERWRITES - 1
        )
        if self._overwrites:
            self._persistent.all_slots[...] = STALE_SLOT
        compacts = step.step_index % 2 == 0
        self.rows.remove(step.removed_req_ids, compacts=compacts)
        self.rows.append(step)
        self._show_rows("rows")
        self._order(step, swaps_rows=compacts)
        self.batch = self._make_batch(step, deployment)
        for derive in (*derived.DERIVATIONS, *model_inputs.DERIVATIONS):
            self.results.update(derive(self.target, self.batch))
        return self.results

    def coordinates(self, results: dict[str, Answer]) -> dict[str, RequestIndex]:
        """Return the requests that the parts of the last step's results belong to, for `locate`.

        `results` are those of `reference`; those of a wrong implementation may be meaningless.
        """
        of_batch = {} if self.batch is None else request_index_of(self.batch, results)
        return {**self._coordinates, **of_batch}

    def call_tables(self, name: str, *args: object) -> Answer:
        """Call a method of the block tables."""
        return self.target.method(self._persistent.tables, name, *args)

    def _start(self) -> Deployment:
        """Deploy the model, and make what is kept from step to step."""
        self.deployment = self._deploy(self.target)
        self.results["deployment"] = observe(self.target, self.deployment)
        self._persistent = Buffers(self.target, self.deployment, self.settings)
        self._fast_prefill = make_fast_prefill(self.target, self.deployment)
        self.results["fast_prefill"] = self._fast_prefill
        self.results["mm_budget"] = make_budget(self.target, self._persistent.config)
        return self.deployment

    def _run_dummy(self, step: SchedulerOutput) -> None:
        """Get the cleared tables and slots of a dummy run, as for capturing a CUDA graph."""
        persistent = self._persistent
        num_reqs = 1 + step.step_index % self.settings.max_num_seqs
        num_tokens = 1 + step.step_index % self.settings.token_budget
        dummy_tables = self.call_tables("get_dummy_block_tables", num_reqs)
        dummy_slots = self.call_tables("get_dummy_slot_mappings", num_tokens)
        self.results["config"] = persistent.config
        self.results["dummy_block_tables"] = [_copy(table) for table in dummy_tables]
        self.results["dummy_slot_mappings"] = _copy(dummy_slots)
        self.results["cleared_block_tables"] = [_copy(table) for table in persistent.all_tables]
        self.results["cleared_slot_mappings"] = _copy(persistent.all_slots)

    def _order(self, step: SchedulerOutput, *, swaps_rows: bool) -> None:
        """Reorder the batch as attention backends require, and a copy of it into four regions."""
        self._input_batch.on_swap = self._swap_rows if swaps_rows else None
        self._input_batch.update(step)
        four_regions = self._input_batch.copy()
        reorder = "reorder_batch_to_split_decodes_and_prefills"
        threshold = self.settings.decode_threshold
        self.results["moved"] = self.target.call(reorder, self._input_batch, step, threshold)
        self.results["order"] = list(self._input_batch.req_ids)
        self._own_places("order")
        self.results["moved_by_four_regions"] = self.target.call(
            reorder,
            four_regions,
            step,
            decode_threshold=max(threshold, SHORT_EXTEND_TOKENS),
            regions=4,
        )
        self.results["order_of_four_regions"] = four_regions.req_ids
        self._own_places("order_of_four_regions")
        if swaps_rows:
            self._show_rows("swapped_rows")

    def _show_rows(self, name: str) -> None:
        """Gather every row of the block tables, including free ones, as a result."""
        tables = self.call_tables("gather_block_tables", self._persistent.all_rows)
        self.results[name] = [_copy(table) for table in tables]
        self._coordinates[name] = RequestIndex(list(self.rows.last_req_ids))
        if self._overwrites:
            for table in tables:
                table[...] = PADDED_REQUEST

    def _own_places(self, name: str) -> None:
        """Set the coordinates of a result that lists requests: each entry belongs to itself."""
        for position, req_id in enumerate(self.results[name]):
            self._coordinates[f"{name}[{position}]"] = RequestIndex([req_id])

    def _swap_rows(self, i: int, j: int) -> None:
        """Swap the rows of the requests at two positions of the batch."""
        self.rows.swap(self._input_batch.req_ids[i], self._input_batch.req_ids[j])

    def _make_batch(self, step: SchedulerOutput, deployment: Deployment) -> Batch:
        """Gather the batch and put its metadata together, padded for a CUDA graph."""
        persistent, req_ids = self._persistent, list(self._input_batch.req_ids)
        query_lens = np.array([step.num_scheduled_tokens[r] for r in req_ids], np.int32)
        computed = self._input_batch.num_computed_tokens_cpu[: len(req_ids)]
        num_padded_reqs = self.settings.padded(len(req_ids))
        num_padded_tokens = self.settings.padded(int(query_lens.sum()))
        rows = [self.rows.row_of(req_id) for req_id in req_ids]
        persistent.fill(rows, query_lens, computed, num_padded_reqs)
        positions = persistent.to_device(persistent.positions, num_padded_tokens)
        metadata = self._make_metadata(len(req_ids), num_padded_reqs, positions)
        self.results["metadata"] = metadata
        for group, group_metadata in zip(self._groups, metadata, strict=True):
            self.target.method(group_metadata, "validate", group.block_size)
        built = build_for_layers(self.target, deployment, persistent, metadata)
        self.results["attn_metadata"], self.results["attn_metadata_of_layers"] = built
        return Batch(
            step_index=step.step_index,
            settings=self.settings,
            groups=self._groups,
            req_ids=req_ids,
            query_lens=query_lens,
            num_padded_reqs=num_padded_reqs,
            num_padded_tokens=num_padded_tokens,
            positions=positions,
            metadata=metadata,
            config=persistent.config,
            fast_prefill=self._fast_prefill,
        )

    def _make_metadata(
        self, num_reqs: int, num_padded_reqs: int, positions: Answer
    ) -> list[Answer]:
        """Make each group's metadata from the buffers, with all optional fields."""
        persistent = self._persistent
        idx_mapping = persistent.to_device(persistent.idx_mapping, num_padded_reqs)
        query_start_loc = persistent.to_device(persistent.query_start_loc, num_padded_reqs + 1)
        block_tables = self.call_tables("gather_block_tables", idx_mapping)
        self.results["block_tables"] = block_tables
        self.results["all_block_tables"] = persistent.all_tables
        slot_mappings = self.call_tables("compute_slot_mappings", query_start_loc, positions)
        self.results["slot_mappings"] = slot_mappings
        self.results["all_slot_mappings"] = persistent.all_slots
        self.results["sampled_tokens_cpu"] = persistent.read_back(num_reqs)
        seq_lens = persistent.to_device(persistent.seq_lens, num_padded_reqs)
        return [
            self.target.call(
                "CommonAttentionMetadata",
                query_start_loc=query_start_loc,
                query_start_loc_cpu=persistent.query_start_loc.cpu[: num_padded_reqs + 1],
                seq_lens=seq_lens,
                seq_lens_cpu=persistent.seq_lens.cpu[:num_padded_reqs],
                num_computed_tokens_cpu=persistent.num_computed_tokens.cpu[:num_padded_reqs],
                num_reqs=num_padded_reqs,
                num_actual_tokens=len(positions),
                max_query_len=int(np.diff(persistent.query_start_loc.np[: num_reqs + 1]).max()),
                max_seq_len=int(persistent.seq_lens.np[:num_reqs].max()),
                block_table_tensor=block_tables[group],
                slot_mapping=slot_mappings[group],
                logits_indices_padded=persistent.to_device(
                    persistent.logits_indices, num_padded_reqs
                ),
                num_logits_indices=num_reqs,
                encoder_seq_lens=self._input_batch.num_prompt_tokens[:num_padded_reqs].copy(),
                dcp_local_seq_lens=self.target.call(
                    "get_dcp_local_seq_lens", seq_lens, NUM_CP_RANKS, 0
                ),
            )
            for group in range(len(self._groups))
        ]


def _copy(array: Answer) -> Answer:
    """Copy an array or tensor, since the original is overwritten in the same step."""
    return array.clone() if hasattr(array, "clone") else array.copy()
