"""The hot functions, each with the call that is timed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from typing import Any, Final, NamedTuple

import numpy as np

import reference
from conformance.targets.target import Target
from kvtwin.bench.batches import BLOCK_SIZE, MAX_CONTEXT, NUM_GROUPS, Batch
from kvtwin.bench.calls import array_of, host_array_of, make, prepare, result_of
from kvtwin.bench.inputs import (
    EMBED_DIM,
    append_arguments,
    build_arguments,
    embeddings,
    make_metadata,
    make_tables,
    reorder_call,
    rows_of,
)

DCP_SIZE: Final = 4
IN_PLACE: Final = ", out="
"""The suffix of the names of jobs that write to an `out`."""

BIG_CHUNK, SMALL_CHUNK = 8192, 512
"""Positions in a chunk of local attention."""

TABLE_ROW_BYTES: Final = 4 * MAX_CONTEXT // BLOCK_SIZE
"""The bytes of a row of an int32 block table."""

MEAN_CONTEXT: Final = 3500
"""The mean tokens of the batches' requests; blocks after a context are not copied."""

GAP: Final = 64
"""Bytes between two rows of a plain copy; without a gap it would copy them in one piece."""


class Rows(NamedTuple):
    """The rows that a call copies.

    Attributes:
        per_request: Rows per request.
        num_bytes: Bytes that are copied of each row.
        apart: Bytes from the start of a row to that of the next.
    """

    per_request: int
    num_bytes: int
    stride_bytes: int


@dataclass(frozen=True)
class Prepared:
    """A prepared call, which can be repeated.

    Attributes:
        call: The call, without arguments.
        observe: Makes the call and returns its effect as `reference` would, for comparison. It may
            be called once, before the call is timed.
    """

    call: Callable[[], Any]
    observe: Callable[[], Any]


@dataclass(frozen=True)
class Job:
    """A hot function, and how its calls are prepared and compared with bounds.

    Attributes:
        function: The function, or the method written `Class.method`.
        prepare: Prepares the call for a batch; returns None if the batch allows no such call.
        variant: The suffix of the function's name in tables.
        is_copier: Whether it mainly copies, or calls other code, which limits its ratio to a
            baseline.
        rows: Roughly the rows that it copies for each request; None: no long rows. Rows outgrow
            the caches, so the bound of growth is that of a plain copy of such rows.
        prepare_in_place: Prepares a call that writes to the caller's `out`, if growth is measured
            with that: a new result of 32 MiB would be new pages in each call.
    """

    function: str
    prepare: Callable[[Batch, Target], Prepared | None]
    variant: str = ""
    is_copier: bool = False
    rows: Rows | None = None
    prepare_in_place: Callable[[Batch, Target], Prepared | None] | None = None

    @property
    def name(self) -> str:
        """Its name in tables."""
        return self.function + self.variant

    def in_place(self) -> Job:
        """Return the job with which growth is measured."""
        if self.prepare_in_place is None:
            return self
        return dataclasses.replace(self, variant=IN_PLACE, prepare=self.prepare_in_place)


def _prepared(
    target: Target,
    function: str,
    *args: Any,
    observe: Callable[[Any], Any] | None = None,
    **kwargs: Any,
) -> Prepared:
    call = prepare(target, function, *args, **kwargs)

    def observed() -> Any:
        answer = result_of(target, function, call(), kwargs)
        return answer if observe is None else observe(answer)

    return Prepared(call, observed)


def _hints(target: Target, **hints: Any) -> dict[str, Any]:
    """Return keywords with which `fast` need not synchronise; other implementations get none."""
    return hints if target.name == "fast" and target.device != "cpu" else {}


def _split(batch: Batch, target: Target) -> Prepared:
    return _prepared(
        target,
        "split_decodes_and_prefills",
        common_attn_metadata=make_metadata(batch, target),
        decode_threshold=batch.decode_threshold,
        require_uniform=batch.decode_threshold > 1,
    )


def _split_extends(batch: Batch, target: Target) -> Prepared:
    return _prepared(
        target,
        "split_decodes_prefills_and_extends",
        common_attn_metadata=make_metadata(batch, target),
        decode_threshold=batch.decode_threshold,
    )


