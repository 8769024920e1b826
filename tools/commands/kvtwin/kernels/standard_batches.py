"""The batches on which kernels are compared: one of 64 requests, and rows of embeddings.

Each runs some kernels through the functions of `fast`, on any device. The numbers are those of an
engine's step: 16 tokens in a block, 64 new tokens and 128 blocks for each request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch

import fast
from conformance.native import launch_natively
from fast.launch import simulated_by

BLOCK_SIZE: Final = 16
NUM_REQS: Final = 64
NUM_BLOCKS: Final = 128
QUERY_LEN: Final = 64
NUM_TOKENS: Final = NUM_REQS * QUERY_LEN
SEQ_LEN: Final = NUM_BLOCKS * BLOCK_SIZE
CHUNK_BLOCKS: Final = NUM_BLOCKS
"""The blocks of an attention chunk, as many as a request has."""

NUM_PLACEHOLDERS: Final = 1024
EMBED_DIM: Final = 256


class StandardBatch(NamedTuple):
    """Calls of `fast` that launch kernels.

    Attributes:
        run: Makes the calls on a device, and returns all results.
        elements: For each kernel, how many elements of its result its launches compute.
    """

    run: Callable[[str], Sequence[torch.Tensor]]
    elements: Mapping[str, int]


def count_instructions(kernels: Collection[str], arch: str) -> dict[str, float]:
    """Return the instructions of PTX that kernels execute for each element of standard batches.

    Args:
        kernels: Their names; those that no standard batch launches are left out.
        arch: The GPU for which they are compiled.

    Raises:
        NativeFault: A kernel does what a GPU forbids.
        CompileError: A kernel does not compile.
    """
    executed: Counter[str] = Counter()

    def launch(kernel: Any, grid: tuple[int, int], threads: int, args: Any) -> None:  # noqa: ANN401  # what `simulated_by` calls
        count = launch_natively(kernel, grid, threads, args, has_shadow=False, arch=arch)
        executed[kernel.name] += count

    counts: dict[str, float] = {}
    for batch in STANDARD_BATCHES:
        if not batch.elements.keys().isdisjoint(kernels):
            with simulated_by(launch, threads=1024):
                batch.run("cpu")
            counts |= {name: executed[name] / num for name, num in batch.elements.items()}
    return {name: count for name, count in counts.items() if name in kernels}


def _run_tables(device: str) -> Sequence[torch.Tensor]:
    """Append, move, swap and gather rows of block tables, and compute slots."""
    tables = fast.BlockTables(
        block_sizes=[BLOCK_SIZE],
        max_num_reqs=NUM_REQS + 1,
        max_num_batched_tokens=NUM_TOKENS,
        max_model_len=SEQ_LEN,
        device=device,
        pin_memory=False,
    )
    ends = [list(range(0, NUM_REQS * NUM_BLOCKS + 1, NUM_BLOCKS))]
    block_ids = [list(range(1, NUM_REQS * NUM_BLOCKS + 1))]
    tables.append_block_ids(list(range(NUM_REQS)), ends, block_ids, [True] * NUM_REQS)
    tables.move_row(0, NUM_REQS)
    tables.swap_rows(1, 2)
    idx_mapping = torch.arange(NUM_REQS, 0, -1, dtype=torch.int32, device=device)
    [gathered] = tables.gather_block_tables(idx_mapping)
    slots = tables.compute_slot_mappings(_starts(device), _positions(device))
    return gathered.clone(), slots.clone()


def _run_slots(device: str) -> Sequence[torch.Tensor]:
    """Compute the slots in a block table that the caller passes."""
    return [
        fast.compute_slot_mapping(_table(device), _starts(device), _positions(device), BLOCK_SIZE)
    ]


def _run_programs(device: str) -> Sequence[torch.Tensor]:
    """List the programs of a convolution."""
    starts = _starts(device)
    return fast.compute_causal_conv1d_metadata(starts, query_start_loc_p_cpu=starts.cpu())[1:]


def _run_logits(device: str) -> Sequence[torch.Tensor]:
    """Count the tokens whose logits are needed: the last of each request."""
    metadata = _metadata(device)
    metadata.logits_indices_padded = _starts(device)[1:] - 1
    metadata.num_logits_indices = NUM_REQS
    return [fast.make_kv_sharing_fast_prefill_common_attn_metadata(metadata).query_start_loc]


def _run_chunks(device: str) -> Sequence[torch.Tensor]:
    """Gather the block tables of chunked local attention."""
    chunk_size = CHUNK_BLOCKS * BLOCK_SIZE
    made = fast.make_local_attention_virtual_batches(chunk_size, _metadata(device), BLOCK_SIZE)
    return [made.block_table_tensor]


def _run_rows(device: str) -> Sequence[torch.Tensor]:
    """Scatter embeddings to every second placeholder, and gather them again."""
    is_embed = torch.arange(NUM_PLACEHOLDERS, device=device) % 2 == 0
    count = NUM_PLACEHOLDERS // 2
    numbers = torch.arange(count * EMBED_DIM, dtype=torch.int16, device=device)
    embeds = (numbers % 1000).to(torch.float16).reshape(count, EMBED_DIM)
    placeholders = fast.scatter_mm_placeholders(embeds, is_embed)
    gathered = fast.gather_mm_placeholders(placeholders, is_embed, num_embeds=count)
    return placeholders, gathered


def _starts(device: str) -> torch.Tensor:
    """Return `query_start_loc`."""
    return torch.arange(0, NUM_TOKENS + 1, QUERY_LEN, dtype=torch.int32, device=device)


def _positions(device: str) -> torch.Tensor:
    """Return the positions of the new tokens, which are the last of each request."""
    return torch.arange(SEQ_LEN - QUERY_LEN, SEQ_LEN, device=device).repeat(NUM_REQS)


def _table(device: str) -> torch.Tensor:
    """Return a block table."""
    block_ids = torch.arange(NUM_REQS * NUM_BLOCKS, dtype=torch.int32, device=device)
    return block_ids.reshape(NUM_REQS, NUM_BLOCKS)


def _metadata(device: str) -> fast.CommonAttentionMetadata:
    """Return the metadata of the batch."""
    seq_lens = torch.full((NUM_REQS,), SEQ_LEN, dtype=torch.int32)
    table = _table(device)
    return fast.CommonAttentionMetadata(
        query_start_loc=_starts(device),
        query_start_loc_cpu=_starts("cpu"),
        seq_lens=seq_lens.to(device),
        seq_lens_cpu=seq_lens,
        num_computed_tokens_cpu=seq_lens - QUERY_LEN,
        num_reqs=NUM_REQS,
        num_actual_tokens=NUM_TOKENS,
        max_query_len=QUERY_LEN,
        max_seq_len=SEQ_LEN,
        block_table_tensor=table,
        slot_mapping=torch.arange(NUM_TOKENS, device=device),
    )


STANDARD_BATCHES: Final = (
    StandardBatch(
        _run_tables,
        {
            "append_block_ids": NUM_REQS * NUM_BLOCKS,
            "move_row": NUM_BLOCKS,
            "swap_rows": NUM_BLOCKS,
            "gather_block_tables": NUM_REQS * NUM_BLOCKS,
            "compute_slot_mappings": NUM_TOKENS,
        },
    ),
    StandardBatch(_run_slots, {"compute_slot_mapping": NUM_TOKENS}),
    StandardBatch(_run_programs, {"fill_programs": NUM_TOKENS // 8}),
    StandardBatch(_run_logits, {"count_logits_indices": NUM_REQS}),
    StandardBatch(_run_chunks, {"gather_columns": NUM_REQS * CHUNK_BLOCKS}),
    StandardBatch(
        _run_rows,
        {
            "count_embeds": 2 * NUM_PLACEHOLDERS,
            "rank_embeds": 2 * NUM_PLACEHOLDERS,
            "scatter_rows": NUM_PLACEHOLDERS * EMBED_DIM,
            "gather_rows": NUM_PLACEHOLDERS * EMBED_DIM // 2,
        },
    ),
)
"""All standard batches; each kernel of `fast` is launched by one."""
