"""Correct implementations of another design than `fast`: the harness must not report them.

One keeps a state, in lists; the other makes its result with torch, and not with a loop. Invalid
calls are refused by `fast`, whose messages the harness compares. Other field names and objects are
in `engine_style` and `engine_adapter`.
"""

from __future__ import annotations

from typing import Any

import torch

import fast

CHECKED_TABLES = fast.BlockTables
CHECKED_SLOT_MAPPING = fast.compute_slot_mapping


class ListBlockTables:
    """Block tables whose rows are lists; those of `fast` next to them refuse invalid calls."""

    def __init__(self, *args: Any, **keywords: Any) -> None:  # noqa: ANN401  # as fast.BlockTables
        self.checked = CHECKED_TABLES(*args, **keywords)
        self.block_sizes, self.max_num_reqs = self.checked.block_sizes, self.checked.max_num_reqs
        widths = [-(-self.checked.max_model_len // size) for size in self.block_sizes]
        self.rows: list[list[list[int]]] = [
            [[] for _ in range(self.max_num_reqs)] for _ in self.block_sizes
        ]
        self.gathered = [
            torch.zeros(self.max_num_reqs, width, dtype=torch.int32) for width in widths
        ]
        shape = len(self.block_sizes), self.checked.max_num_batched_tokens
        self.slots = torch.full(shape, fast.PAD_SLOT_ID, dtype=torch.int64)

    def append_block_ids(
        self,
        req_indices: list[int],
        cu_num_new_blocks: list[list[int]],
        new_block_ids: list[list[int]],
        overwrite: list[bool],
    ) -> None:
        """Append blocks to rows."""
        self.checked.append_block_ids(req_indices, cu_num_new_blocks, new_block_ids, overwrite)
        for rows, ends, ids in zip(self.rows, cu_num_new_blocks, new_block_ids, strict=True):
            for j, slot in enumerate(req_indices):
                first = [] if overwrite[j] else rows[slot]
                rows[slot] = [*first, *ids[ends[j] : ends[j + 1]]]

    def move_row(self, src: int, dst: int) -> None:
        """Move a row."""
        self.checked.move_row(src, dst)
        for rows in self.rows:
            row, rows[src] = rows[src], []
            rows[dst] = row

    def swap_rows(self, a: int, b: int) -> None:
        """Swap two rows."""
        self.checked.swap_rows(a, b)
        for rows in self.rows:
            rows[a], rows[b] = rows[b], rows[a]

    def clear_row(self, r: int) -> None:
        """Clear a row."""
        self.checked.clear_row(r)
        for rows in self.rows:
            rows[r] = []

    def gather_block_tables(self, idx_mapping: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Gather rows."""
        self.checked.gather_block_tables(idx_mapping)
        mapping = idx_mapping.tolist()
        for table, rows in zip(self.gathered, self.rows, strict=True):
            table.zero_()
            for i, slot in enumerate(mapping):
                row = rows[slot][: table.shape[1]] if 0 <= slot < self.max_num_reqs else []
                table[i, : len(row)] = torch.tensor(row, dtype=torch.int32)
        return tuple(table[: len(mapping)] for table in self.gathered)

    def compute_slot_mappings(
        self, query_start_loc: torch.Tensor, positions: torch.Tensor
    ) -> torch.Tensor:
        """Compute every group's slots."""
        self.checked.compute_slot_mappings(query_start_loc, positions)
        tokens = len(positions)
        self.slots[:, tokens:] = fast.PAD_SLOT_ID
        for slots, table, size in zip(self.slots, self.gathered, self.block_sizes, strict=True):
            slots[:tokens] = fast.compute_slot_mapping(table, query_start_loc, positions, size)
        return self.slots[:, :tokens]

    def get_dummy_block_tables(self, num_reqs: int) -> tuple[torch.Tensor, ...]:
        """Hand out cleared tables."""
        self.checked.get_dummy_block_tables(num_reqs)
        return tuple(table.zero_()[:num_reqs] for table in self.gathered)

    def get_dummy_slot_mappings(self, num_tokens: int) -> torch.Tensor:
        """Hand out cleared slots."""
        self.checked.get_dummy_slot_mappings(num_tokens)
        return self.slots.fill_(fast.PAD_SLOT_ID)[:, :num_tokens]


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
    """Compute slots by indexing with tensors."""
    CHECKED_SLOT_MAPPING(
        block_table,
        query_start_loc,
        positions,
        block_size,
        kernel_block_size=kernel_block_size,
        cp_world_size=cp_world_size,
        cp_rank=cp_rank,
        cp_kv_cache_interleave_size=cp_kv_cache_interleave_size,
        out=out,
    )
    kernel_size, interleave = kernel_block_size or block_size, cp_kv_cache_interleave_size
    virtual_size, stripe = block_size * cp_world_size, interleave * cp_world_size
    inner = positions % virtual_size
    offset = inner // stripe * interleave + inner % interleave
    column = positions // virtual_size * (block_size // kernel_size) + offset // kernel_size
    tokens = torch.arange(len(positions))
    request = torch.searchsorted(query_start_loc[1:].long().contiguous(), tokens, right=True)
    rows, width = block_table.shape
    around = torch.nn.functional.pad(block_table, (0, 1, 0, 1), value=-1)
    block = around[request.clamp(max=rows), column.clamp(-1, width)].to(torch.int64)
    is_held = (inner // interleave % cp_world_size == cp_rank) & (positions >= 0) & (block >= 0)
    slots = torch.where(is_held, block * kernel_size + offset % kernel_size, fast.PAD_SLOT_ID)
    slots[query_start_loc[-1] :] = fast.PAD_SLOT_ID
    if out is None:
        return slots
    out[len(slots) :] = fast.PAD_SLOT_ID
    return out[: len(slots)].copy_(slots)
