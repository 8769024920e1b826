"""The part of a sequence that each context-parallel rank stores."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from itertools import count, islice

import numpy as np
import torch

from conformance.arrays.guard_bands import guarded
from conformance.contracts.check import property_check
from conformance.contracts.contract import Contract
from conformance.coverage.presets import Preset
from conformance.coverage.size_axes import Axis
from conformance.execution.invocations import Invocation
from conformance.invalid_inputs.context_parallel import DCP_INVALID_INPUTS
from conformance.laws.access import Access, Half
from conformance.laws.interpretation import Interpretation, Reader, with_batch
from conformance.strategies import cached as st
from conformance.strategies.batch import Batch
from conformance.strategies.batches import batches
from conformance.strategies.context_parallel import LENGTH, dcp_local_seq_lens_calls
from conformance.strategies.large_batches import INTERLEAVE, RANKS, REQUESTS, ROOM
from conformance.strategies.slots import layouts
from conformance.targets.target import Target
from conformance.values.aliases import Alias, Relation
from conformance.values.call import Call


@st.composite
def _on_ranks(draw: st.DrawFn, preset: Preset) -> Call:
    """Draw the local lengths of a batch whose blocks lie on several ranks.

    It is not causal: each token reads its whole sequence, which reveals a length that is too large.
    """
    batch = draw(batches(preset, layout=draw(layouts(preset))))
    whole = dataclasses.replace(batch, causal=False)
    return _lengths_of(Call("get_dcp_local_seq_lens", {}), whole)


def _lengths_of(call: Call, batch: Batch) -> Call:
    return with_batch(
        call,
        batch,
        seq_lens=guarded(batch.seq_lens, np.int32, batch.stride),
        dcp_size=batch.layout.cp_world_size,
        cp_kv_cache_interleave_size=batch.layout.cp_kv_cache_interleave_size,
    )


def _first_held(reader: Reader, call: Call) -> Iterator[Access]:
    """Yield the reads of a rank: of the positions that it stores, as many as its local length."""
    batch, layout = call.source, call.source.layout
    lengths = reader.answer(call)[:, layout.cp_rank].tolist()
    interleave = layout.cp_kv_cache_interleave_size
    reads = set()
    for request, length in enumerate(lengths):
        held = (p for p in count() if p // interleave % layout.cp_world_size == layout.cp_rank)
        keys = list(islice(held, length))
        for j in range(batch.query_lens[request]):
            token = batch.starts[request] + j
            reads |= {(token, key, 0) for key in keys}
    yield Access(frozenset(reads))


HELD_KEYS = Interpretation(
    _first_held,
    lambda call, change: _lengths_of(call, change(call.source)),
    shows=Half.READS,
    calls=_on_ranks,
)
"""Interprets `get_dcp_local_seq_lens`: the keys of one rank; their slots are undefined."""


def _round(call: Call) -> int:
    size: int = call.get("dcp_size", 1)
    return size * int(call.get("cp_kv_cache_interleave_size", 1))


test_get_dcp_local_seq_lens = Contract(
    "get_dcp_local_seq_lens",
    dcp_local_seq_lens_calls,
    {
        "no requests": lambda call: len(call["seq_lens"]) == 0,
        "an empty sequence": lambda call: 0 in call["seq_lens"],
        "one rank": lambda call: call.get("dcp_size", 1) == 1,
        "every rank's length": lambda call: call.get("dcp_rank") is None,
        "the last rank": lambda call: call.get("dcp_rank") == call.get("dcp_size", 1) - 1 > 0,
        "a whole round of the ranks": lambda call: any(
            s and s % _round(call) == 0 for s in call["seq_lens"]
        ),
        "a length inside an interleave": lambda call: any(
            s % call.get("cp_kv_cache_interleave_size", 1) for s in call["seq_lens"]
        ),
        "a round of 2**31 - 1 positions": lambda call: _round(call) == 2**31 - 1,
        "a length near 2**31": lambda call: any(s > 2**30 for s in call["seq_lens"]),
        "strided arrays": lambda call: call["seq_lens"].strides[0] > 4,
        "out is given": lambda call: "out" in call,
        "out is longer than the lengths": lambda call: (
            len(call.get("out", ())) > len(call["seq_lens"])
        ),
    },
    axes={
        REQUESTS: Axis(lambda call: len(call["seq_lens"])),
        LENGTH: Axis(lambda call: max(call["seq_lens"], default=0), 2**31 - 1),
        RANKS: Axis(lambda call: call.get("dcp_size", 1), first=1),
        INTERLEAVE: Axis(
            lambda call: call.get("cp_kv_cache_interleave_size", 1), 2**29 - 1, first=1
        ),
        ROOM: Axis(lambda call: max(len(call.get("out", ())) - len(call["seq_lens"]), 0)),
    },
    pairs=(
        ("every rank's length", "a length near 2**31"),
        ("every rank's length", "out is longer than the lengths"),
        ("the last rank", "out is longer than the lengths"),
    ),
    invalid_inputs=DCP_INVALID_INPUTS,
    changes=frozenset({"out"}),
    aliases=(Alias("", Relation.VIEW, "out", lambda call: "out" in call),),
    has_device_path=True,
    laws=("ranks_partition", "padding_adds_nothing", "any_order_means_the_same"),
    interpretation=HELD_KEYS,
    on_device=("out",),
    has_arrays=True,
)


@property_check("get_dcp_local_seq_lens", dcp_local_seq_lens_calls)
def test_local_lengths_sum_to_the_sequence(target: Target, call: Call) -> None:
    """The ranks' local lengths add up, and differ by at most one interleave."""
    lengths = Invocation(target, call.replacing(dcp_rank=None, out=None)).answer().tolist()
    interleave = call.get("cp_kv_cache_interleave_size", 1)
    for seq_len, local in zip(call["seq_lens"].tolist(), lengths, strict=True):
        assert sum(local) == seq_len
        assert local == sorted(local, reverse=True)
        assert local[0] - local[-1] <= interleave


@property_check("get_dcp_local_seq_lens", dcp_local_seq_lens_calls)
def test_a_parameter_is_a_tensor_too(target: Target, call: Call) -> None:
    """A `torch.nn.Parameter` of lengths gives the same result as a tensor."""
    if target.device is None:
        return  # only implementations with tensors
    call = call.replacing(out=None)
    expected = Invocation(target, call).answer().tolist()
    invocation = Invocation(target, call)
    lens = invocation.arguments["seq_lens"]
    invocation.arguments["seq_lens"] = torch.nn.Parameter(lens, requires_grad=False)
    with target.running(checked=True):
        found = invocation.run()
    assert expected == found.tolist()
