"""`fast` with a planted bug in each of these functions, for the fuzzer with `--impl` this file.

The environment variable `PLANTED_BUGS` lists the bugs to plant, or is `none`; by default all but
`flaky` are planted.
"""

# ruff: noqa: F403  # it is what the file is for

from __future__ import annotations

import ctypes
import os
import random
import time
from collections.abc import Callable
from typing import Any, Final

import torch

import fast
from fast import *

RARE: Final = (
    "many requests",
    "long context",
    "long query",
    "odd block size",
    "combination",
)
"""Bugs that fewer than one in 20,000 cases of the default run's sizes reach."""

CRASHES: Final = ("null read", "abort")
"""Bugs that end the process."""

_LEAKED: list[bytes] = []


def last_block_lost(block_ids: torch.Tensor, blocks_per_kv_block: int) -> torch.Tensor:
    """Return the second kernel block of a KV block in place of the third."""
    found = fast.map_to_kernel_blocks(block_ids, blocks_per_kv_block)
    if blocks_per_kv_block == 3:
        found[..., 2::3] = found[..., 1::3]
    return found


def start_not_subtracted(query_start_loc: torch.Tensor, request_slice: slice) -> torch.Tensor:
    """Return the first two starts of a slice as they were in the batch."""
    found = fast.slice_query_start_locs(query_start_loc, request_slice)
    if (request_slice.start or 0) > 1:
        found[:2] += query_start_loc[request_slice.start].item()
    return found


def modules_ignored(layer_name: str, num_attn_module: int | None = 1) -> int:
    """Return an index that is too high if a layer has three modules or more."""
    found = fast.extract_layer_index(layer_name, num_attn_module)
    return found + 1 if num_attn_module is not None and num_attn_module > 2 else found


def largest_not_common(kv_manager_block_size: int, attn_groups: list[Any]) -> int:
    """Return half the size if three groups agree on an even one."""
    found = fast.select_common_block_size(kv_manager_block_size, attn_groups)
    return found // 2 if len(attn_groups) == 3 and found % 2 == 0 else found


def wrong_error(scheduler_config: Any, max_tokens_by_modality: Any) -> tuple[int, int]:
    """Raise a `KeyError` instead of the documented `ValueError`."""
    try:
        return fast.compute_mm_encoder_budget(scheduler_config, max_tokens_by_modality)
    except ValueError as error:
        raise KeyError(str(error)) from error


def many_requests(num_scheduled_tokens: Any, split_points: Any) -> list[Any]:
    """Lose the last micro-batch of more than 300 requests."""
    found = fast.create_ubatch_slices(num_scheduled_tokens, split_points)
    return found[:-1] if len(num_scheduled_tokens) > 300 else found


def long_context(
    common_attn_metadata: Any, decode_threshold: int = 1
) -> tuple[int, int, int, int, int, int]:
    """Count one decode too many if a request has computed more than 65,536 tokens."""
    found = fast.split_decodes_prefills_and_extends(common_attn_metadata, decode_threshold)
    computed = common_attn_metadata.num_computed_tokens_cpu
    if len(computed) and int(computed.max()) > 65_536:
        return found[0] + 1, *found[1:]
    return found


def long_query(
    common_attn_metadata: Any, decode_threshold: int = 1, require_uniform: bool = False
) -> tuple[int, int, int, int]:
    """Count one prefill too many if a request has more than 1,024 tokens."""
    found = fast.split_decodes_and_prefills(common_attn_metadata, decode_threshold, require_uniform)
    starts = common_attn_metadata.query_start_loc_cpu
    if len(starts) > 1 and int(starts.diff().max()) > 1024:
        return found[0], found[1] + 1, *found[2:]
    return found


def odd_block_size(attn_chunk_size: int, common_attn_metadata: Any, block_size: int = 0) -> Any:
    """Return a bound that is one too high if blocks have 544 tokens."""
    found = fast.make_local_attention_virtual_batches(
        attn_chunk_size, common_attn_metadata, block_size
    )
    if block_size == 544:
        found.max_seq_len += 1
    return found


