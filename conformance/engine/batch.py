"""A worker's batch: the order of its requests, their rows of the block tables, a step's inputs.

Requests keep their positions and rows from step to step. Those that left are replaced by newcomers
or by the last ones, so the order is scrambled after a while, as an engine's is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from conformance.engine.scheduler import EngineSettings, SchedulerOutput

PADDED_REQUEST = -1
"""The row of the block tables of a request that is padding."""


class InputBatch:
    """The requests of a step, by their position in the batch.

    This is the `input_batch` that `reorder_batch_to_split_decodes_and_prefills` takes.

    Attributes:
        req_ids: The request at each position.
        num_computed_tokens_cpu: int32[max_num_reqs], its tokens in the cache before the step.
        num_prompt_tokens: int32[max_num_reqs], the length of its prompt.
        rows: Where rows are swapped with positions; None: rows stay where they are.

    Example:
        >>> batch = InputBatch(4)
        >>> batch.place({"a": 1, "b": 1, "c": 2})
        >>> batch.place({"b": 1, "c": 1})  # a leaves, and the last request takes its place
        >>> batch.req_ids
        ['c', 'b']
    """

    def __init__(self, max_num_reqs: int) -> None:
        self.req_ids: list[str] = []
        self.num_computed_tokens_cpu = np.zeros(max_num_reqs, np.int32)
        self.num_prompt_tokens = np.zeros(max_num_reqs, np.int32)
        self.rows: TableRows | None = None

    def update(self, step: SchedulerOutput) -> None:
        """Make this the batch of a step, before it is reordered."""
        self.place(step.num_scheduled_tokens)
        for position, req_id in enumerate(self.req_ids):
            self.num_computed_tokens_cpu[position] = step.num_computed_tokens[req_id]
            self.num_prompt_tokens[position] = step.num_prompt_tokens[req_id]

    def place(self, scheduled: Iterable[str]) -> None:
        """Give new requests the places of those that left, and close the holes that remain."""
        scheduled = list(scheduled)
        standing = set(self.req_ids)
        newcomers = [req_id for req_id in scheduled if req_id not in standing]
        places = [req_id if req_id in scheduled else None for req_id in self.req_ids]
        for position, req_id in enumerate(places):
            if req_id is None and newcomers:
                places[position] = newcomers.pop(0)
        places.extend(newcomers)
        while None in places:
            last = places.pop()
            if last is not None:
                places[places.index(None)] = last
        self.req_ids = [req_id for req_id in places if req_id is not None]

    def swap_states(self, i: int, j: int) -> None:
        if self.rows is not None:
            self.rows.swap(self.req_ids[i], self.req_ids[j])
        for values in (self.req_ids, self.num_computed_tokens_cpu, self.num_prompt_tokens):
            values[i], values[j] = values[j], values[i]

    def copy(self) -> InputBatch:
        """Return a batch of the same order, without rows."""
        copied = InputBatch(len(self.num_computed_tokens_cpu))
        copied.req_ids = list(self.req_ids)
        copied.num_computed_tokens_cpu = self.num_computed_tokens_cpu.copy()
        copied.num_prompt_tokens = self.num_prompt_tokens.copy()
        return copied


class TableRows:
    """Gives each running request a row of the block tables.

    A request keeps its row from step to step, wherever it is in the batch.

    Attributes:
        req_ids: The request in each row, None in a free one.

    Example:
        >>> rows = TableRows(lambda method, *args: print(method, *args), 4, num_groups=0)
        >>> [rows.add(req_id) for req_id in "abc"]
        [0, 1, 2]
        >>> rows.remove(["a"], compacts=True)
        clear_row 0
        move_row 2 0
        >>> rows.req_ids, rows.row_of("b")
        (['c', 'b', None, None], 1)
    """

    def __init__(self, call_tables: Callable[..., Any], num_rows: int, num_groups: int) -> None:
        self.req_ids: list[str | None] = [None] * num_rows
        self._call_tables = call_tables
        self._num_groups = num_groups

    def row_of(self, req_id: str) -> int:
        return self.req_ids.index(req_id)

    def add(self, req_id: str) -> int:
        """Give a request the first free row, and return it."""
        row = self.req_ids.index(None)
        self.req_ids[row] = req_id
        return row

    def remove(self, req_ids: Iterable[str], *, compacts: bool) -> None:
        """Free the rows of requests.

        Args:
            req_ids: The requests.
            compacts: Whether the rows are cleared, and the last ones moved into the holes.
                Otherwise holes stay, with the blocks in them, until a request overwrites them.
        """
        for req_id in req_ids:
            row = self.row_of(req_id)
            self.req_ids[row] = None
            if compacts:
                self._call_tables("clear_row", row)
        if compacts:
            self._compact()

    def append(self, step: SchedulerOutput) -> None:
        """Give the step's requests their new blocks, and rows to those that have none."""
        for req_id in step.admitted_req_ids:
            self.add(req_id)
        cu_num_new_blocks = [[0] for _ in range(self._num_groups)]
        new_block_ids: list[list[int]] = [[] for _ in range(self._num_groups)]
        for ids_by_group in step.new_block_ids.values():
            for group, ids in enumerate(ids_by_group):
                new_block_ids[group].extend(ids)
                cu_num_new_blocks[group].append(len(new_block_ids[group]))
        self._call_tables(
            "append_block_ids",
            [self.row_of(req_id) for req_id in step.new_block_ids],
            cu_num_new_blocks,
            new_block_ids,
            [req_id in step.admitted_req_ids for req_id in step.new_block_ids],  # overwrite
        )

    def swap(self, req_id: str, other_id: str) -> None:
        a, b = self.row_of(req_id), self.row_of(other_id)
        self.req_ids[a], self.req_ids[b] = self.req_ids[b], self.req_ids[a]
        self._call_tables("swap_rows", a, b)

    def _compact(self) -> None:
        """Move the last rows in use to free ones before them."""
        num_used = sum(req_id is not None for req_id in self.req_ids)
        for src in range(len(self.req_ids) - 1, num_used - 1, -1):
            if self.req_ids[src] is not None:
                dst = self.req_ids.index(None)
                self.req_ids[dst], self.req_ids[src] = self.req_ids[src], None
                self._call_tables("move_row", src, dst)


