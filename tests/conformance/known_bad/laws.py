"""What a law is to see: the real functions, with what they are given or answer bent a little."""

# ruff: noqa: ANN401  # arguments and answers of any kind

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

import fast
from known_bad.entries import KnownBad


def bent(law: str, function: str, bug: str, why: str, wrong: Callable[..., Any]) -> KnownBad:
    """Return a known-bad implementation that calls the real one.

    Args:
        law: The law that is to see it.
        function: Its name in `fast`; a method is written `Class.method`.
        bug: What is wrong, in a few words.
        why: What happens, and why nobody would notice.
        wrong: The bad implementation: the real one and what it is called with, by name.
    """
    *owners, name = function.split(".")
    owner: Any = getattr(fast, owners[0]) if owners else fast
    real = getattr(owner, name)

    def bad(*args: object, **keywords: object) -> object:
        return wrong(real, *args, **keywords)

    # A session of block tables is checked as the class, everything else by its name.
    checked = "BlockTables" if owners == ["BlockTables"] else function
    return KnownBad(checked, bug, why, lambda patch: _put(patch, owner, name, bad), "host", law)


def _put(patch: pytest.MonkeyPatch, owner: Any, name: str, bad: Callable[..., Any]) -> None:
    patch.setattr(owner, name, bad)


def _with(metadata: Any, **fields: Any) -> Any:
    """Return a metadata with other fields, those on the CPU likewise."""
    copies = {f"{n}_cpu": v for n, v in fields.items() if n in {"query_start_loc", "seq_lens"}}
    return dataclasses.replace(metadata, **fields, **copies)


