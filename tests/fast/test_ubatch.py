from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import fast
from fast import UBatchSlice, _make_metadata_with_slice, create_ubatch_slices
from fast._native.ubatch import write_requests, write_requests_of_int64

Make = Callable[..., fast.CommonAttentionMetadata]


def cut(r0: int, r1: int, t0: int, t1: int) -> UBatchSlice:
    """Return a micro-batch."""
    return UBatchSlice(slice(r0, r1), slice(t0, t1))


def test_slices_are_pythons() -> None:
    """Whatever ints come in, slices hold Python's, and no step."""
    [first, second] = create_ubatch_slices(np.array([4, 10, 5], dtype=np.int32), np.int64(9))
    assert (first, second) == (cut(0, 2, 0, 9), cut(1, 3, 9, 19))
    for part in (second.request_slice, second.token_slice):
        assert type(part.start) is type(part.stop) is int
        assert part.step is None
    assert (second.num_tokens, second.is_empty()) == (10, False)


def test_requests_without_tokens_are_in_no_slice_at_its_ends() -> None:
    """Zero-token requests belong to a slice only between two of its requests."""
    tokens = np.array([0, 2, 0, 1, 0, 3, 0])
    assert create_ubatch_slices(tokens, [3]) == [cut(1, 4, 0, 3), cut(5, 6, 3, 6)]
    assert create_ubatch_slices(tokens, []) == [cut(1, 6, 0, 6)]


def test_reads_views() -> None:
    """Strided and read-only arrays are read where they stand."""
    tokens = np.array([4, -9, 10, -9])[::2]
    tokens.flags.writeable = False
    assert create_ubatch_slices(tokens, 4) == [cut(0, 1, 0, 4), cut(1, 2, 4, 14)]


@pytest.mark.parametrize(
    ("tokens", "points", "error", "message"),
    [
        ([4, 10], 0, ValueError, "split_points is 0, expected 1 to 13"),
        ([4, 10], 14, ValueError, "split_points is 14, expected 1 to 13"),
        ([4, 10], [4, 14], ValueError, r"split_points\[1\] is 14, expected 1 to 13"),
        ([4, 10], [4, 4], ValueError, r"split_points\[1\] is 4, expected more than 4"),
        ([4, 10], (4,), TypeError, "split_points must be an int or a list, got tuple"),
        ([4, 10], True, TypeError, "split_points must be an int or a list, got bool"),
        ([4, 10], [4.0], TypeError, r"split_points\[0\] must be an int"),
        ([0, 0], [], ValueError, "num_scheduled_tokens sums to 0"),
        ([], [], ValueError, "num_scheduled_tokens sums to 0"),
        ([4, -1], [1], ValueError, r"num_scheduled_tokens\[1\] is -1"),
    ],
)
def test_create_refuses(
    tokens: list[int],
    points: object,
    error: type[Exception],
    message: str,
) -> None:
    """What is wrong is told with its name."""
    with fast.checks(enabled=True), pytest.raises(error, match=message):
        create_ubatch_slices(np.array(tokens, dtype=np.int64), points)  # type: ignore[arg-type]  # bad ones too


@pytest.mark.parametrize("mask", [False, [True, False, False]])
@pytest.mark.parametrize("checked", [False, True])
def test_counts_have_no_mask(mask: Any, checked: bool) -> None:  # noqa: ANN401  # NumPy's masks
    """What a mask hides is no count: it was summed as nothing, and read as what it is."""
    counts = np.ma.MaskedArray([-3, 5, 3], mask=mask)
    message = "num_scheduled_tokens must be a NumPy array, got MaskedArray"
    with fast.checks(checked), pytest.raises(TypeError, match=message):
        create_ubatch_slices(counts, 4)


def test_no_request_is_looked_for_behind_the_last() -> None:
    """Counts that come to less than a cut end at the last request."""
    for write in (write_requests, write_requests_of_int64):
        counts, bounds = np.array([2, 1, 100, 100]), np.zeros(2, np.int64)
        write(counts[:2], np.array([0, 50]), bounds)
        assert bounds.tolist() == [0, 2]


