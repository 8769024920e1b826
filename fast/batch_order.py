"""Split a batch into decodes, extends and prefills, and reorder it for the split."""

from collections.abc import Hashable
from contextlib import suppress
from operator import countOf, itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fast._checks import (
    INT32,
    MAX_INT64,
    MAX_SIZE,
    STRIDED,
    IntArray,
    check_array,
    check_bool,
    check_int,
    check_ints,
    check_list,
    check_mapping,
    check_minimum,
    check_vector,
    get_type_name,
    pack_ints,
)
from fast._native.batch_order import find_extends_and_prefills, find_first_prefill, plan_swaps
from fast.checked_mode import is_checked
from fast.metadata_validation import read_counts, validate_metadata
from fast.operators import check_not_traced


def split_decodes_and_prefills(
    common_attn_metadata: Any,
    decode_threshold: int = 1,
    require_uniform: bool = False,
    treat_short_extends_as_decodes: bool = True,
) -> tuple[int, int, int, int]:
    """Count the decodes and prefills of a batch that is already in order.

    An engine's own metadata is accepted. Outside checked mode only `num_reqs`, `num_actual_tokens`,
    `query_start_loc_cpu` and, if there is one, `max_query_len` are read: if `max_query_len` is at
    most the threshold, no value of a tensor is read, except with `require_uniform`. `is_prefilling`
    is read if `treat_short_extends_as_decodes` is False.

    Definition: `reference.split_decodes_and_prefills`.
    """
    threshold = decode_threshold
    if type(threshold) is not int or not 0 < threshold <= MAX_SIZE:  # 0.1 us, as for all checks
        threshold = check_int("decode_threshold", threshold)
    if require_uniform is not False and require_uniform is not True:
        check_bool("require_uniform", require_uniform)
    if is_checked():
        validate_metadata(common_attn_metadata)
    num_reqs, num_tokens = read_counts(common_attn_metadata)
    is_prefilling = None
    if treat_short_extends_as_decodes is not True:
        is_prefilling = _read_prefilling(common_attn_metadata, treat_short_extends_as_decodes)
    starts_cpu = common_attn_metadata.query_start_loc_cpu
    longest = getattr(common_attn_metadata, "max_query_len", None)
    is_short = type(longest) is int and longest <= threshold and is_prefilling is None
    if is_short and not require_uniform:
        check_vector("query_start_loc_cpu", starts_cpu, INT32, num_reqs + 1)
        return num_reqs, 0, num_tokens, 0
    check_not_traced("split_decodes_and_prefills")
    boundary, decode_tokens = find_first_prefill(
        starts_cpu, num_reqs, threshold, bool(require_uniform), is_prefilling
    )
    if boundary == num_reqs:
        return num_reqs, 0, num_tokens, 0
    return boundary, num_reqs - boundary, decode_tokens, num_tokens - decode_tokens


def split_decodes_prefills_and_extends(
    common_attn_metadata: Any,
    decode_threshold: int = 1,
    treat_short_extends_as_decodes: bool = True,
) -> tuple[int, int, int, int, int, int]:
    """Count the decodes, extends and prefills of a batch that is already in that order.

    An engine's own metadata is accepted. Outside checked mode only `num_reqs`, `num_actual_tokens`,
    `query_start_loc_cpu`, `num_computed_tokens_cpu` and, if there is one, `max_query_len` are read:
    if `max_query_len` is at most the threshold, no value of a tensor is read. `is_prefilling` is
    read if `treat_short_extends_as_decodes` is False.

    Definition: `reference.split_decodes_prefills_and_extends`.
    """
    threshold = decode_threshold
    if type(threshold) is not int or not 0 < threshold <= MAX_SIZE:
        threshold = check_int("decode_threshold", threshold)
    if is_checked():
        validate_metadata(common_attn_metadata)
    num_reqs, num_tokens = read_counts(common_attn_metadata)
    is_prefilling = None
    if treat_short_extends_as_decodes is not True:
        is_prefilling = _read_prefilling(common_attn_metadata, treat_short_extends_as_decodes)
    starts_cpu = common_attn_metadata.query_start_loc_cpu
    computed_cpu = common_attn_metadata.num_computed_tokens_cpu
    longest = getattr(common_attn_metadata, "max_query_len", None)
    if type(longest) is int and longest <= threshold and is_prefilling is None:
        # In one expression, which saves an early return 0.2 us of 0.8.
        if not (
            type(starts_cpu) is type(computed_cpu) is torch.Tensor
            and starts_cpu.dtype is computed_cpu.dtype is INT32
            and starts_cpu.layout is computed_cpu.layout is STRIDED
            and starts_cpu.is_cpu
            and computed_cpu.is_cpu
            and starts_cpu.ndim == computed_cpu.ndim == 1
            and starts_cpu.nelement() == num_reqs + 1
            and computed_cpu.nelement() == num_reqs
        ):
            check_vector("query_start_loc_cpu", starts_cpu, INT32, num_reqs + 1)
            check_vector("num_computed_tokens_cpu", computed_cpu, INT32, num_reqs)
        return num_reqs, 0, 0, num_tokens, 0, 0
    check_not_traced("split_decodes_prefills_and_extends")
    first_extend, first_prefill, before_extends, before_prefills = find_extends_and_prefills(
        starts_cpu, computed_cpu, num_reqs, threshold, is_prefilling
    )
    counts = (first_extend, first_prefill - first_extend, num_reqs - first_prefill)
    if counts[2]:
        ends = (before_extends, before_prefills)
    elif counts[1]:
        ends = (before_extends, num_tokens)
    else:
        ends = (num_tokens, num_tokens)
    return *counts, ends[0], ends[1] - ends[0], num_tokens - ends[1]


