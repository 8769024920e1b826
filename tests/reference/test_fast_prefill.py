"""KV-sharing fast prefill: the batch of the wanted tokens."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import reference
from reference import (
    KV_SHARING_FAST_PREFILL_METADATA_FIELDS,
    CommonAttentionMetadata,
    KVSharingFastPrefillMetadata,
    kv_reads,
    make_kv_sharing_fast_prefill_common_attn_metadata,
    subclass_attention_metadata,
)

BatchMaker: TypeAlias = Callable[..., CommonAttentionMetadata]

EXAMPLES = settings(max_examples=80, deadline=None, derandomize=True, database=None)

SAME_OBJECTS = (
    *("seq_lens", "seq_lens_cpu", "num_computed_tokens_cpu", "block_table_tensor"),
    "slot_mapping",
)


def wanted_of(batch: CommonAttentionMetadata) -> CommonAttentionMetadata:
    """Return the metadata of the wanted tokens."""
    return make_kv_sharing_fast_prefill_common_attn_metadata(batch)


def logits_of(indices: list[int], *, padding: int = 0, dtype: Any = np.int64) -> dict[str, Any]:  # noqa: ANN401  # a dtype
    """Return the logits fields of a batch of which these tokens are wanted."""
    padded = np.array(indices + [10**6] * padding, dtype)
    return {"logits_indices_padded": padded, "num_logits_indices": len(indices)}


def test_the_fields() -> None:
    """They are a list of name, type and default; types are classes or unions, no strings."""
    assert isinstance(KV_SHARING_FAST_PREFILL_METADATA_FIELDS, list)
    (indices, number) = KV_SHARING_FAST_PREFILL_METADATA_FIELDS
    assert ("logits_indices_padded", None) == (indices[0], indices[2])
    assert type(None) in indices[1].__args__
    assert ("num_logits_indices", int, 0) == number
    cls = subclass_attention_metadata("Fast", object, KV_SHARING_FAST_PREFILL_METADATA_FIELDS)
    assert (None, 0) == (cls().logits_indices_padded, cls().num_logits_indices)


def test_the_protocol() -> None:
    """It asks for the two attributes, and nothing of what they hold."""
    both = {"logits_indices_padded": None, "num_logits_indices": None}
    assert isinstance(SimpleNamespace(**both), KVSharingFastPrefillMetadata)
    for name in both:
        assert not isinstance(SimpleNamespace(**{name: 1}), KVSharingFastPrefillMetadata)


@pytest.mark.parametrize("padding", [0, 3])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_the_example(make_batch: BatchMaker, padding: int, dtype: type[Any]) -> None:
    """The worked example, every field of it."""
    batch = make_batch(
        [15, 5, 8],
        [0, 3, 9],
        padding_tokens=2,
        causal=False,
        encoder_seq_lens=np.array([1, 2, 3]),
        dcp_local_seq_lens=np.array([1, 2, 3], np.int32),
        **logits_of([14, 18, 19, 27], padding=padding, dtype=dtype),
    )
    batch.max_seq_len = 100
    before = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    wanted = wanted_of(batch)
    wanted.validate(block_size=2)
    assert [0, 1, 3, 4] == wanted.query_start_loc.tolist() == wanted.query_start_loc_cpu.tolist()
    assert wanted.query_start_loc is not wanted.query_start_loc_cpu
    assert {"int32"} == {wanted.query_start_loc.dtype.name, wanted.query_start_loc_cpu.dtype.name}
    for name in SAME_OBJECTS:
        assert getattr(batch, name) is getattr(wanted, name), name
    assert (3, 4, 2, 100) == (
        wanted.num_reqs,
        wanted.num_actual_tokens,
        wanted.max_query_len,
        wanted.max_seq_len,
    )
    assert True is wanted.causal
    assert wanted.logits_indices_padded is wanted.num_logits_indices is None
    assert wanted.encoder_seq_lens is wanted.dcp_local_seq_lens is None
    assert all(value is getattr(batch, name) for name, value in before.items())


@pytest.mark.parametrize(
    ("query_lens", "indices", "starts", "max_query_len"),
    [
        pytest.param([3, 2], [], [0, 0, 0], 0, id="none wanted"),
        pytest.param([3, 2], [2], [0, 1, 1], 1, id="none of the last"),
        pytest.param([3, 2], [4], [0, 0, 1], 1, id="none of the first"),
        pytest.param([3, 2], [0, 1, 2, 3, 4], [0, 3, 5], 3, id="all wanted"),
        pytest.param([3, 0, 2], [2, 3, 4], [0, 1, 1, 3], 2, id="an empty request between"),
        pytest.param([3, 0, 0], [1, 2], [0, 2, 2, 2], 2, id="padded requests"),
        pytest.param([0, 0], [], [0, 0, 0], 0, id="no tokens"),
        pytest.param([], [], [0], 0, id="no requests"),
    ],
)
def test_corners(
    make_batch: BatchMaker,
    query_lens: list[int],
    indices: list[int],
    starts: list[int],
    max_query_len: int,
) -> None:
    """Requests with none or all of their tokens wanted, and none at all."""
    wanted = wanted_of(make_batch(query_lens, [0] * len(query_lens), **logits_of(indices)))
    assert starts == wanted.query_start_loc.tolist()
    assert (len(indices), max_query_len) == (wanted.num_actual_tokens, wanted.max_query_len)


@EXAMPLES
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=5), st.data())
def test_each_request_has_its_wanted_tokens(
    make_batch: BatchMaker, requests: list[tuple[int, int]], data: st.DataObject
) -> None:
    """A request's new query length is how many of its tokens are wanted; the batch stays valid."""
    query_lens = [q for q, _ in requests]
    indices = [t for t in range(sum(query_lens)) if data.draw(st.booleans())]
    batch = make_batch(
        query_lens, [c for _, c in requests], **logits_of(indices, padding=2), max_query_len=9
    )
    wanted = wanted_of(batch)
    wanted.validate(block_size=2)
    owners = np.repeat(np.arange(len(query_lens)), query_lens)[indices].tolist()
    expected = [owners.count(request) for request in range(len(query_lens))]
    assert expected == np.diff(wanted.query_start_loc).tolist()
    assert max(expected, default=0) == wanted.max_query_len
    assert len(indices) == wanted.num_actual_tokens == wanted.query_start_loc[-1]


