"""Map a manager's blocks to kernel blocks. `fast.block_table` exports the name."""

from typing import Final

import numpy as np
import torch

from fast._checks import check_dense, check_dtypes, check_int, get_dtype_name
from fast._native.memory import plain, to_host
from fast.checked_mode import is_checked
from fast.operators import is_traced

BLOCK_ID_DTYPES: Final = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)


def map_to_kernel_blocks(block_ids: torch.Tensor, blocks_per_kv_block: int) -> torch.Tensor:
    """Replace each of a manager's block IDs by the IDs of its kernel blocks.

    Only checked mode rejects negative IDs, and IDs that the dtype cannot hold.

    Definition: `reference.map_to_kernel_blocks`.
    """
    check_dense("block_ids", block_ids)
    check_dtypes("block_ids", block_ids, BLOCK_ID_DTYPES)
    if block_ids.dim() == 0:
        raise ValueError("block_ids must have at least 1 dimension, got shape ()")
    number = check_int("blocks_per_kv_block", blocks_per_kv_block)
    traced = is_traced()
    if not traced:
        block_ids = plain("block_ids", block_ids)
    shape = (*block_ids.shape[:-1], block_ids.shape[-1] * number)
    if block_ids.numel() == 0:
        return block_ids.new_empty(shape)
    greatest = (torch.iinfo(block_ids.dtype).max - (number - 1)) // number
    if greatest < 0:
        name = get_dtype_name(block_ids.dtype)
        raise ValueError(f"blocks_per_kv_block is {number}, more than {name} can count")
    if not traced and is_checked():
        values = to_host("block_ids", block_ids)
        wrong = np.argwhere((values < 0) | (values > greatest))
        if len(wrong):
            index = tuple(wrong[0].tolist())
            raise ValueError(
                f"block_ids{list(index)} is {values[index]}, expected 0 to {greatest}, as each is"
                f" {number} kernel blocks in {get_dtype_name(block_ids.dtype)}"
            )
    steps = torch.arange(number, dtype=torch.int64, device=block_ids.device)
    wide = block_ids.to(torch.int64).unsqueeze(-1) * number + steps
    return wide.to(block_ids.dtype).reshape(shape)
