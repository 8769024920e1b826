"""Baselines on a GPU: what an engine launches, one Triton kernel for each function.

They are written from the definitions in `reference`, for the benchmark's batches: nothing is
validated, there are no options that are not timed, and persistent buffers are used where an engine
has them. Multimodal rows are moved by torch, as in engines. What an engine does on the host is done
by `kvtwin.baselines`. On CPU tensors Triton's interpreter runs the kernels, in tests.
"""

import sys

import numpy as np
import torch
from triton import cdiv, next_power_of_2

from fast import CommonAttentionMetadata
from kvtwin import baselines
from kvtwin.baselines import AttnMetadataPlan, build_attn_metadata
from kvtwin.bench import triton_kernels as kernels

__all__ = ["AttnMetadataPlan", "CommonAttentionMetadata", "build_attn_metadata"]

BLOCK = 1024
"""The entries that a program handles at once."""

BLOCK_OF_REQUESTS = 128
"""The requests of a program that does one entry of each."""


def upload(array, device):
    """Copy through pinned memory, which torch does not reuse before the copy has ended."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


class BlockTables:
    def __init__(self, block_sizes, max_num_reqs, max_num_batched_tokens, widths, device):
        self.max_num_reqs, self.max_num_batched_tokens = max_num_reqs, max_num_batched_tokens
        self.device = torch.device(device)
        num_groups = len(widths)

        def zeros(*shape):
            return torch.zeros(shape, dtype=torch.int32, device=self.device)

        def put(values, dtype=torch.int32):
            return torch.tensor(values, dtype=dtype, device=self.device)

        self._tables = [zeros(max_num_reqs, width) for width in widths]
        self._gathered = [zeros(max_num_reqs, width) for width in widths]
        self._addresses, self._gathered_addresses = (
            put([table.data_ptr() for table in tables], torch.int64)
            for tables in (self._tables, self._gathered)
        )
        self._widths, self._sizes = put(widths), put(block_sizes)
        self._num_blocks = zeros(num_groups, max_num_reqs)
        self._counts = [[0] * max_num_reqs for _ in widths]  # the same with what is staged
        self._heads, self._ids = [], []
        self._slots = put([[-1] * max_num_batched_tokens] * num_groups, torch.int64)

    def append_block_ids(self, req_index, new_block_ids, overwrite):
        for group, ids in enumerate(new_block_ids):
            counts = self._counts[group]
            column = 0 if overwrite else counts[req_index]
            self._heads += (group, req_index, column, len(ids), len(self._ids))
            self._ids += ids
            counts[req_index] = column + len(ids)

    def apply_staged_writes(self):
        if not self._heads:
            return
        num_writes = len(self._heads) // 5
        staged = upload(np.array(self._heads + self._ids, np.int32), self.device)
        kernels.apply_staged_writes[(num_writes,)](
            *(staged, num_writes, self._addresses, self._widths),
            *(self._num_blocks, self.max_num_reqs, BLOCK),
        )
        self._heads.clear()
        self._ids.clear()

    def gather_block_tables(self, idx_mapping, num_reqs_padded, num_computed_tokens=None):
        del num_computed_tokens  # no window is timed
        kernels.gather_block_tables[(len(idx_mapping), len(self._tables))](
            *(idx_mapping, self._addresses, self._gathered_addresses, self._widths),
            *(self._num_blocks, self.max_num_reqs, BLOCK),
        )
        return tuple(gathered[:num_reqs_padded] for gathered in self._gathered)

    def compute_slot_mappings(self, idx_mapping, query_start_loc, positions, num_tokens_padded):
        kernels.compute_slot_mappings[(len(idx_mapping) + 1, len(self._tables))](
            *(idx_mapping, query_start_loc, positions, self._addresses, self._widths),
            *(self._sizes, self._slots, self.max_num_batched_tokens, BLOCK),
        )
        return self._slots[:, :num_tokens_padded]


def compute_slot_mapping(block_table, query_start_loc, positions, block_size):
    slots = torch.empty_like(positions)
    kernels.compute_slot_mapping[(len(query_start_loc),)](
        *(block_table, block_table.shape[1], query_start_loc, positions),
        *(block_size, slots, len(slots), BLOCK),
    )
    return slots


def prepare_pos_seq_lens(idx_mapping, query_start_loc, num_computed_tokens, pos, seq_lens):
    kernels.prepare_pos_seq_lens[(len(idx_mapping) + 1,)](
        *(idx_mapping, query_start_loc, num_computed_tokens, pos, seq_lens, len(seq_lens)), BLOCK
    )


def prepare_prefill_inputs(
    input_ids, next_prefill_tokens, idx_mapping, query_start_loc, tokens, prefill_len, computed
):
    kernels.prepare_prefill_inputs[(len(idx_mapping),)](
        *(input_ids, next_prefill_tokens, idx_mapping, query_start_loc),
        *(tokens, tokens.shape[1], prefill_len, computed, BLOCK),
    )


def combine_sampled_and_draft_tokens(
    input_ids, rows, sampled, starts, seq_lens, prefill_len, drafts, cu_num_logits, num_logits
):
    indices = torch.empty(num_logits, dtype=torch.int64, device=input_ids.device)
    num_drafts = drafts.shape[1]
    kernels.combine_sampled_and_draft_tokens[(len(rows),)](
        *(input_ids, rows, sampled, starts, seq_lens, prefill_len),
        *(drafts, num_drafts, cu_num_logits, indices, next_power_of_2(num_drafts + 1)),
    )
    return indices


def expand_idx_mapping(idx_mapping, total_num_logits, cu_num_logits, max_expand_len):
    slots = idx_mapping.new_empty(total_num_logits)
    numbers = torch.empty(total_num_logits, dtype=torch.int32, device=slots.device)
    kernels.expand_idx_mapping[(len(idx_mapping),)](
        idx_mapping, cu_num_logits, slots, numbers, next_power_of_2(max_expand_len)
    )
    return slots, numbers


def get_dcp_local_seq_lens(seq_lens, *ranks):
    return prepare_dcp_local_seq_lens(torch.empty_like(seq_lens), seq_lens, len(seq_lens), *ranks)


def prepare_dcp_local_seq_lens(
    dcp_local_seq_lens, seq_lens, num_reqs, dcp_size, dcp_rank, cp_interleave
):
    length = len(dcp_local_seq_lens)
    kernels.count_local_tokens[(cdiv(length, BLOCK_OF_REQUESTS),)](
        *(seq_lens, dcp_local_seq_lens, num_reqs, length),
        *(dcp_size, dcp_rank, cp_interleave, BLOCK_OF_REQUESTS),
    )
    return dcp_local_seq_lens


def get_num_sampled_and_rejected(num_sampled, seq_lens, cu_num_logits, idx_mapping, prefill_len):
    num_rejected = torch.empty_like(num_sampled)
    kernels.get_num_sampled_and_rejected[(len(idx_mapping),)](
        num_sampled, num_rejected, seq_lens, cu_num_logits, idx_mapping, prefill_len
    )
    return num_sampled, num_rejected


def post_update(
    idx_mapping,
    num_computed_tokens,
    last_sampled_tokens,
    output_bin_counts,
    sampled_tokens,
    num_sampled,
    num_rejected,
    query_start_loc,
    all_token_ids,
    total_len,
    draft_tokens,
    draft_tokens_out,
):
    del output_bin_counts  # without penalties there are none
    num_drafts = draft_tokens.shape[1]
    kernels.post_update[(len(idx_mapping),)](
        *(idx_mapping, num_computed_tokens, last_sampled_tokens),
        *(sampled_tokens, sampled_tokens.shape[1], num_sampled, num_rejected, query_start_loc),
        *(all_token_ids, all_token_ids.shape[1], total_len),
        *(draft_tokens, draft_tokens_out, num_drafts, next_power_of_2(num_drafts)),
    )


def post_update_num_computed_tokens(idx_mapping, num_computed_tokens, query_start_loc):
    kernels.post_update_num_computed_tokens[(len(idx_mapping),)](
        idx_mapping, num_computed_tokens, query_start_loc
    )


class StepBuffers(baselines.StepBuffers):
    def __init__(self, block_tables, max_model_len, num_speculative_tokens):
        super().__init__(block_tables, max_model_len, num_speculative_tokens)
        self.rows = self.idx_mapping, self.query_start_loc, self.cu_num_logits
        # An engine has two of each, or waits for the copies of the step before: that is not timed.
        self.pinned = [
            torch.zeros(len(each), dtype=each.dtype, device="cpu", pin_memory=each.is_cuda)
            for each in self.rows
        ]
        self.arrays = [each.numpy() for each in self.pinned]


def prepare_step(buffers, idx_mapping, query_start_loc, cu_num_logits, num_reqs, num_tokens):
    """Copy the rows of a step from persistent pinned memory, and call the functions one by one."""
    given = idx_mapping, query_start_loc, cu_num_logits
    for array, values, padding in zip(buffers.arrays, given, (-1, None, None), strict=True):
        array[: len(values)] = values
        array[len(values) :] = values[-1] if padding is None else padding
    for on_device, pinned in zip(buffers.rows, buffers.pinned, strict=True):
        on_device.copy_(pinned, non_blocking=True)
    rows = [each[: len(values)] for each, values in zip(buffers.rows, given, strict=True)]
    sizes = int(cu_num_logits[-1]), num_reqs, num_tokens
    return baselines.call_one_by_one(sys.modules[__name__], buffers, *rows, *sizes)


def make_local_attention_virtual_batches(attn_chunk_size, metadata, block_size):
    """Count the virtual requests on the host, and gather their rows on the device."""
    columns, table = attn_chunk_size // block_size, metadata.block_table_tensor
    virtual = baselines.find_virtual_requests(attn_chunk_size, metadata)
    size = len(virtual.seq_lens)
    packed = np.empty(4 * size + 1, np.int32)
    vectors = virtual.starts, virtual.seq_lens, virtual.request, virtual.chunk * columns
    np.concatenate(vectors, out=packed, casting="same_kind")
    starts, lens, *rows = upload(packed, table.device).split([size + 1, size, size, size])
    gathered = table.new_empty(size, columns)
    kernels.gather_columns[(size,)](
        table, table.shape[1], *rows, gathered, columns, next_power_of_2(columns)
    )
    return virtual.describe(metadata, starts, lens, gathered)


def make_kv_sharing_fast_prefill_common_attn_metadata(metadata, *, logits_indices_cpu=None):
    """Count the logits of each request on the host, and on the device."""
    if metadata.max_query_len == 1:
        return metadata
    number, starts = metadata.num_logits_indices, metadata.query_start_loc
    counted = torch.empty_like(starts)
    kernels.count_logits[(cdiv(len(starts), BLOCK_OF_REQUESTS),)](
        *(metadata.logits_indices_padded, number, starts, len(starts), counted),
        *(number.bit_length(), BLOCK_OF_REQUESTS),
    )
    indices = (
        metadata.logits_indices_padded.cpu() if logits_indices_cpu is None else logits_indices_cpu
    )
    return baselines.take_logits(metadata, indices, counted)


def compute_causal_conv1d_metadata(query_start_loc_p, *, query_start_loc_p_cpu=None):
    """List the programs on the host, and fill the two vectors on the device."""
    starts = query_start_loc_p.cpu() if query_start_loc_p_cpu is None else query_start_loc_p_cpu
    programs = baselines.list_programs(starts)
    first = upload(np.append(0, programs.ends).astype(np.int32), query_start_loc_p.device)
    vectors = [first.new_empty(programs.length) for _ in range(2)]
    kernels.fill_conv1d_programs[(len(first),)](first, *vectors, programs.length, BLOCK_OF_REQUESTS)
    return programs.describe(*vectors)


# Moves of rows by torch, which engines use; `rows[is_embed]` would wait for the device.


def scatter_mm_placeholders(embeds, is_embed):
    out = embeds.new_full((len(is_embed), embeds.shape[1]), float("nan"))
    return out.masked_scatter_(is_embed[:, None], embeds)


def gather_mm_placeholders(placeholders, is_embed, *, num_embeds=None):
    num_embeds = int(is_embed.sum()) if num_embeds is None else num_embeds
    return placeholders[torch.nonzero_static(is_embed, size=num_embeds).view(-1)]