@EXAMPLES
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 5)), max_size=4))
def test_the_last_tokens_read_what_they_read(
    make_batch: BatchMaker, requests: list[tuple[int, int, int]]
) -> None:
    """Where the wanted tokens are the last of their requests, each keeps its reads."""
    query_lens = [q for q, _, _ in requests]
    indices = [
        sum(query_lens[:i]) + query_len - num_wanted + k
        for i, (query_len, _, wish) in enumerate(requests)
        for num_wanted in [min(wish, query_len)]
        for k in range(num_wanted)
    ]
    batch = make_batch(
        query_lens, [c for _, c, _ in requests], **logits_of(indices), max_query_len=5
    )
    kept = {(indices.index(t), p, s) for t, p, s in kv_reads(batch, 2) if t in indices}
    assert kept == kv_reads(wanted_of(batch), 2)


@pytest.mark.parametrize(
    "changes",
    [
        {"max_query_len": 1, **logits_of([2])},
        {"max_query_len": np.int64(1), **logits_of([2])},
        {},
        {"max_query_len": 1},
        {"max_query_len": 1, "query_start_loc": None, "logits_indices_padded": 3}
        | {"num_logits_indices": -1},
        {"query_start_loc": None},
    ],
)
def test_the_metadata_itself(make_batch: BatchMaker, changes: dict[str, Any]) -> None:
    """With one token at most of each, or not armed, it comes back, whatever else it holds."""
    batch = make_batch([3, 2], [0, 0], **changes)
    assert batch is wanted_of(batch)


@dataclasses.dataclass(eq=False)
class Extended(CommonAttentionMetadata):
    """An engine's batch that knows more."""

    note: str = "none"


