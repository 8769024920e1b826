"""Metadata that looks right and attends wrong, a bug for each property of attention.

Each must be seen by the law about attention itself, whatever else sees it.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest
import torch

import fast
from known_bad.entries import KnownBad

Metadata: TypeAlias = fast.CommonAttentionMetadata

REAL_SLOTS = fast.compute_slot_mapping
REAL_KERNEL_BLOCKS = fast.map_to_kernel_blocks
REAL_VIRTUAL = fast.make_local_attention_virtual_batches
REAL_CREATE = fast.create_ubatch_slices
REAL_SPLIT = fast.split_attn_metadata
REAL_CUT = fast._make_metadata_with_slice
REAL_WANTED = fast.make_kv_sharing_fast_prefill_common_attn_metadata
REAL_REORDER = fast.reorder_batch_to_split_decodes_and_prefills
REAL_LOCAL_LENS = fast.get_dcp_local_seq_lens
REAL_BUILD = fast.build_attn_metadata
REAL_RESHAPE = fast._reshape_kv_cache
REAL_SHARE = fast.initialize_kv_cache_for_kv_sharing
REAL_UNPADDED = fast.CommonAttentionMetadata.unpadded
REAL_MAPPINGS = fast.BlockTables.compute_slot_mappings
REAL_APPEND = fast.BlockTables.append_block_ids
REAL_MOVE = fast.BlockTables.move_row


def _block_before(*args: Any, **keywords: Any) -> torch.Tensor:  # noqa: ANN401  # the real one's
    """Take the first token of each block for one of the block before."""
    table, starts, positions, size = (
        keywords.pop(name) for name in ("block_table", "query_start_loc", "positions", "block_size")
    )
    at_edge = (positions > 0) & (positions % size == 0)
    return REAL_SLOTS(table, starts, positions - at_edge.long(), size, *args, **keywords)


def _whole_blocks(**keywords: Any) -> torch.Tensor:  # noqa: ANN401
    keywords["kernel_block_size"] = None
    return REAL_SLOTS(**keywords)


def _no_interleave(**keywords: Any) -> torch.Tensor:  # noqa: ANN401
    keywords["cp_kv_cache_interleave_size"] = 1
    return REAL_SLOTS(**keywords)


def _pieces_in_reverse(block_ids: torch.Tensor, blocks_per_kv_block: int) -> torch.Tensor:
    found = REAL_KERNEL_BLOCKS(block_ids, blocks_per_kv_block)
    pieces = found.reshape(*block_ids.shape, blocks_per_kv_block)
    return pieces.flip(-1).reshape(found.shape)


def _chunks_from_the_start(
    attn_chunk_size: int, common_attn_metadata: Metadata, block_size: int = 0
) -> Metadata:
    found = REAL_VIRTUAL(attn_chunk_size, common_attn_metadata, block_size)
    rows = common_attn_metadata.block_table_tensor
    width = found.block_table_tensor.shape[1]
    lens = common_attn_metadata.query_start_loc_cpu.diff().tolist()
    computed = common_attn_metadata.seq_lens_cpu - common_attn_metadata.query_start_loc_cpu.diff()
    counts = [
        max((c + q - 1) // attn_chunk_size - c // attn_chunk_size, 0) + 1 if q else 1
        for c, q in zip(computed.tolist(), lens, strict=True)
    ]
    owners = [i for i, count in enumerate(counts) for _ in range(count)]
    columns = torch.arange(width).clamp(max=max(rows.shape[1] - 1, 0))
    if owners and rows.shape[1]:
        found.block_table_tensor = rows[owners][:, columns].contiguous()
    return found


def _whole_chunks(
    attn_chunk_size: int, common_attn_metadata: Metadata, block_size: int = 0
) -> Metadata:
    found = REAL_VIRTUAL(attn_chunk_size, common_attn_metadata, block_size)
    query_lens = found.query_start_loc_cpu.diff()
    full = torch.where(query_lens > 0, attn_chunk_size, found.seq_lens_cpu).to(torch.int32)
    longest = int(full.max()) if len(full) else 0
    return dataclasses.replace(found, seq_lens=full, seq_lens_cpu=full, max_seq_len=longest)


def _with_lengths_of_the_batch(ubatch: fast.UBatchSlice, batch: Metadata) -> Metadata:
    part = REAL_CUT(ubatch, batch)
    lens = batch.seq_lens_cpu[ubatch.request_slice].clone()
    return dataclasses.replace(part, seq_lens=lens, seq_lens_cpu=lens)


def _slices_see_all(ubatch_slice: fast.UBatchSlice, attn_metadata: Metadata) -> Metadata:
    return _with_lengths_of_the_batch(ubatch_slice, attn_metadata)


def _parts_see_all(ubatch_slices: Any, common_attn_metadata: Metadata) -> list[Metadata]:  # noqa: ANN401
    return [_with_lengths_of_the_batch(ubatch, common_attn_metadata) for ubatch in ubatch_slices]


def _slots_of_the_first(ubatch_slices: Any, common_attn_metadata: Metadata) -> list[Metadata]:  # noqa: ANN401
    parts: list[Metadata] = REAL_SPLIT(ubatch_slices, common_attn_metadata)
    if len(parts) > 2:
        slots = common_attn_metadata.slot_mapping[: parts[-1].num_actual_tokens]
        parts[-1] = dataclasses.replace(parts[-1], slot_mapping=slots)
    return parts


def _a_token_is_lost(num_scheduled_tokens: Any, split_points: Any) -> list[fast.UBatchSlice]:  # noqa: ANN401
    slices: list[fast.UBatchSlice] = REAL_CREATE(num_scheduled_tokens, split_points)
    if len(slices) > 1 and slices[0].num_tokens > 1:
        first = slices[0]
        tokens = slice(first.token_slice.start, first.token_slice.stop - 1)
        slices[0] = fast.UBatchSlice(first.request_slice, tokens)
    return slices


def _rows_from_the_end(self: Metadata, num_actual_tokens: int, num_actual_reqs: int) -> Metadata:
    kept = REAL_UNPADDED(self, num_actual_tokens, num_actual_reqs)
    rows = self.block_table_tensor[: self.num_reqs]
    kept.block_table_tensor = rows[len(rows) - num_actual_reqs :]
    return kept


def _lengths_of_the_rows(common_attn_metadata: Metadata, **hints: Any) -> Metadata:  # noqa: ANN401
    found = REAL_WANTED(common_attn_metadata, **hints)
    if found is common_attn_metadata:
        return found
    left_out = common_attn_metadata.query_start_loc.diff() - found.query_start_loc.diff()
    lens = (found.seq_lens - left_out).to(torch.int32)
    return dataclasses.replace(found, seq_lens=lens, seq_lens_cpu=lens)


def _rows_of_the_next(common_attn_metadata: Metadata, **hints: Any) -> Metadata:  # noqa: ANN401
    found = REAL_WANTED(common_attn_metadata, **hints)
    if found is common_attn_metadata:
        return found
    counts = found.query_start_loc.diff().tolist()
    busy = [count for count in counts if count]
    packed = [0, *itertools.accumulate(busy + [0] * (len(counts) - len(busy)))]
    starts = torch.tensor(packed, dtype=torch.int32)
    return dataclasses.replace(found, query_start_loc=starts, query_start_loc_cpu=starts.clone())


def _names_alone(
    input_batch: Any,  # noqa: ANN401  # an engine's own
    scheduler_output: Any,  # noqa: ANN401
    decode_threshold: int = 1,
    **keywords: int,
) -> bool:
    computed = input_batch.num_computed_tokens_cpu.copy()
    moved: bool = REAL_REORDER(input_batch, scheduler_output, decode_threshold, **keywords)
    input_batch.num_computed_tokens_cpu[:] = computed
    return moved


def _fewer_decodes(
    input_batch: Any,  # noqa: ANN401  # an engine's own
    scheduler_output: Any,  # noqa: ANN401
    decode_threshold: int = 1,
    **keywords: int,
) -> bool:
    fewer = max(decode_threshold - 1, 1)
    moved: bool = REAL_REORDER(input_batch, scheduler_output, fewer, **keywords)
    return moved


def _even_shares(
    seq_lens: torch.Tensor,
    dcp_size: int = 1,
    dcp_rank: int | None = None,
    cp_kv_cache_interleave_size: int = 1,
) -> torch.Tensor:
    del cp_kv_cache_interleave_size
    return REAL_LOCAL_LENS(seq_lens, dcp_size, dcp_rank, 1)


def _one_at_least(seq_lens: torch.Tensor, *args: Any, **keywords: Any) -> torch.Tensor:  # noqa: ANN401
    found = REAL_LOCAL_LENS(seq_lens, *args, **keywords)
    least = (seq_lens > 0).to(torch.int32)
    return found.maximum(least.reshape(-1, *[1] * (found.dim() - 1)))


def _slots_of_group_0(
    self: fast.BlockTables, query_start_loc: torch.Tensor, positions: torch.Tensor
) -> torch.Tensor:
    found = REAL_MAPPINGS(self, query_start_loc, positions)
    return found[:1].expand_as(found) if len(found) else found


def _appended_behind_the_old(
    self: fast.BlockTables,
    req_indices: list[int],
    cu_num_new_blocks: list[list[int]],
    new_block_ids: list[list[int]],
    overwrite: list[bool],
) -> None:
    REAL_APPEND(self, req_indices, cu_num_new_blocks, new_block_ids, [True] * len(overwrite))


def _moved_to_the_wrong_row(self: fast.BlockTables, src: int, dst: int) -> None:
    REAL_MOVE(self, dst, src)


def _one_table_for_all(**arguments: Any) -> dict[str, Any]:  # noqa: ANN401
    tables = arguments["block_tables"]
    arguments["block_tables"] = [tables[0] for _ in tables]
    return REAL_BUILD(**arguments)


def _one_mapping_for_all(**arguments: Any) -> dict[str, Any]:  # noqa: ANN401
    slots = arguments["slot_mappings"]
    arguments["slot_mappings"] = [slots[0] for _ in slots]
    return REAL_BUILD(**arguments)


def _specs_blocks(config: Any, raw: Any, backends: Any, sizes: Any = None) -> Any:  # noqa: ANN401
    del sizes
    return REAL_RESHAPE(config, raw, backends, None)


def _one_cache_a_group(config: Any, raw: Any, backends: Any, sizes: Any = None) -> Any:  # noqa: ANN401
    found = REAL_RESHAPE(config, raw, backends, sizes)
    for group in config.kv_cache_groups:
        first = found.get(group.layer_names[0])
        for name in group.layer_names:
            if _is_one_tensor(first, found.get(name)) and found[name].shape == first.shape:
                found[name] = first
    return found


def _is_one_tensor(*caches: Any) -> bool:  # noqa: ANN401
    """Tell whether each cache is a tensor, and not states, which are several."""
    return all(isinstance(cache, torch.Tensor) for cache in caches)


def _memory_as_the_shape(config: Any, raw: Any, backends: Any, sizes: Any = None) -> Any:  # noqa: ANN401
    """Lay memory out in the order of the shape, whatever the stride order says."""
    found = REAL_RESHAPE(config, raw, backends, sizes)
    return {
        name: raw[name].view(view.dtype).view(view.shape)
        if _is_one_tensor(view) and view.numel()
        else view
        for name, view in found.items()
    }


def _copied(
    shared_kv_cache_layers: dict[str, str],
    kv_cache_groups: list[Any],
    kv_caches: dict[str, torch.Tensor],
) -> None:
    REAL_SHARE(shared_kv_cache_layers, kv_cache_groups, kv_caches)
    for layer in shared_kv_cache_layers:
        kv_caches[layer] = kv_caches[layer].clone()


def _first_target(
    shared_kv_cache_layers: dict[str, str],
    kv_cache_groups: list[Any],
    kv_caches: dict[str, torch.Tensor],
) -> None:
    first = next(iter(kv_caches.values()), None)
    REAL_SHARE(shared_kv_cache_layers, kv_cache_groups, kv_caches)
    for layer in shared_kv_cache_layers:
        if first is not None and kv_caches[layer].shape == first.shape:
            kv_caches[layer] = first


def _bad(
    function: str,
    seen_by: str,
    planted: Callable[..., Any],
    bug: str,
    why: str,
    *,
    place: str | None = None,
) -> KnownBad:
    """Return an entry.

    Args:
        function: The function whose law sees it.
        seen_by: The law.
        planted: What stands in the right one's place.
        bug: What is wrong.
        why: What happens.
        place: What is replaced, where it is not the function: `module.part`.
    """
    *owners, name = (place or function).split(".")

    def install(patch: pytest.MonkeyPatch) -> None:
        owner: Any = fast
        for part in owners:
            owner = getattr(owner, part)
        patch.setattr(owner, name, planted)

    return KnownBad(function, f"attention: {bug}", why, install, "host", seen_by)


DENSE = ("compute_slot_mapping", "test_paged_attention_is_dense")
RANKS = ("compute_slot_mapping", "test_attention_of_ranks_merges")
KERNEL_BLOCKS = ("map_to_kernel_blocks", "test_kernel_blocks_are_read_alike")
LOCAL_LENGTHS = ("get_dcp_local_seq_lens", "test_local_lengths_attend_to_all")
CHUNKS = ("make_local_attention_virtual_batches", "test_virtual_batches_attend_in_chunks")
SPLIT = ("split_attn_metadata", "test_micro_batches_concatenate")
CREATE = ("create_ubatch_slices", "test_its_slices_concatenate")
SLICE = ("_make_metadata_with_slice", "test_a_slice_attends_to_what_came_before")
UNPADDED = ("CommonAttentionMetadata.unpadded", "test_unpadded_attends_alike")
WANTED = (
    "make_kv_sharing_fast_prefill_common_attn_metadata",
    "test_fast_prefill_gives_its_rows",
)
REORDER = ("reorder_batch_to_split_decodes_and_prefills", "test_reordering_permutes_rows")
TABLES = ("BlockTables", "test_tables_of_groups_attend")
GROUPS = ("build_attn_metadata", "test_each_group_attends_to_its_own")
MEMORY = ("init_kv_cache", "test_layers_attend_over_shared_memory")
SHARING = ("initialize_kv_cache_for_kv_sharing", "test_sharing_layers_read_their_targets")

ATTENTION = [
    _bad(
        *DENSE,
        _block_before,
        "a block's first token lies in the block before",
        "Off by one where a block ends: a live key is overwritten.",
    ),
    _bad(
        *DENSE,
        _whole_blocks,
        "the table is taken to list the manager's blocks",
        "Right until a kernel's blocks are smaller.",
    ),
    _bad(
        *RANKS,
        _no_interleave,
        "ranks take turns at every token",
        "Each token lies on one rank, but not on the one that looks for it.",
    ),
    _bad(
        *KERNEL_BLOCKS,
        _pieces_in_reverse,
        "a block's pieces are listed backwards",
        "The right blocks, each token once.",
    ),
    _bad(
        *LOCAL_LENGTHS,
        _even_shares,
        "the interleave is 1 for the lengths",
        "They sum to the sequence, and a rank reads one key too many.",
    ),
    _bad(
        *LOCAL_LENGTHS,
        _one_at_least,
        "a rank that holds nothing has one key",
        "As kernels that cannot attend to nothing want it: what is not written is read.",
    ),
    _bad(
        *CHUNKS,
        _chunks_from_the_start,
        "each chunk has the blocks of the first",
        "Right in the first chunk.",
    ),
    _bad(
        *CHUNKS,
        _whole_chunks,
        "the last chunk is as long as the others",
        "Its queries seem to stand at its end, and read what is not written.",
    ),
    _bad(
        *SPLIT,
        _parts_see_all,
        "a cut request keeps its length",
        "Right where requests are not cut; elsewhere queries stand too far behind.",
    ),
    _bad(
        *SPLIT,
        _slots_of_the_first,
        "the third micro-batch writes to the first one's slots",
        "Right with two.",
    ),
    _bad(
        *CREATE,
        _a_token_is_lost,
        "the token before the cut is in neither",
        "One row of garbage in thousands.",
    ),
    _bad(
        *SLICE,
        _slices_see_all,
        "a slice keeps its requests' lengths",
        "As above, for one slice.",
    ),
    _bad(
        *UNPADDED,
        _rows_from_the_end,
        "the rows are the table's last",
        "The right number of rows, and right without padding.",
    ),
    _bad(
        *WANTED,
        _lengths_of_the_rows,
        "the keys end where the rows do",
        "Lengths that fit the rows: each sees fewer keys.",
    ),
    _bad(
        *WANTED,
        _rows_of_the_next,
        "requests without rows are left out",
        "Right where each request has one; else rows read a neighbour's keys.",
    ),
    _bad(
        *REORDER,
        _names_alone,
        "requests move, their computed tokens do not",
        "Names, counts and kinds are right; positions are another's.",
    ),
    _bad(
        *REORDER,
        _fewer_decodes,
        "decodes have fewer tokens than the threshold",
        "Rows are right in any order; those at the threshold go the slow way.",
    ),
    _bad(
        *TABLES,
        _slots_of_group_0,
        "all groups write to the first one's slots",
        "Right with one group.",
        place="BlockTables.compute_slot_mappings",
    ),
    _bad(
        *TABLES,
        _appended_behind_the_old,
        "every append is an overwrite",
        "Right in a prefill of one step.",
        place="BlockTables.append_block_ids",
    ),
    _bad(
        *TABLES,
        _moved_to_the_wrong_row,
        "source and destination change places",
        "Right where both are empty.",
        place="BlockTables.move_row",
    ),
    _bad(
        *GROUPS,
        _one_table_for_all,
        "all groups read the first one's blocks",
        "Right with one group, or with one table for all.",
    ),
    _bad(
        *GROUPS,
        _one_mapping_for_all,
        "all groups are given the first one's slots",
        "What they read is right; it was not written there.",
    ),
    _bad(
        *MEMORY,
        _specs_blocks,
        "kernel block sizes are ignored",
        "The right bytes; a kernel counts other blocks.",
        place="kv_cache._reshape_kv_cache",
    ),
    _bad(
        *MEMORY,
        _one_cache_a_group,
        "layers of a group have its first one's cache",
        "Shapes and bytes are right; the layers overwrite each other.",
        place="kv_cache._reshape_kv_cache",
    ),
    _bad(
        *MEMORY,
        _memory_as_the_shape,
        "memory lies in the order of the shape",
        "Right for a layer alone; two groups over one tensor lie across each other's blocks.",
        place="kv_cache._reshape_kv_cache",
    ),
    _bad(
        *SHARING,
        _copied,
        "a sharing layer has a copy of the cache",
        "Equal when it is made.",
    ),
    _bad(
        *SHARING,
        _first_target,
        "all share the first layer's cache",
        "Right for those that share it.",
    ),
]
