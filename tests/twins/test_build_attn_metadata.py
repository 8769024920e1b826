"""`build_attn_metadata`: the metadata of each group and its layers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.twins.arrays import counts_of, int32


class Builder:
    """Records the arguments of each call, and builds a new object."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []

    def build(self, **kwargs: object) -> SimpleNamespace:
        self.calls.append(kwargs)
        return SimpleNamespace(builder=self)

    @property
    def batch(self) -> Any:
        (call,) = self.calls
        assert {"common_prefix_len", "common_attn_metadata"} == set(call)
        assert 0 == call["common_prefix_len"]
        return call["common_attn_metadata"]


def halves(cpu: Any, gpu: Any = None) -> SimpleNamespace:
    """Make a buffer; without `gpu`, both halves are equal."""
    return SimpleNamespace(cpu=cpu, gpu=cpu.copy() if gpu is None else gpu)


def make_call(twin: Any, **changes: object) -> dict[str, Any]:
    """Make a valid call: two groups, three requests (one is padding), 7 tokens (two are padding).

    Query lengths 2, 3, 0; computed tokens 3, 5, 0.
    """
    groups = [twin.KVCacheGroupSpec(["b", "a"], None), twin.KVCacheGroupSpec(["c"], None)]
    call = {
        "attn_metadata_builders": [Builder(), Builder()],
        "num_reqs": 3,
        "num_tokens": 7,
        "query_start_loc": halves(int32(0, 2, 5, 5, 99, 99)),
        "seq_lens": halves(int32(5, 8, 0, 99)),
        "num_computed_tokens_cpu": int32(3, 5, 0, 77),
        "block_tables": [np.full((4, 3), 1, np.int32), np.full((3, 9), 2, np.int32)],
        "slot_mappings": [np.arange(7), np.arange(10, 20)],
        "kv_cache_config": twin.KVCacheConfig(1, [], groups),
    }
    return twin.convert_all(call | changes)


def test_each_layer_gets_what_its_group_has(twin: Any) -> None:
    call = make_call(twin)
    built = twin.build_attn_metadata(**call)
    assert ["b", "a", "c"] == list(built)
    first, second = call["attn_metadata_builders"]
    assert built["b"] is built["a"]
    assert [first, first, second] == [metadata.builder for metadata in built.values()]


def test_the_batch_of_a_group(twin: Any) -> None:
    call = make_call(twin)
    twin.build_attn_metadata(**call)
    batches = [builder.batch for builder in call["attn_metadata_builders"]]
    assert batches[0] is not batches[1]
    for group, batch in enumerate(batches):
        batch.validate()
        assert [0, 2, 5, 5] == batch.query_start_loc.tolist() == batch.query_start_loc_cpu.tolist()
        assert [5, 8, 0] == batch.seq_lens.tolist() == batch.seq_lens_cpu.tolist()
        assert [3, 5, 0] == batch.num_computed_tokens_cpu.tolist()
        counts = counts_of(batch)
        assert (3, 7, 3, 8) == counts
        assert [int] * 4 == [type(count) for count in counts]
        assert batch.block_table_tensor is call["block_tables"][group]
        assert batch.slot_mapping is call["slot_mappings"][group]
        assert batch.causal is True
        rest = (
            batch.logits_indices_padded,
            batch.num_logits_indices,
            batch.encoder_seq_lens,
            batch.dcp_local_seq_lens,
        )
        assert (None,) * 4 == rest


def test_computed_tokens_of_idle_requests_are_not_read(twin: Any) -> None:
    call = make_call(twin, num_computed_tokens_cpu=int32(3, 5, 9))
    twin.build_attn_metadata(**call)
    assert [3, 5, 9] == call["attn_metadata_builders"][0].batch.num_computed_tokens_cpu.tolist()


