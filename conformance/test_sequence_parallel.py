"""Sequence parallelism: whether the residual stream is scattered over the ranks."""

from __future__ import annotations

from typing import Any

from conformance.contracts.check import property_check
from conformance.contracts.contract import Contract
from conformance.coverage.size_axes import Axis
from conformance.execution.invocations import Invocation
from conformance.invalid_inputs.sequence_parallel import SP_INVALID_INPUTS
from conformance.strategies.sequence_parallel import (
    NUM_SIZES,
    RANKS,
    TOKENS,
    is_scattered_calls,
    whole,
)
from conformance.strategies.stub_factories import Own
from conformance.targets.target import Target
from conformance.values.call import Call


def _is_armed(call: Call) -> bool:
    return bool(call.source["enable_sp"] and call.source["tensor_parallel_size"] > 1)


def _is_whole(call: Call) -> bool:
    return not call.source["splitting_ops"]


def _is_by_size(call: Call) -> bool:
    """Return whether the compile sizes decide."""
    is_cut = not _is_whole(call) and not call.source["use_inductor_graph_partition"]
    return _is_armed(call) and is_cut


test_is_residual_scattered_for_sp = Contract(
    "is_residual_scattered_for_sp",
    is_scattered_calls,
    {
        "it is off": lambda call: not call.source["enable_sp"],
        "it is off, and the number is not a multiple": lambda call: bool(
            not call.source["enable_sp"]
            and call["num_input_tokens"] % call.source["tensor_parallel_size"]
        ),
        "one rank": lambda call: (
            call.source["enable_sp"] and call.source["tensor_parallel_size"] == 1
        ),
        "no operators, None": lambda call: _is_armed(call) and call.source["splitting_ops"] is None,
        "no operators, an empty list": lambda call: (
            _is_armed(call) and call.source["splitting_ops"] in ([], ())
        ),
        "operators in a tuple": lambda call: call.source["splitting_ops"] == ("a", "b"),
        "the compiler cuts the graph": lambda call: (
            _is_armed(call) and not _is_whole(call) and call.source["use_inductor_graph_partition"]
        ),
        "a size for the number": lambda call: (
            _is_by_size(call) and call["num_input_tokens"] in (call.source["compile_sizes"] or ())
        ),
        "no size for the number": lambda call: (
            _is_by_size(call)
            and call["num_input_tokens"] not in (call.source["compile_sizes"] or (0,))
        ),
        "sizes are None": lambda call: _is_by_size(call) and call.source["compile_sizes"] is None,
        "no tokens": lambda call: _is_armed(call) and not call["num_input_tokens"],
        "a configuration of what is read": lambda call: isinstance(call["vllm_config"], Own),
    },
    axes={
        RANKS: Axis(lambda call: call.source["tensor_parallel_size"], 2**31 - 1, first=1),
        TOKENS: Axis(
            lambda call: call["num_input_tokens"] // call.source["tensor_parallel_size"], 2**31 - 1
        ),
        NUM_SIZES: Axis(lambda call: len(call.source["compile_sizes"] or ())),
    },
    invalid_inputs=SP_INVALID_INPUTS,
    takes_objects=True,
)


@property_check("is_residual_scattered_for_sp", is_scattered_calls)
def test_who_is_scattered(target: Target, call: Call) -> None:
    """Scattering needs the pass, several ranks and, if the graph is split, a compile size."""

    def answer(**parts: Any) -> bool:
        changed = call.replacing(vllm_config=whole({**call.source, **parts}))
        found = Invocation(target, changed).answer(checked=False)
        assert type(found) is bool
        return found

    number = call["num_input_tokens"]
    assert not answer(enable_sp=False)
    assert not answer(tensor_parallel_size=1)
    if not _is_armed(call):
        assert not answer()
        return
    assert answer(splitting_ops=[])
    assert answer(use_inductor_graph_partition=True)
    cut = {"splitting_ops": ["a"], "use_inductor_graph_partition": False}
    sizes = [size for size in call.source["compile_sizes"] or [] if size != number]
    assert not answer(**cut, compile_sizes=sizes)
    assert answer(**cut, compile_sizes=[*sizes, number])
