"""Define the IDs that mean no slot and no block. `fast.block_table` exports them."""

from typing import Final

PAD_SLOT_ID: Final = -1
"""The slot of a token that is not written: padding, or held by another rank."""

NULL_BLOCK_ID: Final = 0
"""The block that no request owns; it fills the entries of a table without a block."""

DUMMY_ROW: Final = -1
"""The request slot of a batch row that is no request."""
