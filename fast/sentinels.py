"""Define the IDs that mean no slot and no block. `fast.block_table` exports them."""

from typing import Final

PAD_SLOT_ID: Final = -1
"""The slot of a token that is padding, or that another rank holds."""

NULL_BLOCK_ID: Final = 0
"""The block of no request: what fills a block table where no block is."""
