"""Micro-batches: a batch cut by tokens."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fast._checks import (
    IntArray,
    check_array,
    check_int,
    check_ints,
    check_list,
    check_minimum,
    check_starts,
    check_tensor,
    host_vector,
    is_checked,
    is_int,
    to_host,
)
from fast._compiled import Int32s, compiled
from fast.launch import upload, uses_kernels
from fast.metadata import CommonAttentionMetadata, validate_metadata


@dataclass(frozen=True)
class UBatchSlice:
    """A micro-batch: some consecutive tokens of a batch, and the requests that they belong to.

    Attributes:
        request_slice: the requests with a token in it.
        token_slice: its tokens.

    Example:
        >>> UBatchSlice(slice(0, 2), slice(3, 7)).num_tokens
        4

    Source: the definition is kvtwin's own; the names are vLLM's micro-batching.
    """

    request_slice: slice
    token_slice: slice

    def is_empty(self) -> bool:
        """Say whether it has no request or no token.

        Example:
            >>> UBatchSlice(slice(1, 1), slice(0, 4)).is_empty()
            True

        Source: the definition is kvtwin's own; the name is vLLM's.
        """
        requests, tokens = self.request_slice, self.token_slice
        return bool(requests.stop <= requests.start or tokens.stop <= tokens.start)

    @property
    def num_tokens(self) -> int:
        """Its tokens."""
        return int(self.token_slice.stop - self.token_slice.start)


def create_ubatch_slices(
    num_scheduled_tokens: IntArray, split_points: int | list[int]
) -> list[UBatchSlice]:
    """Cut a batch into micro-batches at some tokens.

    Args:
        num_scheduled_tokens: NumPy int32 or int64[num_reqs], each request's tokens.
        split_points: where to cut, in tokens: one, or a list that increases.

    Returns:
        One more micro-batch than split points. A request that is cut is in both.

    Raises:
        TypeError: an argument of another type or dtype.
        ValueError: no tokens, split points that don't increase strictly inside the batch; in
            checked mode a negative number of tokens.

    Example:
        >>> import numpy as np
        >>> create_ubatch_slices(np.array([4, 10, 5]), 9)[1]
        UBatchSlice(request_slice=slice(1, 3, None), token_slice=slice(9, 19, None))

    Source: the definition is kvtwin's own; the name is vLLM's.
    """
    check_array("num_scheduled_tokens", num_scheduled_tokens)
    if not is_int(split_points) and not isinstance(split_points, list):
        raise TypeError(f"split_points must be an int or a list, got {type(split_points).__name__}")
    if is_checked():
        check_minimum("num_scheduled_tokens", num_scheduled_tokens, 0)
    ends = np.cumsum(num_scheduled_tokens, dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    if total < 1:
        raise ValueError(f"num_scheduled_tokens sums to {total}, expected at least 1")
    cuts = np.array([0, *_check_split_points(split_points, total), total], dtype=np.int64)
    first = np.searchsorted(ends, cuts[:-1], side="right").tolist()
    stop = (np.searchsorted(ends, cuts[1:], side="left") + 1).tolist()
    tokens = cuts.tolist()
    return [
        UBatchSlice(slice(r0, r1), slice(t0, t1))
        for r0, r1, t0, t1 in zip(first, stop, tokens[:-1], tokens[1:], strict=True)
    ]


def slice_query_start_locs(query_start_loc: torch.Tensor, request_slice: slice) -> torch.Tensor:
    """Return the query starts of some consecutive requests, from 0.

    Args:
        query_start_loc: int32[num_reqs + 1], each request's first token, then their number.
        request_slice: the requests.

    Returns:
        int32[requests + 1], a new tensor.

    Raises:
        TypeError: an argument of another type or dtype.
        ValueError: a slice outside the batch; in checked mode starts that don't rise from 0.

    Example:
        >>> import torch
        >>> slice_query_start_locs(torch.tensor([0, 4, 14, 19], dtype=torch.int32), slice(1, 3))
        tensor([ 0, 10, 15], dtype=torch.int32)

    Source: the definition is kvtwin's own; the name is vLLM's.
    """
    check_tensor("query_start_loc", query_start_loc, torch.int32, 1)
    if len(query_start_loc) == 0:
        raise ValueError("query_start_loc is empty, expected num_reqs + 1 entries")
    start, stop = _check_slice("request_slice", request_slice, len(query_start_loc) - 1)
    if is_checked():
        check_starts("query_start_loc", to_host(query_start_loc))
    return query_start_loc[start : stop + 1] - query_start_loc[start]


def _make_metadata_with_slice(
    ubatch_slice: UBatchSlice,
    attn_metadata: Any,  # noqa: ANN401  (an engine's own metadata serves too)
) -> CommonAttentionMetadata:
    """Make the metadata of a micro-batch.

    A request that is cut loses the tokens outside: those behind the micro-batch shorten its
    sequence, those before it count as computed. The batch is not changed.

    Args:
        ubatch_slice: the micro-batch.
        attn_metadata: the batch; its host copies are read, and its block table and slots viewed.

    Returns:
        The micro-batch's metadata; the logits fields and `dcp_local_seq_lens` are None.

    Raises:
        TypeError: an argument of another type.
        ValueError: a micro-batch that is empty, outside the batch, does not begin in its first
            request, or has tokens of requests behind its last; in checked mode a metadata that
            contradicts itself.
        AttributeError: a metadata without what is read.

    Example:
        >>> import torch
        >>> starts = torch.tensor([0, 4, 14, 19], dtype=torch.int32)
        >>> seq_lens = torch.tensor([6, 17, 9], dtype=torch.int32)
        >>> batch = CommonAttentionMetadata(
        ...     query_start_loc=starts,
        ...     query_start_loc_cpu=starts,
        ...     seq_lens=seq_lens,
        ...     seq_lens_cpu=seq_lens,
        ...     num_computed_tokens_cpu=torch.tensor([2, 7, 4], dtype=torch.int32),
        ...     num_reqs=3,
        ...     num_actual_tokens=19,
        ...     max_query_len=10,
        ...     max_seq_len=17,
        ...     block_table_tensor=torch.zeros(3, 9, dtype=torch.int32),
        ...     slot_mapping=torch.arange(19),
        ... )
        >>> part = _make_metadata_with_slice(UBatchSlice(slice(1, 3), slice(9, 19)), batch)
        >>> part.query_start_loc.tolist(), part.num_computed_tokens_cpu.tolist()
        ([0, 5, 10], [12, 4])

    Source: the definition is kvtwin's own; the name is vLLM's.
    """
    if is_checked():
        validate_metadata(attn_metadata)
    return _cut("ubatch_slice", ubatch_slice, attn_metadata)


def split_attn_metadata(
    ubatch_slices: list[UBatchSlice],
    common_attn_metadata: Any,  # noqa: ANN401  (an engine's own metadata serves too)
) -> list[CommonAttentionMetadata]:
    """Make the metadata of every micro-batch of a batch.

    Args:
        ubatch_slices: the micro-batches.
        common_attn_metadata: the batch.

    Returns:
        Their metadata, as `_make_metadata_with_slice` makes it.

    Raises:
        TypeError: an argument of another type.
        ValueError: what `_make_metadata_with_slice` refuses.
        AttributeError: a metadata without what is read.

    Example:
        See `_make_metadata_with_slice`.

    Source: the definition is kvtwin's own; the name is vLLM's.
    """
    check_list("ubatch_slices", ubatch_slices)
    if is_checked():
        validate_metadata(common_attn_metadata)
    return [
        _cut(f"ubatch_slices[{i}]", ubatch_slice, common_attn_metadata)
        for i, ubatch_slice in enumerate(ubatch_slices)
    ]


def _cut(name: str, ubatch_slice: UBatchSlice, metadata: Any) -> CommonAttentionMetadata:  # noqa: ANN401  (an engine's own metadata serves too)
    num_reqs = metadata.num_reqs
    starts = host_vector("query_start_loc_cpu", metadata.query_start_loc_cpu, num_reqs + 1)
    seq_lens = host_vector("seq_lens_cpu", metadata.seq_lens_cpu, num_reqs)
    computed = host_vector("num_computed_tokens_cpu", metadata.num_computed_tokens_cpu, num_reqs)
    r0, r1, t0, t1 = _check_ubatch(name, ubatch_slice, starts, metadata.num_actual_tokens)

    size = r1 - r0
    cut_starts_and_lens = np.empty(2 * size + 1, dtype=np.int32)
    cut_computed = np.empty(size, dtype=np.int32)
    longest = cut_requests(
        starts, seq_lens, computed, r0, r1, t0, t1, cut_starts_and_lens, cut_computed
    )
    on_host = torch.from_numpy(cut_starts_and_lens)
    on_device = on_host
    if uses_kernels(metadata.query_start_loc):  # starts and lengths travel in one copy
        device = metadata.query_start_loc.device
        on_device = upload(cut_starts_and_lens, device, pin_memory=True)
    encoder_seq_lens = metadata.encoder_seq_lens
    return CommonAttentionMetadata(
        query_start_loc=on_device[: size + 1],
        query_start_loc_cpu=on_host[: size + 1],
        seq_lens=on_device[size + 1 :],
        seq_lens_cpu=on_host[size + 1 :],
        num_computed_tokens_cpu=torch.from_numpy(cut_computed),
        num_reqs=size,
        num_actual_tokens=t1 - t0,
        max_query_len=int(longest) or int(metadata.max_query_len),
        max_seq_len=int(metadata.max_seq_len),
        block_table_tensor=metadata.block_table_tensor[r0:r1],
        slot_mapping=metadata.slot_mapping[t0:t1],
        causal=bool(metadata.causal),
        encoder_seq_lens=None if encoder_seq_lens is None else encoder_seq_lens[r0:r1],
    )


@compiled("int64(int32[:], int32[:], int32[:], int64, int64, int64, int64, int32[::1], int32[::1])")
def cut_requests(
    starts: Int32s,
    seq_lens: Int32s,
    computed: Int32s,
    r0: int,
    r1: int,
    t0: int,
    t1: int,
    cut_starts_and_lens: Int32s,
    cut_computed: Int32s,
) -> np.int64:
    """Write the starts, lengths and computed tokens of a micro-batch; return its longest query."""
    size = r1 - r0
    cut_starts_and_lens[0] = min(max(starts[r0], t0), t1) - t0
    longest = np.int64(0)
    for i in range(size):
        start = np.int64(starts[r0 + i])
        end = np.int64(starts[r0 + i + 1])
        behind = max(end - max(start, np.int64(t1)), np.int64(0))
        before = max(min(end, np.int64(t0)) - start, np.int64(0))
        cut_starts_and_lens[i + 1] = min(max(starts[r0 + i + 1], t0), t1) - t0
        cut_starts_and_lens[size + 1 + i] = seq_lens[r0 + i] - behind
        cut_computed[i] = computed[r0 + i] + before
        longest = max(longest, end - start - behind - before)
    return longest


def _check_split_points(split_points: int | list[int], total: int) -> list[int]:
    """Return the split points as a list of ints that increase strictly inside the batch."""
    if not isinstance(split_points, list):
        return [check_int("split_points", split_points, 1, total - 1)]
    points = check_ints("split_points", split_points, 1, total - 1)
    falls = np.flatnonzero(np.diff(points) <= 0)
    if len(falls):
        at = falls[0] + 1
        raise ValueError(
            f"split_points[{at}] is {points[at]}, expected more than {points[at - 1]} before it"
        )
    return split_points


def _check_slice(name: str, value: object, length: int) -> tuple[int, int]:
    """Return where a slice starts and stops, inside `length` things."""
    if not isinstance(value, slice):
        raise TypeError(f"{name} must be a slice, got {type(value).__name__}")
    if value.step is not None and check_int(f"{name}.step", value.step) != 1:
        raise ValueError(f"{name}.step is {value.step}, expected None or 1")
    stop = check_int(f"{name}.stop", value.stop, 0, length)
    return check_int(f"{name}.start", value.start, 0, stop), stop


def _check_ubatch(
    name: str, ubatch_slice: UBatchSlice, starts: IntArray, num_tokens: int
) -> tuple[int, int, int, int]:
    """Return the bounds of a micro-batch: first request and its end, first token and its end."""
    num_reqs = len(starts) - 1
    r0, r1 = _check_slice(f"{name}.request_slice", ubatch_slice.request_slice, num_reqs)
    t0, t1 = _check_slice(f"{name}.token_slice", ubatch_slice.token_slice, num_tokens)
    if r0 == r1 or t0 == t1:
        raise ValueError(f"{name} is empty: requests {r0} to {r1}, tokens {t0} to {t1}")
    begin, end, total = int(starts[r0]), int(starts[r0 + 1]), int(starts[num_reqs])
    in_padding = t0 >= total and begin == end
    if not begin <= t0 < end and not in_padding:
        raise ValueError(
            f"{name}.token_slice starts at {t0}, expected it inside request {r0},"
            f" tokens {begin} to {end}"
        )
    last = max(int(starts[r1]), t0)
    if last < min(t1, total):
        raise ValueError(
            f"{name}.request_slice stops at {r1}, but tokens {last} to {min(t1, total)}"
            " of token_slice are of later requests"
        )
    return r0, r1, t0, t1
