"""Context parallelism: the number of a sequence's tokens on each rank."""

from __future__ import annotations

from typing import Any

import pytest


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
    with twin.checked():
        result = twin.get_dcp_local_seq_lens(twin.array(seq_lens, "int32"), *args)
    assert expected == result.tolist()
    assert result.dtype == twin.dtype("int32")


def test_lengths_near_32_bits(twin: Any) -> None:
    maximum = 2**31 - 1
    seq_lens = twin.int32(maximum)
    assert [[2**30, 2**30 - 1]] == twin.get_dcp_local_seq_lens(seq_lens, 2).tolist()
    assert [maximum] == twin.get_dcp_local_seq_lens(seq_lens, 1, 0, maximum).tolist()
    assert [1] == twin.get_dcp_local_seq_lens(seq_lens, maximum, maximum - 1).tolist()
    assert [1] == twin.get_dcp_local_seq_lens(seq_lens, 2**30, 2**30 - 1, 1).tolist()
    assert [2**30 - 1] == twin.get_dcp_local_seq_lens(seq_lens, 2, 1, 2**30 - 1).tolist()
