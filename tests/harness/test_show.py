"""What a failure looks like: golden texts, and texts of anything that stay within a screen."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import reference
from conformance.harness.severity import cause_of, gravity_of
from conformance.harness.show import failure_text, one_line
from conformance.harness.story import Circumstances, Difference, Failure, Story, Verdict

REPLAY = "python -m conformance --replay failures/f-12345678.json --impl /tmp/mine.py --target host"

SLOTS = Story(
    "compute_slot_mapping",
    {
        "block_table": np.array([[1, 9], [7, 9]], np.int32),
        "query_start_loc": np.array([0, 3, 4], np.int32),
        "positions": np.array([0, 1, 2, 1, 0]),
        "block_size": 2,
    },
)


def metadata(num_reqs: int, **changes: object) -> reference.CommonAttentionMetadata:
    query_lens, computed = np.arange(num_reqs) % 3 + 1, np.arange(num_reqs, dtype=np.int32)
    starts = np.cumsum([0, *query_lens]).astype(np.int32)
    lens = (computed + query_lens).astype(np.int32)
    fields: dict[str, Any] = {
        "query_start_loc": starts,
        "query_start_loc_cpu": starts,
        "seq_lens": lens,
        "seq_lens_cpu": lens,
        "num_computed_tokens_cpu": computed,
        "num_reqs": num_reqs,
        "num_actual_tokens": int(starts[-1]),
        "max_query_len": 3,
        "max_seq_len": int(lens.max()),
        "block_table_tensor": np.arange(num_reqs * 3, dtype=np.int32).reshape(num_reqs, 3),
        "slot_mapping": np.arange(starts[-1]),
    }
    return reference.CommonAttentionMetadata(**fields | changes)


def wrong_slots(story: Story = SLOTS, condition: str = "") -> Failure:
    expected = np.array([2, 3, 4, 15, -1])
    got = torch.tensor([2, 3, 4, 17, -1])
    difference = Difference("result", got, expected, "wrong value", index=(3,))
    return Failure(story, "host", difference, condition)


def test_a_wrong_value() -> None:
    expected = r"""
compute_slot_mapping on host: wrong value
    result[3] = 17, but should be 15  (token 0 of request 1)
    1 of 5 elements differ; result[0:5]:
    got       2  3  4  17  -1
    expected  2  3  4  15  -1
called with
    block_size = 2
    request  query  tokens  block_table  positions
    0        3      0..2    1 9          0 1 2
    1        1      3..3    7 9          1
    padding  1      4..4                 0
To reproduce:
    python -m conformance --replay failures/f-12345678.json --impl /tmp/mine.py --target host
    mine.compute_slot_mapping(block_table=torch.tensor([[1, 9], [7, 9]], dtype=torch.int32),
        query_start_loc=torch.tensor([0, 3, 4], dtype=torch.int32), positions=torch.tensor([0, 1, 2,
        1, 0], dtype=torch.int64), block_size=2)
"""
    assert expected.strip() == failure_text(wrong_slots(), REPLAY)
    line = "compute_slot_mapping on host: result[3] = 17, but should be 15"
    assert line == one_line(wrong_slots())


def test_a_condition_and_circumstances() -> None:
    how = Circumstances(("strided", "offset"), is_negated=True, mode="inference mode")
    failure = wrong_slots(dataclasses.replace(SLOTS, circumstances=how), "a held result")
    lines = failure_text(failure, f"{REPLAY} --profile default").splitlines()
    assert lines[-5:] == [
        "needed: a held result",
        "circumstances: layouts: strided offset; negated; mode: inference mode",
        "To reproduce:",
        f"    {REPLAY} \\",
        "        --profile default",
    ]
    assert one_line(failure).endswith("but should be 15 (a held result)")


def test_a_request_in_the_middle_of_many() -> None:
    batch = metadata(300)
    expected = batch.seq_lens
    got = torch.tensor(expected)
    got[250] += 1
    difference = Difference("result.seq_lens", got, expected, "wrong value", index=(250,))
    failure = Failure(Story("f", {"common_attn_metadata": batch}), "native", difference)
    text = failure_text(failure, REPLAY)
    assert "    result.seq_lens[250] = 253, but should be 252  (request 250)\n" in text
    assert "    1 of 300 elements differ; result.seq_lens[245:257]:\n" in text
    assert "    250      2      499..500  252       250       750 751 752  499 500\n" in text
    assert "mine.f(" not in text


def test_a_refusal() -> None:
    changed = metadata(2, seq_lens=np.array([-3, 3], np.int32))
    story = Story(
        "split_attn_metadata",
        {
            "ubatch_slices": [reference.UBatchSlice(slice(0, 1), slice(0, 1))],
            "common_attn_metadata": changed,
        },
        changed=("common_attn_metadata", "seq_lens"),
    )
    error = ValueError("seq_lens[0] is -3, less than its query length 1")
    verdict = Verdict.MISSING_REFUSAL
    difference = Difference("the call", [None], error, "no refusal", verdict)
    expected = r"""
