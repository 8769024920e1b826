"""Functions that each violate one guarantee, for the probe to find with `--impl` this file."""

from __future__ import annotations

import ctypes
import time
from typing import Any

import numpy as np
import torch

import fast


def get_dcp_local_seq_lens(seq_lens: Any, *args: Any, **keywords: Any) -> Any:
    """Write one element past the end of `out`."""
    found = fast.get_dcp_local_seq_lens(seq_lens, *args, **keywords)
    out = keywords.get("out")
    if out is not None and out.numel():
        ctypes.c_int32.from_address(out.data_ptr() + out.nbytes).value = 0
    return found


def slice_query_start_locs(query_start_loc: Any, request_slice: Any) -> Any:
    """Read one element past the end of an input."""
    found = fast.slice_query_start_locs(query_start_loc, request_slice)
    end = query_start_loc.data_ptr() + query_start_loc.nbytes
    assert ctypes.c_int32.from_address(end).value is not None
    return found


def extract_layer_index(layer_name: Any, num_attn_module: Any = 1) -> Any:
    """Raise an exception class that spec 00 does not allow."""
    try:
        return fast.extract_layer_index(layer_name, num_attn_module)
    except ValueError as error:
        raise RuntimeError("layer_name is bad") from error


def compute_mm_encoder_budget(scheduler_config: Any, max_tokens_by_modality: Any) -> Any:
    """Hang if the modalities are not a dict."""
    while not isinstance(max_tokens_by_modality, dict):
        time.sleep(1)
    return fast.compute_mm_encoder_budget(scheduler_config, max_tokens_by_modality)


def map_to_kernel_blocks(block_ids: Any, blocks_per_kv_block: Any) -> Any:
    """Allocate 8 GB."""
    np.empty(1 << 33, np.uint8)
    return fast.map_to_kernel_blocks(block_ids, blocks_per_kv_block)


def reshape_query_for_spec_decode(query: Any, batch_size: Any) -> Any:
    """Crash with SIGSEGV."""
    found = fast.reshape_query_for_spec_decode(query, batch_size)
    ctypes.string_at(0)
    return found


def create_ubatch_slices(num_scheduled_tokens: Any, split_points: Any) -> Any:
    """Change an input."""
    found = fast.create_ubatch_slices(num_scheduled_tokens, split_points)
    if num_scheduled_tokens.flags.writeable:
        num_scheduled_tokens[0] += 1
    return found


def compute_causal_conv1d_metadata(*args: Any, **keywords: Any) -> Any:
    """Return a tensor that was never written."""
    nums, batch_ptr, token_chunk_offset_ptr = fast.compute_causal_conv1d_metadata(*args, **keywords)
    return nums, torch.empty_like(batch_ptr), token_chunk_offset_ptr
