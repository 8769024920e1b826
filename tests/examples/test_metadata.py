"""A batch's metadata: what is valid, its padding taken off, and what the builders of groups get."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import fast
from tests.examples.twins import Twin, plain, shares_memory, shown


@pytest.mark.parametrize(
    ("changes", "block_size"),
    [
        ({}, None),
        ({"num_computed_tokens_cpu": [0, 2, 0]}, 2),  # less than s - q: after fast prefill
        ({"num_computed_tokens_cpu": [3, 5, -9]}, 2),  # not read of a request without tokens
        ({"max_query_len": 99, "max_seq_len": 99}, 2),  # bounds
        ({"num_actual_tokens": 6}, 2),
        ({"block_table_tensor": [[-1] * 4] * 5}, 2),  # blocks and rows that are not read
        ({"block_table_tensor": [[0]] * 3}, 8),
        ({"slot_mapping": [0] * 20}, 2),
        ({"encoder_seq_lens": [7, 0, 0], "dcp_local_seq_lens": [3, 3, 0]}, 2),
        ({"logits_indices_padded": [0] * 9, "num_logits_indices": 2}, 2),
        ({"seq_lens_cpu": None}, 2),
        # a draft may yet be rejected: what the host knows of the first request is too large
        (
            {
                "seq_lens_cpu": None,
                "seq_lens_cpu_upper_bound": [6, 8, 0],
                "num_computed_tokens_cpu": [4, 5, 0],
            },
            2,
        ),
        ({"positions": [3, 4, 5, 6, 7, 0, 0, 9], "req_idx": [7, 7, -1]}, 2),
    ],
)
def test_valid_batches(twin: Twin, changes, block_size) -> None:
    batch = twin.batch([2, 3, 0], [3, 5, 0], padding_tokens=2, **changes)
    batch.validate(block_size=block_size)
    twin.batch([], [], padding_tokens=3).validate(block_size=block_size)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"max_query_len": 2}, "max_query_len is 2"),  # a query has 3 tokens
        ({"max_seq_len": 7}, "max_seq_len is 7"),  # a sequence has 8
        ({"num_actual_tokens": 4}, "query_start_loc[-1] is 5"),
        ({"num_reqs": 2}, "query_start_loc has 4 entries"),
        ({"block_table_tensor": [[0]] * 3}, "seq_lens[0] is 5 and needs 3 blocks of 2"),
        (
            {"seq_lens_cpu_upper_bound": [5, 7, 0]},
            "seq_lens_cpu_upper_bound[1] is 7, less than seq",
        ),
        (
            {"dcp_local_seq_lens": [3, 4, 0], "dcp_local_seq_lens_cpu_upper_bound": [2, 4, 0]},
            "dcp_local_seq_lens_cpu_upper_bound[0] is 2, less than dcp_local_seq_lens[0], which",
        ),
        # the lengths on the host are exact, so this is too much
        (
            {"seq_lens_cpu_upper_bound": [6, 8, 0], "num_computed_tokens_cpu": [4, 5, 0]},
            "num_computed_tokens_cpu[0] is 4, expected 0 to 3, which is seq_lens[0]",
        ),
        ({"is_prefilling": [True] * 4}, "is_prefilling has 4 entries, expected num_reqs = 3"),
        (
            {"positions": [0] * 6},
            "positions has 6 entries, expected at least num_actual_tokens = 7",
        ),
    ],
)
def test_invalid_batches(twin: Twin, changes, what) -> None:
    batch = twin.batch([2, 3, 0], [3, 5, 0], padding_tokens=2, **changes)
    with fast.checks(enabled=True), pytest.raises(ValueError, match=f"^{re.escape(what)}"):
        batch.validate(block_size=2)


@pytest.mark.parametrize(
    ("num_tokens", "num_reqs", "expected"),
    [
        # 2 of 3 requests, and one token of padding
        (
            6,
            2,
            {
                "query_start_loc": [0, 2, 5],
                "seq_lens": [5, 8],
                "num_computed_tokens_cpu": [3, 5],
                "encoder_seq_lens": [7, 8],
                "dcp_local_seq_lens": [3, 4],
                "is_prefilling": [True, False],
                "positions": [3, 4, 5, 6, 7, 0],
                "seq_lens_cpu_upper_bound": [5, 9],
                "dcp_local_seq_lens_cpu_upper_bound": [3, 5],
                "max_logits_per_req": 2,
                "req_idx": [4, 0],
            },
        ),
        # the bounds stay
        (2, 1, {"query_start_loc": [0, 2], "seq_lens": [5], "max_query_len": 3, "max_seq_len": 8}),
        (0, 0, {"query_start_loc": [0], "seq_lens": [], "encoder_seq_lens": []}),
    ],
)
def test_unpadded(twin: Twin, num_tokens, num_reqs, expected) -> None:
    metadata = twin.batch(
        [2, 3, 0],
        [3, 5, 0],
        padding_tokens=2,
        logits_indices_padded=[1, 4, 0],
        num_logits_indices=2,
        encoder_seq_lens=[7, 8, 9],
        dcp_local_seq_lens=[3, 4, 0],
        causal=False,
        is_prefilling=[True, False, True],
        positions=[3, 4, 5, 6, 7, 0, 0],
        seq_lens_cpu_upper_bound=[5, 9, 0],
        dcp_local_seq_lens_cpu_upper_bound=[3, 5, 0],
        max_logits_per_req=2,
        req_idx=[4, 0, -1],
    )
    subclass = type("Ours", (twin.CommonAttentionMetadata,), {})
    cut = subclass(**vars(metadata)).unpadded(num_tokens, num_reqs)
    cut.validate(block_size=2)
    expected |= {
        "num_actual_tokens": num_tokens,
        "num_reqs": num_reqs,
        "block_table_tensor": plain(metadata.block_table_tensor)[:num_reqs],
        "slot_mapping": plain(metadata.slot_mapping)[:num_tokens],
        "causal": False,
        "num_logits_indices": 2,
    }
    assert (subclass, expected) == (type(cut), shown(cut, expected))
    assert cut.logits_indices_padded is metadata.logits_indices_padded
    assert shares_memory(cut.query_start_loc, metadata.query_start_loc)


# build_attn_metadata


class Builder:
    """Stores the batch that it is given, and builds a new object."""

    def build(self, common_prefix_len: int, common_attn_metadata: Any) -> SimpleNamespace:
        """Store the batch."""
        assert 0 == common_prefix_len
        self.batch = common_attn_metadata
        return SimpleNamespace(builder=self)


def make_call(twin: Twin, layers: list[list[str]], **changes: Any) -> dict[str, Any]:
    """Make a call for groups of layers. Of its buffers of 4 requests, 3 are in the batch.

    Query lengths 2, 3, 0; computed tokens 3, 5, 0; 7 tokens, two of which are padding.
    """

    def halves(*values: int) -> SimpleNamespace:
        return SimpleNamespace(cpu=twin.array(values), gpu=twin.array(values))

    number = len(layers)
    groups = [twin.KVCacheGroupSpec(names, None) for names in layers]
    return {
        "attn_metadata_builders": [Builder() for _ in layers],
        "num_reqs": 3,
        "num_tokens": 7,
        "query_start_loc": halves(0, 2, 5, 5, 99, 99),
        "seq_lens": halves(5, 8, 0, 99),
        "num_computed_tokens_cpu": twin.array([3, 5, 0, 77]),
        "block_tables": [twin.array([[1, 1, g]] * 4) for g in range(number)],
        "slot_mappings": [twin.array(range(g, g + 9), "int64") for g in range(number)],
        "kv_cache_config": twin.KVCacheConfig(1, [], groups),
        **changes,
    }


def test_each_group_has_its_batch(twin: Twin) -> None:
    call = make_call(twin, [["b", "a"], ["c"]])
    built = twin.build_attn_metadata(**call)
    first, second = call["attn_metadata_builders"]
    assert {"b": first, "a": first, "c": second} == {n: made.builder for n, made in built.items()}
    assert built["b"] is built["a"]
    for group, builder in enumerate((first, second)):
        builder.batch.validate()
        expected = {
            "query_start_loc": [0, 2, 5, 5],
            "seq_lens": [5, 8, 0],
            "num_computed_tokens_cpu": [3, 5, 0],
            "num_reqs": 3,
            "num_actual_tokens": 7,
            "max_query_len": 3,
            "max_seq_len": 8,
            "causal": True,
            "logits_indices_padded": None,
            "num_logits_indices": None,
            "encoder_seq_lens": None,
            "dcp_local_seq_lens": None,
        }
        assert expected == shown(builder.batch, expected)
        assert builder.batch.block_table_tensor is call["block_tables"][group]
        assert builder.batch.slot_mapping is call["slot_mappings"][group]
        for name in ("query_start_loc", "seq_lens"):
            batch, buffer = vars(builder.batch), call[name]
            assert shares_memory(batch[name], buffer.gpu)
            assert shares_memory(batch[f"{name}_cpu"], buffer.cpu)


def test_a_plan_builds_each_step(twin: Twin) -> None:
    call = make_call(twin, [["a"], ["b"]], positions=twin.array(range(9), "int64"))
    names = ("num_reqs", "num_tokens", "block_tables", "slot_mappings")
    num_reqs, num_tokens, tables, slots = (call.pop(name) for name in names)
    plan, other = twin.AttnMetadataPlan(**call), tuple(reversed(tables))
    by_step = [
        # the arguments of a step, the longest query and sequence, and the groups of its tables
        ((num_reqs, num_tokens, tuple(tables), slots), (3, 8), (0, 1)),
        ((num_reqs, num_tokens, other, slots), (3, 8), (1, 0)),
        ((1, 2, other, slots), (2, 5), (1, 0)),
        ((num_reqs, num_tokens, other, slots, 9, 10), (9, 10), (1, 0)),
    ]
    for step, maxima, groups in by_step:
        built = plan.build(*step, max_logits_per_req=2)
        for name, group in zip("ab", groups, strict=True):
            batch = built[name].builder.batch
            expected = {
                "seq_lens": [5, 8, 0][: step[0]],
                "positions": [*range(step[1])],
                "num_reqs": step[0],
                "num_actual_tokens": step[1],
                "max_query_len": maxima[0],
                "max_seq_len": maxima[1],
                "max_logits_per_req": 2,
            }
            assert expected == shown(batch, expected)
            assert batch.block_table_tensor is tables[group]
            for field in ("query_start_loc", "seq_lens"):
                assert shares_memory(getattr(batch, field), call[field].gpu)
                assert shares_memory(getattr(batch, f"{field}_cpu"), call[field].cpu)
    call["seq_lens"].gpu[0] = call["seq_lens"].cpu[0] = call["num_computed_tokens_cpu"][0] = 0
    call["query_start_loc"].gpu[1] = call["query_start_loc"].cpu[1] = 0
    assert 0 == plan.build(1, 2, other, slots)["b"].builder.batch.max_seq_len
    call["attn_metadata_builders"].append(None)
    with pytest.raises(ValueError, match="attn_metadata_builders has 3 entries, expected 2"):
        twin.AttnMetadataPlan(**call)


def test_optional_fields_are_cut(twin: Twin) -> None:
    given = {
        "dcp_local_seq_lens": twin.array([3, 4, 0, 9]),
        "is_prefilling": twin.array([True, False, False, True], "bool"),
        "positions": twin.array([3, 4, 5, 6, 7, 0, 0, 9, 9], "int64"),
        "seq_lens_cpu_upper_bound": twin.array([6, 8, 0, 9]),
        "dcp_local_seq_lens_cpu_upper_bound": twin.array([3, 4, 0, 9]),
        "max_logits_per_req": 2,
        "req_idx": np.array([4, 0, 1, 9], np.int32),
    }
    call = make_call(twin, [["a"]], **given)
    # the host knows bounds only: the first request has a draft that may be rejected
    call["seq_lens"].cpu, call["num_computed_tokens_cpu"] = None, twin.array([4, 5, 0])
    builder = twin.build_attn_metadata(**call)["a"].builder
    expected = {name: plain(value) for name, value in given.items()}
    expected |= {n: v[: 7 if n == "positions" else 3] for n, v in expected.items() if v != 2}
    expected |= {"seq_lens": [5, 8, 0], "seq_lens_cpu": None, "max_seq_len": 8}
    assert expected == shown(builder.batch, expected)
    for name in given.keys() - {"max_logits_per_req"}:
        assert shares_memory(given[name], getattr(builder.batch, name))
    del call["seq_lens_cpu_upper_bound"]
    with pytest.raises(ValueError, match="max_seq_len is None, and so are"):
        twin.build_attn_metadata(**call)


@pytest.mark.parametrize(
    ("layers", "changes", "expected"),
    [
        # expected: requests, tokens, the longest query, and the longest sequence
        pytest.param([["a"]], {"num_reqs": 1, "num_tokens": 2}, (1, 2, 2, 5), id="one request"),
        pytest.param([["a"]], {"num_reqs": 0, "num_tokens": 0}, (0, 0, 0, 0), id="none"),
        pytest.param([["a"]], {"max_query_len": 9}, (3, 7, 9, 8), id="the query's bound is given"),
        pytest.param([["a"]], {"max_seq_len": 2**31 - 1}, (3, 7, 3, 2**31 - 1), id="the other"),
        # a layer that is in two groups has the metadata of the last
        pytest.param([["a", "b"], [], ["a"]], {}, (3, 7, 3, 8), id="groups without layers"),
    ],
)
def test_counts(twin: Twin, layers, changes, expected) -> None:
    call = make_call(twin, layers, **changes)
    built = twin.build_attn_metadata(**call)
    assert built["a"].builder is call["attn_metadata_builders"][-1]
    for builder in call["attn_metadata_builders"]:
        names = ("num_reqs", "num_actual_tokens", "max_query_len", "max_seq_len")
        assert expected == tuple(shown(builder.batch, names).values())
