"""What each context-parallel rank holds of a sequence."""

from __future__ import annotations

from conformance.aliases import Alias, Relation
from conformance.calls import Call
from conformance.contracts import Contract
from conformance.interpretations.context_parallel import HELD_KEYS
from conformance.invalid_inputs.context_parallel import DCP_INVALID_INPUTS
from conformance.invocations import Invocation
from conformance.properties import law
from conformance.strategies.context_parallel import dcp_local_seq_lens_calls
from conformance.targets import Target


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
    pairs=(
        ("every rank's length", "a length near 2**31"),
        ("every rank's length", "out is longer than the lengths"),
        ("the last rank", "out is longer than the lengths"),
    ),
    invalid_inputs=DCP_INVALID_INPUTS,
    changes=frozenset({"out"}),
    aliases=(Alias("", Relation.VIEW, "out", lambda call: "out" in call),),
    has_device_path=True,
    laws=(
        "ranks_partition",
        "padding_adds_nothing",
        "any_order_means_the_same",
    ),
    interpretation=HELD_KEYS,
    on_device=("out",),
    has_arrays=True,
)


@law("get_dcp_local_seq_lens", dcp_local_seq_lens_calls)
def test_local_lengths_sum_to_the_sequence(target: Target, call: Call) -> None:
    """The ranks' local lengths add up, and no rank has more than one interleave over another."""
    lengths = Invocation(target, call.replacing(dcp_rank=None, out=None)).answer().tolist()
    interleave = call.get("cp_kv_cache_interleave_size", 1)
    for seq_len, local in zip(call["seq_lens"].tolist(), lengths, strict=True):
        assert sum(local) == seq_len
        assert local == sorted(local, reverse=True)
        assert local[0] - local[-1] <= interleave
