"""A worker's part of a step, by the functions under test: from a schedule to a batch's inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from conformance.engine.batch import InputBatch, RequestSlots, StepRows, make_rows
from conformance.engine.scheduler import EngineSettings, SchedulerOutput


class Functions(Protocol):
    """The functions under test, by name, and the arrays that they take."""

    @property
    def device(self) -> Any: ...
    def function(self, name: str) -> Callable[..., Any]: ...
    def method(self, cls: str, made: Any, name: str) -> Callable[..., Any]: ...
    def array(self, values: Any) -> Any: ...


class Inputs(NamedTuple):
    """What a forward pass reads: the fields of `StepInputs`."""

    block_tables: Any
    slot_mappings: Any
    idx_mapping: Any
    query_start_loc: Any
    cu_num_logits: Any
    seq_lens: Any
    positions: Any
    input_ids: Any
    logits_indices: Any


def one_by_one(
    functions: Functions,
    buffers: Any,
    idx_mapping: Any,
    query_start_loc: Any,
    cu_num_logits: Any,
    num_reqs_padded: int,
    num_tokens_padded: int,
    num_new_sampled_tokens: int = 1,
) -> Inputs:
    """Prepare a step by the functions that `prepare_step` is defined by, with its arguments."""
    num_reqs = len(idx_mapping)
    num_tokens, num_logits = int(query_start_loc[num_reqs]), int(cu_num_logits[num_reqs])
    for vector, given, length, padding in (
        (buffers.idx_mapping, idx_mapping, num_reqs, -1),
        (buffers.query_start_loc, query_start_loc, num_reqs + 1, num_tokens),
        (buffers.cu_num_logits, cu_num_logits, num_reqs + 1, num_logits),
    ):
        vector[length:] = padding
        vector[:length] = functions.array(given[:length])

    def call(method: str, **arguments: Any) -> Any:
        return functions.method("BlockTables", buffers.block_tables, method)(**arguments)

    rows, starts = buffers.idx_mapping[:num_reqs], buffers.query_start_loc
    computed, prefill_len = buffers.num_computed_tokens, buffers.prefill_len
    call("apply_staged_writes")
    tables = call(
        "gather_block_tables",
        idx_mapping=rows,
        num_reqs_padded=num_reqs_padded,
        num_computed_tokens=computed,
    )
    functions.function("prepare_pos_seq_lens")(
        rows, starts, computed, buffers.positions, buffers.seq_lens
    )
    functions.function("prepare_prefill_inputs")(
        *(buffers.input_ids, buffers.next_prefill_tokens, rows, starts),
        *(buffers.all_token_ids, prefill_len, computed),
    )
    buffers.logits_indices[:num_logits] = functions.function("combine_sampled_and_draft_tokens")(
        *(buffers.input_ids, rows, buffers.last_sampled_tokens, starts, buffers.seq_lens),
        *(prefill_len, buffers.draft_tokens, buffers.cu_num_logits, num_logits),
        num_new_sampled_tokens,
    )
    slots = call(
        "compute_slot_mappings",
        idx_mapping=rows,
        query_start_loc=starts[: num_reqs + 1],
        positions=buffers.positions,
        num_tokens_padded=num_tokens_padded,
    )
    return Inputs(
        tables,
        slots,
        buffers.idx_mapping[:num_reqs_padded],
        buffers.query_start_loc[: num_reqs_padded + 1],
        buffers.cu_num_logits[: num_reqs_padded + 1],
        buffers.seq_lens[:num_reqs_padded],
        buffers.positions[:num_tokens_padded],
        buffers.input_ids[:num_tokens_padded],
        buffers.logits_indices[:num_logits],
    )


class HostRows(NamedTuple):
    """A step's rows on the host, padded."""

    query_start_loc: npt.NDArray[np.int32]
    num_computed_tokens: npt.NDArray[np.int32]
    seq_lens: npt.NDArray[np.int32]


class PlainBuffers:
    """The arrays of `StepBuffers`, for an engine that has no such class and no `prepare_step`."""

    def __init__(self, functions: Functions, tables: Any, settings: EngineSettings) -> None:
        num_reqs = settings.padded(settings.max_num_seqs)
        num_tokens = settings.padded(settings.token_budget)

        def zeros(dtype: type, *shape: int) -> Any:
            return functions.array(np.zeros(shape, dtype))

        self.block_tables = tables
        self.num_computed_tokens, self.prefill_len, self.idx_mapping, self.seq_lens = (
            zeros(np.int32, num_reqs) for _ in range(4)
        )
        self.query_start_loc, self.cu_num_logits = (zeros(np.int32, num_reqs + 1) for _ in range(2))
        self.all_token_ids = zeros(np.int32, num_reqs, settings.max_model_len)
        self.last_sampled_tokens = zeros(np.int64, num_reqs)
        self.draft_tokens = zeros(np.int64, num_reqs, settings.num_speculative_tokens)
        self.next_prefill_tokens = zeros(np.int32, 1, num_reqs)
        self.positions, self.logits_indices = (zeros(np.int64, num_tokens) for _ in range(2))
        self.input_ids = zeros(np.int32, num_tokens)


