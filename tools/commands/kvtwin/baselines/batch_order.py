"""Split a batch by kind of request, and reorder it."""

from __future__ import annotations

from typing import Any

import numpy as np


def split_decodes_and_prefills(
    common_attn_metadata: Any, decode_threshold: int = 1, require_uniform: bool = False
) -> tuple[int, int, int, int]:
    """Count decodes and prefills, and their tokens; arguments are those of `reference`."""
    metadata = common_attn_metadata
    num_reqs, num_tokens = metadata.num_reqs, metadata.num_actual_tokens
    # The bound implies that all are decodes, so no array is read.
    if metadata.max_query_len <= decode_threshold and not require_uniform:
        return num_reqs, 0, num_tokens, 0
    starts = metadata.query_start_loc_cpu.numpy()
    query_lens = np.diff(starts)
    is_prefill = query_lens > decode_threshold
    if require_uniform:
        used = query_lens[query_lens > 0]
        if len(used):
            is_prefill |= (query_lens > 0) & (query_lens != used[0])
    if not is_prefill.any():
        return num_reqs, 0, num_tokens, 0
    first = int(is_prefill.argmax())
    num_decode_tokens = int(starts[first])
    return first, num_reqs - first, num_decode_tokens, num_tokens - num_decode_tokens


def split_decodes_prefills_and_extends(
    common_attn_metadata: Any, decode_threshold: int = 1
) -> tuple[int, int, int, int, int, int]:
    """Count decodes, extends and prefills, and their tokens; arguments as in `reference`."""
    metadata = common_attn_metadata
    num_reqs, num_tokens = metadata.num_reqs, metadata.num_actual_tokens
    if metadata.max_query_len <= decode_threshold:
        return num_reqs, 0, 0, num_tokens, 0, 0
    starts = metadata.query_start_loc_cpu.numpy()
    is_long = np.diff(starts) > decode_threshold
    if not is_long.any():
        return num_reqs, 0, 0, num_tokens, 0, 0
    first = int(is_long.argmax())
    is_prefill = is_long & (metadata.num_computed_tokens_cpu.numpy() == 0)
    first_prefill = int(is_prefill.argmax()) if is_prefill.any() else num_reqs
    num_decode_tokens = int(starts[first])
    end = int(starts[first_prefill]) if first_prefill < num_reqs else num_tokens
    return (
        first,
        first_prefill - first,
        num_reqs - first_prefill,
        num_decode_tokens,
        end - num_decode_tokens,
        num_tokens - end,
    )


def reorder_batch_to_split_decodes_and_prefills(
    input_batch: Any, scheduler_output: Any, decode_threshold: int = 1, *, regions: int = 3
) -> bool:
    """Bring decodes to the front with swaps; arguments are those of `reference`."""
    req_ids = input_batch.req_ids
    num_reqs = len(req_ids)
    scheduled = scheduler_output.num_scheduled_tokens
    num_tokens = np.fromiter(map(scheduled.__getitem__, req_ids), np.int64, num_reqs)
    computed = input_batch.num_computed_tokens_cpu[:num_reqs]
    if regions == 3:
        region = np.where(num_tokens <= decode_threshold, 0, np.where(computed > 0, 1, 2))
    else:
        in_prompt = computed < input_batch.num_prompt_tokens[:num_reqs]
        short = np.where(in_prompt, 1, 0)
        region = np.where(computed == 0, 3, np.where(num_tokens > decode_threshold, 2, short))
    misplaced = np.flatnonzero(region != np.sort(region))
    if len(misplaced) == 0:
        return False
    # The misplaced, sorted by region, take the free places from the front.
    order = misplaced[np.argsort(region[misplaced], kind="stable")]
    source = dict(zip(misplaced.tolist(), order.tolist(), strict=True))
    for first in source:
        place = first
        while source[place] != first:
            other = source[place]
            input_batch.swap_states(place, other)
            source[place] = place
            place = other
        source[place] = place
    return True
