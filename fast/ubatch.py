"""Cut a batch into micro-batches by tokens."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt
import torch

from fast._checks import (
    CPU,
    INT32,
    MAX_INT64,
    NO_MINIMUM,
    IntArray,
    check_any_start,
    check_array,
    check_bool,
    check_int,
    check_ints,
    check_list,
    check_minimum,
    check_order,
    check_starts,
    check_tensor,
    get_type_name,
    is_int,
)
from fast._native.memory import first_of, plain, to_host
from fast._native.ubatch import BatchVectors, add_up, find_requests
from fast.checked_mode import is_checked
from fast.launch import uses_kernels
from fast.metadata import CommonAttentionMetadata
from fast.metadata_validation import (
    KEPT,
    cut_fields,
    read_block_table,
    read_counts,
    read_optional,
    read_slot_mapping,
    read_vector,
    validate_metadata,
)
from fast.operators import check_not_traced, is_traced
from fast.pinned import upload


@dataclass(frozen=True)
class UBatchSlice:
    """The requests and the tokens of a micro-batch.

    Definition: `reference.UBatchSlice`.
    """

    request_slice: slice
    token_slice: slice

    def is_empty(self) -> bool:
        """Return whether it has no requests or no tokens.

        Definition: `reference.UBatchSlice.is_empty`.
        """
        requests, tokens = self.request_slice, self.token_slice
        return bool(requests.stop <= requests.start or tokens.stop <= tokens.start)

    @property
    def num_tokens(self) -> int:
        """The number of its tokens.

        Definition: `reference.UBatchSlice.num_tokens`.
        """
        return int(self.token_slice.stop - self.token_slice.start)


def create_ubatch_slices(
    num_scheduled_tokens: IntArray, split_points: int | list[int]
) -> list[UBatchSlice]:
    """Cut a batch into micro-batches at split points.

    Only checked mode rejects a negative number of tokens.

    Definition: `reference.create_ubatch_slices`.
    """
    check_array("num_scheduled_tokens", num_scheduled_tokens)
    if not is_int(split_points) and not isinstance(split_points, list):
        raise TypeError(f"split_points must be an int or a list, got {get_type_name(split_points)}")
    if is_checked():
        check_minimum("num_scheduled_tokens", num_scheduled_tokens, 0)
    tokens = num_scheduled_tokens.astype(np.int64, subok=False)
    total, fits = add_up(tokens)
    if total < 1:
        raise ValueError(f"num_scheduled_tokens sums to {total}, expected at least 1")
    cuts = [0, *_check_split_points(split_points, total), total]
    ends = iter(find_requests(tokens, cuts, fits))
    return [UBatchSlice(slice(next(ends), next(ends)), slice(t0, t1)) for t0, t1 in pairwise(cuts)]


def slice_query_start_locs(query_start_loc: torch.Tensor, request_slice: slice) -> torch.Tensor:
    """Return where the tokens of some requests start, counted from the first of these tokens.

    Only checked mode rejects starts that do not begin at 0, or that decrease.

    Definition: `reference.slice_query_start_locs`.
    """
    check_tensor("query_start_loc", query_start_loc, torch.int32, 1)
    check_any_start("query_start_loc", len(query_start_loc))
    start, stop = _check_slice("request_slice", request_slice, len(query_start_loc) - 1)
    if not is_traced():
        query_start_loc = plain("query_start_loc", query_start_loc)
        if is_checked():
            check_starts("query_start_loc", to_host("query_start_loc", query_start_loc))
    return query_start_loc[start : stop + 1] - query_start_loc[start]


def _make_metadata_with_slice(
    ubatch_slice: UBatchSlice, attn_metadata: Any
) -> CommonAttentionMetadata:
    """Make the metadata of a micro-batch; the batch itself is not changed.

    On a GPU the call does not synchronise, except in checked mode: the vectors are computed on the
    host and uploaded. Without `seq_lens_cpu`, the lengths are computed on the device. An engine's
    own metadata is accepted; only checked mode validates it.

    Definition: `reference._make_metadata_with_slice`.
    """
    check_not_traced("_make_metadata_with_slice")
    if is_checked():
        validate_metadata(attn_metadata)
    return _split([("ubatch_slice", ubatch_slice)], _read(attn_metadata))[0]


def split_attn_metadata(
    ubatch_slices: list[UBatchSlice], common_attn_metadata: Any
) -> list[CommonAttentionMetadata]:
    """Make the metadata of each micro-batch.

    Reads the batch once for all slices, as `_make_metadata_with_slice` does for one, and uploads
    their vectors in one copy.

    Definition: `reference.split_attn_metadata`.
    """
    check_list("ubatch_slices", ubatch_slices)
    check_not_traced("split_attn_metadata")
    if is_checked():
        validate_metadata(common_attn_metadata)
    if not ubatch_slices:
        return []
    batch = _read(common_attn_metadata)
    named = [(f"ubatch_slices[{i}]", each) for i, each in enumerate(ubatch_slices)]
    return _split(named, batch)


_OPTIONAL: Final = (*KEPT, "seq_lens_cpu_upper_bound")


class _Batch(NamedTuple):
    """The fields of a batch that micro-batches are cut from, checked once for all of them."""

    metadata: Any
    host: BatchVectors
    num_tokens: int
    device: torch.device | None
    block_table: torch.Tensor
    slot_mapping: torch.Tensor
    max_seq_len: int
    causal: bool
    seq_lens: torch.Tensor | None  # if they are not known on the host
    bounds: torch.Tensor | None
    optional: dict[str, Any]


def _read(metadata: Any) -> _Batch:
    num_reqs, num_tokens = read_counts(metadata)
    seq_lens_cpu = getattr(metadata, "seq_lens_cpu", None)
    optional = read_optional(metadata, _OPTIONAL, num_reqs, num_tokens)
    bounds, seq_lens = optional.pop("seq_lens_cpu_upper_bound", None), None
    if seq_lens_cpu is None:
        seq_lens = plain("seq_lens", read_vector(metadata, "seq_lens", num_reqs))
        seq_lens_cpu = torch.zeros(num_reqs, dtype=INT32, device=CPU)
    host = BatchVectors(
        metadata.query_start_loc_cpu,
        seq_lens_cpu,
        metadata.num_computed_tokens_cpu,
        num_reqs,
    )
    starts = read_vector(metadata, "query_start_loc", num_reqs + 1)
    check_bool("causal", metadata.causal)
    return _Batch(
        metadata,
        host,
        num_tokens,
        starts.device if uses_kernels(starts) else None,
        read_block_table(metadata, num_reqs),
        read_slot_mapping(metadata, num_tokens),
        check_int("max_seq_len", metadata.max_seq_len, 0, MAX_INT64),
        bool(metadata.causal),
        seq_lens,
        None if bounds is None else plain("seq_lens_cpu_upper_bound", bounds),
        optional,
    )


class _Cut(NamedTuple):
    """Where a micro-batch is in its batch, and its vectors on the host."""

    requests: tuple[int, int]
    tokens: tuple[int, int]
    vectors: npt.NDArray[np.int32]  # its starts, lengths and computed tokens
    max_query_len: int


def _split(ubatch_slices: list[tuple[str, Any]], batch: _Batch) -> list[CommonAttentionMetadata]:
    """Make the metadata of micro-batches, which have names for errors."""
    cuts = [_cut(name, ubatch_slice, batch) for name, ubatch_slice in ubatch_slices]
    if batch.device is None:
        return [_make(cut, batch) for cut in cuts]
    lengths = [n for cut in cuts for n in (len(cut.vectors) // 3 + 1, len(cut.vectors) // 3)]
    packed = [cut.vectors[: 2 * (len(cut.vectors) // 3) + 1] for cut in cuts]
    uploaded = upload(np.concatenate(packed), batch.device, pin_memory=True).split_with_sizes(
        lengths
    )
    pairs = zip(uploaded[::2], uploaded[1::2], strict=True)
    return [_make(cut, batch, *pair) for cut, pair in zip(cuts, pairs, strict=True)]


def _cut(name: str, ubatch_slice: UBatchSlice, batch: _Batch) -> _Cut:
    host = batch.host
    r0, r1 = _check_slice(f"{name}.request_slice", ubatch_slice.request_slice, host.num_reqs)
    t0, t1 = _check_slice(f"{name}.token_slice", ubatch_slice.token_slice, batch.num_tokens)
    if r0 == r1 or t0 == t1:
        raise ValueError(f"{name} is empty: requests {r0} to {r1}, tokens {t0} to {t1}")
    vectors, longest = host.cut(r0, r1, t0, t1)
    if longest < 0:
        _refuse_tokens(name, host.starts.numpy(), r0, r1, t0, t1)
    if longest == 0:  # only padding: read the bound, which an engine's metadata may lack
        longest = check_int("max_query_len", batch.metadata.max_query_len, 0, MAX_INT64)
    return _Cut((r0, r1), (t0, t1), vectors, longest)


def _make(
    cut: _Cut,
    batch: _Batch,
    starts: torch.Tensor | None = None,
    seq_lens: torch.Tensor | None = None,
) -> CommonAttentionMetadata:
    """Make a micro-batch's metadata; its starts and lengths are those on the host by default."""
    (r0, r1), (t0, t1), vectors, longest = cut
    size = r1 - r0
    starts_cpu = torch.from_numpy(vectors[: size + 1])
    seq_lens_cpu = torch.from_numpy(vectors[size + 1 : 2 * size + 1])
    made = CommonAttentionMetadata(  # by position, which saves 0.3 us
        starts_cpu if starts is None else starts,
        starts_cpu,
        seq_lens_cpu if seq_lens is None else seq_lens,
        seq_lens_cpu,
        torch.from_numpy(vectors[2 * size + 1 :]),
        size,
        t1 - t0,
        longest,
        batch.max_seq_len,
        first_of("block_table_tensor", batch.block_table, r1, r0),
        first_of("slot_mapping", batch.slot_mapping, t1, t0),
        batch.causal,
        **(cut_fields(batch.optional, r0, r1, t0, t1) if batch.optional else {}),
    )
    if batch.bounds is not None or batch.seq_lens is not None:
        _shorten(made, batch, r0, r1)
    return made