def _read_prefilling(metadata: Any, treats_short_as_decodes: bool) -> torch.Tensor | None:
    """Return whether each request is prefilling; None if that is ignored."""
    check_bool("treat_short_extends_as_decodes", treats_short_as_decodes)
    if treats_short_as_decodes:
        return None
    is_prefilling: torch.Tensor | None = getattr(metadata, "is_prefilling", None)
    if is_prefilling is None:
        raise ValueError(
            "is_prefilling is None, but treat_short_extends_as_decodes is False: expected a bool"
            " for each request"
        )
    return is_prefilling


def reorder_batch_to_split_decodes_and_prefills(
    input_batch: Any,
    scheduler_output: Any,
    decode_threshold: int = 1,
    *,
    regions: int = 3,
    num_scheduled_tokens: IntArray | None = None,
) -> bool:
    """Swap the requests of a batch into the order of their regions, with as few moves as possible.

    Only checked mode rejects negative numbers of computed tokens and of prompt tokens.

    Definition: `reference.reorder_batch_to_split_decodes_and_prefills`.
    """
    threshold = check_int("decode_threshold", decode_threshold)
    regions = check_int("regions", regions, 3, 4)
    req_ids = input_batch.req_ids
    check_list("req_ids", req_ids)
    num_reqs = len(req_ids)
    if num_scheduled_tokens is None:
        tokens = _scheduled_tokens(req_ids, scheduler_output.num_scheduled_tokens)
    else:
        check_array("num_scheduled_tokens", num_scheduled_tokens, num_reqs)
        tokens = num_scheduled_tokens[:num_reqs].astype(np.int64, subok=False)
    computed = input_batch.num_computed_tokens_cpu
    check_array("num_computed_tokens_cpu", computed, num_reqs)
    prompts = None
    if regions == 4:
        prompts = input_batch.num_prompt_tokens
        check_array("num_prompt_tokens", prompts, num_reqs)
    if is_checked():
        check_minimum("num_computed_tokens_cpu", computed[:num_reqs], 0)
        if prompts is not None:
            check_minimum("num_prompt_tokens", prompts[:num_reqs], 0)

    swaps = plan_swaps(tokens, computed, prompts, threshold)
    if swaps is None:
        if num_scheduled_tokens is not None:
            check_minimum("num_scheduled_tokens", tokens, 0)
        check_ints("num_scheduled_tokens of req_ids", tokens.tolist(), 0, MAX_INT64)
        return False  # not reached: one is negative
    if len(swaps) == 0:
        return False
    for i, j in swaps.tolist():
        input_batch.swap_states(i, j)
    return True


def _scheduled_tokens(req_ids: list[Any], scheduled: Any) -> npt.NDArray[np.int64]:
    check_mapping("num_scheduled_tokens", scheduled)
    if type(scheduled) is dict and len(req_ids) > 1:
        # All are looked up and packed at once, without a Python step for each.
        with suppress(KeyError, TypeError):  # the error below says which request it is
            tokens = pack_ints(itemgetter(*req_ids)(scheduled))
            if tokens is not None:
                return tokens
    try:
        counts = list(map(scheduled.get, req_ids))
    except TypeError:
        for position, req_id in enumerate(req_ids):
            if not isinstance(req_id, Hashable):
                kind = get_type_name(req_id)
                raise TypeError(f"req_ids[{position}] must be hashable, got {kind}") from None
        raise
    if countOf(map(type, counts), type(None)):  # others may not compare with None
        missing = [req_id for req_id in req_ids if req_id not in scheduled]
        if missing:
            at = req_ids.index(missing[0])
            raise KeyError(
                f"num_scheduled_tokens has no request {missing[0]!r}, which is req_ids[{at}]"
            )
    return check_ints("num_scheduled_tokens of req_ids", counts, 0, MAX_INT64)
