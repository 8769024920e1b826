import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import fast
from fast.metadata import validate_metadata

Make = Callable[..., fast.CommonAttentionMetadata]


def int32(values: list[int]) -> torch.Tensor:
    """Return an int32 tensor."""
    return torch.tensor(values, dtype=torch.int32)


def test_fields_and_defaults() -> None:
    """The fields stand in the order of the definition."""
    fields = dataclasses.fields(fast.CommonAttentionMetadata)
    assert [field.name for field in fields] == [
        "query_start_loc",
        "query_start_loc_cpu",
        "seq_lens",
        "seq_lens_cpu",
        "num_computed_tokens_cpu",
        "num_reqs",
        "num_actual_tokens",
        "max_query_len",
        "max_seq_len",
        "block_table_tensor",
        "slot_mapping",
        "causal",
        "logits_indices_padded",
        "num_logits_indices",
        "encoder_seq_lens",
        "dcp_local_seq_lens",
    ]
    assert [field.default for field in fields[11:]] == [True, None, None, None, None]


def test_a_good_batch(make_batch: Make) -> None:
    """A batch that does not contradict itself passes, also with a block size that fits."""
    batch = make_batch([2, 1, 0], [4, 0, 3], logits_indices_padded=torch.tensor([1, 2]))
    batch.validate()
    batch.validate(block_size=2)
    make_batch([], []).validate(block_size=1)


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"query_start_loc": None}, TypeError, "^query_start_loc must be an array, got NoneType"),
    ({"seq_lens_cpu": torch.tensor([6, 1, 3])}, TypeError, "^seq_lens_cpu must be int32, got in"),
    ({"slot_mapping": torch.zeros(1, 3).long()}, ValueError, "slot_mapping must have 1 dim"),
    ({"num_reqs": 3.0}, TypeError, "num_reqs must be an int"),
    ({"max_seq_len": -1}, ValueError, "max_seq_len is -1"),
    ({"causal": 1}, TypeError, "causal must be a bool"),
    ({"num_logits_indices": -1}, ValueError, "num_logits_indices is -1"),
    ({"logits_indices_padded": torch.zeros(1)}, TypeError, "logits_indices_padded must be"),
    ({"encoder_seq_lens": torch.zeros(3)}, TypeError, "encoder_seq_lens must be a NumPy array"),
    ({"encoder_seq_lens": np.zeros(3)}, TypeError, "encoder_seq_lens must be int32 or int64"),
    ({"encoder_seq_lens": np.zeros(2, int)}, ValueError, "encoder_seq_lens has 2 entries"),
    ({"dcp_local_seq_lens": int32([1])}, ValueError, "dcp_local_seq_lens has 1 entries"),
    ({"block_table_tensor": torch.zeros(3, 3).int().to("meta")}, ValueError, "is on meta"),
    ({"seq_lens": int32([6, 1, 4])}, ValueError, r"seq_lens\[2\] is 4, but seq_lens_cpu\[2\] is 3"),
    ({"seq_lens": int32([6, 1])}, ValueError, "seq_lens has 2 entries, but seq_lens_cpu has 3"),
    (
        dict.fromkeys(["query_start_loc", "query_start_loc_cpu"], int32([1, 2, 3, 3])),
        ValueError,
        r"query_start_loc\[0\] is 1, expected 0",
    ),
    ({"num_actual_tokens": 2}, ValueError, r"query_start_loc\[-1\] is 3, more than num_actual_t"),
    ({"num_reqs": 2}, ValueError, r"query_start_loc has 4 entries, expected num_reqs \+ 1 = 3"),
    ({"num_computed_tokens_cpu": int32([4, 0])}, ValueError, "num_computed_tokens_cpu has 2 entr"),
    ({"block_table_tensor": torch.zeros(2, 3).int()}, ValueError, "block_table_tensor has 2 rows"),
    (
        {"slot_mapping": torch.arange(2)},
        ValueError,
        "slot_mapping has 2 entries, expected at least",
    ),
    (
        dict.fromkeys(["seq_lens", "seq_lens_cpu"], int32([6, 1, -1])),
        ValueError,
        r"seq_lens\[2\] is -1",
    ),
    (
        dict.fromkeys(["seq_lens", "seq_lens_cpu"], int32([1, 1, 3])),
        ValueError,
        r"seq_lens\[0\] is 1, less than its query length 2",
    ),
    (
        {"num_computed_tokens_cpu": int32([5, 0, 3])},
        ValueError,
        r"num_computed_tokens_cpu\[0\] is 5, expected 0 to 4",
    ),
    ({"max_query_len": 1}, ValueError, "is 1, less than the query length 2 of request 0"),
    ({"max_seq_len": 5}, ValueError, "is 5, less than the sequence length 6 of request 0"),
]