class BatchBuffers:
    """The persistent buffers that every step's batch is written into, padded for a CUDA graph.

    They keep their addresses from step to step, as a captured CUDA graph requires.

    Args:
        settings: The settings of the engine.
        make: Makes a `CpuGpuBuffer` from its number of elements and the name of its dtype.

    Attributes:
        num_reqs: The requests of the batch.
        num_padded_reqs: Requests, including padding.
        num_tokens: Their new tokens.
        num_padded_tokens: Tokens, including padding.
        idx_mapping: int32[max_num_reqs], the row of each request in the block tables.
        query_start_loc: int32[max_num_reqs + 1], each request's first token, then their number.
        seq_lens: int32[max_num_reqs], computed and new tokens of each request.
        num_computed_tokens: int32[max_num_reqs], computed tokens of each request.
        logits_indices: int64[max_num_reqs], the last token of each request.
        positions: int64[max_num_tokens], the position of each token in its sequence.
        input_ids: int32[max_num_tokens], the tokens.
    """

    def __init__(self, settings: EngineSettings, make: Callable[[int, str], Any]) -> None:
        max_num_reqs = settings.padded(settings.max_num_seqs)
        max_num_tokens = settings.padded(settings.token_budget)
        self._settings = settings
        self.num_reqs = self.num_padded_reqs = self.num_tokens = self.num_padded_tokens = 0
        self.idx_mapping = make(max_num_reqs, "int32")
        self.query_start_loc = make(max_num_reqs + 1, "int32")
        self.seq_lens = make(max_num_reqs, "int32")
        self.num_computed_tokens = make(max_num_reqs, "int32")
        self.logits_indices = make(max_num_reqs, "int64")
        self.positions = make(max_num_tokens, "int64")
        self.input_ids = make(max_num_tokens, "int32")

    def fill(self, step: SchedulerOutput, batch: InputBatch, rows: TableRows) -> None:
        """Write a step's batch into the host halves; positions of padding stay unchanged."""
        num_reqs = self.num_reqs = len(batch.req_ids)
        query_lens = np.array([step.num_scheduled_tokens[r] for r in batch.req_ids], np.int32)
        computed = batch.num_computed_tokens_cpu[:num_reqs]
        self.num_tokens = int(query_lens.sum())
        num_padded_reqs = self.num_padded_reqs = self._settings.padded(num_reqs)
        self.num_padded_tokens = self._settings.padded(self.num_tokens)
        starts = self.query_start_loc.np
        starts[0] = 0
        starts[1 : num_reqs + 1] = query_lens.cumsum()
        starts[num_reqs + 1 : num_padded_reqs + 1] = starts[num_reqs]
        self.idx_mapping.np[:num_reqs] = [rows.row_of(r) for r in batch.req_ids]
        self.num_computed_tokens.np[:num_reqs] = computed
        self.seq_lens.np[:num_reqs] = computed + query_lens
        self.logits_indices.np[:num_reqs] = starts[1 : num_reqs + 1] - 1
        self.idx_mapping.np[num_reqs:num_padded_reqs] = PADDED_REQUEST
        for buffer in (self.num_computed_tokens, self.seq_lens, self.logits_indices):
            buffer.np[num_reqs:num_padded_reqs] = 0
        for req_id, start, first, count in zip(
            batch.req_ids, starts[:num_reqs], computed, query_lens, strict=True
        ):
            self.positions.np[start : start + count] = np.arange(first, first + count)
            self.input_ids.np[start : start + count] = step.token_ids[req_id][-count:]
        self.input_ids.np[self.num_tokens : self.num_padded_tokens] = 0
