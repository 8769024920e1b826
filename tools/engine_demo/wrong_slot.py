"""Shift slots by one on purpose, to show that the comparison of tokens detects it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def wrong_slots(first_step: int) -> Iterator[None]:
    """Shift the slots of all tokens by one, from step `first_step` on."""
    from vllm.v1.worker.block_table import MultiGroupBlockTable  # noqa: PLC0415

    compute = MultiGroupBlockTable.compute_slot_mapping
    steps = 0

    def compute_slot_mapping(
        self: Any,
        num_reqs: int,
        query_start_loc: torch.Tensor,
        positions: torch.Tensor,
    ) -> None:
        nonlocal steps
        compute(self, num_reqs, query_start_loc, positions)
        steps += 1
        if steps >= first_step:
            for table in self.block_tables:
                if table.slot_mapping_mode.name == "TOKEN_TO_KV_SLOT":
                    table.slot_mapping.gpu[: len(positions)] += 1

    MultiGroupBlockTable.compute_slot_mapping = compute_slot_mapping
    try:
        yield
    finally:
        MultiGroupBlockTable.compute_slot_mapping = compute