@pytest.mark.parametrize(("changes", "error", "message"), BAD)
def test_a_bad_batch(
    changes: dict[str, Any], error: type[Exception], message: str, make_batch: Make
) -> None:
    """Each invariant that does not hold is told with the field at fault."""
    batch = make_batch([2, 1, 0], [4, 0, 3], **changes)
    with pytest.raises(error, match=message):
        batch.validate()


def test_blocks_outside_the_row(make_batch: Make) -> None:
    """Only with a block size does the block table have to hold the sequences."""
    batch = make_batch([2, 1], [4, 0], block_table_tensor=torch.zeros(2, 2).int())
    batch.validate()
    message = r"seq_lens\[0\] is 6 and needs 3 blocks of 2, but row 0 of block_table_tensor has 2"
    with pytest.raises(ValueError, match=message):
        batch.validate(block_size=2)
    with pytest.raises(ValueError, match="block_size is 0"):
        batch.validate(block_size=0)


def test_requests_without_tokens_may_compute_anything(make_batch: Make) -> None:
    """Computed tokens count only where there are query tokens, and may be fewer."""
    make_batch([2, 0], [4, 3], num_computed_tokens_cpu=int32([1, -8])).validate()


def test_an_engines_own_metadata() -> None:
    """What an object lacks is not checked; what it has is."""
    validate_metadata(SimpleNamespace())
    validate_metadata(SimpleNamespace(num_reqs=3, dcp_local_seq_lens=None))
    own = SimpleNamespace(query_start_loc_cpu=int32([0, 2]), seq_lens=int32([2, 3]))
    with pytest.raises(ValueError, match="seq_lens has 2 entries, expected num_reqs = 1"):
        validate_metadata(own)
    own = SimpleNamespace(seq_lens_cpu=int32([2]), num_computed_tokens_cpu=int32([2, 1]))
    with pytest.raises(ValueError, match="num_computed_tokens_cpu has 2 entries"):
        validate_metadata(own)
    own = SimpleNamespace(seq_lens_cpu=int32([3]), block_table_tensor=torch.zeros(1, 1).int())
    with pytest.raises(ValueError, match="needs 2 blocks of 2"):
        validate_metadata(own, block_size=2)


def test_the_constructor_checks_nothing(make_batch: Make) -> None:
    """A contradiction is found by `validate`, not by making the object."""
    with fast.checks(enabled=True):
        assert make_batch([1], [0], num_reqs=-3).num_reqs == -3


class Padded(fast.CommonAttentionMetadata):
    """A subclass of a user's."""


def test_unpadded_is_made_of_views(make_batch: Make) -> None:
    """The cut fields are views, the others are as they were, and the class is kept."""
    batch = make_batch(
        [2, 1, 0],
        [4, 0, 3],
        encoder_seq_lens=np.array([7, 8, 9]),
        dcp_local_seq_lens=int32([3, 1, 2]),
        logits_indices_padded=torch.tensor([1, 2]),
    )
    padded = Padded(**vars(batch))
    cut = padded.unpadded(2, 1)
    assert type(cut) is Padded
    assert (cut.num_reqs, cut.num_actual_tokens) == (1, 2)
    assert (cut.max_query_len, cut.max_seq_len, cut.causal) == (2, 6, True)
    assert cut.logits_indices_padded is batch.logits_indices_padded
    sizes = {
        "query_start_loc": 2,
        "query_start_loc_cpu": 2,
        "seq_lens": 1,
        "seq_lens_cpu": 1,
        "num_computed_tokens_cpu": 1,
        "block_table_tensor": 1,
        "slot_mapping": 2,
        "dcp_local_seq_lens": 1,
    }
    for name, size in sizes.items():
        assert len(getattr(cut, name)) == size, name
        assert getattr(cut, name).data_ptr() == getattr(batch, name).data_ptr(), name
    assert np.shares_memory(cut.encoder_seq_lens, batch.encoder_seq_lens)
    assert cut.encoder_seq_lens.tolist() == [7]


@pytest.mark.parametrize(
    ("tokens", "reqs", "error", "message"),
    [
        (4, 3, ValueError, "num_actual_tokens is 4, expected 0 to 3"),
        (3, 4, ValueError, "num_actual_reqs is 4, expected 0 to 3"),
        (-1, 0, ValueError, "num_actual_tokens is -1"),
        (2, 2, ValueError, "num_actual_tokens is 2, but the first 2 requests have 3 tokens"),
        (2.0, 1, TypeError, "num_actual_tokens must be an int"),
    ],
)
def test_unpadded_refuses(
    tokens: int, reqs: int, error: type[Exception], message: str, make_batch: Make
) -> None:
    """More than there is, or requests cut of their tokens, is refused in any mode."""
    with fast.checks(enabled=False), pytest.raises(error, match=message):
        make_batch([2, 1, 0], [4, 0, 3]).unpadded(tokens, reqs)


