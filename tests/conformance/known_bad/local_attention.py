"""Chunked local attention, as one writes it with torch in a hurry."""

from __future__ import annotations

from collections.abc import Callable

import torch

import fast
from fast.kernels import local_attention as kernels
from known_bad.edits import Edit, edits_of
from known_bad.entries import rewritten

REAL = fast.make_local_attention_virtual_batches

Metadata = fast.CommonAttentionMetadata


def _make(bug: str | None) -> Callable[..., Metadata]:
    def make_local_attention_virtual_batches(
        attn_chunk_size: int, common_attn_metadata: Metadata, block_size: int = 0
    ) -> Metadata:
        batch, chunk = common_attn_metadata, attn_chunk_size
        try:
            REAL(chunk, batch, block_size)
        except ValueError as error:
            if bug == "a chunk is rounded to blocks" and "divisor" in str(error):
                return REAL(chunk * block_size, batch, block_size)
            raise
        request, index, q, s = _virtual(bug, batch, chunk)
        starts = torch.cat([q.new_zeros(1), q.cumsum(0)]).to(torch.int32)
        lens = s if bug == "lengths are int64" else s.to(torch.int32)
        table = _columns(bug, batch, request, index, chunk // block_size)
        slots = batch.slot_mapping
        return Metadata(
            query_start_loc=starts.clone(),
            query_start_loc_cpu=starts,
            seq_lens=lens,
            seq_lens_cpu=s.to(torch.int32),
            num_computed_tokens_cpu=(s - q).to(torch.int32),
            num_reqs=len(request),
            num_actual_tokens=int(
                starts[-1] if bug == "padded tokens are dropped" else batch.num_actual_tokens
            ),
            max_query_len=int(batch.max_query_len)
            if bug == "max_query_len is the batch's"
            else max(q.tolist(), default=0),
            max_seq_len=chunk if bug == "max_seq_len is the chunk" else max(s.tolist(), default=0),
            block_table_tensor=table,
            slot_mapping=slots.clone() if bug == "slots are copied" else slots,
            causal=bool(batch.causal) if bug == "causal is the batch's" else True,
        )

    return make_local_attention_virtual_batches


def _virtual(
    bug: str | None, batch: Metadata, chunk: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return each virtual request's request, chunk, query length and sequence length."""
    seq_lens, lens = batch.seq_lens_cpu.long(), batch.query_start_loc_cpu.diff().long()
    first = seq_lens - lens
    if bug == "positions follow the computed tokens":
        first = batch.num_computed_tokens_cpu.long()
    last = (seq_lens - 1).clamp(min=0) // chunk
    begin = torch.minimum(first // chunk, last)
    if bug == "an idle request starts at its first chunk":
        begin = torch.where(lens == 0, 0, begin)
    counts = last - begin + 1
    if bug == "an idle request is left out":
        counts = torch.where(lens == 0, 0, counts)
    if bug == "an idle request starts at its first chunk":
        counts = torch.where(lens == 0, 1, counts)
    request = torch.repeat_interleave(torch.arange(len(lens)), counts)
    index = torch.arange(len(request)) - (counts.cumsum(0) - counts)[request] + begin[request]
    end = torch.minimum((index + 1) * chunk, seq_lens[request])
    s = end - index * chunk
    if bug == "the last length is a remainder":
        s = torch.where(index == last[request], seq_lens[request] % chunk, s)
    q = (end - torch.maximum(index * chunk, first[request])).clamp(min=0)
    if bug == "the first chunk is entered at its start":
        q = torch.where(index == begin[request], torch.minimum(lens[request], s), q)
    return request, index, q, s


def _columns(
    bug: str | None, batch: Metadata, request: torch.Tensor, index: torch.Tensor, columns: int
) -> torch.Tensor:
    """Return the blocks of each virtual request."""
    table = batch.block_table_tensor
    if table.shape[1] == 0:
        return table.new_zeros((len(request), columns))
    wanted = index.unsqueeze(1) * columns + torch.arange(columns)
    last = table.shape[1] - 1
    if bug == "columns past the table wrap around":
        wanted %= table.shape[1]
    if bug == "columns past the table are nulls":
        return torch.where(wanted > last, 0, table[request.unsqueeze(1), wanted.clamp(max=last)])
    if bug == "columns end one before the last":
        last = max(last - 1, 0)
    row = torch.arange(len(request)) % max(len(table), 1)
    row = row if bug == "rows are the virtual requests'" else request
    return table[row.unsqueeze(1), wanted.clamp(max=last)]


EDITS = {
    "kernel: columns past the table wrap around": Edit(
        "gather_columns",
        "max(np.int64(0), min(first + k, num_columns - 1))",
        "(first + k) % num_columns",
        "Somebody's block, in a column that is never read.",
    ),
    "kernel: columns past the table are the next row's": Edit(
        "gather_columns",
        "max(np.int64(0), min(first + k, num_columns - 1))",
        "first + k",
        "It never leaves a table that has rows to come; it leaves the request.",
    ),
    "kernel: columns past the table are nulls": Edit(
        "gather_columns",
        "        if is_in_table:",
        "        if is_in_table and first + k < num_columns:",
        "No key there is ever read, either way.",
    ),
    "kernel: the clamp is one too far": Edit(
        "gather_columns",
        "num_columns - 1)",
        "num_columns)",
        "One entry past the row, which is usually the next row's.",
    ),
    "kernel: a table of no columns is like any other": Edit(
        "gather_columns",
        " and num_columns > 0",
        "",
        "Only a dummy run has one.",
    ),
    "kernel: rows are taken in order": Edit(
        "gather_columns",
        "row = np.int64(rows[here])",
        "row = np.int64(min(np.int64(here), num_rows - 1))",
        "Right while each request touches one chunk.",
    ),
    "kernel: a dense table": Edit(
        "gather_columns",
        "row * row_stride + column * column_stride",
        "row * num_columns + column",
        "Right for every contiguous table.",
    ),
    "kernel: every row begins at its first column": Edit(
        "gather_columns",
        "first = np.int64(first_columns[here])",
        "first = np.int64(0)",
        "Right for prompts of one chunk.",
    ),
    "kernel: one column for each thread": Edit(
        "gather_columns",
        "while k < gathered.shape[1]:",
        "while k < min(gathered.shape[1], cuda.blockDim.x):",
        "Right for chunks of no more blocks than a block has threads.",
    ),
    "kernel: one column too many": Edit(
        "gather_columns",
        "while k < gathered.shape[1]:",
        "while k <= gathered.shape[1]:",
        "`<=` for `<`: the next virtual request's first column, which it mostly writes itself.",
    ),
}
"""Bugs of the kernel that gathers the blocks of virtual requests."""

LOCAL_ATTENTION = [
    *edits_of(kernels, "make_local_attention_virtual_batches", EDITS),
    *rewritten(
        "make_local_attention_virtual_batches",
        _make,
        answers={
            "the last length is a remainder": "0 for a sequence that ends on a chunk boundary.",
            "the first chunk is entered at its start": "Right for a prompt's first piece.",
            "an idle request is left out": "`repeat_interleave` of 0; a graph's padding vanishes.",
            "an idle request starts at its first chunk": "It has no query, so its length hardly "
            "matters; but a kernel's schedule is made of it.",
            "positions follow the computed tokens": "The same, but for batches in which fewer are "
            "computed.",
            "columns past the table wrap around": "Somebody's block, in a column that is never "
            "read.",
            "columns past the table are nulls": "No key there is ever read, either way.",
            "columns end one before the last": "The clamp's off by one: the last block is read as "
            "the one before.",
            "rows are the virtual requests'": "Right while each request touches one chunk.",
            "max_query_len is the batch's": "An upper bound too.",
            "max_seq_len is the chunk": "An upper bound too.",
            "lengths are int64": "Equal values; the kernel reads every other one as 0.",
            "slots are copied": "The right values; a graph reads the other buffer.",
            "causal is the batch's": "Right for decoders.",
            "padded tokens are dropped": "Right outside CUDA graphs.",
        },
        refusals={"a chunk is rounded to blocks": "Another model than was asked for."},
    ),
]
