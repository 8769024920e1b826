"""What a law is to see: the real functions, with what they are given or answer bent a little."""

# ruff: noqa: ANN401  # arguments and answers of any kind

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest
import torch

import fast
from known_bad.entries import KnownBad

SEEN_BY_LAWS: list[KnownBad] = []
"""For each law, functions that break it, as they are declared here."""

Wrong: TypeAlias = Callable[..., Any]
"""A bad implementation: the real one, and what it is called with, by name."""


def seen_by(law: str, function: str, bug: str) -> Callable[[Wrong], Wrong]:
    """Declare a known-bad implementation that calls the real one.

    Its docstring says what happens, or why nobody would notice.

    Args:
        law: The law that is to see it.
        function: Its name in `fast`; a method is written `Class.method`.
        bug: What is wrong, in a few words.
    """
    *owners, name = function.split(".")
    owner: Any = getattr(fast, owners[0]) if owners else fast
    real = getattr(owner, name)

    def declare(wrong: Wrong) -> Wrong:
        def bad(*args: object, **keywords: object) -> object:
            return wrong(real, *args, **keywords)

        # A session of block tables is checked as the class, everything else by its name.
        checked = "BlockTables" if owners == ["BlockTables"] else function
        why = wrong.__doc__ or ""
        SEEN_BY_LAWS.append(
            KnownBad(checked, bug, why, lambda patch: _put(patch, owner, name, bad), "host", law)
        )
        return wrong

    return declare


def _put(patch: pytest.MonkeyPatch, owner: Any, name: str, bad: Callable[..., Any]) -> None:
    patch.setattr(owner, name, bad)


def _with(metadata: Any, **fields: Any) -> Any:
    """Return a metadata with other fields, those on the CPU likewise."""
    copies = {f"{n}_cpu": v for n, v in fields.items() if n in {"query_start_loc", "seq_lens"}}
    return dataclasses.replace(metadata, **fields, **copies)


