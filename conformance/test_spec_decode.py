"""Speculative decoding: a uniform batch's tokens, request by request, and back."""

from __future__ import annotations

import functools
import itertools
from typing import Any

from conformance.contracts.check import property_check
from conformance.contracts.contract import Contract
from conformance.coverage.size_axes import Axis
from conformance.execution.invocations import Invocation
from conformance.invalid_inputs.spec_decode import OUTPUT_INVALID_INPUTS, QUERY_INVALID_INPUTS
from conformance.strategies.spec_decode import AXES, reshape_output_calls, reshape_query_calls
from conformance.targets.target import Target
from conformance.values.aliases import Alias, Relation, address_of
from conformance.values.call import Call


def _is_strided(name: str) -> Any:
    return lambda call: (
        call.arguments[name].size > 1 and not call.arguments[name].flags.c_contiguous
    )


test_reshape_query_for_spec_decode = Contract(
    "reshape_query_for_spec_decode",
    reshape_query_calls,
    {
        "one request": lambda call: call["batch_size"] == 1,
        "several requests of several tokens": lambda call: (
            1 < call["batch_size"] < len(call["query"])
        ),
        "no tokens": lambda call: len(call["query"]) == 0,
        "no heads": lambda call: call["query"].shape[1] == 0,
        "a strided query": _is_strided("query"),
        "tokens are not the slowest axis": lambda call: (
            call["query"].size > 0 and call["query"].strides[0] < call["query"].strides[1]
        ),
        "a dtype that NumPy lacks": lambda call: call["query"].dtype.name == "bfloat16",
    },
    axes={
        "requests": Axis(lambda call: call["batch_size"], first=1),
        "tokens of a request": Axis(lambda call: len(call["query"]) // call["batch_size"]),
        "heads": Axis(lambda call: call["query"].shape[1]),
        "head size": Axis(lambda call: call["query"].shape[2]),
    },
    invalid_inputs=QUERY_INVALID_INPUTS,
    aliases=(Alias("", Relation.VIEW, "query"),),
    has_arrays=True,
)


def _output(call: Call) -> Any:
    return call["attn_output"]


def _has(axes: int) -> Any:
    return lambda call: _output(call).ndim == axes


def _length(call: Call, place: int) -> int:
    length: int = _output(call).shape[place]
    return length


test_reshape_attn_output_for_spec_decode = Contract(
    "reshape_attn_output_for_spec_decode",
    reshape_output_calls,
    {
        "four dimensions": _has(4),
        "three dimensions": _has(3),
        "a strided output of four": lambda call: (
            _has(4)(call) and _is_strided("attn_output")(call) and 1 not in _output(call).shape[:2]
        ),
        "one token of each, that lie apart": lambda call: (
            _has(4)(call)
            and _output(call).shape[1] == 1 < _output(call).shape[0]
            and _output(call).strides[0] > 2 * _output(call)[0, 0].nbytes > 0
        ),
        "one request": lambda call: _has(4)(call) and _output(call).shape[0] == 1,
        "no tokens": lambda call: _has(4)(call) and 0 in _output(call).shape[:2],
    },
    axes={name: Axis(functools.partial(_length, place=place)) for place, name in enumerate(AXES)},
    invalid_inputs=OUTPUT_INVALID_INPUTS,
    aliases=(
        Alias("", Relation.VIEW, "attn_output"),
        Alias("", Relation.SAME, "attn_output", _has(3)),
    ),
    has_arrays=True,
)


def _corners(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return the first and the last index of each axis, in all combinations."""
    return list(itertools.product(*({0, length - 1} for length in shape)))


@property_check("reshape_query_for_spec_decode", reshape_query_calls)
def test_a_round_trip_is_the_same_memory(target: Target, call: Call) -> None:
    """Reshaping a query and back keeps the memory address of every element."""
    invocation = Invocation(target, call)
    query = invocation.arguments["query"]
    with target.running(checked=True):
        by_request = invocation.run()
        back = target.lookup("reshape_attn_output_for_spec_decode")(by_request)
    assert query.shape == back.shape
    if 0 in query.shape:
        return
    n = query.shape[0] // call["batch_size"]
    for i, j, *rest in _corners(tuple(by_request.shape)):
        token = (i * n + j, *rest)
        places = [
            address_of(a[index])
            for a, index in ((query, token), (by_request, (i, j, *rest)), (back, token))
        ]
        assert places == places[:1] * 3


@property_check("reshape_attn_output_for_spec_decode", reshape_output_calls)
def test_tokens_stay_where_they_are(target: Target, call: Call) -> None:
    """Reshaping an output to tokens keeps the memory address of every element."""
    invocation = Invocation(target, call)
    output = invocation.arguments["attn_output"]
    made = invocation.answer()
    if output.ndim == 3 or 0 in output.shape:
        return
    for i, j, *rest in _corners(tuple(output.shape)):
        place = address_of(output[(i, j, *rest)])
        assert place == address_of(made[(i * output.shape[1] + j, *rest)])
