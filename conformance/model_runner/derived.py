"""Results that backends derive from a batch's metadata; each function returns them by name."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from conformance.model_runner.batch import Batch
from conformance.model_runner.buffers import NUM_CP_RANKS
from conformance.targets.target import Answer, Target
from conformance.zoo.groups import CacheGroup

BLOCKS_IN_SMALL_CHUNK = 8
"""Blocks in a chunk that is used for every group, chunked or not."""
POISON = -77
"""The fill value of an output before it is written."""


def cut_padding(target: Target, batch: Batch) -> dict[str, Answer]:
    """Remove the padding with `unpadded`."""
    return {
        "unpadded": [
            target.method(metadata, "unpadded", batch.num_tokens, batch.num_reqs)
            for metadata in batch.metadata
        ]
    }


def split_thresholds(batch: Batch) -> tuple[int, ...]:
    """Return the decode thresholds that a batch is split by: the engine's own, and others."""
    return 1, batch.settings.decode_threshold, batch.settings.decode_threshold + 3, 64


def split_by_kind(target: Target, batch: Batch) -> dict[str, Answer]:
    """Split the batch into decodes, extends and prefills, by several thresholds."""
    metadata = batch.metadata[batch.rotating_group]
    thresholds = split_thresholds(batch)
    two_ways, three_ways = "split_decodes_and_prefills", "split_decodes_prefills_and_extends"
    return {
        "decodes_and_prefills": [target.call(two_ways, metadata, one) for one in thresholds],
        "uniform_decodes_and_prefills": [
            target.call(two_ways, metadata, one, require_uniform=True) for one in thresholds
        ],
        "decodes_extends_and_prefills": [
            target.call(three_ways, metadata, one) for one in thresholds
        ],
    }