def _reorder(batch: Batch, target: Target, **options: int) -> Prepared:
    ours, once = reorder_call(batch, target, does_swap=True, **options)
    _, call = reorder_call(batch, target, does_swap=False, **options)
    return Prepared(call, lambda: (once(), list(ours.req_ids)))


def _create_slices(batch: Batch, target: Target) -> Prepared | None:
    if batch.num_tokens < 2:
        return None
    return _prepared(
        target,
        "create_ubatch_slices",
        num_scheduled_tokens=batch.query_lens.copy(),  # NumPy in every implementation
        split_points=batch.num_tokens // 2,
    )


def _split_metadata(batch: Batch, target: Target) -> Prepared | None:
    if batch.num_tokens < 2:
        return None
    slices = [
        make(target, "UBatchSlice", **vars(half))
        for half in reference.create_ubatch_slices(batch.query_lens, batch.num_tokens // 2)
    ]
    return _prepared(
        target,
        "split_attn_metadata",
        ubatch_slices=slices,
        common_attn_metadata=make_metadata(batch, target),
    )


def _local_attention(chunk_size: int) -> Callable[[Batch, Target], Prepared]:
    def prepare(batch: Batch, target: Target) -> Prepared:
        given = (chunk_size, make_metadata(batch, target), BLOCK_SIZE)
        return _prepared(target, "make_local_attention_virtual_batches", *given)

    return prepare


def _fast_prefill(batch: Batch, target: Target) -> Prepared:
    last_tokens = batch.starts[1:].astype(np.int64) - 1
    changes = {
        "logits_indices_padded": array_of(target, last_tokens),
        "num_logits_indices": batch.num_reqs,
    }
    return _prepared(
        target,
        "make_kv_sharing_fast_prefill_common_attn_metadata",
        make_metadata(batch, target, **changes),
        **_hints(target, logits_indices_cpu=host_array_of(target, last_tokens)),
    )


def _conv1d(batch: Batch, target: Target) -> Prepared:
    hints = _hints(target, query_start_loc_p_cpu=host_array_of(target, batch.starts))
    starts = array_of(target, batch.starts)
    return _prepared(target, "compute_causal_conv1d_metadata", starts, **hints)


def _local_lengths(batch: Batch, target: Target) -> Prepared:
    lens = array_of(target, batch.seq_lens)
    return _prepared(target, "get_dcp_local_seq_lens", lens, DCP_SIZE, 1, BLOCK_SIZE)


def _slots(batch: Batch, target: Target) -> Prepared:
    arrays = (batch.block_table, batch.starts, batch.positions)
    given = [array_of(target, array) for array in arrays]
    return _prepared(target, "compute_slot_mapping", *given, BLOCK_SIZE)


def _scatter(batch: Batch, target: Target, *, is_in_place: bool = False) -> Prepared:
    rows, mask = embeddings(batch)
    out = {"out": rows_of(target, np.zeros_like(rows))} if is_in_place else {}
    given = (rows_of(target, rows[mask]), array_of(target, mask))
    return _prepared(target, "scatter_mm_placeholders", *given, **out)


def _gather(batch: Batch, target: Target, *, is_in_place: bool = False) -> Prepared:
    rows, mask = embeddings(batch)
    out = {"out": rows_of(target, np.zeros_like(rows[mask]))} if is_in_place else {}
    hints = {} if is_in_place else _hints(target, num_embeds=int(mask.sum()))
    given = (rows_of(target, rows), array_of(target, mask))
    return _prepared(target, "gather_mm_placeholders", *given, **hints, **out)


def _build(batch: Batch, target: Target) -> Prepared:
    return _prepared(target, "build_attn_metadata", **build_arguments(batch, target))


def _build_bounded(batch: Batch, target: Target) -> Prepared:
    bounds = {"max_query_len": batch.query_lens.max(), "max_seq_len": batch.seq_lens.max()}
    bounds = {name: int(bound) for name, bound in bounds.items()}
    return _prepared(target, "build_attn_metadata", **build_arguments(batch, target), **bounds)


def _append(batch: Batch, target: Target) -> Prepared:
    tables = make_tables(batch, target)
    call = prepare(target, "BlockTables.append_block_ids", tables, *append_arguments(batch))
    everyone = array_of(target, np.arange(batch.num_reqs, dtype=np.int32))
    gather = prepare(target, "BlockTables.gather_block_tables", tables, everyone)
    return Prepared(call, lambda: (call(), gather()))


def _gather_tables(batch: Batch, target: Target) -> Prepared:
    """Gather alternately in one order and its reverse, so that most of several rows change."""
    tables = make_tables(batch, target)
    gather = "BlockTables.gather_block_tables"
    orders = (batch.arrival.astype(np.int32), batch.arrival[::-1].astype(np.int32))
    both = [prepare(target, gather, tables, array_of(target, order)) for order in orders]
    turns = cycle(both)

    def in_turn() -> Any:
        return next(turns)()

    # Both calls return views of the same memory: the second overwrites the first's result.
    return Prepared(in_turn, lambda: [deepcopy(result_of(target, gather, call())) for call in both])


def _slots_of_all(batch: Batch, target: Target) -> Prepared:
    tables = make_tables(batch, target)
    everyone = array_of(target, np.arange(batch.num_reqs, dtype=np.int32))
    prepare(target, "BlockTables.gather_block_tables", tables, everyone)()
    starts, positions = array_of(target, batch.starts), array_of(target, batch.positions)
    return _prepared(target, "BlockTables.compute_slot_mappings", tables, starts, positions)


JOBS: Final = (
    Job("BlockTables.append_block_ids", _append),
    Job(
        "BlockTables.gather_block_tables",
        _gather_tables,
        is_copier=True,
        rows=Rows(NUM_GROUPS, 4 * MEAN_CONTEXT // BLOCK_SIZE, TABLE_ROW_BYTES),
    ),
    Job("BlockTables.compute_slot_mappings", _slots_of_all),
    Job("compute_slot_mapping", _slots),
    Job("build_attn_metadata", _build, is_copier=True),
    Job("build_attn_metadata", _build_bounded, " (bounds given)", is_copier=True),
    Job("split_decodes_and_prefills", _split),
    Job("split_decodes_prefills_and_extends", _split_extends),
    Job("reorder_batch_to_split_decodes_and_prefills", _reorder, is_copier=True),
    Job(
        "reorder_batch_to_split_decodes_and_prefills",
        partial(_reorder, regions=4),
        ", 4 regions",
        is_copier=True,
    ),
    Job("create_ubatch_slices", _create_slices, is_copier=True),
    Job("split_attn_metadata", _split_metadata),
    Job(
        "make_local_attention_virtual_batches",
        _local_attention(BIG_CHUNK),
        f", chunk {BIG_CHUNK}",
        # Whole rows of the block table: contexts are shorter than a chunk.
        rows=Rows(1, TABLE_ROW_BYTES, 4 * BIG_CHUNK // BLOCK_SIZE),
    ),
    Job(
        "make_local_attention_virtual_batches",
        _local_attention(SMALL_CHUNK),
        f", chunk {SMALL_CHUNK}",
    ),
    Job("make_kv_sharing_fast_prefill_common_attn_metadata", _fast_prefill),
    Job("compute_causal_conv1d_metadata", _conv1d),
    Job("get_dcp_local_seq_lens", _local_lengths),
    Job(
        "scatter_mm_placeholders",
        _scatter,
        is_copier=True,
        rows=Rows(1, 2 * EMBED_DIM, 2 * EMBED_DIM + GAP),
        prepare_in_place=partial(_scatter, is_in_place=True),
    ),
    Job(
        "gather_mm_placeholders",
        _gather,
        is_copier=True,
        # Half of the placeholders stand for an embedding.
        rows=Rows(1, EMBED_DIM, EMBED_DIM + GAP),
        prepare_in_place=partial(_gather, is_in_place=True),
    ),
)
"""Every hot function, in the order of spec and tables."""
