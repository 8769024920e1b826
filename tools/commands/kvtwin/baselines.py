"""Baselines: the hot functions in vectorised NumPy, and in torch where that is usual.

`fast` is timed against them. Each is written as an experienced engineer would write it for the
host, with tricks that cost nothing (views, early returns, preallocated buffers) and without
`fast`'s checks: they expect valid input, and have no options that are not timed. `kvtwin bench`
compares their results with `reference`'s before it times them. They use `fast`'s classes of batches
and micro-batches.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch

from fast import CommonAttentionMetadata, UBatchSlice


class BlockTables:
    def __init__(
        self,
        block_sizes: list[int],
        max_num_reqs: int,
        max_num_batched_tokens: int,
        max_num_blocks_per_group: list[int],
        device: object,
    ) -> None:
        del device
        self.device = torch.device("cpu")
        self.block_sizes = block_sizes
        self.max_num_reqs, self.max_num_batched_tokens = max_num_reqs, max_num_batched_tokens
        widths = max_num_blocks_per_group
        self._tables = [np.zeros((max_num_reqs, width), np.int32) for width in widths]
        self._num_blocks = [np.zeros(max_num_reqs, np.int64) for _ in widths]
        self._views = [torch.from_numpy(table) for table in self._tables]
        self._gathered = [torch.zeros_like(view) for view in self._views]
        size = len(widths), max_num_batched_tokens
        self._slots = torch.full(size, -1, dtype=torch.int64, device="cpu")
        # The rows and tokens that the last step filled: only these are cleared.
        self._num_rows = self._num_tokens = 0
        self._staged: list[tuple[int, list[list[int]], bool]] = []

    def append_block_ids(
        self, req_index: int, new_block_ids: list[list[int]], overwrite: bool
    ) -> None:
        self._staged.append((req_index, new_block_ids, overwrite))

    def apply_staged_writes(self) -> None:
        for row, new_block_ids, overwrite in self._staged:
            for group, ids in enumerate(new_block_ids):
                table, num_blocks = self._tables[group], self._num_blocks[group]
                used = 0 if overwrite else num_blocks[row]
                end = used + len(ids)
                table[row, used:end] = ids
                table[row, end : num_blocks[row]] = 0
                num_blocks[row] = end
        self._staged.clear()

    def gather_block_tables(
        self,
        idx_mapping: torch.Tensor,
        num_reqs_padded: int,
        num_computed_tokens: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, ...]:
        del num_computed_tokens  # no window is timed
        num_reqs = len(idx_mapping)
        for view, gathered in zip(self._views, self._gathered, strict=True):
            torch.index_select(view, 0, idx_mapping, out=gathered[:num_reqs])
            if num_reqs < self._num_rows:
                gathered[num_reqs : self._num_rows].zero_()
        self._num_rows = num_reqs
        return tuple(gathered[:num_reqs_padded] for gathered in self._gathered)

    def compute_slot_mappings(
        self,
        idx_mapping: torch.Tensor,
        query_start_loc: torch.Tensor,
        positions: torch.Tensor,
        num_tokens_padded: int,
    ) -> torch.Tensor:
        starts, where = query_start_loc.numpy(), positions.numpy()
        num_tokens = int(starts[-1])
        request = np.repeat(idx_mapping.numpy(), np.diff(starts))
        slots = self._slots.numpy()
        for group, size in enumerate(self.block_sizes):
            table, here = self._tables[group], where[:num_tokens]
            block, offset = np.divmod(here, size)
            np.multiply(table[request, block], size, out=slots[group, :num_tokens], casting="safe")
            slots[group, :num_tokens] += offset
        if num_tokens < self._num_tokens:
            slots[:, num_tokens : self._num_tokens] = -1
        self._num_tokens = num_tokens
        return self._slots[:, :num_tokens_padded]


def compute_slot_mapping(
    block_table: torch.Tensor,
    query_start_loc: torch.Tensor,
    positions: torch.Tensor,
    block_size: int,
    *,
    kernel_block_size: int | None = None,
    cp_world_size: int = 1,
    cp_rank: int = 0,
    cp_kv_cache_interleave_size: int = 1,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    table, starts, where = block_table.numpy(), query_start_loc.numpy(), positions.numpy()
    if out is None:
        out = torch.empty(len(where), dtype=torch.int64, device=positions.device)
    slots = out.numpy()
    num_tokens = int(starts[-1])
    request = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    where = where[:num_tokens]
    kernel_size = block_size if kernel_block_size is None else kernel_block_size
    if cp_world_size == 1:
        column = where // kernel_size
        slots[:num_tokens] = table[request, column] * np.int64(kernel_size) + where % kernel_size
    else:
        interleave = cp_kv_cache_interleave_size
        virtual_size = block_size * cp_world_size
        inner = where % virtual_size
        is_mine = inner // interleave % cp_world_size == cp_rank
        offset = inner // (cp_world_size * interleave) * interleave + inner % interleave
        column = where // virtual_size * (block_size // kernel_size) + offset // kernel_size
        slot = table[request, np.where(is_mine, column, 0)] * np.int64(kernel_size)
        slots[:num_tokens] = np.where(is_mine, slot + offset % kernel_size, -1)
    slots[num_tokens:] = -1
    return out[: len(positions)]


def build_attn_metadata(
    attn_metadata_builders: list[Any],
    num_reqs: int,
    num_tokens: int,
    query_start_loc: Any,
    seq_lens: Any,
    num_computed_tokens_cpu: torch.Tensor,
    block_tables: Any,
    slot_mappings: Any,
    kv_cache_config: Any,
    max_query_len: int | None = None,
    max_seq_len: int | None = None,
) -> dict[str, Any]:
    starts_cpu = query_start_loc.cpu[: num_reqs + 1]
    lens_cpu = seq_lens.cpu[:num_reqs]
    starts, lens = query_start_loc.gpu[: num_reqs + 1], seq_lens.gpu[:num_reqs]
    computed = num_computed_tokens_cpu[:num_reqs]
    if max_query_len is None:
        max_query_len = int(np.diff(starts_cpu.numpy()).max(initial=0))
    if max_seq_len is None:
        max_seq_len = int(lens_cpu.numpy().max(initial=0))
    built = {}
    for i, group in enumerate(kv_cache_config.kv_cache_groups):
        metadata = CommonAttentionMetadata(
            query_start_loc=starts,
            query_start_loc_cpu=starts_cpu,
            seq_lens=lens,
            seq_lens_cpu=lens_cpu,
            num_computed_tokens_cpu=computed,
            num_reqs=num_reqs,
            num_actual_tokens=num_tokens,
            max_query_len=max_query_len,
            max_seq_len=max_seq_len,
            block_table_tensor=block_tables[i],
            slot_mapping=slot_mappings[i],
        )
        for_group = attn_metadata_builders[i].build(
            common_prefix_len=0, common_attn_metadata=metadata
        )
        for name in group.layer_names:
            built[name] = for_group
    return built


class AttnMetadataPlan:
    def __init__(
        self,
        attn_metadata_builders: list[Any],
        query_start_loc: Any,
        seq_lens: Any,
        num_computed_tokens_cpu: torch.Tensor,
        kv_cache_config: Any,
    ) -> None:
        self._buffers = query_start_loc, seq_lens, num_computed_tokens_cpu
        self._builders, self._config = attn_metadata_builders, kv_cache_config

    def build(
        self,
        num_reqs: int,
        num_tokens: int,
        block_tables: Any,
        slot_mappings: Any,
        max_query_len: int | None = None,
        max_seq_len: int | None = None,
    ) -> dict[str, Any]:
        sizes, tables = (num_reqs, num_tokens), (block_tables, slot_mappings)
        longest = max_query_len, max_seq_len
        return build_attn_metadata(
            self._builders, *sizes, *self._buffers, *tables, self._config, *longest
        )


def prepare_pos_seq_lens(
    idx_mapping: torch.Tensor,
    query_start_loc: torch.Tensor,
    num_computed_tokens: torch.Tensor,
    pos: torch.Tensor,
    seq_lens: torch.Tensor,
) -> None:
    rows, out = idx_mapping.numpy(), seq_lens.numpy()
    starts = query_start_loc.numpy()[: len(rows) + 1]
    query_lens, computed = np.diff(starts), num_computed_tokens.numpy()[rows]
    first = np.repeat(computed - starts[:-1], query_lens)
    np.add(first, np.arange(len(first)), out=pos.numpy()[: len(first)])
    np.add(computed, query_lens, out=out[: len(rows)])
    out[len(rows) :] = 0


def prepare_prefill_inputs(
    input_ids: torch.Tensor,
    next_prefill_tokens: torch.Tensor,
    idx_mapping: torch.Tensor,
    query_start_loc: torch.Tensor,
    all_token_ids: torch.Tensor,
    prefill_len: torch.Tensor,
    num_computed_tokens: torch.Tensor,
) -> None:
    rows = idx_mapping.numpy()
    computed, known = num_computed_tokens.numpy()[rows], prefill_len.numpy()[rows]
    chunks = np.flatnonzero(computed < known)
    if len(chunks) == 0:
        return
    starts, tokens = query_start_loc.numpy(), all_token_ids.numpy()
    slots, first, begins = rows[chunks], computed[chunks], starts[chunks]
    counts = starts[chunks + 1] - begins
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    there, here = np.repeat(slots, counts), np.repeat(begins, counts) + within
    input_ids.numpy()[here] = tokens[there, np.repeat(first, counts) + within]
    for number, following in enumerate(next_prefill_tokens.numpy()):
        column = first + counts + number
        is_known = column < known[chunks]
        following[slots] = np.where(is_known, tokens[slots, np.where(is_known, column, 0)], 0)


def combine_sampled_and_draft_tokens(
    input_ids: torch.Tensor,
    idx_mapping: torch.Tensor,
    last_sampled_tokens: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    prefill_len: torch.Tensor,
    draft_tokens: torch.Tensor,
    cu_num_logits: torch.Tensor,
    num_logits: int,
) -> torch.Tensor:
    rows = idx_mapping.numpy()
    num_reqs, ids = len(rows), input_ids.numpy()
    ends, logits = query_start_loc.numpy()[1 : num_reqs + 1], cu_num_logits.numpy()[: num_reqs + 1]
    counts, lens, known = np.diff(logits), seq_lens.numpy()[:num_reqs], prefill_len.numpy()[rows]
    is_past = lens > known
    sampled = np.flatnonzero(is_past & (lens - counts >= known))
    ids[ends[sampled] - counts[sampled]] = last_sampled_tokens.numpy()[rows[sampled]]
    if num_logits == num_reqs:  # there are no drafts
        return torch.from_numpy(ends - np.int64(1))
    number = np.arange(num_logits) - np.repeat(logits[:-1], counts)
    indices = np.repeat(ends - counts, counts) + number
    is_draft = np.repeat(is_past, counts) & (number > 0)
    slots = np.repeat(rows, counts)[is_draft]
    ids[indices[is_draft]] = draft_tokens.numpy()[slots, number[is_draft] - 1]
    return torch.from_numpy(indices)


def expand_idx_mapping(
    idx_mapping: torch.Tensor,
    total_num_logits: int,
    cu_num_logits: torch.Tensor,
    max_expand_len: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    del max_expand_len
    logits = cu_num_logits.numpy()
    counts = np.diff(logits)
    number = np.arange(total_num_logits, dtype=np.int32) - np.repeat(logits[:-1], counts)
    return torch.from_numpy(np.repeat(idx_mapping.numpy(), counts)), torch.from_numpy(number)


def get_num_sampled_and_rejected(
    num_sampled: torch.Tensor,
    seq_lens: torch.Tensor,
    cu_num_logits: torch.Tensor,
    idx_mapping: torch.Tensor,
    prefill_len: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    sampled, counts = num_sampled.numpy(), np.diff(cu_num_logits.numpy())
    samples = seq_lens.numpy() >= prefill_len.numpy()[idx_mapping.numpy()]
    sampled *= samples
    return num_sampled, torch.from_numpy((counts - sampled) * samples)


def post_update(
    idx_mapping: torch.Tensor,
    num_computed_tokens: torch.Tensor,
    last_sampled_tokens: torch.Tensor,
    output_bin_counts: torch.Tensor | None,
    sampled_tokens: torch.Tensor,
    num_sampled: torch.Tensor,
    num_rejected: torch.Tensor,
    query_start_loc: torch.Tensor,
    all_token_ids: torch.Tensor,
    total_len: torch.Tensor,
    draft_tokens: torch.Tensor,
    draft_tokens_out: torch.Tensor,
) -> None:
    del output_bin_counts  # without penalties there are none
    slots, counts, tokens = idx_mapping.numpy(), num_sampled.numpy(), sampled_tokens.numpy()
    row = np.repeat(np.arange(len(slots)), counts)
    number = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    lens = total_len.numpy()
    all_token_ids.numpy()[slots[row], lens[slots[row]] + number] = tokens[row, number]
    some = np.flatnonzero(counts)
    last_sampled_tokens.numpy()[slots[some]] = tokens[some, counts[some] - 1]
    lens[slots] += counts
    num_computed_tokens.numpy()[slots] += np.diff(query_start_loc.numpy()) - num_rejected.numpy()
    draft_tokens_out.numpy()[slots] = draft_tokens.numpy()


def post_update_num_computed_tokens(
    idx_mapping: torch.Tensor, num_computed_tokens: torch.Tensor, query_start_loc: torch.Tensor
) -> None:
    num_computed_tokens.numpy()[idx_mapping.numpy()] += np.diff(query_start_loc.numpy())


class StepBuffers:
    def __init__(
        self, block_tables: BlockTables, max_model_len: int, num_speculative_tokens: int
    ) -> None:
        num_slots, num_tokens = block_tables.max_num_reqs, block_tables.max_num_batched_tokens
        device = block_tables.device

        def make(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self.block_tables = block_tables
        self.num_computed_tokens, self.prefill_len = make(num_slots), make(num_slots)
        self.all_token_ids = make(num_slots, max_model_len)
        self.last_sampled_tokens = make(num_slots, dtype=torch.int64)
        self.draft_tokens = make(num_slots, num_speculative_tokens, dtype=torch.int64)
        self.next_prefill_tokens = make(1, num_slots)
        self.idx_mapping, self.seq_lens = make(num_slots), make(num_slots)
        self.query_start_loc, self.cu_num_logits = make(num_slots + 1), make(num_slots + 1)
        self.positions = make(num_tokens, dtype=torch.int64)
        self.input_ids = make(num_tokens)


def prepare_step(
    buffers: StepBuffers,
    idx_mapping: np.ndarray[Any, Any],
    query_start_loc: np.ndarray[Any, Any],
    cu_num_logits: np.ndarray[Any, Any],
    num_reqs_padded: int,
    num_tokens_padded: int,
) -> SimpleNamespace:
    given = (idx_mapping, query_start_loc, cu_num_logits)
    vectors = (buffers.idx_mapping, buffers.query_start_loc, buffers.cu_num_logits)
    for vector, values, padding in zip(vectors, given, (-1, None, None), strict=True):
        array, length = vector.numpy(), len(values)
        array[:length] = values
        array[length:] = values[-1] if padding is None else padding
    rows, starts, logits = map(torch.from_numpy, given)
    sizes = int(cu_num_logits[-1]), num_reqs_padded, num_tokens_padded
    return call_one_by_one(sys.modules[__name__], buffers, rows, starts, logits, *sizes)


def call_one_by_one(
    module: Any,
    buffers: StepBuffers,
    rows: torch.Tensor,
    starts: torch.Tensor,
    logits: torch.Tensor,
    num_logits: int,
    num_reqs_padded: int,
    num_tokens_padded: int,
) -> SimpleNamespace:
    """Prepare a step by the functions of a module."""
    tables, ids, lens = buffers.block_tables, buffers.input_ids, buffers.seq_lens
    computed, known = buffers.num_computed_tokens, buffers.prefill_len
    tables.apply_staged_writes()
    gathered = tables.gather_block_tables(rows, num_reqs_padded)
    module.prepare_pos_seq_lens(rows, starts, computed, buffers.positions, lens)
    module.prepare_prefill_inputs(
        ids, buffers.next_prefill_tokens, rows, starts, buffers.all_token_ids, known, computed
    )
    indices = module.combine_sampled_and_draft_tokens(
        *(ids, rows, buffers.last_sampled_tokens, starts, lens, known, buffers.draft_tokens),
        *(logits, num_logits),
    )
    slots = tables.compute_slot_mappings(rows, starts, buffers.positions, num_tokens_padded)
    return SimpleNamespace(
        block_tables=gathered,
        slot_mappings=slots,
        seq_lens=lens[:num_reqs_padded],
        positions=buffers.positions[:num_tokens_padded],
        input_ids=ids[:num_tokens_padded],
        logits_indices=indices,
    )


def split_decodes_and_prefills(
    common_attn_metadata: Any, decode_threshold: int = 1, require_uniform: bool = False
) -> tuple[int, int, int, int]:
    metadata = common_attn_metadata
    num_reqs, num_tokens = metadata.num_reqs, metadata.num_actual_tokens
    # The bound implies that all are decodes, so no array is read.
    if metadata.max_query_len <= decode_threshold and not require_uniform:
        return num_reqs, 0, num_tokens, 0
    starts = metadata.query_start_loc_cpu.numpy()
    query_lens = np.diff(starts)
    is_prefill = query_lens > decode_threshold
    if require_uniform:
        used = query_lens[query_lens > 0]
        if len(used):
            is_prefill |= (query_lens > 0) & (query_lens != used[0])
    if not is_prefill.any():
        return num_reqs, 0, num_tokens, 0
    first = int(is_prefill.argmax())
    num_decode_tokens = int(starts[first])
    return first, num_reqs - first, num_decode_tokens, num_tokens - num_decode_tokens


def split_decodes_prefills_and_extends(
    common_attn_metadata: Any, decode_threshold: int = 1
) -> tuple[int, int, int, int, int, int]:
    metadata = common_attn_metadata
    num_reqs, num_tokens = metadata.num_reqs, metadata.num_actual_tokens
    if metadata.max_query_len <= decode_threshold:
        return num_reqs, 0, 0, num_tokens, 0, 0
    starts = metadata.query_start_loc_cpu.numpy()
    is_long = np.diff(starts) > decode_threshold
    if not is_long.any():
        return num_reqs, 0, 0, num_tokens, 0, 0
    first = int(is_long.argmax())
    is_prefill = is_long & (metadata.num_computed_tokens_cpu.numpy() == 0)
    first_prefill = int(is_prefill.argmax()) if is_prefill.any() else num_reqs
    num_decode_tokens = int(starts[first])
    end = int(starts[first_prefill]) if first_prefill < num_reqs else num_tokens
    return (
        first,
        first_prefill - first,
        num_reqs - first_prefill,
        num_decode_tokens,
        end - num_decode_tokens,
        num_tokens - end,
    )


def reorder_batch_to_split_decodes_and_prefills(
    input_batch: Any,
    scheduler_output: Any,
    decode_threshold: int = 1,
    *,
    regions: int = 3,
    num_scheduled_tokens: np.ndarray[Any, Any] | None = None,
) -> bool:
    req_ids = input_batch.req_ids
    num_reqs = len(req_ids)
    num_tokens = num_scheduled_tokens
    if num_tokens is None:
        scheduled = scheduler_output.num_scheduled_tokens
        num_tokens = np.fromiter(map(scheduled.__getitem__, req_ids), np.int64, num_reqs)
    computed = input_batch.num_computed_tokens_cpu[:num_reqs]
    if regions == 3:
        region = np.where(num_tokens <= decode_threshold, 0, np.where(computed > 0, 1, 2))
    else:
        in_prompt = computed < input_batch.num_prompt_tokens[:num_reqs]
        short = np.where(in_prompt, 1, 0)
        region = np.where(computed == 0, 3, np.where(num_tokens > decode_threshold, 2, short))
    misplaced = np.flatnonzero(region != np.sort(region))
    if len(misplaced) == 0:
        return False
    # The misplaced, sorted by region, take the free places from the front.
    order = misplaced[np.argsort(region[misplaced], kind="stable")]
    source = dict(zip(misplaced.tolist(), order.tolist(), strict=True))
    for first in source:
        place = first
        while source[place] != first:
            other = source[place]
            input_batch.swap_states(place, other)
            source[place] = place
            place = other
        source[place] = place
    return True


def create_ubatch_slices(
    num_scheduled_tokens: np.ndarray[Any, Any], split_points: int | list[int]
) -> list[UBatchSlice]:
    points = split_points if isinstance(split_points, list) else [split_points]
    ends = np.cumsum(num_scheduled_tokens)
    cuts = [0, *points, int(ends[-1])]
    first = np.searchsorted(ends, cuts[:-1], side="right").tolist()
    last = np.searchsorted(ends, cuts[1:], side="left").tolist()
    return [
        UBatchSlice(slice(r0, r1 + 1), slice(t0, t1))
        for r0, r1, t0, t1 in zip(first, last, cuts[:-1], cuts[1:], strict=True)
    ]


def split_attn_metadata(
    ubatch_slices: list[Any], common_attn_metadata: Any
) -> list[CommonAttentionMetadata]:
    return [_cut(part, common_attn_metadata) for part in ubatch_slices]


def _cut(part: Any, metadata: Any) -> CommonAttentionMetadata:
    requests, tokens = part.request_slice, part.token_slice
    r0, r1, t0, t1 = requests.start, requests.stop, tokens.start, tokens.stop
    old_starts = metadata.query_start_loc_cpu[r0 : r1 + 1]
    starts = old_starts.clamp(t0, t1) - t0
    seq_lens = metadata.seq_lens_cpu[r0:r1].clone()
    computed = metadata.num_computed_tokens_cpu[r0:r1].clone()
    # Only the first and the last request can be cut.
    end = int(old_starts[-1])
    if end > t1:
        seq_lens[-1] -= end - t1
    begin = int(old_starts[0])
    if begin < t0:
        computed[0] += t0 - begin
    encoder = metadata.encoder_seq_lens
    query_lens = starts.diff()
    return CommonAttentionMetadata(
        query_start_loc=starts,
        query_start_loc_cpu=starts,
        seq_lens=seq_lens,
        seq_lens_cpu=seq_lens,
        num_computed_tokens_cpu=computed,
        num_reqs=r1 - r0,
        num_actual_tokens=t1 - t0,
        max_query_len=int(query_lens.max()) or metadata.max_query_len,
        max_seq_len=metadata.max_seq_len,
        block_table_tensor=metadata.block_table_tensor[r0:r1],
        slot_mapping=metadata.slot_mapping[t0:t1],
        causal=metadata.causal,
        encoder_seq_lens=None if encoder is None else encoder[r0:r1],
    )


class VirtualRequests(NamedTuple):
    """The virtual requests of chunked local attention."""

    request: np.ndarray[Any, Any]
    chunk: np.ndarray[Any, Any]
    starts: np.ndarray[Any, Any]
    seq_lens: np.ndarray[Any, Any]

    def describe(
        self, metadata: Any, starts: torch.Tensor, seq_lens: torch.Tensor, table: torch.Tensor
    ) -> CommonAttentionMetadata:
        """Return their metadata, with these tensors of the device."""
        query_lens = np.diff(self.starts)
        return CommonAttentionMetadata(
            query_start_loc=starts,
            query_start_loc_cpu=torch.from_numpy(self.starts),
            seq_lens=seq_lens,
            seq_lens_cpu=torch.from_numpy(self.seq_lens),
            num_computed_tokens_cpu=torch.from_numpy(self.seq_lens - query_lens),
            num_reqs=len(self.seq_lens),
            num_actual_tokens=metadata.num_actual_tokens,
            max_query_len=int(query_lens.max()),
            max_seq_len=int(self.seq_lens.max()),
            block_table_tensor=table,
            slot_mapping=metadata.slot_mapping,
        )


def find_virtual_requests(attn_chunk_size: int, metadata: Any) -> VirtualRequests:
    starts = metadata.query_start_loc_cpu.numpy()
    seq_lens = metadata.seq_lens_cpu.numpy().astype(np.int64)
    query_lens = np.diff(starts).astype(np.int64)
    begins = seq_lens - query_lens  # the first new position
    first_chunk = np.maximum(np.minimum(begins, seq_lens - 1), 0) // attn_chunk_size
    num_chunks = np.maximum(seq_lens - 1, 0) // attn_chunk_size - first_chunk + 1
    ends = np.cumsum(num_chunks)
    size = int(ends[-1])
    request = np.repeat(np.arange(len(seq_lens)), num_chunks)
    chunk = np.arange(size) - np.repeat(ends - num_chunks - first_chunk, num_chunks)
    chunk_begin = chunk * attn_chunk_size
    end = np.minimum(chunk_begin + attn_chunk_size, seq_lens[request])
    local_starts = np.zeros(size + 1, np.int32)
    np.cumsum(end - np.maximum(chunk_begin, begins[request]), out=local_starts[1:])
    return VirtualRequests(request, chunk, local_starts, (end - chunk_begin).astype(np.int32))


def make_local_attention_virtual_batches(
    attn_chunk_size: int, common_attn_metadata: Any, block_size: int = 0
) -> CommonAttentionMetadata:
    virtual = find_virtual_requests(attn_chunk_size, common_attn_metadata)
    columns, table = attn_chunk_size // block_size, common_attn_metadata.block_table_tensor
    column = (virtual.chunk * columns)[:, None] + np.arange(columns)
    np.minimum(column, table.shape[1] - 1, out=column)
    gathered = torch.from_numpy(table.numpy()[virtual.request[:, None], column])
    starts, lens = map(torch.from_numpy, (virtual.starts, virtual.seq_lens))
    return virtual.describe(common_attn_metadata, starts, lens, gathered)


def make_kv_sharing_fast_prefill_common_attn_metadata(common_attn_metadata: Any) -> Any:
    metadata = common_attn_metadata
    if metadata.logits_indices_padded is None or metadata.max_query_len == 1:
        return metadata
    return take_logits(metadata, metadata.logits_indices_padded)


def take_logits(
    metadata: Any, indices: torch.Tensor, on_device: torch.Tensor | None = None
) -> CommonAttentionMetadata:
    """Return the metadata of the tokens with logits; the starts on a device may be given."""
    num_logits = int(metadata.num_logits_indices)
    places = indices.numpy()[:num_logits]
    starts = np.searchsorted(places, metadata.query_start_loc_cpu.numpy()).astype(np.int32)
    starts_cpu = torch.from_numpy(starts)
    return CommonAttentionMetadata(
        query_start_loc=starts_cpu if on_device is None else on_device,
        query_start_loc_cpu=starts_cpu,
        seq_lens=metadata.seq_lens,
        seq_lens_cpu=metadata.seq_lens_cpu,
        num_computed_tokens_cpu=metadata.num_computed_tokens_cpu,
        num_reqs=metadata.num_reqs,
        num_actual_tokens=num_logits,
        max_query_len=int(np.diff(starts).max()),
        max_seq_len=metadata.max_seq_len,
        block_table_tensor=metadata.block_table_tensor,
        slot_mapping=metadata.slot_mapping,
    )


BLOCK_M = 8
MIN_PROGRAMS = 1024


class Programs(NamedTuple):
    """The programs of a causal convolution, listed on the host."""

    nums: np.ndarray[Any, Any]
    ends: np.ndarray[Any, Any]
    sequence: np.ndarray[Any, Any]
    offset: np.ndarray[Any, Any]

    @property
    def length(self) -> int:
        """The length of the padded vectors."""
        return 2 * max(MIN_PROGRAMS, len(self.sequence))

    def describe(
        self, batch_ptr: torch.Tensor, token_chunk_offset_ptr: torch.Tensor
    ) -> tuple[dict[int, dict[str, Any]], torch.Tensor, torch.Tensor]:
        described = {
            "nums": torch.from_numpy(self.nums),
            "tot": len(self.sequence),
            "mlist": torch.from_numpy(self.sequence),
            "mlist_len": len(self.sequence),
            "offsetlist": torch.from_numpy(self.offset),
            "batch_ptr": batch_ptr,
            "token_chunk_offset_ptr": token_chunk_offset_ptr,
        }
        return {BLOCK_M: described}, batch_ptr, token_chunk_offset_ptr


def list_programs(query_start_loc_p: torch.Tensor) -> Programs:
    nums = (np.diff(query_start_loc_p.numpy()) + (BLOCK_M - 1)) // BLOCK_M
    ends = np.cumsum(nums)
    offset = np.arange(ends[-1]) - np.repeat(ends - nums, nums)
    return Programs(nums, ends, np.repeat(np.arange(len(nums)), nums), offset.astype(np.int32))


def compute_causal_conv1d_metadata(
    query_start_loc_p: torch.Tensor,
) -> tuple[dict[int, dict[str, Any]], torch.Tensor, torch.Tensor]:
    programs = list_programs(query_start_loc_p)
    padded = np.full((2, programs.length), -1, np.int32)
    padded[:, : len(programs.sequence)] = programs.sequence, programs.offset
    batch_ptr, token_chunk_offset_ptr = map(torch.from_numpy, padded)
    return programs.describe(batch_ptr, token_chunk_offset_ptr)


def get_dcp_local_seq_lens(
    seq_lens: torch.Tensor, dcp_size: int, dcp_rank: int, cp_kv_cache_interleave_size: int
) -> torch.Tensor:
    in_round = dcp_size * cp_kv_cache_interleave_size
    rounds = torch.div(seq_lens, in_round, rounding_mode="floor")
    rest = seq_lens - rounds * in_round
    rest = rest - dcp_rank * cp_kv_cache_interleave_size
    return rounds * cp_kv_cache_interleave_size + rest.clamp_(0, cp_kv_cache_interleave_size)


def prepare_dcp_local_seq_lens(
    dcp_local_seq_lens: torch.Tensor,
    seq_lens: torch.Tensor,
    num_reqs: int,
    dcp_size: int,
    dcp_rank: int,
    cp_interleave: int,
) -> torch.Tensor:
    dcp_local_seq_lens[:num_reqs] = get_dcp_local_seq_lens(
        seq_lens[:num_reqs], dcp_size, dcp_rank, cp_interleave
    )
    dcp_local_seq_lens[num_reqs:].zero_()
    return dcp_local_seq_lens


def scatter_mm_placeholders(embeds: torch.Tensor, is_embed: torch.Tensor) -> torch.Tensor:
    out = embeds.new_full((len(is_embed), embeds.shape[1]), float("nan"))
    out[is_embed] = embeds
    return out


def gather_mm_placeholders(placeholders: torch.Tensor, is_embed: torch.Tensor) -> torch.Tensor:
    return placeholders[is_embed]
