"""What each context-parallel rank holds of a sequence."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import strategies as st

import reference
from conformance.checks import law, same_answer, same_refusal
from conformance.contracts import Call, Contract, Draw
from conformance.faults.context_parallel import DCP_FAULTS
from conformance.sides import Side
from conformance.strategies.arrays import guarded
from conformance.strategies.batches import batches
from conformance.strategies.context_parallel import dcp_local_seq_lens_calls
from conformance.strategies.presets import FEW_PAIRS, MINIMAL, Preset
from conformance.strategies.slots import layouts
from conformance.targets import Target


def _round(call: Call) -> int:
    size: int = call.arguments.get("dcp_size", 1)
    return size * int(call.arguments.get("cp_kv_cache_interleave_size", 1))


LOCAL_LENGTHS = Contract(
    "get_dcp_local_seq_lens",
    dcp_local_seq_lens_calls,
    {
        "no requests": lambda call: len(call.arguments["seq_lens"]) == 0,
        "an empty sequence": lambda call: 0 in call.arguments["seq_lens"],
        "one rank": lambda call: call.arguments.get("dcp_size", 1) == 1,
        "every rank's length": lambda call: call.arguments.get("dcp_rank") is None,
        "the last rank": lambda call: (
            call.arguments.get("dcp_rank") == call.arguments.get("dcp_size", 1) - 1 > 0
        ),
        "a whole round of the ranks": lambda call: any(
            s and s % _round(call) == 0 for s in call.arguments["seq_lens"]
        ),
        "a length inside an interleave": lambda call: any(
            s % call.arguments.get("cp_kv_cache_interleave_size", 1)
            for s in call.arguments["seq_lens"]
        ),
        "a length near 2**31": lambda call: any(s > 2**30 for s in call.arguments["seq_lens"]),
        "strided arrays": lambda call: call.arguments["seq_lens"].strides[0] > 4,
    },
    pairs=(("every rank's length", "a length near 2**31"),),
    faults=DCP_FAULTS,
    has_device_path=True,
)

test_get_dcp_local_seq_lens = same_answer(LOCAL_LENGTHS)
test_get_dcp_local_seq_lens_refuses = same_refusal(LOCAL_LENGTHS)


@law("get_dcp_local_seq_lens", dcp_local_seq_lens_calls)
def test_local_lengths_sum_to_the_sequence(target: Target, call: Call) -> None:
    """The ranks' local lengths add up, and no rank has more than one interleave over another."""
    with target.running(checked=True):
        lengths = Side(target, call.replacing(dcp_rank=None)).run().tolist()
    interleave = call.arguments.get("cp_kv_cache_interleave_size", 1)
    for seq_len, local in zip(call.arguments["seq_lens"].tolist(), lengths, strict=True):
        assert sum(local) == seq_len
        assert local == sorted(local, reverse=True)
        assert local[0] - local[-1] <= interleave


@st.composite
def _on_ranks(draw: Draw, preset: Preset) -> Call:
    """Draw the local lengths of a batch whose blocks lie on several ranks."""
    batch = draw(batches(preset, layout=draw(layouts(preset)), is_shared=False))
    arguments = {
        "seq_lens": guarded(batch.seq_lens, np.int32, batch.stride),
        "dcp_size": batch.layout.cp_world_size,
        "cp_kv_cache_interleave_size": batch.layout.cp_kv_cache_interleave_size,
    }
    return Call("get_dcp_local_seq_lens", arguments, dataclasses.replace(batch, causal=False))


@law(
    "get_dcp_local_seq_lens",
    _on_ranks,
    situations={"a batch on several ranks": lambda call: call.facts.layout.cp_world_size > 1},
    presets=(MINIMAL, FEW_PAIRS),
)
def test_ranks_partition_the_pairs(target: Target, call: Call) -> None:
    """A pair of token and key is one rank's, which reads as many keys as its local length."""
    batch, layout = call.facts, call.facts.layout
    with target.running(checked=True):
        lengths = Side(target, call).run().tolist()
    metadata = batch.metadata()
    pairs = []
    for rank in range(layout.cp_world_size):
        keywords = dataclasses.replace(layout, cp_rank=rank).keywords()
        reads = reference.kv_reads(metadata, layout.block_size, **keywords)
        pairs += [(token, key) for token, key, _ in reads]
        for i, start in enumerate(batch.starts[:-1]):
            if batch.query_lens[i]:
                assert sum(token == start for token, _, _ in reads) == lengths[i][rank]
    wanted = {
        (token, key)
        for i in range(batch.num_reqs)
        for token in range(batch.starts[i], batch.starts[i + 1])
        for key in range(batch.seq_lens[i])
    }
    assert len(pairs) == len(set(pairs))
    assert set(pairs) == wanted


@pytest.mark.parametrize(("rank", "lengths"), [(0, [3, 4]), (1, [2, 4])])
def test_worked_example(rank: int, lengths: list[int]) -> None:
    """Reference gives the definition's example: lengths 5 and 8, two ranks, interleave 2."""
    found = reference.get_dcp_local_seq_lens(np.array([5, 8], np.int32), 2, rank, 2)
    assert lengths == found.tolist()
