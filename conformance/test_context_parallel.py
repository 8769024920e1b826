"""What each context-parallel rank holds of a sequence."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice

import numpy as np
import pytest
from hypothesis import strategies as st

import reference
from conformance.checks import law, same_answer, same_refusal
from conformance.contracts import Call, Contract, Draw
from conformance.faults.context_parallel import DCP_FAULTS
from conformance.laws import About, Access, Meaning, Reader, about, obeys
from conformance.sides import Side
from conformance.strategies.arrays import guarded
from conformance.strategies.batches import Batch, batches
from conformance.strategies.context_parallel import dcp_local_seq_lens_calls
from conformance.strategies.presets import Preset
from conformance.strategies.slots import layouts
from conformance.targets import Target


def _round(call: Call) -> int:
    size: int = call.arguments.get("dcp_size", 1)
    return size * int(call.arguments.get("cp_kv_cache_interleave_size", 1))


@st.composite
def _on_ranks(draw: Draw, preset: Preset) -> Call:
    """Draw the local lengths of a batch whose blocks lie on several ranks."""
    batch = draw(batches(preset, layout=draw(layouts(preset))))
    return _lengths_of(Call("get_dcp_local_seq_lens", {}), batch)


def _lengths_of(call: Call, batch: Batch) -> Call:
    return about(
        call,
        batch,
        seq_lens=guarded(batch.seq_lens, np.int32, batch.stride),
        dcp_size=batch.layout.cp_world_size,
        cp_kv_cache_interleave_size=batch.layout.cp_kv_cache_interleave_size,
    )


def _first_held(reader: Reader, call: Call) -> Iterator[Access]:
    """Yield what a rank reads: of the positions that it holds, as many as it is told."""
    batch, layout = call.facts, call.facts.layout
    lengths = reader.answer(call)[:, layout.cp_rank].tolist()
    interleave = layout.cp_kv_cache_interleave_size
    reads = set()
    for request, (computed, length) in enumerate(
        zip(batch.num_computed_tokens, lengths, strict=True)
    ):
        held = (p for p in count() if p // interleave % layout.cp_world_size == layout.cp_rank)
        keys = list(islice(held, length))
        for j in range(batch.query_lens[request]):
            token = batch.starts[request] + j
            reads |= {(token, key, 0) for key in keys if key <= computed + j or not batch.causal}
    yield Access(frozenset(reads))


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
    laws=("ranks_partition", "padding_adds_nothing", "any_order_means_the_same"),
    meaning=Meaning(
        _first_held,
        lambda call, change: _lengths_of(call, change.of(call.facts)),
        tells=About.READS,
        calls=_on_ranks,
    ),
)

test_get_dcp_local_seq_lens = same_answer(LOCAL_LENGTHS)
test_get_dcp_local_seq_lens_refuses = same_refusal(LOCAL_LENGTHS)
test_get_dcp_local_seq_lens_laws = obeys(LOCAL_LENGTHS)


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


@pytest.mark.parametrize(("rank", "lengths"), [(0, [3, 4]), (1, [2, 4])])
def test_worked_example(rank: int, lengths: list[int]) -> None:
    """Reference gives the definition's example: lengths 5 and 8, two ranks, interleave 2."""
    found = reference.get_dcp_local_seq_lens(np.array([5, 8], np.int32), 2, rank, 2)
    assert lengths == found.tolist()
