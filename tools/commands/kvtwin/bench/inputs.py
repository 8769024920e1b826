"""Arguments of the hot functions for a batch: metadata, tables, lists, rows, an input batch."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final

import ml_dtypes
import numpy as np
import torch

from conformance.targets.target import Target
from kvtwin.bench.batches import BLOCK_SIZE, NUM_GROUPS, TOKEN_BUDGET, Batch
from kvtwin.bench.calls import array_of, host_array_of, make, prepare

EMBED_DIM: Final = 4096
"""Elements of an embedding, bfloat16."""

MAX_NUM_REQS: Final = 1024
"""Request slots of the block tables, as an engine has them, however few requests a batch has."""


def metadata_fields(batch: Batch, target: Target) -> dict[str, Any]:
    """Return the fields of a batch's metadata; on the host a field and its `_cpu` are one array."""
    starts, lens = host_array_of(target, batch.starts), host_array_of(target, batch.seq_lens)
    is_on_host = target.device in {None, "cpu"}
    return {
        "query_start_loc": starts if is_on_host else array_of(target, batch.starts),
        "query_start_loc_cpu": starts,
        "seq_lens": lens if is_on_host else array_of(target, batch.seq_lens),
        "seq_lens_cpu": lens,
        "num_computed_tokens_cpu": host_array_of(target, batch.num_computed_tokens),
        "num_reqs": batch.num_reqs,
        "num_actual_tokens": batch.num_tokens,
        "max_query_len": int(batch.query_lens.max()),
        "max_seq_len": int(batch.seq_lens.max()),
        "block_table_tensor": array_of(target, batch.block_table),
        "slot_mapping": array_of(target, np.arange(batch.num_tokens)),
    }


def make_metadata(batch: Batch, target: Target, **changes: Any) -> Any:
    """Return a batch's metadata as a target takes it."""
    return make(target, "CommonAttentionMetadata", **{**metadata_fields(batch, target), **changes})


class InputBatch:
    """A runner's input batch, whose swaps take almost no time, and may do nothing.

    Args:
        batch: The requests, in the order in which they came.
        does_swap: Whether a swap does anything. Timed calls swap nothing, so that each starts from
            the same order.
    """

    def __init__(self, batch: Batch, *, does_swap: bool) -> None:
        order = batch.arrival
        self.req_ids = [f"request-{i}" for i in order.tolist()]
        self.num_computed_tokens_cpu = batch.num_computed_tokens[order].astype(np.int32)
        is_decode = batch.query_lens <= batch.decode_threshold
        prompts = np.where(is_decode, batch.num_computed_tokens, batch.seq_lens)
        self.num_prompt_tokens = prompts[order].astype(np.int32)
        self._does_swap = does_swap

    def swap_states(self, i: int, j: int) -> None:
        """Swap two requests."""
        if self._does_swap:
            ids = self.req_ids
            ids[i], ids[j] = ids[j], ids[i]
            for counts in (self.num_computed_tokens_cpu, self.num_prompt_tokens):
                counts[[i, j]] = counts[[j, i]]


def reorder_call(
    batch: Batch, target: Target, *, does_swap: bool, **options: Any
) -> tuple[InputBatch, Callable[[], Any]]:
    """Return an input batch, and the call that reorders it with these options."""
    function = "reorder_batch_to_split_decodes_and_prefills"
    ours = InputBatch(batch, does_swap=does_swap)
    scheduled = {f"request-{i}": n for i, n in enumerate(batch.query_lens.tolist())}
    output = SimpleNamespace(num_scheduled_tokens=scheduled)
    return ours, prepare(target, function, ours, output, batch.decode_threshold, **options)


def embeddings(batch: Batch) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return as many placeholders as requests, bfloat16 rows, and the mask of half of them."""
    random = np.random.default_rng(batch.num_reqs)
    mask = random.random(batch.num_reqs) < 0.5
    mask[0] = True  # an item has an embedding
    rows = random.integers(0, 2**14, (batch.num_reqs, EMBED_DIM), np.uint16)
    return rows.view(ml_dtypes.bfloat16), mask


def rows_of(target: Target, rows: np.ndarray[Any, Any]) -> Any:
    """Return bfloat16 rows as a target takes them."""
    if target.device is None:
        return rows
    return torch.from_numpy(rows.view(np.uint16).copy()).view(torch.bfloat16).to(target.device)


class IdentityBuilder:
    """A builder that takes no time: it returns its input."""

    def build(self, common_prefix_len: int, common_attn_metadata: Any) -> Any:
        """Return the batch's metadata."""
        del common_prefix_len
        return common_attn_metadata


def build_arguments(batch: Batch, target: Target) -> dict[str, Any]:
    """Return the arguments of `build_attn_metadata` for `NUM_GROUPS` groups."""

    def buffer(values: np.ndarray[Any, Any]) -> SimpleNamespace:
        cpu = host_array_of(target, values)
        return SimpleNamespace(cpu=cpu, gpu=array_of(target, values), np=values)

    groups = [SimpleNamespace(layer_names=[f"layers.{i}.attn"]) for i in range(NUM_GROUPS)]
    return {
        "attn_metadata_builders": [IdentityBuilder() for _ in groups],
        "num_reqs": batch.num_reqs,
        "num_tokens": batch.num_tokens,
        "query_start_loc": buffer(batch.starts),
        "seq_lens": buffer(batch.seq_lens),
        "num_computed_tokens_cpu": host_array_of(target, batch.num_computed_tokens),
        "block_tables": tuple(array_of(target, batch.block_table) for _ in groups),
        "slot_mappings": array_of(target, np.tile(np.arange(batch.num_tokens), (NUM_GROUPS, 1))),
        "kv_cache_config": SimpleNamespace(kv_cache_groups=groups),
    }


def make_tables(batch: Batch, target: Target) -> Any:
    """Return block tables of `NUM_GROUPS` groups that hold a batch, row by row."""
    tables = prepare(
        target,
        "BlockTables",
        [BLOCK_SIZE] * NUM_GROUPS,
        max(batch.num_reqs, MAX_NUM_REQS),
        max(batch.num_tokens, TOKEN_BUDGET),
        batch.num_columns * BLOCK_SIZE,
        target.device or "cpu",
        pin_memory=target.device == "cuda",
    )()
    rows = list(range(batch.num_reqs))
    ends = [0, *np.cumsum(batch.num_blocks).tolist()]
    ids = batch.block_ids.tolist()
    prepare(
        target,
        "BlockTables.append_block_ids",
        tables,
        rows,
        [ends] * NUM_GROUPS,
        [ids] * NUM_GROUPS,
        [True] * len(rows),
    )()
    return tables


def append_arguments(batch: Batch) -> list[Any]:
    """Return the arguments of a step's append: the new blocks of each request, for each group.

    Rows are overwritten, so that each call starts from the same state; it writes as much as usual.
    """
    owned = -(-batch.num_computed_tokens.astype(np.int64) // BLOCK_SIZE)
    counts = batch.num_blocks - owned
    rows = np.flatnonzero(counts)
    ends = [0, *np.cumsum(counts[rows]).tolist()]
    ids = list(range(1, ends[-1] + 1))
    return [rows.tolist(), [ends] * NUM_GROUPS, [ids] * NUM_GROUPS, [True] * len(rows)]
