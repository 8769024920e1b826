"""The hot functions, each with the call that is timed for a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final

import ml_dtypes
import numpy as np
import torch

import reference
from tools.bench.batches import BLOCK_SIZE, NUM_GROUPS, TOKEN_BUDGET, Batch
from tools.bench.sides import Side

EMBED_DIM: Final = 4096
"""Elements of an embedding, bfloat16."""

MAX_NUM_REQS: Final = 1024
"""Request slots of the block tables, as an engine has them, however few requests a batch has."""

FIRST_NEW_BLOCK: Final = 1000
"""The first of the blocks that are appended. `fast` takes half again as long for lists with the ids
0 or 1, which it must tell from bools: most steps have none, and these batches have none."""

DCP_SIZE: Final = 4
BIG_CHUNK, SMALL_CHUNK = 8192, 512
"""Positions in a chunk of local attention."""


@dataclass(frozen=True)
class Prepared:
    """A call that is ready to be made again and again.

    Attributes:
        call: It, without arguments.
        observe: What it comes to, as `reference` would return it, where that is not what the call
            returns. It may be asked once, before the call is timed.
    """

    call: Callable[[], Any]
    observe: Callable[[], Any]


@dataclass(frozen=True)
class Job:
    """A hot function with what is fixed about its calls.

    Attributes:
        name: What it is called in tables.
        function: The function, or the method written `Class.method`.
        prepare: Makes the call for a batch; None where the batch has no such call.
        is_copier: Whether it is a copier or a caller of others, whose ratio to a peer is bounded by
            what it copies or calls.
    """

    name: str
    function: str
    prepare: Callable[[Batch, Side], Prepared | None]
    is_copier: bool = False


def metadata_fields(batch: Batch, side: Side) -> dict[str, Any]:
    """Return the fields of a batch's metadata; on the host both of a pair are one array."""
    starts, lens = side.on_host(batch.starts), side.on_host(batch.seq_lens)
    is_on_host = side.device in {None, "cpu"}
    return {
        "query_start_loc": starts if is_on_host else side.array(batch.starts),
        "query_start_loc_cpu": starts,
        "seq_lens": lens if is_on_host else side.array(batch.seq_lens),
        "seq_lens_cpu": lens,
        "num_computed_tokens_cpu": side.on_host(batch.num_computed_tokens),
        "num_reqs": batch.num_reqs,
        "num_actual_tokens": batch.num_tokens,
        "max_query_len": int(batch.query_lens.max()),
        "max_seq_len": int(batch.seq_lens.max()),
        "block_table_tensor": side.array(batch.block_table),
        "slot_mapping": side.array(np.arange(batch.num_tokens)),
    }


def make_metadata(batch: Batch, side: Side, **changes: Any) -> Any:
    """Return a side's metadata of a batch."""
    return side.make("CommonAttentionMetadata", **{**metadata_fields(batch, side), **changes})


def _prepared(
    side: Side,
    function: str,
    *args: Any,
    observe: Callable[[Any], Any] | None = None,
    **kwargs: Any,
) -> Prepared:
    call = side.call(function, *args, **kwargs)

    def observed() -> Any:
        answer = side.answer(function, call(), kwargs)
        return answer if observe is None else observe(answer)

    return Prepared(call, observed)


def _split(batch: Batch, side: Side) -> Prepared:
    return _prepared(
        side,
        "split_decodes_and_prefills",
        common_attn_metadata=make_metadata(batch, side),
        decode_threshold=batch.decode_threshold,
        require_uniform=batch.decode_threshold > 1,
    )


def _split_extends(batch: Batch, side: Side) -> Prepared:
    return _prepared(
        side,
        "split_decodes_prefills_and_extends",
        common_attn_metadata=make_metadata(batch, side),
        decode_threshold=batch.decode_threshold,
    )


