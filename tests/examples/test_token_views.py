"""Speculative decoding's views of tokens by request, and the programs of causal convolutions."""

from __future__ import annotations

import numpy as np
import pytest

from tests.examples.twins import Twin, shares_memory


@pytest.mark.parametrize(
    ("tokens", "batch_size", "expected"),
    [
        ([0, 1, 2, 3], 2, [[0, 1], [2, 3]]),
        ([0, 1, 2, 3], 4, [[0], [1], [2], [3]]),
        ([0, 1, 2, 3, 4, 5], 1, [[0, 1, 2, 3, 4, 5]]),
        ([], 2, [[], []]),
    ],
)
def test_tokens_of_each_request(twin: Twin, tokens, batch_size, expected) -> None:
    query = twin.of(np.array(tokens, np.int64).reshape(-1, 1, 1))
    by_request = twin.reshape_query_for_spec_decode(query, batch_size)
    assert expected == by_request[..., 0, 0].tolist()
    back = twin.reshape_attn_output_for_spec_decode(by_request)
    assert (query.shape, tokens) == (back.shape, back[:, 0, 0].tolist())
    assert back is twin.reshape_attn_output_for_spec_decode(back)  # it has three dimensions
    if tokens:
        back[0, 0, 0] = 70  # a view of a view
        assert [70, *tokens[1:]] == query[:, 0, 0].tolist()


NUMBERS = np.arange(48).reshape(3, 4, 4, 1) // 4  # 3 requests of 4 tokens of 4 heads, numbered


@pytest.mark.parametrize(
    ("attn_output", "expected"),
    [
        pytest.param(NUMBERS[::2, :1], [0, 8], id="one token of each"),
        pytest.param(NUMBERS[2:, ::2], [8, 10], id="one request"),
        pytest.param(NUMBERS[:, ::2], [0, 2, 4, 6, 8, 10], id="every other token"),
        pytest.param(np.broadcast_to(NUMBERS[:1, 1:2], (2, 2, 4, 1)), [1] * 4, id="repeated"),
        pytest.param(NUMBERS[:2, :, ::3], list(range(8)), id="strided heads"),
    ],
)
def test_strides_that_allow_a_view(twin: Twin, attn_output, expected) -> None:
    if not attn_output.flags.writeable:
        attn_output = np.lib.stride_tricks.as_strided(
            attn_output.copy()[:1, :1], attn_output.shape, (0, 0, *attn_output.strides[2:])
        )
    attn_output = twin.of(attn_output)
    flat = twin.reshape_attn_output_for_spec_decode(attn_output)
    assert expected == flat[:, 0, 0].tolist()
    assert shares_memory(attn_output, flat)


@pytest.mark.parametrize(
    ("query_lens", "nums", "requests", "chunks"),
    [
        # programs of 8 tokens each: how many of each request; the request and chunk of each program
        ([1], [1], [0], [0]),
        ([8, 9], [1, 2], [0, 1, 1], [0, 0, 1]),
        ([7, 0, 16, 17], [1, 0, 2, 3], [0, 2, 2, 3, 3, 3], [0, 0, 1, 0, 1, 2]),
        ([0, 0], [0, 0], [], []),
        ([], [], [], []),
        ([8000, 193], [1000, 25], [0] * 1000 + [1] * 25, [*range(1000), *range(25)]),
    ],
)
def test_programs_of_causal_convolutions(twin: Twin, query_lens, nums, requests, chunks) -> None:
    starts = twin.array([sum(query_lens[:i]) for i in range(len(query_lens) + 1)])
    nums_dict, batch_ptr, token_chunk_offset_ptr = twin.compute_causal_conv1d_metadata(starts)
    assert [8] == list(nums_dict)
    programs = nums_dict[8]
    for pointer, listed in ((batch_ptr, requests), (token_chunk_offset_ptr, chunks)):
        # the pointers are padded to 2048 entries, or twice the programs if these are more
        padding = [-1] * (max(2048, 2 * len(listed)) - len(listed))
        assert listed + padding == pointer.tolist()
    assert programs.pop("batch_ptr") is batch_ptr
    assert programs.pop("token_chunk_offset_ptr") is token_chunk_offset_ptr
    totals = [programs.pop("tot"), programs.pop("mlist_len")]
    assert [(len(requests), int)] * 2 == [(total, type(total)) for total in totals]
    expected = {"nums": nums, "mlist": requests, "offsetlist": chunks}
    assert expected == {name: array.tolist() for name, array in programs.items()}