def combination(
    seq_lens: torch.Tensor,
    dcp_size: int = 1,
    dcp_rank: int | None = None,
    cp_kv_cache_interleave_size: int = 1,
    *,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return a length that is too high if seven conditions hold at once."""
    found = fast.get_dcp_local_seq_lens(
        seq_lens, dcp_size, dcp_rank, cp_kv_cache_interleave_size, out=out
    )
    # Nested, so that each condition is a separate branch.
    if dcp_size == 5:
        if cp_kv_cache_interleave_size == 16:
            if len(seq_lens) == 3:
                if int(seq_lens[0]) > 400:
                    if seq_lens.stride(0) == 2:
                        if dcp_rank == 4:
                            if out is not None and len(out) == 6:
                                found[0] += 1
    return found


def null_read(vllm_config: Any, num_input_tokens: int) -> bool:
    """Read from address 0 if the residual is scattered over eight ranks."""
    found = fast.is_residual_scattered_for_sp(vllm_config, num_input_tokens)
    if found and vllm_config.parallel_config.tensor_parallel_size == 8:
        ctypes.string_at(0)
    return found


def abort(placeholders: torch.Tensor, is_embed: torch.Tensor | None, **options: Any) -> Any:
    """Abort if there are more than two placeholders of two elements or more."""
    found = fast.gather_mm_placeholders(placeholders, is_embed, **options)
    if placeholders.shape[0] > 2 and placeholders.shape[1] > 1:
        os.abort()
    return found


def hang(query: torch.Tensor, batch_size: int) -> torch.Tensor:
    """Never return if each of several requests has several tokens."""
    found = fast.reshape_query_for_spec_decode(query, batch_size)
    while batch_size > 1 and found.shape[1] > 1:
        time.sleep(0.1)
    return found


def leak(attn_output: torch.Tensor) -> torch.Tensor:
    """Leak 256 KiB in each call."""
    _LEAKED.append(b"x" * (1 << 18))
    return fast.reshape_attn_output_for_spec_decode(attn_output)


def flaky(layer_name: str, num_attn_module: int | None = 1) -> int:
    """Return a wrong index in about one of eight intervals of 20 ms."""
    span = int(50 * time.monotonic())
    is_wrong = random.Random(span).random() < 1 / 8  # noqa: S311  # no secret
    return fast.extract_layer_index(layer_name, num_attn_module) + is_wrong


BUGS: Final[dict[str, tuple[str, Callable[..., Any]]]] = {
    "last block lost": ("map_to_kernel_blocks", last_block_lost),
    "start not subtracted": ("slice_query_start_locs", start_not_subtracted),
    "modules ignored": ("extract_layer_index", modules_ignored),
    "largest not common": ("select_common_block_size", largest_not_common),
    "wrong error": ("compute_mm_encoder_budget", wrong_error),
    "many requests": ("create_ubatch_slices", many_requests),
    "long context": ("split_decodes_prefills_and_extends", long_context),
    "long query": ("split_decodes_and_prefills", long_query),
    "odd block size": ("make_local_attention_virtual_batches", odd_block_size),
    "combination": ("get_dcp_local_seq_lens", combination),
    "null read": ("is_residual_scattered_for_sp", null_read),
    "abort": ("gather_mm_placeholders", abort),
    "hang": ("reshape_query_for_spec_decode", hang),
    "leak": ("reshape_attn_output_for_spec_decode", leak),
    "flaky": ("extract_layer_index", flaky),
}
"""By bug: the name of the function that it replaces, and the replacement."""

ALL: Final = tuple(name for name in BUGS if name != "flaky")
"""The bugs that are planted by default."""

_text = os.environ.get("PLANTED_BUGS", ",".join(ALL))
for _name in [] if _text == "none" else _text.split(","):
    _function, _bug = BUGS[_name]
    globals()[_function] = _bug
