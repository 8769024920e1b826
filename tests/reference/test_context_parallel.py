"""Context parallelism: how much of a sequence each rank holds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference import get_dcp_local_seq_lens

EXAMPLES = settings(max_examples=100, deadline=None, derandomize=True, database=None)


@pytest.mark.parametrize(
    ("seq_lens", "args", "expected"),
    [
        ([5, 8], (2, 0, 2), [3, 4]),
        ([5, 8], (2, 1, 2), [2, 4]),
        ([5, 8], (2, None, 2), [[3, 2], [4, 4]]),
        ([5, 8], (1, None, 2), [[5], [8]]),
        ([5, 8], (), [[5], [8]]),
        ([5, 8], (1, 0), [5, 8]),
        ([0, 1, 4], (3,), [[0, 0, 0], [1, 0, 0], [2, 1, 1]]),
        ([], (2, 1), []),
    ],
)
def test_examples(seq_lens: list[int], args: tuple[Any, ...], expected: list[Any]) -> None:
    """The worked example, one rank, and sequences shorter than a round."""
    result = get_dcp_local_seq_lens(np.array(seq_lens, np.int32), *args)
    assert expected == result.tolist()
    assert result.dtype == np.int32


def test_no_requests_have_a_column_for_each_rank() -> None:
    """The result keeps its shape, and is new."""
    assert (0, 3) == get_dcp_local_seq_lens(np.zeros(0, np.int32), 3).shape
    seq_lens = np.array([4], np.int32)
    assert not np.shares_memory(seq_lens, get_dcp_local_seq_lens(seq_lens, 1, 0))


def test_lengths_near_32_bits() -> None:
    """The greatest sequence is shared out without overflow, also by the greatest round."""
    most = 2**31 - 1
    seq_lens = np.array([most], np.int32)
    assert [[2**30, 2**30 - 1]] == get_dcp_local_seq_lens(seq_lens, 2).tolist()
    assert [most] == get_dcp_local_seq_lens(seq_lens, 1, 0, most).tolist()
    assert [1] == get_dcp_local_seq_lens(seq_lens, most, most - 1).tolist()


@given(
    seq_lens=st.lists(st.integers(0, 60), max_size=5),
    dcp_size=st.integers(1, 5),
    interleave=st.integers(1, 6),
)
@EXAMPLES
def test_ranks_share_out_each_sequence(seq_lens: list[int], dcp_size: int, interleave: int) -> None:
    """Ranks' lengths sum to the sequence's; each is the number of positions that are its own."""
    array = np.array(seq_lens, np.int32)
    all_ranks = get_dcp_local_seq_lens(array, dcp_size, None, interleave)
    assert seq_lens == all_ranks.sum(axis=1).tolist()
    for rank in range(dcp_size):
        counted = [sum(p // interleave % dcp_size == rank for p in range(s)) for s in seq_lens]
        assert counted == all_ranks[:, rank].tolist()
        assert counted == get_dcp_local_seq_lens(array, dcp_size, rank, interleave).tolist()


@pytest.mark.parametrize(
    ("args", "error", "message"),
    [
        ((np.array([5]),), TypeError, "seq_lens must be int32, got int64"),
        (([5],), TypeError, "seq_lens must be an array, got list"),
        (
            (np.array([[5]], np.int32),),
            ValueError,
            "seq_lens must have 1 dimension, got shape (1, 1)",
        ),
        (
            (np.array([5, -1], np.int32),),
            ValueError,
            "seq_lens[1] is -1, expected at least 0",
        ),
        ((np.array([5], np.int32), 0), ValueError, "dcp_size is 0, expected 1 to 2147483647"),
        ((np.array([5], np.int32), 2, 2), ValueError, "dcp_rank is 2, expected 0 to 1"),
        ((np.array([5], np.int32), 2, -1), ValueError, "dcp_rank is -1, expected 0 to 1"),
        (
            (np.array([5], np.int32), 2, 0.0),
            TypeError,
            "dcp_rank must be an int, got 0.0 of float",
        ),
        (
            (np.array([5], np.int32), 2, 0, 0),
            ValueError,
            "cp_kv_cache_interleave_size is 0, expected 1 to 2147483647",
        ),
        (
            (np.array([5], np.int32), 2, 0, 2**30),
            ValueError,
            (
                "dcp_size 2 times cp_kv_cache_interleave_size 1073741824 is 2147483648, "
                "expected at most 2147483647"
            ),
        ),
    ],
)
def test_refusals(args: tuple[Any, ...], error: type[Exception], message: str) -> None:
    """Each precondition broken in turn is refused, in these words."""
    with pytest.raises(error) as caught:
        get_dcp_local_seq_lens(*args)
    assert message == str(caught.value)
