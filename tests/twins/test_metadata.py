"""`CommonAttentionMetadata`: its fields, its invariants one by one, and `unpadded`."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import reference
import reference.metadata_validation
from tests.twins.arrays import counts_of, int32


def test_fields(twin: Any) -> None:
    fields = dataclasses.fields(twin.CommonAttentionMetadata)
    expected = (
        "query_start_loc query_start_loc_cpu seq_lens seq_lens_cpu num_computed_tokens_cpu "
        "num_reqs num_actual_tokens max_query_len max_seq_len block_table_tensor slot_mapping "
        "causal "
        "logits_indices_padded num_logits_indices encoder_seq_lens dcp_local_seq_lens"
    )
    assert expected.split() == [field.name for field in fields]
    defaults = [f.default for f in fields if f.default is not dataclasses.MISSING]
    assert [True, None, None, None, None] == defaults


def test_the_constructor_checks_nothing(twin: Any) -> None:
    parameters = inspect.signature(twin.CommonAttentionMetadata).parameters
    metadata = twin.CommonAttentionMetadata(**dict.fromkeys(parameters, None))
    with twin.refuses("TypeError: query_start_loc must be an array, got NoneType"):
        metadata.validate()


@pytest.mark.parametrize(
    "changes",
    [
        {"num_computed_tokens_cpu": int32(0, 2, 0)},  # less than s - q: after fast prefill
        {"num_computed_tokens_cpu": int32(3, 5, -9)},  # ignored without query tokens
        {"max_query_len": 99, "max_seq_len": 99},
        {"num_actual_tokens": 6},
        {"num_reqs": np.int64(3), "causal": np.True_},
        {"block_table_tensor": np.full((5, 4), -1, np.int32)},
        {"slot_mapping": np.zeros(20, np.int64)},
        {"encoder_seq_lens": int32(7, 0, 0), "dcp_local_seq_lens": int32(3, 3, 0)},
        {"logits_indices_padded": np.zeros(9, np.int64), "num_logits_indices": 2},
    ],
)
def test_valid_changes(make_batch: Any, changes: dict[str, Any]) -> None:
    make_batch([2, 3, 0], [3, 5, 0], padding_tokens=2, **changes).validate(block_size=2)


@pytest.mark.parametrize("padding_tokens", [0, 3])
def test_a_batch_of_nothing_is_valid(make_batch: Any, padding_tokens: int) -> None:
    metadata = make_batch([], [], padding_tokens=padding_tokens)
    metadata.validate()
    metadata.validate(block_size=2)


def test_rows_need_a_block_size(twin: Any, make_batch: Any) -> None:
    metadata = make_batch([1], [16], block_table_tensor=twin.convert(np.zeros((1, 1), np.int32)))
    metadata.validate()
    metadata.validate(block_size=17)
    with twin.refuses(
        "ValueError: seq_lens[0] is 17 and needs 2 blocks of 16, but row 0 of block_table_tensor "
        "has 1"
    ):
        metadata.validate(block_size=16)
    with twin.refuses("ValueError: block_size is 0, expected 1 to 2147483647"):
        metadata.validate(block_size=0)


@pytest.mark.parametrize(
    "name", [f.name for f in dataclasses.fields(reference.CommonAttentionMetadata)]
)
def test_absent_fields_are_not_checked(twin: Any, make_batch: Any, name: str) -> None:
    fields = vars(make_batch([2, 3, 0], [3, 5, 0], padding_tokens=2))
    lacking = {other: value for other, value in fields.items() if other != name}
    twin.metadata.validate_metadata(SimpleNamespace(**lacking), 2)
    twin.metadata.validate_metadata(SimpleNamespace(**{name: fields[name]}), 2)


def test_pairs_of_fields(twin: Any) -> None:
    for fields, message in (
        ({"seq_lens": int32(1), "num_computed_tokens_cpu": int32(9)}, None),
        ({"query_start_loc": int32(0, 1), "num_computed_tokens_cpu": int32(9)}, None),
        ({"num_reqs": 3, "dcp_local_seq_lens": None}, None),
        (
            {"query_start_loc_cpu": int32(0, 2), "seq_lens": int32(2, 3)},
            "ValueError: seq_lens has 2 entries, expected num_reqs = 1",
        ),
        (
            {"seq_lens_cpu": int32(2), "num_computed_tokens_cpu": int32(2, 1)},
            "ValueError: num_computed_tokens_cpu has 2 entries, expected num_reqs = 1",
        ),
    ):
        with twin.refuses(message) if message else contextlib.nullcontext():
            twin.metadata.validate_metadata(SimpleNamespace(**twin.convert_all(fields)))


def test_equal_only_to_itself(make_batch: Any) -> None:
    one, other = make_batch([2], [3]), make_batch([2], [3])
    assert one == one  # noqa: PLR0124  # the point
    assert one != other
    assert len({one, other}) == 2


def test_lengths_without_num_reqs(twin: Any, make_batch: Any) -> None:
    fields = vars(make_batch([2, 3], [3, 5]))
    del fields["num_reqs"]
    fields["seq_lens_cpu"] = twin.int32(5)
    with twin.refuses("ValueError: seq_lens has 2 entries, but seq_lens_cpu has 1"):
        twin.metadata.validate_metadata(SimpleNamespace(**fields))
    del fields["query_start_loc"], fields["query_start_loc_cpu"]
    with twin.refuses("ValueError: seq_lens has 2 entries, but seq_lens_cpu has 1"):
        twin.metadata.validate_metadata(SimpleNamespace(**fields))


def test_unpadded_cuts_every_field(twin: Any, make_batch: Any) -> None:
    metadata = make_batch(
        [2, 3, 0],
        [3, 5, 0],
        padding_tokens=2,
        logits_indices_padded=twin.int64(1, 4, 0),
        num_logits_indices=2,
        encoder_seq_lens=int32(7, 8, 9),
        dcp_local_seq_lens=twin.int32(3, 4, 0),
        causal=False,
    )
    cut = metadata.unpadded(6, 2)
    cut.validate(block_size=2)
    assert [0, 2, 5] == cut.query_start_loc.tolist() == cut.query_start_loc_cpu.tolist()
    assert [5, 8] == cut.seq_lens.tolist() == cut.seq_lens_cpu.tolist()
    assert [3, 5] == cut.num_computed_tokens_cpu.tolist()
    assert (2, 6, 3, 8) == counts_of(cut)
    assert metadata.block_table_tensor[:2].tolist() == cut.block_table_tensor.tolist()
    assert metadata.slot_mapping[:6].tolist() == cut.slot_mapping.tolist()
    assert cut.encoder_seq_lens is not None
    assert [7, 8] == cut.encoder_seq_lens.tolist()
    assert cut.dcp_local_seq_lens is not None
    assert [3, 4] == cut.dcp_local_seq_lens.tolist()
    assert not cut.causal
    assert cut.logits_indices_padded is metadata.logits_indices_padded
    assert cut.num_logits_indices == 2
    for name, value in vars(cut).items():
        if hasattr(value, "shape"):
            assert twin.shares_memory(value, getattr(metadata, name)), name


def test_unpadded_keeps_the_class(twin: Any, make_batch: Any) -> None:
    subclass = type("Ours", (twin.CommonAttentionMetadata,), {})
    metadata = subclass(**vars(make_batch([2, 3], [3, 5])))
    cut = metadata.unpadded(np.int64(0), np.int32(0))
    cut.validate(block_size=2)
    assert [0] == cut.query_start_loc.tolist()
    assert [subclass, int, int] == [*map(type, (cut, cut.num_actual_tokens, cut.num_reqs))]


def test_unpadded_reads_the_half_on_the_device(twin: Any, make_batch: Any) -> None:
    batch = make_batch([2, 3], [3, 5], query_start_loc_cpu=int32(0, 2, 9))
    with twin.checked():
        assert 5 == batch.unpadded(5, 2).num_actual_tokens
    batch = make_batch([2, 3], [3, 5], query_start_loc=int32(0, 2, 9))
    with twin.refuses("ValueError: num_actual_tokens is 5, but the first 2 requests have 9 tokens"):
        batch.unpadded(5, 2)
