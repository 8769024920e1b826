"""The order of a batch by kind of request: decodes first, then extends, then prefills."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Protocol

from reference._checks import (
    MAX_INT64,
    BoolArray,
    IntArray,
    check_bool,
    check_counts,
    check_int,
    check_list,
    check_mapping,
    check_size,
    get_type_name,
)
from reference.metadata import CommonAttentionMetadata, validate_metadata


def split_decodes_and_prefills(
    common_attn_metadata: CommonAttentionMetadata,
    decode_threshold: int = 1,
    require_uniform: bool = False,
    treat_short_extends_as_decodes: bool = True,
) -> tuple[int, int, int, int]:
    """Count the decodes and prefills of a batch that is already in order.

    The decodes end at the first request with more than `decode_threshold` query tokens. With
    `require_uniform` they also end at the first request whose query length differs from that of the
    first non-empty request, unless it is 0: a request of zero tokens is padding and counts with the
    requests before it. With `treat_short_extends_as_decodes` False they also end at the first
    request that is prefilling, however few tokens it has. Short requests after that boundary count
    as prefills.

    Args:
        common_attn_metadata: The batch, valid.
        decode_threshold: The most query tokens of a decode, at least 1.
        require_uniform: Whether all decodes must have the same query length.
        treat_short_extends_as_decodes: Whether only the query length decides; else
            `is_prefilling` is read.

    Returns:
        num_decodes, num_prefills, num_decode_tokens, num_prefill_tokens. The requests sum to
        `num_reqs`, the tokens to `num_actual_tokens`: padding tokens count with the prefills, or
        with the decodes if there is no prefill.

    Raises:
        TypeError: An argument or a field of the wrong type or dtype.
        ValueError: A threshold below 1, an invalid metadata, `is_prefilling` None where it is read.

    Example:
        >>> import numpy as np
        >>> starts, lens = np.array([0, 2, 3, 6, 15], np.int32), np.array([2, 1, 3, 9], np.int32)
        >>> computed, rows = np.zeros(4, np.int32), np.zeros((4, 1), np.int32)
        >>> batch = CommonAttentionMetadata(
        ...     starts, starts, lens, lens, computed, 4, 15, 9, 9, rows, np.arange(15)
        ... )
        >>> split_decodes_and_prefills(batch, decode_threshold=3)
        (3, 1, 6, 9)
        >>> split_decodes_and_prefills(batch, decode_threshold=3, require_uniform=True)
        (1, 3, 2, 13)
        >>> batch.is_prefilling = np.array([False, True, False, True])
        >>> split_decodes_and_prefills(batch, 3, treat_short_extends_as_decodes=False)
        (1, 3, 2, 13)

    Source: the definition is kvtwin's own; the names are vLLM's.
    """
    threshold = check_size("decode_threshold", decode_threshold)
    is_uniform = check_bool("require_uniform", require_uniform)
    validate_metadata(common_attn_metadata)
    num_reqs = int(common_attn_metadata.num_reqs)
    num_tokens = int(common_attn_metadata.num_actual_tokens)
    starts = common_attn_metadata.query_start_loc.tolist()
    is_prefilling = _get_prefilling(common_attn_metadata, treat_short_extends_as_decodes)

    uniform_query_len = None
    for request in range(num_reqs):
        query_len = starts[request + 1] - starts[request]
        if uniform_query_len is None and query_len > 0:
            uniform_query_len = query_len
        is_other_length = is_uniform and query_len not in (0, uniform_query_len)
        if query_len > threshold or is_other_length or is_prefilling[request]:
            decode_tokens = starts[request]
            return request, num_reqs - request, decode_tokens, num_tokens - decode_tokens
    return num_reqs, 0, num_tokens, 0


def split_decodes_prefills_and_extends(
    common_attn_metadata: CommonAttentionMetadata,
    decode_threshold: int = 1,
    treat_short_extends_as_decodes: bool = True,
) -> tuple[int, int, int, int, int, int]:
    """Count the decodes, extends and prefills of a batch that is already in that order.

    The decodes end at the first request with more than `decode_threshold` query tokens, or, with
    `treat_short_extends_as_decodes` False, that is prefilling; the prefills begin at the first such
    request without computed tokens.

    Args:
        common_attn_metadata: The batch, valid.
        decode_threshold: The most query tokens of a decode, at least 1.
        treat_short_extends_as_decodes: Whether only the query length decides; else
            `is_prefilling` is read.

    Returns:
        num_decodes, num_extends, num_prefills, num_decode_tokens, num_extend_tokens,
        num_prefill_tokens. The requests sum to `num_reqs`, the tokens to `num_actual_tokens`:
        padding tokens count with the last kind that has requests, or with the decodes if none has.

    Raises:
        TypeError: An argument or a field of the wrong type or dtype.
        ValueError: A threshold below 1, an invalid metadata, `is_prefilling` None where it is read.

    Example:
        >>> import numpy as np
        >>> starts, lens = np.array([0, 1, 5, 12], np.int32), np.array([8, 6, 7], np.int32)
        >>> computed, rows = np.array([7, 2, 0], np.int32), np.zeros((3, 1), np.int32)
        >>> batch = CommonAttentionMetadata(
        ...     starts, starts, lens, lens, computed, 3, 12, 7, 8, rows, np.arange(12)
        ... )
        >>> split_decodes_prefills_and_extends(batch)
        (1, 1, 1, 1, 4, 7)

    Source: the definition is kvtwin's own; the names are vLLM's.
    """
    threshold = check_size("decode_threshold", decode_threshold)
    validate_metadata(common_attn_metadata)
    num_reqs = int(common_attn_metadata.num_reqs)
    num_tokens = int(common_attn_metadata.num_actual_tokens)
    starts = common_attn_metadata.query_start_loc.tolist()
    computed = common_attn_metadata.num_computed_tokens_cpu.tolist()
    is_prefilling = _get_prefilling(common_attn_metadata, treat_short_extends_as_decodes)

    first_long = first_prefill = num_reqs
    for request in reversed(range(num_reqs)):
        if starts[request + 1] - starts[request] > threshold or is_prefilling[request]:
            first_long = request
            if computed[request] == 0:
                first_prefill = request

    num_extends = first_prefill - first_long
    num_prefills = num_reqs - first_prefill
    decode_tokens = num_tokens if first_long == num_reqs else starts[first_long]
    decode_and_extend_tokens = num_tokens if num_prefills == 0 else starts[first_prefill]
    return (
        first_long,
        num_extends,
        num_prefills,
        decode_tokens,
        decode_and_extend_tokens - decode_tokens,
        num_tokens - decode_and_extend_tokens,
    )


def _get_prefilling(metadata: CommonAttentionMetadata, treats_short_as_decodes: bool) -> list[bool]:
    """Return whether each request is prefilling, and so no decode; none is, if that is ignored."""
    if check_bool("treat_short_extends_as_decodes", treats_short_as_decodes):
        return [False] * int(metadata.num_reqs)
    is_prefilling: BoolArray | None = getattr(metadata, "is_prefilling", None)
    if is_prefilling is None:
        raise ValueError(
            "is_prefilling is None, but treat_short_extends_as_decodes is False: expected a bool "
            "for each request"
        )
    found: list[bool] = is_prefilling.tolist()
    return found


class InputBatch(Protocol):
    """What `reorder_batch_to_split_decodes_and_prefills` needs of an engine's batch.

    Attributes:
        req_ids: The request at each position.
        num_computed_tokens_cpu: int32 or int64[at least len(req_ids)], by position.
        num_prompt_tokens: int32 or int64[at least len(req_ids)], by position; read with four
            regions only.
    """

    req_ids: list[Any]
    num_computed_tokens_cpu: IntArray
    num_prompt_tokens: IntArray

    def swap_states(self, i: int, j: int) -> None:
        """Swap all state of two positions, `req_ids` included."""


class SchedulerOutput(Protocol):
    """What `reorder_batch_to_split_decodes_and_prefills` needs of a scheduler's decision.

    Attributes:
        num_scheduled_tokens: The tokens of this step, by request ID.
    """

    num_scheduled_tokens: dict[Any, int]


def reorder_batch_to_split_decodes_and_prefills(
    input_batch: InputBatch,
    scheduler_output: SchedulerOutput | None,
    decode_threshold: int = 1,
    *,
    regions: int = 3,
    num_scheduled_tokens: IntArray | None = None,
) -> bool:
    """Swap the requests of a batch into the order of their regions, with as few moves as possible.

    With `regions=3` a request with at most `decode_threshold` scheduled tokens is in region 0
    (decode); one with more is in region 1 (extend) if it has computed tokens, else in region 2
    (prefill).

    With `regions=4`, for engines that keep short extends out of the decodes, a request without
    computed tokens is in region 3 (prefill). Of the others, one with more tokens than the threshold
    is in region 2 (long extend); one with at most as many is in region 0 (decode) if its prompt is
    computed, else in region 1 (short extend).

    In the resulting order regions do not decrease. Requests whose position already belongs to their
    region stay; the others, sorted by region and then by old position, fill the free positions from
    the front.

    Args:
        input_batch: The batch; it is changed through its `swap_states` only.
        scheduler_output: The tokens of this step, for each request; not read if
            `num_scheduled_tokens` is given.
        decode_threshold: The most tokens of a decode, at least 1.
        regions: 3 or 4.
        num_scheduled_tokens: int32 or int64[at least len(req_ids)], the tokens of this step by
            position, before anything moves; it is not changed. None: `scheduler_output` has them.

    Returns:
        Whether any request moved. The number of swaps is at most the number of misplaced requests
        minus the number of cycles that they form; no position is swapped with itself.

    Raises:
        TypeError: An argument or an attribute of the wrong type or dtype.
        KeyError: A request that was not scheduled, without `num_scheduled_tokens`.
        ValueError: A threshold below 1, another number of regions, a negative number of tokens or
            one above `2**63 - 1`, arrays shorter than the batch. After an error no request has
            moved.

    Example:
        >>> import numpy as np
        >>> from types import SimpleNamespace
        >>> batch = SimpleNamespace(
        ...     req_ids=["a", "b", "c", "d"], num_computed_tokens_cpu=np.array([0, 7, 3, 4])
        ... )
        >>> def swap_states(i, j):
        ...     batch.req_ids[i], batch.req_ids[j] = batch.req_ids[j], batch.req_ids[i]
        >>> batch.swap_states = swap_states
        >>> step = SimpleNamespace(num_scheduled_tokens={"a": 9, "b": 1, "c": 5, "d": 1})
        >>> reorder_batch_to_split_decodes_and_prefills(batch, step)
        True
        >>> batch.req_ids
        ['d', 'b', 'c', 'a']
        >>> tokens = np.array([2, 9, 1, 1], np.int32)
        >>> batch.num_computed_tokens_cpu = np.array([4, 7, 3, 0])
        >>> reorder_batch_to_split_decodes_and_prefills(batch, None, num_scheduled_tokens=tokens)
        True
        >>> batch.req_ids
        ['c', 'a', 'd', 'b']

    Source: the definition is kvtwin's own; the names are vLLM's.
    """
    threshold = check_size("decode_threshold", decode_threshold)
    regions = check_int("regions", regions, 3, 4)
    if num_scheduled_tokens is None:
        tokens = _check_scheduled_tokens(input_batch, scheduler_output)
    else:
        num_reqs = len(check_list("req_ids", input_batch.req_ids))
        tokens = check_counts("num_scheduled_tokens", num_scheduled_tokens, num_reqs)
    computed = check_counts(
        "num_computed_tokens_cpu", input_batch.num_computed_tokens_cpu, len(tokens)
    )
    prompts = [0] * len(tokens)
    if regions == 4:
        prompts = check_counts("num_prompt_tokens", input_batch.num_prompt_tokens, len(tokens))

    region_of = []
    for num_tokens, num_computed, num_prompt in zip(tokens, computed, prompts, strict=True):
        is_short = num_tokens <= threshold
        if regions == 3:
            region_of.append(_region_of_three(is_short, num_computed))
        else:
            region_of.append(_region_of_four(is_short, num_computed, num_prompt))

    wanted = _wanted_order(region_of)
    current = list(range(len(wanted)))
    for position, request in enumerate(wanted):
        place = current.index(request)
        if place != position:
            input_batch.swap_states(position, place)
            current[position], current[place] = current[place], current[position]
    return wanted != sorted(wanted)


def _check_scheduled_tokens(input_batch: InputBatch, scheduler_output: Any) -> list[int]:
    """Return the scheduled tokens of each request, in batch order."""
    scheduled = scheduler_output.num_scheduled_tokens
    check_mapping("num_scheduled_tokens", scheduled)
    tokens = []
    for position, request_id in enumerate(check_list("req_ids", input_batch.req_ids)):
        if not isinstance(request_id, Hashable):
            raise TypeError(
                f"req_ids[{position}] must be hashable, got {get_type_name(request_id)}"
            )
        if request_id not in scheduled:
            raise KeyError(
                f"num_scheduled_tokens has no request {request_id!r}, which is req_ids[{position}]"
            )
        name = f"num_scheduled_tokens of req_ids[{position}]"
        tokens.append(check_int(name, scheduled[request_id], 0, MAX_INT64))
    return tokens


def _region_of_three(is_short: bool, num_computed: int) -> int:
    """Return the region of a request: decode, extend, prefill."""
    if is_short:
        return 0
    return 1 if num_computed > 0 else 2


def _region_of_four(is_short: bool, num_computed: int, num_prompt: int) -> int:
    """Return the region of a request: decode, short extend, long extend, prefill."""
    if num_computed == 0:
        return 3
    if not is_short:
        return 2
    return 0 if num_computed >= num_prompt else 1


def _wanted_order(region_of: list[int]) -> list[int]:
    """Return, for each position of the new order, the old position of its request."""
    positions = range(len(region_of))
    region_at = sorted(region_of)
    misplaced = [p for p in positions if region_of[p] != region_at[p]]
    movers = sorted(misplaced, key=lambda old: (region_of[old], old))
    wanted = list(positions)
    for free_position, old_position in zip(misplaced, movers, strict=True):
        wanted[free_position] = old_position
    return wanted