def test_vectors_are_views_of_both_halves(twin: Any) -> None:
    starts = SimpleNamespace(cpu=twin.int32(0, 2, 5, 5, 9), gpu=twin.int32(0, 2, 5, 5, 8))
    lens = SimpleNamespace(cpu=twin.int32(5, 8, 0), gpu=twin.int32(5, 8, 0))
    starts, lens = twin.convert(starts), twin.convert(lens)
    call = make_call(twin, query_start_loc=starts, seq_lens=lens)
    twin.build_attn_metadata(**call)
    batch = call["attn_metadata_builders"][1].batch
    for view, array in [
        (batch.query_start_loc, starts.gpu),
        (batch.query_start_loc_cpu, starts.cpu),
        (batch.seq_lens, lens.gpu),
        (batch.seq_lens_cpu, lens.cpu),
        (batch.num_computed_tokens_cpu, call["num_computed_tokens_cpu"]),
    ]:
        assert twin.shares_memory(view, array)
        assert not any(
            twin.shares_memory(view, other)
            for other in (starts.gpu, starts.cpu, lens.gpu, lens.cpu)
            if other is not array
        )


def test_slots_of_all_groups_in_one_array(twin: Any) -> None:
    slots = twin.convert(np.arange(40)).reshape(2, 20)[:, ::2]
    call = make_call(twin, slot_mappings=slots)
    twin.build_attn_metadata(**call)
    for group, builder in enumerate(call["attn_metadata_builders"]):
        assert slots[group].tolist() == builder.batch.slot_mapping.tolist()
        assert twin.shares_memory(builder.batch.slot_mapping, slots[group])


def test_bounds_are_those_of_the_requests(twin: Any) -> None:
    call = make_call(twin, num_reqs=np.int64(1), num_tokens=np.int32(2))
    twin.build_attn_metadata(**call)
    batch = call["attn_metadata_builders"][0].batch
    bounds = counts_of(batch)
    assert (1, 2, 2, 5) == bounds
    assert [int] * 4 == list(map(type, bounds))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((np.int32(4), 2**31 - 1), (4, 2**31 - 1)),
        ((9, None), (9, 8)),
        ((None, 9), (3, 9)),
    ],
)
def test_given_bounds(twin: Any, given: tuple[Any, Any], expected: tuple[int, int]) -> None:
    call = make_call(twin, max_query_len=given[0], max_seq_len=given[1])
    twin.build_attn_metadata(**call)
    for builder in call["attn_metadata_builders"]:
        bounds = builder.batch.max_query_len, builder.batch.max_seq_len
        assert expected == bounds
        assert [int, int] == list(map(type, bounds))


def test_no_requests(twin: Any) -> None:
    call = make_call(
        twin,
        num_reqs=0,
        num_tokens=0,
        query_start_loc=halves(int32(0)),
        seq_lens=halves(int32()),
        num_computed_tokens_cpu=int32(),
        block_tables=(np.zeros((0, 3), np.int32), np.zeros((0, 0), np.int32)),
        slot_mappings=np.zeros((2, 0), np.int64),
    )
    assert ["b", "a", "c"] == list(twin.build_attn_metadata(**call))
    batch = call["attn_metadata_builders"][0].batch
    assert (0, 0) == (batch.max_query_len, batch.max_seq_len)
    assert [0] == batch.query_start_loc.tolist()


def test_groups_without_layers_and_layers_of_two_groups(twin: Any) -> None:
    groups = [SimpleNamespace(layer_names=names) for names in (["a", "b"], [], ["a"])]
    call = make_call(
        twin,
        attn_metadata_builders=[Builder(), Builder(), Builder()],
        block_tables=(np.zeros((3, 3), np.int32),) * 3,
        slot_mappings=(np.zeros(7, np.int64),) * 3,
        kv_cache_config=SimpleNamespace(kv_cache_groups=groups),
    )
    built = twin.build_attn_metadata(**call)
    builders = call["attn_metadata_builders"]
    assert [builders[2], builders[0]] == [built[name].builder for name in ("a", "b")]
    assert [1, 1, 1] == [len(builder.calls) for builder in builders]


TABLE, SLOTS = np.zeros((3, 2), np.int32), np.zeros(7, np.int64)
STARTS, LENS = int32(0, 2, 5, 5), int32(5, 8, 0)