class InputBatch:
    """A runner's input batch, whose swaps cost next to nothing and may be left undone.

    Args:
        batch: The requests, in the order in which they came.
        does_swap: Whether a swap does anything. What is timed swaps nothing, so that each call
            finds the same.
    """

    def __init__(self, batch: Batch, *, does_swap: bool) -> None:
        order = batch.arrival
        self.req_ids = [f"request-{i}" for i in order.tolist()]
        self.num_computed_tokens_cpu = batch.num_computed_tokens[order].astype(np.int32)
        self._does_swap = does_swap

    def swap_states(self, i: int, j: int) -> None:
        """Swap two requests."""
        if self._does_swap:
            ids, computed = self.req_ids, self.num_computed_tokens_cpu
            ids[i], ids[j] = ids[j], ids[i]
            computed[[i, j]] = computed[[j, i]]


def reorder_call(
    batch: Batch, side: Side, *, does_swap: bool
) -> tuple[InputBatch, Callable[[], Any]]:
    """Return an input batch, and the call that reorders it."""
    function = "reorder_batch_to_split_decodes_and_prefills"
    ours = InputBatch(batch, does_swap=does_swap)
    scheduled = {f"request-{i}": n for i, n in enumerate(batch.query_lens.tolist())}
    output = SimpleNamespace(num_scheduled_tokens=scheduled)
    return ours, side.call(function, ours, output, batch.decode_threshold)


def _reorder(batch: Batch, side: Side) -> Prepared:
    ours, once = reorder_call(batch, side, does_swap=True)
    _, call = reorder_call(batch, side, does_swap=False)
    return Prepared(call, lambda: (once(), list(ours.req_ids)))


def _create_slices(batch: Batch, side: Side) -> Prepared | None:
    if batch.num_tokens < 2:
        return None
    return _prepared(
        side,
        "create_ubatch_slices",
        num_scheduled_tokens=batch.query_lens.copy(),  # NumPy in every implementation
        split_points=batch.num_tokens // 2,
    )