class Runner:
    """What a worker keeps from step to step; for each step its methods are called in order.

    Attributes:
        batch: The order of the requests.
        slots: Their request slots.
        buffers: Their state, by request slot, and the inputs of a step: `StepBuffers`, or
            `PlainBuffers`.
        total_len: int32[max_num_reqs], how many of a request's tokens are known.
        rows: The rows of the current step.
    """

    rows: StepRows

    def __init__(
        self, settings: EngineSettings, functions: Functions, *, has_prepare_step: bool = True
    ) -> None:
        max_num_reqs = settings.padded(settings.max_num_seqs)
        self.settings, self.functions = settings, functions
        self._has_prepare_step = has_prepare_step
        self.tables = functions.function("BlockTables")(
            block_sizes=list(settings.block_sizes),
            max_num_reqs=max_num_reqs,
            max_num_batched_tokens=settings.padded(settings.token_budget),
            max_num_blocks_per_group=settings.num_blocks_of(settings.max_model_len),
            device=functions.device,
            sliding_window_reach=list(settings.sliding_window_reach) or None,
        )
        self.buffers: Any = PlainBuffers(functions, self.tables, settings)
        if has_prepare_step:
            self.buffers = functions.function("StepBuffers")(
                self.tables, settings.max_model_len, settings.num_speculative_tokens
            )
        self.total_len = functions.array(np.zeros(max_num_reqs, np.int32))
        self.batch = InputBatch(max_num_reqs)
        self.slots = RequestSlots(max_num_reqs)

    def update(self, step: SchedulerOutput) -> None:
        """Remove requests, add others, and stage the new blocks."""
        self.slots.update(step.removed_req_ids, step.admitted_req_ids)
        for req_id in step.admitted_req_ids:
            slot, known = self.slots.slot_of[req_id], step.token_ids[req_id]
            self.buffers.all_token_ids[slot, : len(known)] = self.functions.array(known)
            self.buffers.prefill_len[slot] = self.total_len[slot] = len(known)
            self.buffers.num_computed_tokens[slot] = step.num_computed_tokens[req_id]
        append = self.functions.method("BlockTables", self.tables, "append_block_ids")
        for req_id, block_ids in step.new_block_ids.items():
            is_new = req_id in step.admitted_req_ids
            if is_new or any(block_ids):
                append(self.slots.slot_of[req_id], block_ids, is_new)
        self.batch.update(step)

    def reorder(self, step: SchedulerOutput, decode_threshold: int) -> bool:
        reorder = self.functions.function("reorder_batch_to_split_decodes_and_prefills")
        return bool(reorder(self.batch, step, decode_threshold))

    def prepare(self, step: SchedulerOutput, *, is_at_once: bool) -> Any:
        """Return the inputs of the step, by `prepare_step`, or by the functions one by one."""
        self.rows = make_rows(self.settings, step, self.batch.req_ids, self.slots.slot_of)
        if is_at_once and self._has_prepare_step:
            return self.functions.function("prepare_step")(self.buffers, **vars(self.rows))
        return one_by_one(self.functions, self.buffers, **vars(self.rows))

    def on_host(self) -> HostRows:
        """Return what the host knows of the step's rows, with padding."""
        num_reqs, num_padded = len(self.batch.req_ids), self.rows.num_reqs_padded
        starts = np.pad(self.rows.query_start_loc, (0, num_padded - num_reqs), "edge")
        computed = self.batch.num_computed_tokens_cpu[:num_padded].copy()
        computed[num_reqs:] = 0
        return HostRows(starts, computed, computed + np.diff(starts))

    def finish(
        self,
        sampled_token_ids: Mapping[str, list[int]],  # as for `Scheduler.update_from_output`
        draft_token_ids: Mapping[str, list[int]],
        *,
        counts_first: bool = False,  # whether tokens are counted as computed before sampling
    ) -> None:
        """Update the state of the requests after the step."""
        req_ids, buffers, function = self.batch.req_ids, self.buffers, self.functions.function
        # A row that samples nothing gets a token as well, as samplers do.
        sampled = [sampled_token_ids.get(req_id, [UNSAMPLED]) for req_id in req_ids]
        drafts = [draft_token_ids.get(req_id, []) for req_id in req_ids]
        width = self.settings.num_speculative_tokens
        rows, starts = buffers.idx_mapping[: len(req_ids)], buffers.query_start_loc
        num_sampled, num_rejected = function("get_num_sampled_and_rejected")(
            self.functions.array(np.array([len(tokens) for tokens in sampled], np.int32)),
            *(buffers.seq_lens, buffers.cu_num_logits, rows, buffers.prefill_len),
        )
        if counts_first:
            function("post_update_num_computed_tokens")(rows, buffers.num_computed_tokens, starts)
        function("post_update")(
            *(rows, buffers.num_computed_tokens, buffers.last_sampled_tokens, None),
            *(self._table(sampled, 1 + width), num_sampled, num_rejected),
            *(None if counts_first else starts, buffers.all_token_ids, self.total_len),
            *(self._table(drafts, width), buffers.draft_tokens),
        )

    def _table(self, rows: list[list[int]], width: int) -> Any:
        padded = [[*row, *[UNSAMPLED] * (width - len(row))] for row in rows]
        return self.functions.array(np.array(padded, np.int64))


UNSAMPLED = -1
"""What stands in place of a token that there is not."""
