"""Micro-batches: a batch cut into runs of tokens, each with its own metadata."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from reference._checks import (
    Int32Array,
    IntArray,
    check_counts,
    check_int,
    check_ints,
    check_list,
    check_order,
    check_query_start_loc,
    check_slice,
    get_type_name,
    is_int,
)
from reference.metadata import CommonAttentionMetadata, validate_metadata
from reference.metadata_validation import cut_fields


@dataclass(frozen=True)
class UBatchSlice:
    """The requests and the tokens of a micro-batch.

    Attributes:
        request_slice: The requests that have a token in the micro-batch, as a slice of ints.
        token_slice: Its tokens, as a slice of ints.

    Example:
        >>> UBatchSlice(slice(0, 2), slice(0, 9)).num_tokens
        9
        >>> UBatchSlice(slice(0, 0), slice(0, 9)).is_empty()
        True

    Source: the definition is kvtwin's own; the names are vLLM's.
    """

    request_slice: slice
    token_slice: slice

    def is_empty(self) -> bool:
        """Return whether it has no requests or no tokens."""
        requests, tokens = self.request_slice, self.token_slice
        return bool(requests.stop <= requests.start or tokens.stop <= tokens.start)

    @property
    def num_tokens(self) -> int:
        """The number of its tokens."""
        return int(self.token_slice.stop - self.token_slice.start)


def create_ubatch_slices(
    num_scheduled_tokens: IntArray, split_points: int | list[int]
) -> list[UBatchSlice]:
    """Cut a batch into micro-batches at split points.

    Args:
        num_scheduled_tokens: int32 or int64[num_reqs], tokens of each request, on the host.
        split_points: Where to cut, as token indices strictly between 0 and the number of tokens:
            one int, or an increasing list. An empty list gives one slice.

    Returns:
        The slices in order. Their tokens have no gap and no overlap; the requests of each go from
        the first to the last that has a token in it. A request that is cut is in both slices.

    Raises:
        TypeError: An argument of the wrong type or dtype.
        ValueError: No tokens, a negative number of tokens, a split point that is out of range or
            not greater than the one before it.

    Example:
        >>> import numpy as np
        >>> for ubatch in create_ubatch_slices(np.array([4, 10, 5]), [9, 12]):
        ...     print(ubatch.token_slice, ubatch.request_slice)
        slice(0, 9, None) slice(0, 2, None)
        slice(9, 12, None) slice(1, 2, None)
        slice(12, 19, None) slice(1, 3, None)

    Source: the definition is kvtwin's own; the names are vLLM's.
    """
    counts = check_counts("num_scheduled_tokens", num_scheduled_tokens)
    num_tokens = sum(counts)
    if not is_int(split_points) and not isinstance(split_points, list):
        raise TypeError(f"split_points must be an int or a list, got {get_type_name(split_points)}")
    if num_tokens == 0:
        raise ValueError("num_scheduled_tokens sums to 0, expected at least 1")
    if isinstance(split_points, list):
        points = check_ints("split_points", split_points, 1, num_tokens - 1)
    else:
        points = [check_int("split_points", split_points, 1, num_tokens - 1)]
    check_order("split_points", points, strict=True)

    starts = [0]
    for count in counts:
        starts.append(starts[-1] + count)
    slices = []
    for start, stop in itertools.pairwise([0, *points, num_tokens]):
        requests = [
            request
            for request in range(len(counts))
            if max(start, starts[request]) < min(stop, starts[request + 1])
        ]
        request_slice = slice(requests[0], requests[-1] + 1)
        slices.append(UBatchSlice(request_slice, slice(start, stop)))
    return slices


def slice_query_start_locs(query_start_loc: Int32Array, request_slice: slice) -> Int32Array:
    """Return where the tokens of some requests start, counted from the first of these tokens.

    Args:
        query_start_loc: int32[num_reqs + 1], where each request's tokens start.
        request_slice: The requests, `0 <= start <= stop <= num_reqs`.

    Returns:
        A new int32[stop - start + 1], `query_start_loc[start : stop + 1] - query_start_loc[start]`.

    Raises:
        TypeError: An argument of the wrong type or dtype; a slice whose ends are not ints.
        ValueError: A slice that is outside the batch or has a step; starts that do not begin at 0,
            or that decrease.

    Example:
        >>> import numpy as np
        >>> slice_query_start_locs(np.array([0, 4, 14, 19], np.int32), slice(1, 3)).tolist()
        [0, 10, 15]

    Source: the definition is kvtwin's own; the name is vLLM's.
    """
    starts = check_query_start_loc("query_start_loc", query_start_loc)
    first, stop = check_slice("request_slice", request_slice, len(starts) - 1)
    shifted = [starts[request] - starts[first] for request in range(first, stop + 1)]
    return np.array(shifted, dtype=np.int32)


def _make_metadata_with_slice(
    ubatch_slice: UBatchSlice, attn_metadata: CommonAttentionMetadata
) -> CommonAttentionMetadata:
    """Make the metadata of a micro-batch; the batch itself is not changed.

    For requests `r0 .. r1 - 1` and tokens `t0 .. t1 - 1`, the new starts are
    `query_start_loc[r0 .. r1]`, clipped to `t0 .. t1`, minus `t0`. So a request loses its tokens
    before `t0`, which count as computed, and its tokens from `t1` on, which shorten its sequence.

    Args:
        ubatch_slice: Its requests and tokens. With the padding of a CUDA graph the tokens may go
            past the end of the last request; a slice of padding alone begins with a request without
            tokens.
        attn_metadata: The batch, valid.

    Returns:
        A new metadata. `max_query_len` is the greatest new query length, or that of the batch if
        the greatest is 0 (a dummy run); `max_seq_len`, `causal` and `max_logits_per_req` are those
        of the batch. Block table rows, slots, `positions`, `is_prefilling`, `encoder_seq_lens`,
        `dcp_local_seq_lens_cpu_upper_bound` and `req_idx` are views.
        `seq_lens_cpu_upper_bound` is shortened as `seq_lens` is. What the batch does not have, or
        is None in it, such as `seq_lens_cpu`, is None. The logits fields and `dcp_local_seq_lens`
        are None: the caller must compute them again.

    Raises:
        TypeError: A field of the wrong type or dtype.
        ValueError: An invalid metadata; a slice that is empty or outside the batch, whose first
            token does not belong to its first request, or that has tokens of requests after its
            last one.

    Example:
        >>> import numpy as np
        >>> starts, lens = np.array([0, 4, 14, 19], np.int32), np.array([6, 17, 9], np.int32)
        >>> computed = np.array([2, 7, 4], np.int32)
        >>> rows, slots = np.zeros((3, 2), np.int32), np.arange(19)
        >>> batch = CommonAttentionMetadata(
        ...     starts, starts, lens, lens, computed, 3, 19, 10, 17, rows, slots
        ... )
        >>> part = _make_metadata_with_slice(UBatchSlice(slice(1, 2), slice(9, 12)), batch)
        >>> part.query_start_loc.tolist(), part.seq_lens.tolist()
        ([0, 3], [15])
        >>> part.num_computed_tokens_cpu.tolist()
        [12]

    Source: the definition is kvtwin's own; the name is vLLM's.
    """
    validate_metadata(attn_metadata)
    r0, r1, t0, t1 = _check_ubatch_slice("ubatch_slice", ubatch_slice, attn_metadata)
    all_starts = attn_metadata.query_start_loc.tolist()
    all_seq_lens = attn_metadata.seq_lens.tolist()
    all_computed = attn_metadata.num_computed_tokens_cpu.tolist()

    starts, lost, seq_lens, computed = [0], [], [], []
    for request in range(r0, r1):
        start, stop = all_starts[request], all_starts[request + 1]
        tokens_before = max(0, min(stop, t0) - start)
        tokens_after = max(0, stop - max(start, t1))
        starts.append(min(max(stop, t0), t1) - t0)
        lost.append(tokens_after)
        seq_lens.append(all_seq_lens[request] - tokens_after)
        computed.append(all_computed[request] + tokens_before)

    max_query_len = max(starts[i + 1] - starts[i] for i in range(r1 - r0))
    fields = cut_fields(attn_metadata, slice(r0, r1), slice(t0, t1))
    has_lens_cpu, bounds = fields["seq_lens_cpu"] is not None, fields["seq_lens_cpu_upper_bound"]
    if bounds is not None:
        bounds = [bound - tokens for bound, tokens in zip(bounds.tolist(), lost, strict=True)]
    most_logits = fields["max_logits_per_req"]
    fields |= {
        "query_start_loc": np.array(starts, dtype=np.int32),
        "query_start_loc_cpu": np.array(starts, dtype=np.int32),
        "seq_lens": np.array(seq_lens, dtype=np.int32),
        "seq_lens_cpu": np.array(seq_lens, dtype=np.int32) if has_lens_cpu else None,
        "num_computed_tokens_cpu": np.array(computed, dtype=np.int32),
        "num_reqs": r1 - r0,
        "num_actual_tokens": t1 - t0,
        "max_query_len": max_query_len or int(attn_metadata.max_query_len),
        "max_seq_len": int(attn_metadata.max_seq_len),
        "causal": bool(attn_metadata.causal),
        "logits_indices_padded": None,
        "num_logits_indices": None,
        "dcp_local_seq_lens": None,
        "seq_lens_cpu_upper_bound": None if bounds is None else np.array(bounds, dtype=np.int32),
        "max_logits_per_req": None if most_logits is None else int(most_logits),
    }
    return CommonAttentionMetadata(**fields)


def _check_ubatch_slice(
    name: str, ubatch_slice: UBatchSlice, metadata: CommonAttentionMetadata
) -> tuple[int, int, int, int]:
    """Return start and stop of a slice's requests and tokens, which must fit the batch."""
    starts = metadata.query_start_loc.tolist()
    num_reqs, num_tokens = int(metadata.num_reqs), int(metadata.num_actual_tokens)
    r0, r1 = check_slice(f"{name}.request_slice", ubatch_slice.request_slice, num_reqs)
    t0, t1 = check_slice(f"{name}.token_slice", ubatch_slice.token_slice, num_tokens)
    if r0 == r1 or t0 == t1:
        raise ValueError(f"{name} is empty: requests {r0} to {r1}, tokens {t0} to {t1}")
    lies_in_padding = t0 >= starts[-1] and starts[r0] == starts[r0 + 1]
    if not (starts[r0] <= t0 < starts[r0 + 1] or lies_in_padding):
        raise ValueError(
            f"{name}.token_slice starts at {t0}, expected it inside request {r0}, "
            f"tokens {starts[r0]} to {starts[r0 + 1]}"
        )
    first_later, last_later = max(t0, starts[r1]), min(t1, starts[-1])
    if first_later < last_later:
        raise ValueError(
            f"{name}.request_slice stops at {r1}, but tokens {first_later} to {last_later} of "
            "token_slice are of later requests"
        )
    return r0, r1, t0, t1


