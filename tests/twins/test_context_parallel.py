"""Context parallelism: the number of a sequence's tokens on each rank."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.twins.arrays import int32

pytestmark = pytest.mark.parametrize("twin", ["reference", "fast", "kernels"], indirect=True)


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
def test_examples(
    twin: Any, seq_lens: list[int], args: tuple[Any, ...], expected: list[Any]
) -> None:
    """The worked example, one rank, and sequences shorter than a round."""
    with twin.checked():
        result = twin.get_dcp_local_seq_lens(twin.array(seq_lens, "int32"), *args)
    assert expected == result.tolist()
    assert result.dtype == twin.dtype("int32")


def test_lengths_near_32_bits(twin: Any) -> None:
    """The longest sequence is split without overflow, also with the longest round of ranks."""
    maximum = 2**31 - 1
    seq_lens = twin.int32(maximum)
    assert [[2**30, 2**30 - 1]] == twin.get_dcp_local_seq_lens(seq_lens, 2).tolist()
    assert [maximum] == twin.get_dcp_local_seq_lens(seq_lens, 1, 0, maximum).tolist()
    assert [1] == twin.get_dcp_local_seq_lens(seq_lens, maximum, maximum - 1).tolist()
    assert [1] == twin.get_dcp_local_seq_lens(seq_lens, 2**30, 2**30 - 1, 1).tolist()
    assert [2**30 - 1] == twin.get_dcp_local_seq_lens(seq_lens, 2, 1, 2**30 - 1).tolist()


@pytest.mark.parametrize(
    ("message", "args"),
    {
        "ValueError: seq_lens must have 1 dimension, got shape (1, 1)": (
            np.array([[5]], np.int32),
        ),
        "ValueError: seq_lens[1] is -1, expected at least 0": (int32(5, -1),),
        "ValueError: dcp_size is 0, expected 1 to 2147483647": (int32(5), 0),
        "ValueError: dcp_rank is 2, expected 0 to 1": (int32(5), 2, 2),
        "ValueError: cp_kv_cache_interleave_size is 0, expected 1 to 2147483647": (
            int32(5),
            2,
            0,
            0,
        ),
        (
            "ValueError: dcp_size 2 times cp_kv_cache_interleave_size 1073741824 is "
            "2147483648, expected at most 2147483647"
        ): (int32(5), 2, 0, 2**30),
    }.items(),
)
def test_refusals(twin: Any, args: tuple[Any, ...], message: str) -> None:
    """Each violated precondition is refused with its message."""
    with twin.refuses(message):
        twin.get_dcp_local_seq_lens(*twin.convert(args))