def test_the_class_of_the_result(make_batch: BatchMaker) -> None:
    """A subclass's fields are kept; an engine's own metadata gives ours, also of NumPy's counts."""
    batch = make_batch([3, 2], [0, 0], **logits_of([2, 4]))
    values = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    extended = wanted_of(Extended(**values, note="mine"))
    assert isinstance(extended, Extended)
    assert ("mine", [0, 1, 2]) == (extended.note, extended.query_start_loc.tolist())
    values |= {"num_reqs": np.int64(2), "max_seq_len": np.int32(9), "note": "lost"}
    values["num_logits_indices"] = np.int16(2)
    own: Any = SimpleNamespace(**values)
    wanted = wanted_of(own)
    assert CommonAttentionMetadata is type(wanted)
    assert [0, 1, 2] == wanted.query_start_loc.tolist()
    for name in SAME_OBJECTS:
        assert getattr(batch, name) is getattr(wanted, name), name
    for name in ("num_reqs", "num_actual_tokens", "max_query_len", "max_seq_len"):
        assert int is type(getattr(wanted, name)), name


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (
            {"num_logits_indices": 0, "max_query_len": 1},
            ValueError,
            (
                "logits_indices_padded is None, but the other logits field is set: fast "
                "prefill needs both"
            ),
        ),
        (
            {"logits_indices_padded": np.array([2]), "max_query_len": 1},
            ValueError,
            (
                "num_logits_indices is None, but the other logits field is set: fast prefill "
                "needs both"
            ),
        ),
        (
            {**logits_of([2]), "num_logits_indices": 2},
            ValueError,
            "logits_indices_padded has 1 entries, expected at least num_logits_indices = 2",
        ),
        (
            {**logits_of([2]), "num_logits_indices": -1},
            ValueError,
            "num_logits_indices is -1, expected 0 to 2147483647",
        ),
        (
            {**logits_of([2]), "num_logits_indices": True},
            TypeError,
            "num_logits_indices must be an int, got True of bool",
        ),
        (
            {**logits_of([2]), "logits_indices_padded": [2]},
            TypeError,
            "logits_indices_padded must be an array, got list",
        ),
        (
            logits_of([2], dtype=np.int16),
            TypeError,
            "logits_indices_padded must be int32 or int64, got int16",
        ),
        (
            {"logits_indices_padded": np.array([[2]]), "num_logits_indices": 1},
            ValueError,
            "logits_indices_padded must have 1 dimension, got shape (1, 1)",
        ),
        (
            logits_of([2, 2]),
            ValueError,
            "logits_indices_padded[1] is 2, expected more than 2 before it",
        ),
        (
            logits_of([2, 4, 3]),
            ValueError,
            "logits_indices_padded[2] is 3, expected more than 4 before it",
        ),
        (
            logits_of([-1, 2]),
            ValueError,
            "logits_indices_padded[0] is -1, expected 0 to 4",
        ),
        (
            logits_of([2, 5]),
            ValueError,
            "logits_indices_padded[1] is 5, expected 0 to 4",
        ),
        (
            {**logits_of([2]), "max_query_len": 2},
            ValueError,
            "max_query_len is 2, less than the query length 3 of request 0",
        ),
        (
            {**logits_of([2]), "max_query_len": 2.0},
            TypeError,
            "max_query_len must be an int, got 2.0 of float",
        ),
    ],
)
def test_refusals(
    make_batch: BatchMaker, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    """Each wrong field is refused, in these words; tokens of padding are none."""
    batch = make_batch([3, 2], [0, 0], padding_tokens=1, **changes)
    with pytest.raises(error) as caught:
        wanted_of(batch)
    assert message == str(caught.value)


@pytest.mark.parametrize("lacking", ["logits_indices_padded", "seq_lens_cpu"])
def test_a_metadata_that_lacks_what_is_read(make_batch: BatchMaker, lacking: str) -> None:
    """An engine's own metadata without a field is refused."""
    values = vars(make_batch([3], [0], **logits_of([2])))
    own: Any = SimpleNamespace(**{name: values[name] for name in values if name != lacking})
    with pytest.raises(AttributeError, match=lacking):
        wanted_of(own)


def test_names() -> None:
    """The field's module has the names that the package has."""
    module = reference.fast_prefill
    for name in ("KVSharingFastPrefillMetadata", "create_fast_prefill_custom_backend"):
        assert getattr(reference, name) is getattr(module, name)