def _shorten(made: CommonAttentionMetadata, batch: _Batch, r0: int, r1: int) -> None:
    """Take the tokens behind a micro-batch off the bounds, and off lengths known on the device."""
    cut: Any = made.seq_lens_cpu
    lost = cut - batch.host.seq_lens[r0:r1]
    if batch.bounds is not None:
        made.seq_lens_cpu_upper_bound = batch.bounds[r0:r1] + lost
    if batch.seq_lens is not None:  # those on the host are 0, less what is lost
        made.seq_lens = batch.seq_lens[r0:r1] + made.seq_lens
        made.seq_lens_cpu = None


def _check_split_points(split_points: int | list[int], total: int) -> list[int]:
    """Return the split points as a list of ints that increase strictly inside the batch."""
    if not isinstance(split_points, list):
        return [check_int("split_points", split_points, 1, total - 1)]
    if total <= MAX_INT64:
        points: npt.NDArray[Any] = check_ints("split_points", split_points, 1, total - 1)
    else:
        checked = [
            check_int(f"split_points[{i}]", point, 1, total - 1)
            for i, point in enumerate(split_points)
        ]
        points = np.array(checked, dtype=object)
    check_order("split_points", points, strict=True)
    increasing: list[int] = points.tolist()
    return increasing


def _check_slice(name: str, value: object, length: int) -> tuple[int, int]:
    if type(value) is slice and value.step is None:
        start, stop = value.start, value.stop
        if type(start) is int and type(stop) is int and 0 <= start <= stop <= length:
            return start, stop  # the usual case, in a third of the time
    if not isinstance(value, slice):
        raise TypeError(f"{name} must be a slice, got {get_type_name(value)}")
    if value.step is not None and check_int(f"{name}.step", value.step, NO_MINIMUM, None) != 1:
        raise ValueError(f"{name}.step is {value.step}, expected None or 1")
    stop = check_int(f"{name}.stop", value.stop, 0, length)
    return check_int(f"{name}.start", value.start, 0, stop), stop


def _refuse_tokens(name: str, starts: IntArray, r0: int, r1: int, t0: int, t1: int) -> NoReturn:
    """Raise the error for a micro-batch whose tokens do not fit its requests."""
    begin, end, total = starts.item(r0), starts.item(r0 + 1), starts.item(-1)
    in_padding = t0 >= total and begin == end
    if not begin <= t0 < end and not in_padding:
        raise ValueError(
            f"{name}.token_slice starts at {t0}, expected it inside request {r0},"
            f" tokens {begin} to {end}"
        )
    last = max(starts.item(r1), t0)
    raise ValueError(
        f"{name}.request_slice stops at {r1}, but tokens {last} to {min(t1, total)}"
        " of token_slice are of later requests"
    )
