"""Block tables on a CPU, where a buffer and its copy on the device are the same memory.

`fast.compute_slot_mapping` handles one group, and checks all inputs in each call. That takes 9 of
its 10 us with 12 requests. Here the buffers, which stay the same, are checked on first use, and the
batch once for all groups.
"""

from __future__ import annotations

from typing import Any, Final
from weakref import WeakKeyDictionary

import numpy as np
import torch

from fast._native.memory import check_written, locate, locate_table
from fast._native.slots import write_slots
from kvtwin_vllm.registry import ORIGINALS, VllmObject, replaces

BLOCK_TABLE: Final = "vllm.v1.worker.block_table"

_SLOTS: Final[WeakKeyDictionary[VllmObject, list[tuple[Any, Any]]]] = WeakKeyDictionary()
"""By table, the first and the last arguments of `write_slots` for each group with slots."""


@replaces(BLOCK_TABLE, "BlockTable")
def commit_block_table(self: VllmObject, num_reqs: int) -> None:
    """Copy a block table to the device, if that has memory of its own."""
    if not _is_on_host(self):
        ORIGINALS["BlockTable.commit_block_table"](self, num_reqs)


@replaces(BLOCK_TABLE, "MultiGroupBlockTable")
def compute_slot_mapping(
    self: VllmObject, num_reqs: int, query_start_loc: torch.Tensor, positions: torch.Tensor
) -> None:
    """Write the slots of each group's tokens, and -1 after them."""
    groups = _SLOTS.get(self)
    if groups is None:
        if not all(map(_is_on_host, self.block_tables)):
            original = ORIGINALS["MultiGroupBlockTable.compute_slot_mapping"]
            original(self, num_reqs, query_start_loc, positions)
            return
        groups = _SLOTS[self] = list(map(_locate, filter(_has_slots, self.block_tables)))
    starts_at, starts = locate("query_start_loc", query_start_loc, torch.int32)
    positions_at, places = locate("positions", positions, torch.int64)
    num_tokens = places.nelement()
    table = self.block_tables[0]
    if not num_reqs < starts.nelement() or num_reqs > table.max_num_reqs:
        raise ValueError(
            f"num_reqs is {num_reqs}, but query_start_loc has {starts.nelement()} entries, and"
            f" block_table has {table.max_num_reqs} rows"
        )
    if num_tokens > table.max_num_batched_tokens:
        raise ValueError(
            f"positions has {num_tokens} entries, expected at most {table.max_num_batched_tokens}"
        )
    for blocks, slots in groups:
        if not write_slots(*blocks, starts_at, num_reqs, positions_at, num_tokens, *slots):
            raise ValueError(f"positions has {num_tokens} entries, fewer than query_start_loc says")


def _has_slots(table: VllmObject) -> bool:
    """Return whether the tokens of a group have slots, which those of Mamba groups do not."""
    return bool(table.slot_mapping_mode.name == "TOKEN_TO_KV_SLOT")


def _is_on_host(table: VllmObject) -> bool:
    """Return whether a table is on the CPU; if so, make each buffer its own copy on the device.

    vLLM's runner for CPUs does this too, but not for the tables of several groups, which it makes
    later.
    """
    blocks, slots = table.block_table, table.slot_mapping
    if blocks.gpu is not blocks.cpu and blocks.gpu.is_cpu:
        blocks.gpu, slots.gpu = blocks.cpu, slots.cpu
    return blocks.gpu is blocks.cpu


def _locate(table: VllmObject) -> tuple[Any, Any]:
    """Return the arguments of `write_slots` that locate a group's blocks and slots."""
    address, rows, *strides = locate_table("block_table", table.block_table.cpu, torch.int32)
    slots = table.slot_mapping.np
    check_written("slot_mapping", slots, np.int64, 1)
    if table.max_num_reqs > rows.shape[0] or table.max_num_batched_tokens > len(slots):
        raise ValueError(
            f"block_table has {rows.shape[0]} rows and slot_mapping {len(slots)} entries, expected"
            f" at least {table.max_num_reqs} and {table.max_num_batched_tokens}"
        )
    ranks = (table.dcp_world_size, table.dcp_rank, table.cp_kv_cache_interleave_size)
    return (address, *strides, rows.shape[1]), (slots, table.block_size, table.block_size, *ranks)