def _split_metadata(batch: Batch, side: Side) -> Prepared | None:
    if batch.num_tokens < 2:
        return None
    slices = [
        side.make("UBatchSlice", **vars(half))
        for half in reference.create_ubatch_slices(batch.query_lens, batch.num_tokens // 2)
    ]
    return _prepared(
        side,
        "split_attn_metadata",
        ubatch_slices=slices,
        common_attn_metadata=make_metadata(batch, side),
    )


def _local_attention(chunk_size: int) -> Callable[[Batch, Side], Prepared]:
    def prepare(batch: Batch, side: Side) -> Prepared:
        return _prepared(
            side,
            "make_local_attention_virtual_batches",
            chunk_size,
            make_metadata(batch, side),
            BLOCK_SIZE,
        )

    return prepare


def _fast_prefill(batch: Batch, side: Side) -> Prepared:
    last_tokens = batch.starts[1:].astype(np.int64) - 1
    changes = {
        "logits_indices_padded": side.array(last_tokens),
        "num_logits_indices": batch.num_reqs,
    }
    function = "make_kv_sharing_fast_prefill_common_attn_metadata"
    if side.name == "fast" and side.device != "cpu":
        hint = {"logits_indices_cpu": side.on_host(last_tokens)}
        return _prepared(side, function, make_metadata(batch, side, **changes), **hint)
    return _prepared(side, function, make_metadata(batch, side, **changes))


def _conv1d(batch: Batch, side: Side) -> Prepared:
    function = "compute_causal_conv1d_metadata"
    if side.name == "fast" and side.device != "cpu":
        hint = {"query_start_loc_p_cpu": side.on_host(batch.starts)}
        return _prepared(side, function, side.array(batch.starts), **hint)
    return _prepared(side, function, side.array(batch.starts))


def _local_lengths(batch: Batch, side: Side) -> Prepared:
    return _prepared(
        side,
        "get_dcp_local_seq_lens",
        side.array(batch.seq_lens),
        DCP_SIZE,
        1,
        BLOCK_SIZE,
    )


def _slots(batch: Batch, side: Side) -> Prepared:
    return _prepared(
        side,
        "compute_slot_mapping",
        side.array(batch.block_table),
        side.array(batch.starts),
        side.array(batch.positions),
        BLOCK_SIZE,
    )


def embeddings(batch: Batch) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return as many placeholders as requests, bfloat16 rows, and the mask of half of them."""
    random = np.random.default_rng(batch.num_reqs)
    mask = random.random(batch.num_reqs) < 0.5
    mask[0] = True  # an item has an embedding
    rows = random.integers(0, 2**14, (batch.num_reqs, EMBED_DIM), np.uint16)
    return rows.view(ml_dtypes.bfloat16), mask


def _rows(side: Side, rows: np.ndarray[Any, Any]) -> Any:
    """Return bfloat16 rows as a side takes them."""
    if side.device is None:
        return rows
    return torch.from_numpy(rows.view(np.uint16).copy()).view(torch.bfloat16).to(side.device)


def _scatter(batch: Batch, side: Side) -> Prepared:
    rows, mask = embeddings(batch)
    return _prepared(side, "scatter_mm_placeholders", _rows(side, rows[mask]), side.array(mask))


def _gather(batch: Batch, side: Side) -> Prepared:
    rows, mask = embeddings(batch)
    hint: Mapping[str, Any] = {}
    if side.name == "fast" and side.device != "cpu":
        hint = {"num_embeds": int(mask.sum())}
    return _prepared(side, "gather_mm_placeholders", _rows(side, rows), side.array(mask), **hint)


class Longest:
    """A builder that takes no time: it hands on what it is given."""

    def build(self, common_prefix_len: int, common_attn_metadata: Any) -> Any:
        """Return the batch."""
        del common_prefix_len
        return common_attn_metadata


def build_arguments(batch: Batch, side: Side) -> dict[str, Any]:
    """Return the arguments of `build_attn_metadata` for `NUM_GROUPS` groups."""

    def buffer(values: np.ndarray[Any, Any]) -> SimpleNamespace:
        cpu = side.on_host(values)
        return SimpleNamespace(cpu=cpu, gpu=side.array(values), np=values)

    groups = [SimpleNamespace(layer_names=[f"layers.{i}.attn"]) for i in range(NUM_GROUPS)]
    return {
        "attn_metadata_builders": [Longest() for _ in groups],
        "num_reqs": batch.num_reqs,
        "num_tokens": batch.num_tokens,
        "query_start_loc": buffer(batch.starts),
        "seq_lens": buffer(batch.seq_lens),
        "num_computed_tokens_cpu": side.on_host(batch.num_computed_tokens),
        "block_tables": tuple(side.array(batch.block_table) for _ in groups),
        "slot_mappings": side.array(np.tile(np.arange(batch.num_tokens), (NUM_GROUPS, 1))),
        "kv_cache_config": SimpleNamespace(kv_cache_groups=groups),
    }


def _build(batch: Batch, side: Side) -> Prepared:
    return _prepared(side, "build_attn_metadata", **build_arguments(batch, side))


def make_tables(batch: Batch, side: Side) -> Any:
    """Return block tables of `NUM_GROUPS` groups that hold a batch, row by row."""
    tables = side.call(
        "BlockTables",
        [BLOCK_SIZE] * NUM_GROUPS,
        max(batch.num_reqs, MAX_NUM_REQS),
        max(batch.num_tokens, TOKEN_BUDGET),
        batch.num_columns * BLOCK_SIZE,
        side.device or "cpu",
        pin_memory=side.device == "cuda",
    )()
    rows = list(range(batch.num_reqs))
    ends = [0, *np.cumsum(batch.num_blocks).tolist()]
    ids = batch.block_ids.tolist()
    side.call(
        "BlockTables.append_block_ids",
        tables,
        rows,
        [ends] * NUM_GROUPS,
        [ids] * NUM_GROUPS,
        [True] * len(rows),
    )()
    return tables


def append_arguments(batch: Batch) -> list[Any]:
    """Return what a step appends: each group's blocks of the requests whose tokens enter new ones.

    A row is overwritten, so that each call finds the same; there is as much to write as if not.
    """
    owned = -(-batch.num_computed_tokens.astype(np.int64) // BLOCK_SIZE)
    counts = batch.num_blocks - owned
    rows = np.flatnonzero(counts)
    ends = [0, *np.cumsum(counts[rows]).tolist()]
    ids = list(range(FIRST_NEW_BLOCK, FIRST_NEW_BLOCK + ends[-1]))
    return [rows.tolist(), [ends] * NUM_GROUPS, [ids] * NUM_GROUPS, [True] * len(rows)]


def _append(batch: Batch, side: Side) -> Prepared:
    tables = make_tables(batch, side)
    call = side.call("BlockTables.append_block_ids", tables, *append_arguments(batch))
    everyone = side.array(np.arange(batch.num_reqs, dtype=np.int32))
    gather = side.call("BlockTables.gather_block_tables", tables, everyone)
    return Prepared(call, lambda: (call(), gather()))


def _gather_tables(batch: Batch, side: Side) -> Prepared:
    tables = make_tables(batch, side)
    idx_mapping = side.array(batch.arrival.astype(np.int32))
    return _prepared(side, "BlockTables.gather_block_tables", tables, idx_mapping)


def _slots_of_all(batch: Batch, side: Side) -> Prepared:
    tables = make_tables(batch, side)
    everyone = side.array(np.arange(batch.num_reqs, dtype=np.int32))
    side.call("BlockTables.gather_block_tables", tables, everyone)()
    starts, positions = side.array(batch.starts), side.array(batch.positions)
    return _prepared(side, "BlockTables.compute_slot_mappings", tables, starts, positions)


JOBS: Final = (
    Job("BlockTables.append_block_ids", "BlockTables.append_block_ids", _append),
    Job(
        "BlockTables.gather_block_tables",
        "BlockTables.gather_block_tables",
        _gather_tables,
        is_copier=True,
    ),
    Job("BlockTables.compute_slot_mappings", "BlockTables.compute_slot_mappings", _slots_of_all),
    Job("compute_slot_mapping", "compute_slot_mapping", _slots),
    Job("build_attn_metadata", "build_attn_metadata", _build, is_copier=True),
    Job("split_decodes_and_prefills", "split_decodes_and_prefills", _split),
    Job("split_decodes_prefills_and_extends", "split_decodes_prefills_and_extends", _split_extends),
    Job(
        "reorder_batch_to_split_decodes_and_prefills",
        "reorder_batch_to_split_decodes_and_prefills",
        _reorder,
        is_copier=True,
    ),
    Job("create_ubatch_slices", "create_ubatch_slices", _create_slices, is_copier=True),
    Job("split_attn_metadata", "split_attn_metadata", _split_metadata),
    Job(
        f"make_local_attention_virtual_batches, chunk {BIG_CHUNK}",
        "make_local_attention_virtual_batches",
        _local_attention(BIG_CHUNK),
    ),
    Job(
        f"make_local_attention_virtual_batches, chunk {SMALL_CHUNK}",
        "make_local_attention_virtual_batches",
        _local_attention(SMALL_CHUNK),
    ),
    Job(
        "make_kv_sharing_fast_prefill_common_attn_metadata",
        "make_kv_sharing_fast_prefill_common_attn_metadata",
        _fast_prefill,
    ),
    Job("compute_causal_conv1d_metadata", "compute_causal_conv1d_metadata", _conv1d),
    Job("get_dcp_local_seq_lens", "get_dcp_local_seq_lens", _local_lengths),
    Job("scatter_mm_placeholders", "scatter_mm_placeholders", _scatter, is_copier=True),
    Job("gather_mm_placeholders", "gather_mm_placeholders", _gather, is_copier=True),
)
"""Every hot function, in the order of spec and tables."""
