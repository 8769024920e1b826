"""What an engine's worker does with a step, done in one implementation of the twins' functions.

A `Runner` keeps what a worker keeps from step to step and calls, in each step, every function that
these modules have, so that whatever is wrong with one of them shows up in a named result. Two
runners that were given the same steps must have had the same results.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from conformance.traffic import derived
from conformance.traffic.batch import Batch
from conformance.traffic.calls import Answer, Calls
from conformance.traffic.coordinates import coordinates_of
from conformance.traffic.input_batch import InputBatch, RequestSlots
from conformance.traffic.locate import Coordinates
from conformance.traffic.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

    from conformance.traffic.scheduler import Step
    from conformance.traffic.zoo import Model

NumpyArray: TypeAlias = np.ndarray[Any, np.dtype[Any]]

STEPS_BETWEEN_DUMMY_RUNS = 16
SHORT_EXTEND_TOKENS = 64
"""The threshold of the order with four regions: with that of decodes, short extends are rare."""
PADDED_REQUEST = -1
"""What `idx_mapping` says of a request that is padding."""


class Runner:
    """Runs steps in one implementation.

    Rows of the block tables are handled in both ways that engines have, by turns. In even steps, as
    where the row is the position in the batch: rows of requests that left are cleared, the last
    ones move into the holes, and a swap of two positions swaps their rows. In odd steps, as where
    rows are found through `idx_mapping`: holes stay, with what is in them, until a request
    overwrites them, and a swap moves no row.

    Args:
        implementation: The module whose functions are called, looked up by name at call time.
        model: Whose KV cache groups there are.
        array: Makes an array of the implementation's kind out of a NumPy array, on the device.
        device: Of the implementation's arrays.
        settings: Of the engine.

    Attributes:
        call: The calls of the implementation, with their time.
        results: What the last step has come to; on an exception, as far as it came.
        batch: The last step's batch, None before it is put together.

    Example:
        >>> import reference
        >>> from conformance.traffic.scheduler import Scheduler
        >>> from conformance.traffic.trace import TraceRequest
        >>> from conformance.traffic.zoo import get_model
        >>> model, settings = get_model("llama-3.1-8b"), Settings(max_model_len=64)
        >>> runner = Runner(reference, model, array=np.asarray, settings=settings)
        >>> step = next(iter(Scheduler([TraceRequest(0.0, 5, 2)], model, settings)))
        >>> runner.execute(step)["slot_mappings"].tolist()
        [[16, 17, 18, 19, 20, -1, -1, -1]]
    """

    def __init__(
        self,
        implementation: ModuleType,
        model: Model,
        *,
        array: Callable[[NumpyArray], Answer],
        device: str = "cpu",
        settings: Settings | None = None,
    ) -> None:
        self.settings = Settings() if settings is None else settings
        self.call = Calls(implementation)
        self.results: dict[str, Answer] = {}
        self.batch: Batch | None = None
        self._owners: dict[str, Coordinates] = {}
        self._array = array
        self._groups = model.cache_groups(self.settings.block_size)
        self._config = self._make_config()
        scheduler_config = self._config.scheduler_config
        self._max_num_reqs = self.settings.padded(scheduler_config.max_num_seqs)
        self._max_num_tokens = self.settings.padded(scheduler_config.max_num_batched_tokens)
        self._slots = RequestSlots(self._max_num_reqs)
        self._input_batch = InputBatch(self._max_num_reqs)
        self._tables = self.call(
            "BlockTables",
            [group.block_size for group in self._groups],
            self._max_num_reqs,
            self._max_num_tokens,
            self._config.model_config.max_model_len,
            device,
            pin_memory=False,
        )
        # The whole persistent buffers, as a captured CUDA graph holds on to them.
        self._all_tables = self._on_tables("get_dummy_block_tables", self._max_num_reqs)
        self._all_slots = self._on_tables("get_dummy_slot_mappings", self._max_num_tokens)
        self._all_rows = array(np.arange(self._max_num_reqs, dtype=np.int32))
        self._idx_mapping = self._buffer(self._max_num_reqs, np.int32, device)
        self._query_start_loc = self._buffer(self._max_num_reqs + 1, np.int32, device)
        self._seq_lens = self._buffer(self._max_num_reqs, np.int32, device)
        self._num_computed_tokens = self._buffer(self._max_num_reqs, np.int32, device)
        self._positions = self._buffer(self._max_num_tokens, np.int64, device)
        self._logits_indices = self._buffer(self._max_num_reqs, np.int64, device)
        self._sampled_tokens = self._buffer(self._max_num_reqs, np.int64, device)

    def execute(self, step: Step) -> dict[str, Answer]:
        """Do the whole of a step.

        Args:
            step: The scheduler's next one; none may be left out.

        Returns:
            The results by name, in the order in which they were computed. Most are views of
            buffers that the next step writes.
        """
        self.results = {}
        self.batch = None
        self._owners = {}
        if step.index % STEPS_BETWEEN_DUMMY_RUNS == 0:
            self._run_dummy(step)
        compacts = step.index % 2 == 0
        self._free_rows(step, compacts=compacts)
        self._append_block_ids(step)
        self._show_rows("rows")
        self._order(step, swaps_rows=compacts)
        self.batch = self._make_batch(step)
        for derive in derived.DERIVATIONS:
            self.results.update(derive(self.call, self.batch))
        return self.results

    def coordinates(self, results: dict[str, Answer]) -> dict[str, Coordinates]:
        """Say which requests the parts of the last step's results belong to.

        Args:
            results: Those of `reference`, since what a wrong implementation made of a batch may
                have no meaning.

        Returns:
            As `locate` takes them.
        """
        rows: Sequence[str | None] = self._input_batch.req_ids
        found = {"": Coordinates(rows)}
        if self.batch is not None:
            found.update(coordinates_of(self.batch, results))
        found.update(self._owners)
        return found

    def _on_tables(self, name: str, *args: object) -> Answer:
        return self.call.method(self._tables, name, *args)

    def _buffer(self, size: int, dtype: type[np.generic], device: str) -> Answer:
        own_dtype = self._array(np.empty(0, dtype)).dtype
        return self.call("CpuGpuBuffer", size, dtype=own_dtype, device=device, pin_memory=False)

    def _make_config(self) -> Answer:
        settings = self.settings
        return self.call(
            "VllmConfig",
            model_config=self.call("ModelConfig", max_model_len=settings.max_model_len),
            cache_config=self.call("CacheConfig", block_size=settings.block_size),
            parallel_config=self.call(
                "ParallelConfig", decode_context_parallel_size=derived.NUM_CP_RANKS
            ),
            scheduler_config=self.call(
                "SchedulerConfig",
                max_num_batched_tokens=settings.token_budget,
                max_num_seqs=settings.max_num_seqs,
            ),
            compilation_config=self.call("CompilationConfig"),
            speculative_config=self.call(
                "SpeculativeConfig", num_speculative_tokens=settings.num_speculative_tokens
            ),
        )

    def _run_dummy(self, step: Step) -> None:
        """Ask for what a dummy run gets, as for capturing a CUDA graph: all of it is cleared."""
        self.results["config"] = self._config
        num_reqs = self.settings.padded(1 + step.index % self._max_num_reqs)
        num_tokens = self.settings.padded(1 + step.index % self._max_num_tokens)
        tables = self._on_tables("get_dummy_block_tables", min(num_reqs, self._max_num_reqs))
        slots = self._on_tables("get_dummy_slot_mappings", min(num_tokens, self._max_num_tokens))
        self.results["dummy_block_tables"] = [_copy(table) for table in tables]
        self.results["dummy_slot_mappings"] = _copy(slots)
        self.results["cleared_block_tables"] = [_copy(table) for table in self._all_tables]
        self.results["cleared_slot_mappings"] = _copy(self._all_slots)

    def _free_rows(self, step: Step, *, compacts: bool) -> None:
        for req_id in (*step.finished_ids, *step.preempted_ids):
            row = self._slots.remove(req_id)
            if compacts:
                self._on_tables("clear_row", row)
        while compacts and (move := self._slots.next_move()) is not None:
            self._slots.move(*move)
            self._on_tables("move_row", *move)

    def _append_block_ids(self, step: Step) -> None:
        for req_id in (*step.new_ids, *step.resumed_ids):
            self._slots.add(req_id)
        cu_num_new_blocks = [[0] for _ in self._groups]
        new_block_ids: list[list[int]] = [[] for _ in self._groups]
        for ids_by_group in step.new_block_ids.values():
            for group, ids in enumerate(ids_by_group):
                new_block_ids[group].extend(ids)
                cu_num_new_blocks[group].append(len(new_block_ids[group]))
        self._on_tables(
            "append_block_ids",
            [self._slots.slot_of(req_id) for req_id in step.new_block_ids],
            cu_num_new_blocks,
            new_block_ids,
            [step.overwrite[req_id] for req_id in step.new_block_ids],
        )

    def _order(self, step: Step, *, swaps_rows: bool) -> None:
        """Bring the batch into the order that attention backends want, and a copy into another."""
        self._input_batch.on_swap = self._swap_rows if swaps_rows else None
        self._input_batch.update(step)
        four_regions = self._input_batch.copy()
        reorder = "reorder_batch_to_split_decodes_and_prefills"
        threshold = self.settings.decode_threshold
        self.results["moved"] = self.call(reorder, self._input_batch, step, threshold)
        self.results["order"] = list(self._input_batch.req_ids)
        self._own_places("order")
        self.results["moved_by_four_regions"] = self.call(
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
        """Gather every request slot, the free ones too, as a result."""
        tables = self._on_tables("gather_block_tables", self._all_rows)
        self.results[name] = [_copy(table) for table in tables]
        self._owners[name] = Coordinates(list(self._slots.last_req_ids))

    def _own_places(self, name: str) -> None:
        for position, req_id in enumerate(self.results[name]):
            self._owners[f"{name}[{position}]"] = Coordinates([req_id])

    def _swap_rows(self, i: int, j: int) -> None:
        a, b = (self._slots.slot_of(self._input_batch.req_ids[k]) for k in (i, j))
        self._slots.swap(a, b)
        self._on_tables("swap_rows", a, b)

    def _make_batch(self, step: Step) -> Batch:
        """Gather the batch and put its metadata together, padded for a CUDA graph."""
        req_ids = self._input_batch.req_ids
        query_lens = np.array([step.num_scheduled_tokens[r] for r in req_ids], np.int32)
        num_reqs, num_tokens = len(req_ids), int(query_lens.sum())
        num_padded_reqs = self.settings.padded(num_reqs)
        num_padded_tokens = self.settings.padded(num_tokens)
        self._fill_buffers(req_ids, query_lens, num_padded_reqs)
        query_start_loc = self._copied(self._query_start_loc, num_padded_reqs + 1)
        positions = self._copied(self._positions, num_padded_tokens)
        idx_mapping = self._copied(self._idx_mapping, num_padded_reqs)

        block_tables = self._on_tables("gather_block_tables", idx_mapping)
        self.results["block_tables"] = block_tables
        self.results["all_block_tables"] = self._all_tables
        slot_mappings = self._on_tables("compute_slot_mappings", query_start_loc, positions)
        self.results["slot_mappings"] = slot_mappings
        self.results["all_slot_mappings"] = self._all_slots

        self._read_back(num_reqs)
        seq_lens = self._copied(self._seq_lens, num_padded_reqs)
        cp_seq_lens = self.call("get_dcp_local_seq_lens", seq_lens, derived.NUM_CP_RANKS, 0)
        metadata = [
            self.call(
                "CommonAttentionMetadata",
                query_start_loc=query_start_loc,
                query_start_loc_cpu=self._query_start_loc.cpu[: num_padded_reqs + 1],
                seq_lens=seq_lens,
                seq_lens_cpu=self._seq_lens.cpu[:num_padded_reqs],
                num_computed_tokens_cpu=self._num_computed_tokens.cpu[:num_padded_reqs],
                num_reqs=num_padded_reqs,
                num_actual_tokens=num_padded_tokens,
                max_query_len=int(query_lens.max()),
                max_seq_len=int(self._seq_lens.np[:num_reqs].max()),
                block_table_tensor=block_tables[group],
                slot_mapping=slot_mappings[group],
                logits_indices_padded=self._copied(self._logits_indices, num_padded_reqs),
                num_logits_indices=num_reqs,
                encoder_seq_lens=self._input_batch.num_prompt_tokens[:num_padded_reqs].copy(),
                dcp_local_seq_lens=cp_seq_lens,
            )
            for group in range(len(self._groups))
        ]
        self.results["metadata"] = metadata
        for group, group_metadata in zip(self._groups, metadata, strict=True):
            self.call.method(group_metadata, "validate", group.block_size)
        return Batch(
            step_index=step.index,
            settings=self.settings,
            groups=self._groups,
            req_ids=list(req_ids),
            query_lens=query_lens,
            num_padded_reqs=num_padded_reqs,
            num_padded_tokens=num_padded_tokens,
            positions=positions,
            metadata=metadata,
            array=self._array,
        )

    def _read_back(self, num_reqs: int) -> None:
        """Bring made-up sampled tokens from the device to the host."""
        sampled = self._sampled_tokens
        sampled.gpu[:num_reqs] = self._array(np.arange(num_reqs, dtype=np.int64) * 7 % 31)
        self.results["sampled_tokens_cpu"] = self.call.method(sampled, "copy_to_cpu", num_reqs)

    def _fill_buffers(
        self, req_ids: list[str], query_lens: np.ndarray[Any, np.dtype[np.int32]], num_padded: int
    ) -> None:
        """Write the batch into the host halves; positions of padding stay what they were."""
        num_reqs = len(req_ids)
        computed = self._input_batch.num_computed_tokens_cpu[:num_reqs]
        starts = self._query_start_loc.np
        starts[0] = 0
        np.cumsum(query_lens, out=starts[1 : num_reqs + 1])
        starts[num_reqs + 1 : num_padded + 1] = starts[num_reqs]
        self._idx_mapping.np[:num_reqs] = [self._slots.slot_of(req_id) for req_id in req_ids]
        self._num_computed_tokens.np[:num_reqs] = computed
        self._seq_lens.np[:num_reqs] = computed + query_lens
        self._logits_indices.np[:num_reqs] = starts[1 : num_reqs + 1] - 1
        self._idx_mapping.np[num_reqs:num_padded] = PADDED_REQUEST
        for buffer in (self._num_computed_tokens, self._seq_lens, self._logits_indices):
            buffer.np[num_reqs:num_padded] = 0
        for i, query_len in enumerate(query_lens):
            self._positions.np[starts[i] : starts[i + 1]] = np.arange(
                computed[i], computed[i] + query_len
            )

    def _copied(self, buffer: Answer, count: int) -> Answer:
        return self.call.method(buffer, "copy_to_gpu", count)


def _copy(array: Answer) -> Answer:
    """Copy an array of either kind: what is handed out is written again in the same step."""
    return array.clone() if hasattr(array, "clone") else array.copy()
