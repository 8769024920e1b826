"""Causal convolutions: which program of the kernel computes which tokens."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.mark.parametrize(
    "query_lens",
    [[], [0], [0, 0, 0], [1], [8], [7, 8, 9, 0, 16, 17, 1], [8000, 192], [8000, 193]],
)
def test_lists_agree(twin: Any, query_lens: list[int]) -> None:
    starts = [sum(query_lens[:i]) for i in range(len(query_lens) + 1)]
    nums_dict, *pointers = twin.compute_causal_conv1d_metadata(twin.int32(*starts))
    assert [8] == list(nums_dict)
    programs = nums_dict[8]
    assert pointers[0] is programs.pop("batch_ptr")
    assert pointers[1] is programs.pop("token_chunk_offset_ptr")
    assert ["mlist", "mlist_len", "nums", "offsetlist", "tot"] == sorted(programs)
    assert {int} == {type(programs["tot"]), type(programs["mlist_len"])}
    nums = [-(-query_len // 8) for query_len in query_lens]
    lists = [i for i, n in enumerate(nums) for _ in range(n)], [k for n in nums for k in range(n)]
    assert nums == programs["nums"].tolist()
    assert lists == (programs["mlist"].tolist(), programs["offsetlist"].tolist())
    assert sum(nums) == programs["tot"] == programs["mlist_len"]
    for pointer, listed in zip(pointers, lists, strict=True):
        padding = [twin.PAD_SLOT_ID] * (max(2048, 2 * sum(nums)) - sum(nums))
        assert listed + padding == pointer.tolist()
    arrays = [programs[name] for name in ("nums", "mlist", "offsetlist")] + pointers
    expected = [twin.dtype(f"int{bits}") for bits in (32, 64, 32, 32, 32)]
    assert expected == [array.dtype for array in arrays]