def cut_into_micro_batches(target: Target, batch: Batch) -> dict[str, Answer]:
    """Cut the batch into micro-batches of about as many tokens each.

    In every second step the last one includes the padding. The longest request is also cut at both
    ends, and a slice of padding only is cut out.
    """
    parts = batch.settings.micro_batches
    if parts == 1:
        return {}
    total = batch.num_tokens
    points = sorted({total * part // parts for part in range(1, parts)} - {0, total})
    as_int = len(points) == 1 and batch.step_index % 4 < 2
    slices = target.call("create_ubatch_slices", batch.query_lens, points[0] if as_int else points)
    results = {
        "micro_batch_slices": slices,
        "micro_batch_sizes": [
            (target.method(part, "is_empty"), target.attribute(part, "num_tokens"))
            for part in slices
        ],
        "micro_batch_starts": [
            target.call(
                "slice_query_start_locs", batch.metadata[0].query_start_loc, part.request_slice
            )
            for part in slices
        ],
    }
    if batch.step_index % 2 == 0:
        slices = [*slices[:-1], _with_padding(target, slices[-1], batch)]
    results["micro_batches"] = [
        target.call("split_attn_metadata", slices, metadata)
        for _, metadata in batch.rotating_groups
    ]
    metadata = batch.metadata[batch.rotating_group]
    request, start, stop = batch.longest_request
    if stop - start >= 3:
        middle = target.call("UBatchSlice", slice(request, request + 1), slice(start + 1, stop - 1))
        results["middle_of_longest"] = target.call("_make_metadata_with_slice", middle, metadata)
    if batch.num_padded_reqs > batch.num_reqs and batch.num_padded_tokens > total:
        padding = target.call(
            "UBatchSlice",
            slice(batch.num_reqs, batch.num_padded_reqs),
            slice(total, batch.num_padded_tokens),
        )
        results["padding_alone"] = target.call("_make_metadata_with_slice", padding, metadata)
    return results


def _with_padding(target: Target, part: Answer, batch: Batch) -> Answer:
    """Make the last slice end where the padded batch ends."""
    return target.call(
        "UBatchSlice",
        slice(part.request_slice.start, batch.num_padded_reqs),
        slice(part.token_slice.start, batch.num_padded_tokens),
    )


def make_virtual_batches(target: Target, batch: Batch) -> dict[str, Answer]:
    """Make the virtual batches of chunked local attention: real chunks, and small ones."""
    make = "make_local_attention_virtual_batches"
    return {
        "local_attention": [
            target.call(make, group.attention_chunk_size, metadata, group.block_size)
            for group, metadata in batch.rotating_groups
            if group.attention_chunk_size is not None
        ],
        "small_chunks": [
            target.call(make, BLOCKS_IN_SMALL_CHUNK * group.block_size, metadata, group.block_size)
            for group, metadata in batch.rotating_groups
        ],
    }


def spread_over_ranks(target: Target, batch: Batch) -> dict[str, Answer]:
    """Compute the local sequence lengths and slots of the ranks of a context-parallel group."""
    lengths: list[Answer] = []
    slots: list[Answer] = []
    for group, metadata in batch.rotating_groups:
        interleave = batch.interleave(group)
        keywords = {"cp_kv_cache_interleave_size": interleave}
        arguments = metadata.seq_lens, NUM_CP_RANKS
        lengths.append(target.call("get_dcp_local_seq_lens", *arguments, **keywords))
        for rank in range(NUM_CP_RANKS):
            lengths.append(target.call("get_dcp_local_seq_lens", *arguments, rank, interleave))
            of_rank = {"cp_world_size": NUM_CP_RANKS, "cp_rank": rank, **keywords}
            table = metadata.block_table_tensor
            slots.append(_compute_slots(target, batch, group, metadata, table, of_rank))
    return {"cp_seq_lens": lengths, "cp_slot_mappings": slots}


def _compute_slots(
    target: Target,
    batch: Batch,
    group: CacheGroup,
    metadata: Answer,
    table: Answer,
    keywords: dict[str, Answer],
) -> Answer:
    """Compute the slots of a batch through a table."""
    starts = metadata.query_start_loc
    return target.call(
        "compute_slot_mapping", table, starts, batch.positions, group.block_size, **keywords
    )


def rename_kernel_blocks(target: Target, batch: Batch) -> dict[str, Answer]:
    """Compute slots through tables of kernel blocks, which are smaller than the manager's.

    By turns the slots are those of one rank, and written to an `out` that is longer than needed.
    """
    tables: list[Answer] = []
    slots: list[Answer] = []
    outputs: list[Answer] = []
    for group, metadata in batch.rotating_groups:
        blocks_per_kv_block = 3 if group.block_size % 3 == 0 else 2 - group.block_size % 2
        num_columns = -(-metadata.max_seq_len // group.block_size)
        table = target.call(
            "map_to_kernel_blocks",
            metadata.block_table_tensor[:, :num_columns],
            blocks_per_kv_block,
        )
        size = group.block_size // blocks_per_kv_block
        keywords: dict[str, Answer] = {"kernel_block_size": size}
        if batch.step_index % 2 == 1:
            outputs.append(target.array(np.full(batch.num_padded_tokens + 5, POISON, np.int64)))
            keywords["out"] = outputs[-1]
        if batch.step_index % 4 >= 2:
            keywords["cp_world_size"] = NUM_CP_RANKS
            keywords["cp_rank"] = batch.step_index // 4 % NUM_CP_RANKS
            keywords["cp_kv_cache_interleave_size"] = batch.interleave(group)
        tables.append(table)
        slots.append(_compute_slots(target, batch, group, metadata, table, keywords))
    return {
        "kernel_block_tables": tables,
        "kernel_slot_mappings": slots,
        "kernel_slot_mapping_outputs": outputs,
    }


DERIVATIONS: tuple[Callable[[Target, Batch], dict[str, Answer]], ...] = (
    cut_padding,
    split_by_kind,
    cut_into_micro_batches,
    make_virtual_batches,
    spread_over_ranks,
    rename_kernel_blocks,
)
"""All derivations, in the order in which a runner makes them."""
