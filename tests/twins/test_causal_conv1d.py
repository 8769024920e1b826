"""Causal convolutions: which program of the kernel does which tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.twins.arrays import int32

pytestmark = pytest.mark.parametrize("twin", ["reference", "fast", "kernels"], indirect=True)


def starts_of(twin: Any, query_lens: list[int]) -> Any:
    """Return where each sequence starts."""
    return twin.array([sum(query_lens[:i]) for i in range(len(query_lens) + 1)], "int32")


def programs_of(twin: Any, starts: Any) -> list[tuple[int, range]]:
    """Return the sequence and the tokens of each program, as a kernel reads them."""
    _, batch_ptr, token_chunk_offset_ptr = twin.compute_causal_conv1d_metadata(starts)
    programs = []
    for sequence, offset in zip(batch_ptr.tolist(), token_chunk_offset_ptr.tolist(), strict=True):
        if sequence == twin.PAD_SLOT_ID:
            break
        start, stop = int(starts[sequence]), int(starts[sequence + 1])
        programs.append((sequence, range(start + 8 * offset, min(start + 8 * offset + 8, stop))))
    return programs


def test_the_example(twin: Any) -> None:
    """The worked example, every entry of it."""
    found = twin.compute_causal_conv1d_metadata(twin.int32(0, 9, 9, 25))
    nums_dict, batch_ptr, token_chunk_offset_ptr = found
    assert [8] == list(nums_dict)
    programs = nums_dict[8]
    assert {
        *("nums", "tot", "mlist", "mlist_len", "offsetlist"),
        *("batch_ptr", "token_chunk_offset_ptr"),
    } == set(programs)
    assert [2, 0, 2] == programs["nums"].tolist()
    assert [0, 0, 2, 2] == programs["mlist"].tolist()
    assert [0, 1, 0, 1] == programs["offsetlist"].tolist()
    assert (4, 4) == (programs["tot"], programs["mlist_len"])
    assert {int} == {type(programs["tot"]), type(programs["mlist_len"])}
    assert [0, 0, 2, 2] + [-1] * 2044 == batch_ptr.tolist()
    assert [0, 1, 0, 1] + [-1] * 2044 == token_chunk_offset_ptr.tolist()
    assert batch_ptr is programs["batch_ptr"]
    assert token_chunk_offset_ptr is programs["token_chunk_offset_ptr"]


@pytest.mark.parametrize("query_lens", [[], [0], [9, 0, 16], [8200]])
def test_dtypes(twin: Any, query_lens: list[int]) -> None:
    """Sequences of programs are int64, all else int32; lists of nothing too."""
    nums_dict, batch_ptr, token_chunk_offset_ptr = twin.compute_causal_conv1d_metadata(
        starts_of(twin, query_lens)
    )
    lists = nums_dict[8]
    found = [lists[name].dtype for name in ("nums", "mlist", "offsetlist")]
    found += [batch_ptr.dtype, token_chunk_offset_ptr.dtype]
    assert [twin.dtype(f"int{bits}") for bits in (32, 64, 32, 32, 32)] == found


@pytest.mark.parametrize(
    ("num_tokens", "num_programs", "length"),
    [(0, 0, 2048), (8184, 1023, 2048), (8192, 1024, 2048), (8193, 1025, 2050), (9000, 1125, 2250)],
)
def test_the_length_of_the_pointers(
    twin: Any, num_tokens: int, num_programs: int, length: int
) -> None:
    """They have room for twice the programs, but for 1024 twice at least."""
    nums_dict, batch_ptr, token_chunk_offset_ptr = twin.compute_causal_conv1d_metadata(
        starts_of(twin, [num_tokens])
    )
    assert num_programs == nums_dict[8]["mlist_len"]
    assert (length, length) == (len(batch_ptr), len(token_chunk_offset_ptr))
    assert {twin.PAD_SLOT_ID} == set(batch_ptr[num_programs:].tolist())
    assert {twin.PAD_SLOT_ID} == set(token_chunk_offset_ptr[num_programs:].tolist())


@pytest.mark.parametrize("query_lens", [[0], [0, 1, 7], [8, 9, 0, 16], [17, 40, 1, 8]])
@pytest.mark.parametrize("width", [1, 2, 4])
def test_a_convolution_run_program_by_program(twin: Any, query_lens: list[int], width: int) -> None:
    """Programs that see their sequence's earlier tokens alone make the plain convolution."""
    starts = starts_of(twin, query_lens).tolist()
    x = np.arange(1, starts[-1] + 1) ** 2
    weights = [3, -5, 7, 2][:width]
    expected = []
    for i, query_len in enumerate(query_lens):
        sequence = x[starts[i] : starts[i] + query_len]
        expected += np.convolve(sequence, weights)[:query_len].tolist() if query_len else []
    y = [0] * len(x)
    for sequence_index, tokens in programs_of(twin, twin.int32(*starts)):
        for token in tokens:
            for k, weight in enumerate(weights):
                if token - k >= starts[sequence_index]:
                    y[token] += weight * int(x[token - k])
    assert expected == y


def test_nothing_is_changed_or_shared(twin: Any) -> None:
    """The input, a view, is as it was, and nothing made shares memory."""
    starts = twin.int32(0, -1, 9, -1, 9, -1, 25)[::2]
    nums_dict, *pointers = twin.compute_causal_conv1d_metadata(starts)
    assert [0, 9, 9, 25] == starts.tolist()
    programs = nums_dict[8]
    arrays = [starts, *pointers, programs["nums"], programs["mlist"], programs["offsetlist"]]
    for i, array in enumerate(arrays):
        assert not any(twin.shares_memory(array, other) for other in arrays[:i])


@pytest.mark.parametrize(
    ("query_start_loc_p", "message"),
    [
        (
            np.zeros(0, np.int32),
            "ValueError: query_start_loc_p is empty, expected num_reqs + 1 entries",
        ),
        (int32(1, 9), "ValueError: query_start_loc_p[0] is 1, expected 0"),
        (int32(0, 9, 8), "ValueError: query_start_loc_p[2] is 8, less than 9 before it"),
    ],
)
def test_refusals(twin: Any, query_start_loc_p: Any, message: str) -> None:
    """Starts that are none are refused, in these words."""
    with twin.refuses(message):
        twin.compute_causal_conv1d_metadata(twin.convert(query_start_loc_p))


@pytest.mark.parametrize(
    "query_lens", [[], [0], [0, 0, 0], [1], [8], [7, 8, 9, 0, 16, 17, 1], [8000, 201]]
)
def test_lists_agree(twin: Any, query_lens: list[int]) -> None:
    """A sequence has a program for each 8 tokens, numbered from 0; the pointers list the same."""
    nums_dict, *pointers = twin.compute_causal_conv1d_metadata(starts_of(twin, query_lens))
    programs = nums_dict[8]
    nums = [-(-query_len // 8) for query_len in query_lens]
    lists = [i for i, n in enumerate(nums) for _ in range(n)], [k for n in nums for k in range(n)]
    assert nums == programs["nums"].tolist()
    assert lists == (programs["mlist"].tolist(), programs["offsetlist"].tolist())
    assert sum(nums) == programs["tot"] == programs["mlist_len"]
    for pointer, listed in zip(pointers, lists, strict=True):
        padding = [twin.PAD_SLOT_ID] * (max(2048, 2 * sum(nums)) - sum(nums))
        assert listed + padding == pointer.tolist()