def halves(values: list[int]) -> SimpleNamespace:
    """Return what serves as a buffer."""
    return SimpleNamespace(cpu=int32(values), gpu=int32(values))


@pytest.mark.parametrize("checked", [False, True])
def test_build_attn_metadata(step: dict[str, Any], *, checked: bool) -> None:
    """Each group's builder gets a batch of its own once; its layers map to what it built."""
    with fast.checks(checked):
        built = fast.build_attn_metadata(**step)
    assert ["0", "2", "1"] == list(built)
    assert built["0"] is built["2"]
    assert (3, 2) == (built["0"].group, built["1"].group)
    for i, builder in enumerate(step["attn_metadata_builders"]):
        ((prefix, batch),) = builder.given
        assert (0, 3, 4) == (prefix, batch.num_reqs, batch.num_actual_tokens)
        assert (2, 6, True) == (batch.max_query_len, batch.max_seq_len, batch.causal)
        assert [0, 2, 3, 3] == batch.query_start_loc.tolist() == batch.query_start_loc_cpu.tolist()
        assert [6, 1, 0] == batch.seq_lens.tolist() == batch.seq_lens_cpu.tolist()
        assert [4, 0, 0] == batch.num_computed_tokens_cpu.tolist()
        assert batch.block_table_tensor is step["block_tables"][i]
        assert batch.slot_mapping is step["slot_mappings"][i]
        assert batch.logits_indices_padded is None
        assert batch.dcp_local_seq_lens is None
    first, second = (builder.given[0][1] for builder in step["attn_metadata_builders"])
    assert first is not second


def test_build_attn_metadata_views_the_buffers(step: dict[str, Any]) -> None:
    """What is written to the buffers later shows in the metadata, as a captured graph needs it."""
    fast.build_attn_metadata(**step)
    for builder in step["attn_metadata_builders"]:
        batch = builder.given[0][1]
        for name in ("query_start_loc", "seq_lens"):
            assert getattr(batch, name).data_ptr() == step[name].gpu.data_ptr()
            assert getattr(batch, f"{name}_cpu").data_ptr() == step[name].cpu.data_ptr()
    step["seq_lens"].gpu[0] = 8
    step["num_computed_tokens_cpu"][0] = 6
    assert 8 == step["attn_metadata_builders"][1].given[0][1].seq_lens[0]
    assert 6 == step["attn_metadata_builders"][1].given[0][1].num_computed_tokens_cpu[0]


def test_build_attn_metadata_takes_rows_of_one_tensor(step: dict[str, Any]) -> None:
    """The slots of all groups may be one tensor; each group's are a view of its row."""
    slots = torch.arange(12).view(2, 6)
    fast.build_attn_metadata(
        **{**step, "slot_mappings": slots, "block_tables": tuple(step["block_tables"])}
    )
    for row, builder in zip(slots, step["attn_metadata_builders"], strict=True):
        assert row.data_ptr() == builder.given[0][1].slot_mapping.data_ptr()
        assert row.tolist() == builder.given[0][1].slot_mapping.tolist()


def test_build_attn_metadata_reads_strided_halves(step: dict[str, Any]) -> None:
    """The halves of a buffer may be views with strides."""
    starts = torch.arange(8, dtype=torch.int32)[::2]
    step["query_start_loc"] = SimpleNamespace(cpu=starts, gpu=starts)
    step |= {
        "seq_lens": halves([2, 2, 7]),
        "num_tokens": 6,
        "num_computed_tokens_cpu": int32([0, 0, 5]),
    }
    step["slot_mappings"] = torch.zeros(2, 6).long()
    with fast.checks(enabled=True):
        fast.build_attn_metadata(**step)
    batch = step["attn_metadata_builders"][0].given[0][1]
    assert (2, 7) == (batch.max_query_len, batch.max_seq_len)
    assert [0, 2, 4, 6] == batch.query_start_loc.tolist()


@pytest.mark.parametrize("checked", [False, True])
def test_build_attn_metadata_of_no_requests(step: dict[str, Any], *, checked: bool) -> None:
    """The greatest of no lengths is 0; without groups there is nothing to build."""
    with fast.checks(checked):
        fast.build_attn_metadata(**{**step, "num_reqs": np.int64(0), "num_tokens": 0})
        batch = step["attn_metadata_builders"][0].given[0][1]
        assert (0, 0, 0) == (batch.num_reqs, batch.max_query_len, batch.max_seq_len)
        assert type(batch.num_reqs) is int
        assert ([0], []) == (batch.query_start_loc.tolist(), batch.seq_lens_cpu.tolist())
        nothing: dict[str, Any] = {"attn_metadata_builders": [], "slot_mappings": []}
        config = SimpleNamespace(kv_cache_groups=[])
        assert {} == fast.build_attn_metadata(
            **{**step, **nothing, "block_tables": (), "kv_cache_config": config}
        )