def test_create_takes_numpy() -> None:
    """The counts are a NumPy array, as an engine's scheduler makes them."""
    with pytest.raises(TypeError, match=r"^num_scheduled_tokens must be an array, got list"):
        create_ubatch_slices([4, 10], 4)  # type: ignore[arg-type]  # that is the test
    with pytest.raises(TypeError, match="num_scheduled_tokens must be int32 or int64"):
        create_ubatch_slices(np.array([4.0]), [])


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize(
    ("part", "starts", "seq_lens", "computed", "longest"),
    [
        (cut(0, 2, 0, 9), [0, 4, 9], [6, 12], [2, 7], 5),
        (cut(1, 2, 9, 12), [0, 3], [15], [12], 3),
        (cut(1, 3, 9, 19), [0, 5, 10], [17, 9], [12, 4], 5),
        (cut(0, 3, 0, 19), [0, 4, 14, 19], [6, 17, 9], [2, 7, 4], 10),
    ],
)
def test_parts(
    part: UBatchSlice,
    starts: list[int],
    seq_lens: list[int],
    computed: list[int],
    longest: int,
    make_batch: Make,
) -> None:
    """On both paths a micro-batch is what the definition says; blocks and slots are views."""
    batch = make_batch([4, 10, 5], [2, 7, 4], logits_indices_padded=torch.tensor([1]))
    result = _make_metadata_with_slice(part, batch)
    for name in ("query_start_loc", "query_start_loc_cpu"):
        assert starts == getattr(result, name).tolist()
    for name in ("seq_lens", "seq_lens_cpu"):
        assert seq_lens == getattr(result, name).tolist()
    assert computed == result.num_computed_tokens_cpu.tolist()
    assert (longest, 17) == (result.max_query_len, result.max_seq_len)
    assert type(result.max_query_len) is int
    assert result.logits_indices_padded is None
    row, token = part.request_slice.start, part.token_slice.start
    assert result.slot_mapping.data_ptr() == batch.slot_mapping[token:].data_ptr()
    table = batch.block_table_tensor[row:]
    assert result.block_table_tensor.data_ptr() == table.data_ptr()
    result.validate(block_size=2)


def test_parts_in_the_padding(make_batch: Make) -> None:
    """A micro-batch wholly in the padding has no tokens of requests, but the batch's maximum."""
    batch = make_batch([3, 0], [1, 0], num_actual_tokens=6, slot_mapping=torch.arange(6))
    [first, second] = fast.split_attn_metadata([cut(0, 1, 0, 4), cut(1, 2, 4, 6)], batch)
    assert first.query_start_loc.tolist() == [0, 3]
    assert second.query_start_loc.tolist() == [0, 0]
    assert (second.num_actual_tokens, second.max_query_len) == (2, 3)


def test_padding_behind_an_idle_request(make_batch: Make) -> None:
    """A slice of padding may name a request without tokens that later requests follow."""
    batch = make_batch([0, 4], [0, 0], num_actual_tokens=6, slot_mapping=torch.arange(6))
    part = _make_metadata_with_slice(cut(0, 1, 4, 6), batch)
    assert part.query_start_loc.tolist() == [0, 0]


def test_parts_leave_the_batch_alone(make_batch: Make) -> None:
    """What is computed for a micro-batch is new memory."""
    batch = make_batch([4, 10], [2, 7])
    part = _make_metadata_with_slice(cut(0, 2, 0, 14), batch)
    for name in ("query_start_loc", "seq_lens", "num_computed_tokens_cpu"):
        getattr(part, name).fill_(-1)
    batch.validate()


def test_parts_of_an_engines_own_metadata(make_batch: Make) -> None:
    """Any object with the attributes serves; one that is lacking is told."""
    own = SimpleNamespace(**vars(make_batch([4, 10], [2, 7], encoder_seq_lens=np.array([3, 4]))))
    part = _make_metadata_with_slice(cut(1, 2, 4, 14), own)
    assert isinstance(part, fast.CommonAttentionMetadata)
    assert part.encoder_seq_lens.tolist() == [4]
    del own.causal
    with pytest.raises(AttributeError, match="causal"):
        _make_metadata_with_slice(cut(1, 2, 4, 14), own)


