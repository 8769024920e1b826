"""`BlockTables`, step by step: rows of request slots, and what is gathered of them."""

from __future__ import annotations

import reference.block_table
import reference.slots


def test_names() -> None:
    """The names of slots are importable from the module that the field looks in."""
    for name in ("PAD_SLOT_ID", "NULL_BLOCK_ID", "compute_slot_mapping", "map_to_kernel_blocks"):
        assert getattr(reference.slots, name) is getattr(reference.block_table, name)