@pytest.mark.parametrize("checked", [False, True])
def test_build_attn_metadata_hands_on_given_bounds(step: dict[str, Any], *, checked: bool) -> None:
    """Each bound that is given stands in the metadata, as an int; one that is not is found."""
    for given, wanted in (
        ((2, 6), (2, 6)),
        ((np.int32(4), 4096), (4, 4096)),
        ((8, None), (8, 6)),
        ((None, 7), (2, 7)),
        ((2**31 - 1, 2**31 - 1), (2**31 - 1, 2**31 - 1)),
    ):
        bounds = dict(zip(("max_query_len", "max_seq_len"), given, strict=True))
        with fast.checks(checked):
            fast.build_attn_metadata(**step, **bounds)
        for builder in step["attn_metadata_builders"]:
            batch = builder.given[-1][1]
            assert wanted == (batch.max_query_len, batch.max_seq_len)
            assert {int} == {type(batch.max_query_len), type(batch.max_seq_len)}


def test_build_attn_metadata_reads_no_values_if_both_bounds_are_given(
    step: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unchecked, the maxima are not looked for; bounds that are too small are then believed."""
    monkeypatch.setattr("fast.metadata.find_maxima", None)
    fast.build_attn_metadata(**step, max_query_len=1, max_seq_len=0)
    batch = step["attn_metadata_builders"][0].given[0][1]
    assert (1, 0) == (batch.max_query_len, batch.max_seq_len)


@pytest.mark.parametrize("name", ["max_query_len", "max_seq_len"])
@pytest.mark.parametrize(
    ("bound", "error"),
    [(True, TypeError), (2.0, TypeError), (-1, ValueError), (2**31, ValueError)],
)
def test_build_attn_metadata_refuses_bounds(
    name: str, bound: object, error: type[Exception], step: dict[str, Any]
) -> None:
    """What is no bound is refused in any mode, also if the other bound is not given."""
    with fast.checks(enabled=False), pytest.raises(error, match=rf"^{name}\b.* {bound}\b"):
        fast.build_attn_metadata(**step, **{name: bound})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"query_start_loc": halves([1, 2, 3, 3])}, r"query_start_loc\[0\] is 1, expected 0"),
        ({"query_start_loc": halves([0, 2, 1, 3])}, r"query_start_loc\[2\] is 1, less than 2"),
        ({"seq_lens": halves([1, 1, 0])}, r"seq_lens\[0\] is 1, less than its query length 2"),
        ({"num_tokens": 2}, r"query_start_loc\[-1\] is 3, more than num_actual_tokens 2"),
        ({"num_computed_tokens_cpu": int32([5, 0, 0])}, r"num_computed_tokens_cpu\[0\] is 5"),
        (
            {"seq_lens": SimpleNamespace(cpu=int32([6, 1, 0]), gpu=int32([6, 2, 0]))},
            r"seq_lens\[1\] is 2, but seq_lens_cpu\[1\] is 1",
        ),
        (
            {"max_query_len": 1, "max_seq_len": 9},
            "max_query_len is 1",
        ),
        ({"max_seq_len": 5}, "max_seq_len is 5"),
    ],
)
def test_build_attn_metadata_checks_values(
    changes: dict[str, Any], message: str, step: dict[str, Any]
) -> None:
    """A batch that contradicts itself is refused in checked mode, before any builder is called."""
    step |= changes
    fast.build_attn_metadata(**step)
    for builder in step["attn_metadata_builders"]:
        builder.given.clear()
    with fast.checks(enabled=True), pytest.raises(ValueError, match=message):
        fast.build_attn_metadata(**step)
    assert [[], []] == [builder.given for builder in step["attn_metadata_builders"]]


def test_build_attn_metadata_needs_builders_that_build(step: dict[str, Any]) -> None:
    """A builder without `build`, or a group without layer names, lacks an attribute."""
    with pytest.raises(AttributeError, match="build"):
        fast.build_attn_metadata(**{**step, "attn_metadata_builders": [object(), object()]})
    config = SimpleNamespace(kv_cache_groups=[object(), object()])
    with pytest.raises(AttributeError, match="layer_names"):
        fast.build_attn_metadata(**{**step, "kv_cache_config": config})