def _starts_of(lens: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.pad(lens.cumsum(0), (1, 0)).to(torch.int32)


# Slots.


def _even(real: Any, **keywords: Any) -> Any:
    slots = real(**keywords)
    return torch.where(slots < 0, slots, slots // 2 * 2)


def _next(real: Any, **keywords: Any) -> Any:
    slots = real(**keywords)
    return torch.where(slots < 0, slots, slots + 1)


def _of_rank_0(real: Any, **keywords: Any) -> Any:
    return real(**{**keywords, "cp_rank": 0})


def _taken_for_decodes(real: Any, **keywords: Any) -> Any:
    starts = keywords["query_start_loc"]
    if len(starts) - 1 == int(starts[-1]):
        keywords["query_start_loc"] = torch.arange(len(starts), dtype=starts.dtype)
    return real(**keywords)


def _rows_of_the_busy(real: Any, **keywords: Any) -> Any:
    return real(**{**keywords, "query_start_loc": keywords["query_start_loc"].unique()})


def _managers_blocks_kept(real: Any, **keywords: Any) -> Any:
    return real(**{**keywords, "kernel_block_size": None})


def _pieces_in_reverse(real: Any, block_ids: torch.Tensor, blocks_per_kv_block: int) -> Any:
    found = real(block_ids, blocks_per_kv_block)
    pieces = found.reshape(*block_ids.shape, blocks_per_kv_block).flip(-1)
    return pieces.reshape(found.shape).contiguous()


# Tables and groups.


def _table_of_the_first(real: Any, tables: Any, **keywords: Any) -> Any:
    found = real(tables, **keywords)
    for table in found[1:]:
        width = min(table.shape[1], found[0].shape[1])
        table[:, :width] = found[0][:, :width]
    return found


def _padding_first(real: Any, tables: Any, idx_mapping: torch.Tensor) -> Any:
    return real(tables, idx_mapping=idx_mapping.sort(descending=False, stable=True).values)


def _slots_of_the_first(real: Any, **keywords: Any) -> Any:
    slots = keywords["slot_mappings"]
    return real(**{**keywords, "slot_mappings": list(slots[:1]) * len(slots)})


def _lengths_in_order(real: Any, **keywords: Any) -> Any:
    count = keywords["num_reqs"]
    for half in (keywords["seq_lens"].cpu, keywords["seq_lens"].gpu):
        half[:count] = half[:count].sort(descending=True).values
    return real(**keywords)


# Pieces of a batch.


def _rows_from_the_end(real: Any, **keywords: Any) -> Any:
    made = real(**keywords)
    return _with(made, block_table_tensor=made.block_table_tensor.flip(0))


def _busy_first(real: Any, **keywords: Any) -> Any:
    made = real(**keywords)
    lens = made.query_start_loc.diff()
    return _with(made, query_start_loc=_starts_of(torch.cat([lens[lens > 0], lens[lens == 0]])))


def _lengths_of_the_batch(real: Any, ubatch_slice: Any, attn_metadata: Any) -> Any:
    lens = attn_metadata.seq_lens[ubatch_slice.request_slice]
    return _with(real(ubatch_slice, attn_metadata), seq_lens=lens)


def _lengths_in_reverse(real: Any, **keywords: Any) -> Any:
    return _starts_of(real(**keywords).diff().flip(0))


def _slots_from_the_end(real: Any, ubatch_slices: Any, common_attn_metadata: Any) -> Any:
    batch = common_attn_metadata
    num_padding = int(batch.num_actual_tokens) - int(batch.query_start_loc_cpu[-1])
    parts = real(ubatch_slices, batch)
    return [_with(part, slot_mapping=part.slot_mapping.roll(num_padding)) for part in parts]


def _first_part_twice(real: Any, ubatch_slices: Any, common_attn_metadata: Any) -> Any:
    parts = real(ubatch_slices, common_attn_metadata)
    return parts[:1] * len(parts)


def _a_token_alone(real: Any, **keywords: Any) -> Any:
    first, *rest = real(**keywords)
    return [dataclasses.replace(first, token_slice=slice(0, 1)), *rest]


# Kinds and order.


def _idle_at_the_end_are_prefills(real: Any, **keywords: Any) -> Any:
    found, starts = real(**keywords), keywords["common_attn_metadata"].query_start_loc_cpu
    num_reqs, num_tokens = len(starts) - 1, sum(found[2:])
    if found[0] != num_reqs or num_reqs < 2 or starts[-1] != starts[-2]:
        return found
    tokens = int(starts[num_reqs - 2])
    return num_reqs - 2, 2, tokens, num_tokens - tokens


def _token_at_the_boundary(real: Any, **keywords: Any) -> Any:
    decodes, extends, prefills, *tokens = real(**keywords)
    if extends + prefills:
        tokens = [tokens[0] + 1, *tokens[1:]]
    return decodes, extends, prefills, *tokens


def _name_copied(real: Any, **keywords: Any) -> Any:
    moved = real(**keywords)
    if moved:
        keywords["input_batch"].req_ids[0] = keywords["input_batch"].req_ids[-1]
    return moved


# Attention of another shape.


def _chunk_twice_as_large(real: Any, attn_chunk_size: int, **keywords: Any) -> Any:
    return real(attn_chunk_size * 2, **keywords)


def _one_key_less(real: Any, common_attn_metadata: Any) -> Any:
    made = real(common_attn_metadata)
    if made is common_attn_metadata:
        return made
    lens = made.query_start_loc.diff()
    has_context = (made.seq_lens > lens) & (lens > 0)
    return _with(
        made,
        seq_lens=made.seq_lens - has_context.int(),
        num_computed_tokens_cpu=made.num_computed_tokens_cpu * 0,
    )


def _one_position_more(real: Any, seq_lens: torch.Tensor, **keywords: Any) -> Any:
    return real(seq_lens + 1, **keywords)


def _without_the_last(real: Any, **keywords: Any) -> Any:
    nums, sequences, offsets = real(**keywords)
    sequences[max(nums[8]["tot"] - 1, 0) :] = -1
    return nums, sequences, offsets


FAST_PREFILL = "make_kv_sharing_fast_prefill_common_attn_metadata"

SEEN_BY_LAWS = [
    bent(
        *("slots_are_distinct", "compute_slot_mapping", "slots are even"),
        *("One alignment too many: two tokens share a slot.", _even),
    ),
    bent(
        *("writes_are_read_back", "compute_slot_mapping", "slots are one too far"),
        *("Distinct, inside the cache, and nobody reads them there.", _next),
    ),
    bent(
        *("ranks_partition", "compute_slot_mapping", "every rank is the first"),
        *("Right on one rank.", _of_rank_0),
    ),
    bent(
        *("kernel_blocks_rename", "compute_slot_mapping", "kernel blocks are the manager's"),
        *("Right where the two sizes are one.", _managers_blocks_kept),
    ),
    bent(
        *("padding_adds_nothing", "compute_slot_mapping", "as many tokens as requests: decodes"),
        *("Padded requests count as requests.", _taken_for_decodes),
    ),
    bent(
        *("any_order_means_the_same", "compute_slot_mapping", "idle requests have no row"),
        *("Right while they stand at the end.", _rows_of_the_busy),
    ),
    bent(
        *("kernel_blocks_rename", "map_to_kernel_blocks", "pieces in reverse"),
        *("The right ids, in each row.", _pieces_in_reverse),
    ),
    bent(
        *("each_group_sees_its_own_batch", "BlockTables.gather_block_tables"),
        *("a group reads the first one's blocks", "Right with one group.", _table_of_the_first),
    ),
    bent(
        *("padding_adds_nothing", "BlockTables.gather_block_tables", "padded requests come first"),
        *("The mapping is sorted, -1 before all others.", _padding_first),
    ),
    bent(
        *("each_group_sees_its_own_batch", "build_attn_metadata"),
        *("a group writes to the first one's slots", "Right with one group.", _slots_of_the_first),
    ),
    bent(
        *("any_order_means_the_same", "build_attn_metadata", "the longest sequences come first"),
        *("Right for batches that are sorted.", _lengths_in_order),
    ),
    bent(
        *("unpadding_removes_nothing", "CommonAttentionMetadata.unpadded"),
        *("rows are counted from the end", "Right for one request.", _rows_from_the_end),
    ),
    bent(
        *("any_order_means_the_same", "CommonAttentionMetadata.unpadded"),
        *("idle requests are moved to the end", "Where padding stands anyway.", _busy_first),
    ),
    bent(
        *("a_slice_keeps_its_tokens", "_make_metadata_with_slice", "lengths of the whole batch"),
        *("Right for slices between requests.", _lengths_of_the_batch),
    ),
    bent(
        *("a_slice_keeps_its_tokens", "slice_query_start_locs", "lengths in reverse"),
        *("The same number of tokens.", _lengths_in_reverse),
    ),
    bent(
        *("padding_adds_nothing", "split_attn_metadata", "slots are counted from the end"),
        *("Right without padding.", _slots_from_the_end),
    ),
    bent(
        *("split_partitions", "split_attn_metadata", "the first micro-batch for all"),
        *("Each is valid.", _first_part_twice),
    ),
    bent(
        *("split_partitions", "create_ubatch_slices", "the first has one token"),
        *("Each is valid, and some tokens are in none.", _a_token_alone),
    ),
    bent(
        *("padding_adds_nothing", "split_decodes_and_prefills"),
        *(
            "with idle requests at the end the last are prefills",
            "Slower, and not wrong in itself.",
        ),
        _idle_at_the_end_are_prefills,
    ),
    bent(
        *("split_partitions", "split_decodes_prefills_and_extends"),
        *("decodes have a token more", "It is the next request's first.", _token_at_the_boundary),
    ),
    bent(
        *("reordering_renames", "reorder_batch_to_split_decodes_and_prefills"),
        *("a name is copied, not swapped", "One request runs twice, one never.", _name_copied),
    ),
    bent(
        *("chunks_restrict", "make_local_attention_virtual_batches", "chunks of twice the size"),
        *("More keys than it may see, all of them its own.", _chunk_twice_as_large),
    ),
    bent(
        *("wanted_keep_their_reads", FAST_PREFILL, "one key less where there is a context"),
        *("Its own key is lost, of many.", _one_key_less),
    ),
    bent(
        *("ranks_partition", "get_dcp_local_seq_lens", "lengths of one position more"),
        *("Wrong on one rank of each request.", _one_position_more),
    ),
    bent(
        *("programs_cover", "compute_causal_conv1d_metadata", "the last program is missing"),
        *("The last tokens of a step are not convolved.", _without_the_last),
    ),
]
"""For each law, functions that break it."""