def _starts_of(lens: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.pad(lens.cumsum(0), (1, 0)).to(torch.int32)


# Slots.


@seen_by("slots_are_distinct", "compute_slot_mapping", "slots are even")
def _even(real: Any, **keywords: Any) -> Any:
    """One alignment too many: two tokens share a slot."""
    slots = real(**keywords)
    return torch.where(slots < 0, slots, slots // 2 * 2)


@seen_by("writes_are_read_back", "compute_slot_mapping", "slots are one too far")
def _next(real: Any, **keywords: Any) -> Any:
    """Distinct, inside the cache, and nobody reads them there."""
    slots = real(**keywords)
    return torch.where(slots < 0, slots, slots + 1)


@seen_by("ranks_partition", "compute_slot_mapping", "every rank is the first")
def _of_rank_0(real: Any, **keywords: Any) -> Any:
    """Right on one rank."""
    return real(**{**keywords, "cp_rank": 0})


@seen_by("padding_adds_nothing", "compute_slot_mapping", "as many tokens as requests: decodes")
def _taken_for_decodes(real: Any, **keywords: Any) -> Any:
    """Padded requests count as requests."""
    starts = keywords["query_start_loc"]
    if len(starts) - 1 == int(starts[-1]):
        keywords["query_start_loc"] = torch.arange(len(starts), dtype=starts.dtype)
    return real(**keywords)


@seen_by("any_order_means_the_same", "compute_slot_mapping", "idle requests have no row")
def _rows_of_the_busy(real: Any, **keywords: Any) -> Any:
    """Right while they stand at the end."""
    return real(**{**keywords, "query_start_loc": keywords["query_start_loc"].unique()})


@seen_by("kernel_blocks_rename", "compute_slot_mapping", "kernel blocks are the manager's")
def _managers_blocks_kept(real: Any, **keywords: Any) -> Any:
    """Right where the two sizes are one."""
    return real(**{**keywords, "kernel_block_size": None})


@seen_by("kernel_blocks_rename", "map_to_kernel_blocks", "pieces in reverse")
def _pieces_in_reverse(real: Any, block_ids: torch.Tensor, blocks_per_kv_block: int) -> Any:
    """The right ids, in each row."""
    found = real(block_ids, blocks_per_kv_block)
    pieces = found.reshape(*block_ids.shape, blocks_per_kv_block).flip(-1)
    return pieces.reshape(found.shape).contiguous()


# Tables and groups.


@seen_by(
    "each_group_sees_its_own_batch",
    "BlockTables.gather_block_tables",
    "a group reads the first one's blocks",
)
def _table_of_the_first(real: Any, tables: Any, **keywords: Any) -> Any:
    """Right with one group."""
    found = real(tables, **keywords)
    for table in found[1:]:
        width = min(table.shape[1], found[0].shape[1])
        table[:, :width] = found[0][:, :width]
    return found


@seen_by(
    "each_group_sees_its_own_batch",
    "BlockTables.append_block_ids",
    "the first row's overwrite is all rows'",
)
def _first_flag(real: Any, tables: Any, **keywords: Any) -> Any:
    """Right where all rows are new, or none is."""
    overwrite = keywords["overwrite"]
    return real(tables, **{**keywords, "overwrite": overwrite[:1] * len(overwrite)})


@seen_by("padding_adds_nothing", "BlockTables.gather_block_tables", "padded requests come first")
def _padding_first(real: Any, tables: Any, idx_mapping: torch.Tensor) -> Any:
    """The mapping is sorted, -1 before all others."""
    return real(tables, idx_mapping=idx_mapping.sort(descending=False, stable=True).values)


@seen_by(
    "each_group_sees_its_own_batch",
    "build_attn_metadata",
    "a group writes to the first one's slots",
)
def _slots_of_the_first(real: Any, **keywords: Any) -> Any:
    """Right with one group."""
    slots = keywords["slot_mappings"]
    return real(**{**keywords, "slot_mappings": list(slots[:1]) * len(slots)})


@seen_by("any_order_means_the_same", "build_attn_metadata", "the longest sequences come first")
def _lengths_in_order(real: Any, **keywords: Any) -> Any:
    """Right for batches that are sorted."""
    count = keywords["num_reqs"]
    for half in (keywords["seq_lens"].cpu, keywords["seq_lens"].gpu):
        half[:count] = half[:count].sort(descending=True).values
    return real(**keywords)


# Pieces of a batch.


@seen_by(
    "unpadding_removes_nothing", "CommonAttentionMetadata.unpadded", "rows are counted from the end"
)
def _rows_from_the_end(real: Any, **keywords: Any) -> Any:
    """Right for one request."""
    made = real(**keywords)
    return _with(made, block_table_tensor=made.block_table_tensor.flip(0))


@seen_by(
    "any_order_means_the_same",
    "CommonAttentionMetadata.unpadded",
    "idle requests are moved to the end",
)
def _busy_first(real: Any, **keywords: Any) -> Any:
    """Where padding stands anyway."""
    made = real(**keywords)
    lens = made.query_start_loc.diff()
    return _with(made, query_start_loc=_starts_of(torch.cat([lens[lens > 0], lens[lens == 0]])))


@seen_by("a_slice_keeps_its_tokens", "_make_metadata_with_slice", "lengths of the whole batch")
def _lengths_of_the_batch(real: Any, ubatch_slice: Any, attn_metadata: Any) -> Any:
    """Right for slices between requests."""
    lens = attn_metadata.seq_lens[ubatch_slice.request_slice]
    return _with(real(ubatch_slice, attn_metadata), seq_lens=lens)


@seen_by("a_slice_keeps_its_tokens", "slice_query_start_locs", "lengths in reverse")
def _lengths_in_reverse(real: Any, **keywords: Any) -> Any:
    """The same number of tokens."""
    return _starts_of(real(**keywords).diff().flip(0))


@seen_by("padding_adds_nothing", "split_attn_metadata", "slots are counted from the end")
def _slots_from_the_end(real: Any, ubatch_slices: Any, common_attn_metadata: Any) -> Any:
    """Right without padding."""
    batch = common_attn_metadata
    num_padding = int(batch.num_actual_tokens) - int(batch.query_start_loc_cpu[-1])
    parts = real(ubatch_slices, batch)
    return [_with(part, slot_mapping=part.slot_mapping.roll(num_padding)) for part in parts]


@seen_by("split_partitions", "split_attn_metadata", "the first micro-batch for all")
def _first_part_twice(real: Any, ubatch_slices: Any, common_attn_metadata: Any) -> Any:
    """Each is valid."""
    parts = real(ubatch_slices, common_attn_metadata)
    return parts[:1] * len(parts)


@seen_by("split_partitions", "create_ubatch_slices", "the first has one token")
def _a_token_alone(real: Any, **keywords: Any) -> Any:
    """Each is valid, and some tokens are in none."""
    first, *rest = real(**keywords)
    return [dataclasses.replace(first, token_slice=slice(0, 1)), *rest]


# Kinds and order.


@seen_by(
    "padding_adds_nothing",
    "split_decodes_and_prefills",
    "with idle requests at the end the last are prefills",
)
def _idle_at_the_end_are_prefills(real: Any, **keywords: Any) -> Any:
    """Slower, and not wrong in itself."""
    found, starts = real(**keywords), keywords["common_attn_metadata"].query_start_loc_cpu
    num_reqs, num_tokens = len(starts) - 1, sum(found[2:])
    if found[0] != num_reqs or num_reqs < 2 or starts[-1] != starts[-2]:
        return found
    tokens = int(starts[num_reqs - 2])
    return num_reqs - 2, 2, tokens, num_tokens - tokens


@seen_by("split_partitions", "split_decodes_prefills_and_extends", "decodes have a token more")
def _token_at_the_boundary(real: Any, **keywords: Any) -> Any:
    """It is the next request's first."""
    decodes, extends, prefills, *tokens = real(**keywords)
    if extends + prefills:
        tokens = [tokens[0] + 1, *tokens[1:]]
    return decodes, extends, prefills, *tokens


@seen_by(
    "reordering_renames",
    "reorder_batch_to_split_decodes_and_prefills",
    "a name is copied, not swapped",
)
def _name_copied(real: Any, **keywords: Any) -> Any:
    """One request runs twice, one never."""
    moved = real(**keywords)
    if moved:
        keywords["input_batch"].req_ids[0] = keywords["input_batch"].req_ids[-1]
    return moved


@seen_by(
    "reordering_renames",
    "reorder_batch_to_split_decodes_and_prefills",
    "names move without their state",
)
def _names_alone(real: Any, **keywords: Any) -> Any:
    """The right order, and each request with another's context."""
    batch = keywords["input_batch"]
    computed = batch.num_computed_tokens_cpu.copy()
    moved = real(**keywords)
    batch.num_computed_tokens_cpu[:] = computed
    return moved


# Attention of another shape.


@seen_by("chunks_restrict", "make_local_attention_virtual_batches", "chunks of twice the size")
def _chunk_twice_as_large(real: Any, attn_chunk_size: int, **keywords: Any) -> Any:
    """More keys than it may see, all of them its own."""
    return real(attn_chunk_size * 2, **keywords)


@seen_by(
    "wanted_keep_their_reads",
    "make_kv_sharing_fast_prefill_common_attn_metadata",
    "one key less where there is a context",
)
def _one_key_less(real: Any, common_attn_metadata: Any) -> Any:
    """Its own key is lost, of many."""
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


@seen_by("ranks_partition", "get_dcp_local_seq_lens", "lengths of one position more")
def _one_position_more(real: Any, seq_lens: torch.Tensor, **keywords: Any) -> Any:
    """Wrong on one rank of each request."""
    return real(seq_lens + 1, **keywords)


@seen_by("programs_cover", "compute_causal_conv1d_metadata", "the last program is missing")
def _without_the_last(real: Any, **keywords: Any) -> Any:
    """The last tokens of a step are not convolved."""
    nums, sequences, offsets = real(**keywords)
    sequences[max(nums[8]["tot"] - 1, 0) :] = -1
    return nums, sequences, offsets