def split_attn_metadata(
    ubatch_slices: list[UBatchSlice], common_attn_metadata: CommonAttentionMetadata
) -> list[CommonAttentionMetadata]:
    """Make the metadata of each micro-batch.

    Args:
        ubatch_slices: The micro-batches' requests and tokens.
        common_attn_metadata: The batch, valid.

    Returns:
        `_make_metadata_with_slice` of each slice, in order.

    Raises:
        TypeError: Slices that are not a list, a field of the wrong type or dtype.
        ValueError: As `_make_metadata_with_slice`.

    Example:
        >>> import numpy as np
        >>> starts, lens = np.array([0, 4, 14, 19], np.int32), np.array([6, 17, 9], np.int32)
        >>> computed = np.array([2, 7, 4], np.int32)
        >>> rows, slots = np.zeros((3, 2), np.int32), np.arange(19)
        >>> batch = CommonAttentionMetadata(
        ...     starts, starts, lens, lens, computed, 3, 19, 10, 17, rows, slots
        ... )
        >>> ubatch_slices = create_ubatch_slices(np.diff(starts), 9)
        >>> [part.seq_lens.tolist() for part in split_attn_metadata(ubatch_slices, batch)]
        [[6, 12], [17, 9]]

    Source: the definition is kvtwin's own; the name is vLLM's.
    """
    validate_metadata(common_attn_metadata)
    check_list("ubatch_slices", ubatch_slices)
    for i, ubatch_slice in enumerate(ubatch_slices):
        _check_ubatch_slice(f"ubatch_slices[{i}]", ubatch_slice, common_attn_metadata)
    return [
        _make_metadata_with_slice(ubatch_slice, common_attn_metadata)
        for ubatch_slice in ubatch_slices
    ]
