"""Causal convolutions: which program of the kernel does which tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference import PAD_SLOT_ID, compute_causal_conv1d_metadata

EXAMPLES = settings(max_examples=80, deadline=None, derandomize=True, database=None)

QUERY_LENS = st.lists(st.sampled_from((0, 1, 7, 8, 9, 16, 17, 40)), max_size=8)


def starts_of(query_lens: list[int]) -> np.ndarray[Any, Any]:
    """Return where each sequence starts."""
    return np.array([sum(query_lens[:i]) for i in range(len(query_lens) + 1)], np.int32)


def programs_of(starts: np.ndarray[Any, Any]) -> list[tuple[int, range]]:
    """Return the sequence and the tokens of each program, as a kernel reads them."""
    _, batch_ptr, token_chunk_offset_ptr = compute_causal_conv1d_metadata(starts)
    programs = []
    for sequence, offset in zip(batch_ptr.tolist(), token_chunk_offset_ptr.tolist(), strict=True):
        if sequence == PAD_SLOT_ID:
            break
        start, stop = int(starts[sequence]), int(starts[sequence + 1])
        programs.append((sequence, range(start + 8 * offset, min(start + 8 * offset + 8, stop))))
    return programs


def test_the_example() -> None:
    """The worked example, every entry of it."""
    found = compute_causal_conv1d_metadata(np.array([0, 9, 9, 25], np.int32))
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
def test_dtypes(query_lens: list[int]) -> None:
    """Sequences of programs are int64, all else int32; lists of nothing too."""
    nums_dict, batch_ptr, token_chunk_offset_ptr = compute_causal_conv1d_metadata(
        starts_of(query_lens)
    )
    assert {"nums": "int32", "mlist": "int64", "offsetlist": "int32"} == {
        name: nums_dict[8][name].dtype.name for name in ("nums", "mlist", "offsetlist")
    }
    assert ("int32", "int32") == (batch_ptr.dtype.name, token_chunk_offset_ptr.dtype.name)


@pytest.mark.parametrize(
    ("num_tokens", "num_programs", "length"),
    [(0, 0, 2048), (8184, 1023, 2048), (8192, 1024, 2048), (8193, 1025, 2050), (9000, 1125, 2250)],
)
def test_the_length_of_the_pointers(num_tokens: int, num_programs: int, length: int) -> None:
    """They have room for twice the programs, but for 1024 twice at least."""
    nums_dict, batch_ptr, token_chunk_offset_ptr = compute_causal_conv1d_metadata(
        starts_of([num_tokens])
    )
    assert num_programs == nums_dict[8]["mlist_len"]
    assert (length, length) == (len(batch_ptr), len(token_chunk_offset_ptr))
    assert {PAD_SLOT_ID} == set(batch_ptr[num_programs:].tolist())
    assert {PAD_SLOT_ID} == set(token_chunk_offset_ptr[num_programs:].tolist())


def test_no_sequences() -> None:
    """No sequences have no programs."""
    nums_dict, batch_ptr, _ = compute_causal_conv1d_metadata(starts_of([]))
    programs = nums_dict[8]
    assert [[], [], []] == [programs[name].tolist() for name in ("nums", "mlist", "offsetlist")]
    assert (0, 0) == (programs["tot"], programs["mlist_len"])
    assert {PAD_SLOT_ID} == set(batch_ptr.tolist())


@EXAMPLES
@given(QUERY_LENS)
def test_programs_cover_each_token_once(query_lens: list[int]) -> None:
    """Each token is in one program, in runs of 1 to 8 tokens of one sequence, in order."""
    starts = starts_of(query_lens)
    programs = programs_of(starts)
    assert list(range(starts[-1])) == [token for _, tokens in programs for token in tokens]
    assert all(1 <= len(tokens) <= 8 for _, tokens in programs)
    assert sorted(sequence for sequence, _ in programs) == [sequence for sequence, _ in programs]
    for sequence, query_len in enumerate(query_lens):
        of_sequence = [tokens for found, tokens in programs if found == sequence]
        assert query_len == sum(len(tokens) for tokens in of_sequence)
        assert all(len(tokens) == 8 for tokens in of_sequence[:-1])


@EXAMPLES
@given(QUERY_LENS)
def test_lists_agree(query_lens: list[int]) -> None:
    """The lists and the counts say the same."""
    programs = compute_causal_conv1d_metadata(starts_of(query_lens))[0][8]
    nums = programs["nums"].tolist()
    assert [i for i, num in enumerate(nums) for _ in range(num)] == programs["mlist"].tolist()
    assert [k for num in nums for k in range(num)] == programs["offsetlist"].tolist()
    assert sum(nums) == programs["tot"] == programs["mlist_len"] == len(programs["mlist"])


@EXAMPLES
@given(QUERY_LENS, st.integers(1, 4))
def test_a_convolution_run_program_by_program(query_lens: list[int], width: int) -> None:
    """Programs that see their sequence's earlier tokens alone make the plain convolution."""
    starts = starts_of(query_lens)
    x = np.arange(1, starts[-1] + 1) ** 2
    weights = [3, -5, 7, 2][:width]
    expected = []
    for i, query_len in enumerate(query_lens):
        sequence = x[starts[i] : starts[i] + query_len]
        expected += np.convolve(sequence, weights)[:query_len].tolist() if query_len else []
    y = [0] * len(x)
    for sequence_index, tokens in programs_of(starts):
        for token in tokens:
            for k, weight in enumerate(weights):
                if token - k >= starts[sequence_index]:
                    y[token] += weight * int(x[token - k])
    assert expected == y


def test_nothing_is_changed_or_shared() -> None:
    """The input, a view or read-only, is as it was, and nothing made shares memory."""
    starts = np.array([0, -1, 9, -1, 9, -1, 25], np.int32)[::2]
    starts.flags.writeable = False
    nums_dict, *pointers = compute_causal_conv1d_metadata(starts)
    assert [0, 9, 9, 25] == starts.tolist()
    programs = nums_dict[8]
    arrays = [starts, *pointers, programs["nums"], programs["mlist"], programs["offsetlist"]]
    for i, array in enumerate(arrays):
        assert not any(np.shares_memory(array, other) for other in arrays[:i])


@pytest.mark.parametrize(
    ("query_start_loc_p", "error", "message"),
    [
        ([0, 9], TypeError, "query_start_loc_p must be an array, got list"),
        (
            np.array([0, 9]),
            TypeError,
            "query_start_loc_p must be int32, got int64",
        ),
        (
            np.zeros((1, 2), np.int32),
            ValueError,
            "query_start_loc_p must have 1 dimension, got shape (1, 2)",
        ),
        (
            np.zeros(0, np.int32),
            ValueError,
            "query_start_loc_p is empty, expected num_reqs + 1 entries",
        ),
        (np.array([1, 9], np.int32), ValueError, "query_start_loc_p[0] is 1, expected 0"),
        (
            np.array([0, 9, 8], np.int32),
            ValueError,
            "query_start_loc_p[2] is 8, less than 9 before it",
        ),
    ],
)
def test_refusals(
    query_start_loc_p: Any,  # noqa: ANN401  # of any type
    error: type[Exception],
    message: str,
) -> None:
    """Starts that are none are refused, in these words."""
    with pytest.raises(error) as caught:
        compute_causal_conv1d_metadata(query_start_loc_p)
    assert message == str(caught.value)