@pytest.mark.parametrize(
    ("part", "error", "message"),
    [
        (cut(0, 0, 0, 4), ValueError, "ubatch_slice is empty"),
        (cut(0, 1, 4, 4), ValueError, "ubatch_slice is empty"),
        (cut(0, 4, 0, 19), ValueError, r"request_slice\.stop is 4, expected 0 to 3"),
        (cut(0, 3, 0, 20), ValueError, r"token_slice\.stop is 20, expected 0 to 19"),
        (cut(-1, 3, 0, 19), ValueError, r"request_slice\.start is -1"),
        (cut(0, 3, 4, 19), ValueError, "starts at 4, expected it inside request 0, tokens 0 to 4"),
        (cut(1, 3, 3, 19), ValueError, "starts at 3, expected it inside request 1, tokens 4 to 14"),
        (cut(0, 2, 0, 19), ValueError, "request_slice stops at 2, but tokens 14 to 19 of token_sl"),
        (UBatchSlice(slice(None, 2), slice(0, 9)), TypeError, r"request_slice\.start must be an"),
        (UBatchSlice(slice(0, 2, 2), slice(0, 9)), ValueError, r"request_slice\.step is 2"),
        (UBatchSlice((0, 2), slice(0, 9)), TypeError, "request_slice must be a slice, got tuple"),
    ],
)
def test_parts_refuse(
    part: UBatchSlice, error: type[Exception], message: str, make_batch: Make
) -> None:
    """A slice that is no micro-batch of this batch is refused in any mode."""
    batch = make_batch([4, 10, 5], [2, 7, 4])
    with fast.checks(enabled=False), pytest.raises(error, match=message):
        _make_metadata_with_slice(part, batch)
    with fast.checks(enabled=False), pytest.raises(error, match=r"ubatch_slices\[1\]"):
        fast.split_attn_metadata([cut(0, 3, 0, 19), part], batch)


@pytest.mark.parametrize("cutter", [_make_metadata_with_slice, None])
def test_checked(cutter: Callable[..., Any] | None, make_batch: Make) -> None:
    """In checked mode the batch itself is checked first."""
    batch = make_batch([4], [2], max_seq_len=5)
    with fast.checks(enabled=True), pytest.raises(ValueError, match="max_seq_len is 5"):
        cutter(cut(0, 1, 0, 4), batch) if cutter else fast.split_attn_metadata([], batch)


def test_starts_of_a_slice() -> None:
    """The starts of a view are read where they stand, and the result is new."""
    starts = torch.tensor([0, 9, 4, 9, 14], dtype=torch.int32)[::2]
    result = fast.slice_query_start_locs(starts, slice(0, 2))
    assert result.tolist() == [0, 4, 14]
    assert result.dtype == torch.int32
    assert result.data_ptr() != starts.data_ptr()
    assert fast.slice_query_start_locs(starts, slice(1, 1)).tolist() == [0]


def test_starts_refuse() -> None:
    """A slice outside the batch, or starts that are none."""
    starts = torch.tensor([0, 4, 3], dtype=torch.int32)
    with pytest.raises(ValueError, match=r"request_slice\.stop is 3, expected 0 to 2"):
        fast.slice_query_start_locs(starts, slice(0, 3))
    with pytest.raises(ValueError, match=r"request_slice\.start is 2, expected 0 to 1"):
        fast.slice_query_start_locs(starts, slice(2, 1))
    with pytest.raises(ValueError, match="query_start_loc is empty"):
        fast.slice_query_start_locs(starts[:0], slice(0, 0))
    with fast.checks(enabled=True), pytest.raises(ValueError, match=r"query_start_loc\[2\] is 3"):
        fast.slice_query_start_locs(starts, slice(0, 1))
