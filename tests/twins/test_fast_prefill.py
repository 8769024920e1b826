"""KV-sharing fast prefill: the batch of the tokens with logits."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.twins.arrays import counts_of, int64

SAME_OBJECTS = (
    *("seq_lens", "seq_lens_cpu", "num_computed_tokens_cpu", "block_table_tensor"),
    "slot_mapping",
)


def fast_prefill_batch(twin: Any, batch: Any) -> Any:
    return twin.make_kv_sharing_fast_prefill_common_attn_metadata(batch)


def logits_of(indices: list[int], *, padding: int = 0, dtype: Any = np.int64) -> dict[str, Any]:
    """Return the logits fields of a batch with logits for these tokens."""
    padded = np.array(indices + [10**6] * padding, dtype)
    return {"logits_indices_padded": padded, "num_logits_indices": len(indices)}


def test_the_fields(twin: Any) -> None:
    assert isinstance(twin.KV_SHARING_FAST_PREFILL_METADATA_FIELDS, list)
    (indices, number) = twin.KV_SHARING_FAST_PREFILL_METADATA_FIELDS
    assert ("logits_indices_padded", None) == (indices[0], indices[2])
    assert type(None) in indices[1].__args__
    assert ("num_logits_indices", int, 0) == number
    cls = twin.subclass_attention_metadata(
        "Fast", object, twin.KV_SHARING_FAST_PREFILL_METADATA_FIELDS
    )
    assert (None, 0) == (cls().logits_indices_padded, cls().num_logits_indices)
    assert isinstance(cls(), twin.KVSharingFastPrefillMetadata)
    for name in vars(cls()):
        assert not isinstance(SimpleNamespace(**{name: 1}), twin.KVSharingFastPrefillMetadata)


@pytest.mark.parametrize("padding", [0, 3])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_the_example(twin: Any, make_batch: Any, padding: int, dtype: type[Any]) -> None:
    batch = make_batch(
        [15, 5, 8],
        [0, 3, 9],
        padding_tokens=2,
        causal=False,
        encoder_seq_lens=int64(1, 2, 3),
        dcp_local_seq_lens=twin.int32(1, 2, 3),
        **logits_of([14, 18, 19, 27], padding=padding, dtype=dtype),
    )
    batch.max_seq_len = 100
    before = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    result = fast_prefill_batch(twin, batch)
    result.validate(block_size=2)
    assert [0, 1, 3, 4] == result.query_start_loc.tolist() == result.query_start_loc_cpu.tolist()
    assert {twin.dtype("int32")} == {result.query_start_loc.dtype, result.query_start_loc_cpu.dtype}
    for name in SAME_OBJECTS:
        assert getattr(batch, name) is getattr(result, name), name
    assert (3, 4, 2, 100) == counts_of(result)
    assert True is result.causal
    assert result.logits_indices_padded is result.num_logits_indices is None
    assert result.encoder_seq_lens is result.dcp_local_seq_lens is None
    assert all(value is getattr(batch, name) for name, value in before.items())


@pytest.mark.parametrize(
    ("query_lens", "indices", "starts", "max_query_len"),
    [
        pytest.param([3, 2], [], [0, 0, 0], 0, id="no logits"),
        pytest.param([3, 2], [2], [0, 1, 1], 1, id="none of the last"),
        pytest.param([3, 2], [4], [0, 0, 1], 1, id="none of the first"),
        pytest.param([3, 2], [0, 1, 2, 3, 4], [0, 3, 5], 3, id="all logits"),
        pytest.param([3, 0, 2], [2, 3, 4], [0, 1, 1, 3], 2, id="an empty request between"),
        pytest.param([3, 0, 0], [1, 2], [0, 2, 2, 2], 2, id="padded requests"),
        pytest.param([0, 0], [], [0, 0, 0], 0, id="no tokens"),
        pytest.param([], [], [0], 0, id="no requests"),
    ],
)
def test_corners(
    twin: Any,
    make_batch: Any,
    query_lens: list[int],
    indices: list[int],
    starts: list[int],
    max_query_len: int,
) -> None:
    result = fast_prefill_batch(
        twin, make_batch(query_lens, [0] * len(query_lens), **logits_of(indices))
    )
    assert starts == result.query_start_loc.tolist()
    assert (len(indices), max_query_len) == (result.num_actual_tokens, result.max_query_len)


@pytest.mark.parametrize(
    "changes",
    [
        {"max_query_len": 1, **logits_of([2])},
        {},
        {"max_query_len": 1},
        {"max_query_len": 1, "query_start_loc": None, "logits_indices_padded": 3}
        | {"num_logits_indices": -1},
        {"query_start_loc": None},
    ],
)
def test_the_metadata_itself(twin: Any, make_batch: Any, changes: dict[str, Any]) -> None:
    batch = make_batch([3, 2], [0, 0], **changes)
    assert batch is fast_prefill_batch(twin, batch)


def test_the_class_of_the_result(twin: Any, make_batch: Any) -> None:
    batch = make_batch([3, 2], [0, 0], **logits_of([2, 4]))
    values = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    base = (twin.CommonAttentionMetadata,)
    extend = dataclasses.make_dataclass("Extended", [("note", str, "none")], bases=base, eq=False)
    extended = fast_prefill_batch(twin, extend(**values, note="mine"))
    assert extend is type(extended)
    assert ("mine", [0, 1, 2]) == (extended.note, extended.query_start_loc.tolist())
    values |= {"num_reqs": np.int64(2), "max_seq_len": np.int32(9), "note": "lost"}
    values["num_logits_indices"] = np.int16(2)
    own: Any = SimpleNamespace(**values)
    result = fast_prefill_batch(twin, own)
    assert twin.CommonAttentionMetadata is type(result)
    assert [0, 1, 2] == result.query_start_loc.tolist()
    for name in SAME_OBJECTS:
        assert getattr(batch, name) is getattr(result, name), name
    for name in ("num_reqs", "num_actual_tokens", "max_query_len", "max_seq_len"):
        assert int is type(getattr(result, name)), name