split_attn_metadata on host: no refusal (missing refusal)
    a valid call with one place changed: common_attn_metadata.seq_lens = [-3, 3] int32
    the call returned [None]
    but reference raises ValueError: seq_lens[0] is -3, less than its query length 1
called with
    ubatch_slices = [UBatchSlice(request_slice=slice(0, 1), token_slice=slice(0, 1))]
    num_reqs = 2, num_actual_tokens = 3, max_query_len = 3, max_seq_len = 3, causal = True
    request  query  tokens  seq_lens  seq_lens_cpu  computed  block_table  slot_mapping
    0        1      0..0    -3        1             0         0 1 2        0
    1        2      1..2    3         3             1         3 4 5        1 2
To reproduce:
    python -m conformance --replay failures/f-12345678.json --impl /tmp/mine.py --target host
"""
    assert expected.strip() == failure_text(Failure(story, "host", difference), REPLAY)
    del changed.seq_lens
    assert "common_attn_metadata.seq_lens removed" in failure_text(
        Failure(story, "host", difference), REPLAY
    )


def test_words_for_other_differences() -> None:
    array = np.array([1, 2], np.int32)
    many = torch.tensor([1, 2, 3])
    nan = [np.array([bits], np.uint32).view(np.float32) for bits in (0x7FC00001, 0x7FC00000)]
    table = {
        "result.dtype = int64, but should be int32": ("result", many, array, "wrong dtype"),
        "result.shape = (3,), but should be (2,)": ("result", many, array, "wrong shape"),
        "type(result) = float, but should be ndarray": ("result", 1.0, array, "wrong type"),
        "gc.isenabled() = False, but should be True": ("gc.isenabled()", False, True, "changes"),
        "x = kept alive, but should be released": ("x", "kept alive", "released", "keeps memory"),
        "the call raised KeyError: 'a', but should return [1, 2] int32": (
            "the call",
            KeyError("a"),
            array,
            "raises",
        ),
        "the call needs 4 GiB": ("the call", "needs 4 GiB", "a result", "needs 4 GiB"),
        "violates the law once, each slot is written once, slot 3 twice": (
            "each slot is written once",
            "slot 3 twice",
            "holds",
            "violates the law once",
        ),
    }
    for words, (where, got, expected, kind) in table.items():
        failure = Failure(Story("f", {}), "host", Difference(where, got, expected, kind))
        assert f"f on host: {words}" == one_line(failure)
    difference = Difference("result", *nan, "wrong value", index=(0,))
    words = "result[0] = nan, but should be nan  (bits 7fc00001, bits 7fc00000)"
    assert f"f on host: {words}" == one_line(Failure(Story("f", {}), "host", difference))


values = st.recursive(
    st.sampled_from(
        [
            np.zeros((0, 3), np.int8),
            np.array(3.5),
            np.ones((40, 2, 3), np.float16),
            torch.ones(3, 1000, dtype=torch.bfloat16),
            torch.zeros((), dtype=torch.bool),
            np.dtype("float16"),
            torch.int8,
            reference.UBatchSlice,
            object(),
            ValueError("\x1b[2J\n" * 99),
            metadata(3),
            "x" * 999,
            10**300,
            None,
            slice(None),
            {1, 2},
        ]
    ),
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text(), inner),
    max_leaves=12,
)
names = st.sampled_from(["query_start_loc", "positions", "seq_lens", "out", "block_table", "x"])


@settings(max_examples=50)
@given(
    st.dictionaries(names, values),
    values,
    values,
    st.sampled_from(["result", "out", "result[3].seq_lens", "the call"]),
    st.none() | st.sampled_from([(), ("x",), ("out", 3, "y")]),
)
def test_anything_fits_a_screen(
    arguments: dict[str, Any], got: object, expected: object, where: str, changed: tuple[Any] | None
) -> None:
    story = Story("f", arguments, changed=changed)
    failure = Failure(story, "host", Difference(where, got, expected, "wrong value"))
    lines = failure_text(failure, REPLAY).splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 100
    assert all(line.isprintable() for line in [*lines, one_line(failure)])


def test_causes() -> None:
    refusal = Difference("the call", 0, ValueError(), "no refusal", Verdict.MISSING_REFUSAL)
    crash = Failure(SLOTS, "host", Difference("the call", ValueError(), 0, "raises"))
    missing = Failure(SLOTS, "host", refusal)
    worst, same = wrong_slots(), wrong_slots(condition="another call")
    again = dataclasses.replace(same.difference, where="result", index=(1,))
    native = Failure(SLOTS, "native", again)
    needs = Failure(SLOTS, "host", dataclasses.replace(again, where="out"), "two threads")
    found: dict[Any, list[Failure]] = {}
    for failure in sorted([missing, needs, crash, same, worst, native], key=gravity_of):
        found.setdefault(cause_of(failure), []).append(failure)
    assert [[worst, native, same], [crash], [needs], [missing]] == [*found.values()]
