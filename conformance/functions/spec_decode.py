"""Speculative decoding: a uniform batch's tokens, request by request, and back."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, Final

import ml_dtypes
import numpy as np
from hypothesis import strategies as st

from conformance.harness.contract import Arguments, Contract
from conformance.harness.sizes import Rng, fit, rngs, sizes
from conformance.laws.batches import choices, deferred

if TYPE_CHECKING:
    from conformance.harness.objects import Twin
    from conformance.harness.values import Array

DTYPES: Final = (
    np.float16,
    ml_dtypes.bfloat16,
    np.float32,
    ml_dtypes.float8_e4m3fn,
    np.int8,
    np.bool_,
)


def _shape(draw: st.DrawFn) -> tuple[int, ...]:
    """Draw the number of requests, of the tokens of each, of heads, and of elements of a head."""
    least = (1, 0, 0, 0)
    drawn = [draw(sizes(n, most)) for n, most in zip(least, (2100, 300, 130, 300), strict=True)]
    return fit(8000, *drawn)


def _filled(rng: Rng, shape: tuple[int, ...], dtype: Any) -> Array:
    return rng.integers(0, 100, shape).astype(dtype)


@st.composite
def queries(draw: st.DrawFn) -> st.SearchStrategy[Arguments]:
    number, tokens, heads, dim = _shape(draw)
    [dtype] = choices(draw, DTYPES)

    def contents(draw: st.DrawFn) -> Arguments:
        query = _filled(draw(rngs()), (number * tokens, heads, dim), dtype)
        return {"query": query, "batch_size": number}

    return deferred(contents)


@st.composite
def outputs(draw: st.DrawFn) -> st.SearchStrategy[Arguments]:
    """Draw outputs by request or by token, and the memory of which they are views.

    So both twins have the same strides: not all allow a view.
    """
    number, tokens, heads, dim = _shape(draw)
    dtype, by_token, step, more_heads, more_dims, has_heads_first = choices(
        *(draw, DTYPES, (False, False, True), (1, 1, 2), (0, 0, 1), (0, 0, 3), (False, False, True))
    )
    shape = (number * tokens * step, heads + more_heads, dim + more_dims)

    def contents(draw: st.DrawFn) -> Arguments:
        order = (1, 0, 2) if has_heads_first else (0, 1, 2)
        memory = _filled(draw(rngs()), tuple(shape[axis] for axis in order), dtype)
        output = memory.transpose(order)[::step, :heads, more_dims // 2 :][..., :dim]
        if not by_token:
            output = output.reshape(number, tokens, heads, dim)
        return {"attn_output": output, "memory": memory[:]}

    return deferred(contents)


def no_view(arguments: Arguments, rng: random.Random) -> Arguments:
    """Let the requests lie apart from each other, or take turns, or have other dimensions."""
    memory = np.zeros((3, 3, 2, 3), arguments["memory"].dtype)
    wrong = (memory[:, :2], memory.transpose(1, 0, 2, 3), memory[0, 0], memory[None])
    return {"attn_output": rng.choice(wrong), "memory": memory[:]}


def by_token(twin: Twin, *, attn_output: Any, memory: Any) -> Any:
    """Make the call; return its result, and whether it is the argument itself."""
    del memory
    result = twin.function("reshape_attn_output_for_spec_decode")(attn_output=attn_output)
    return result, result is attn_output


def _has_gaps(arguments: Arguments) -> bool:
    output: Array = arguments["attn_output"]
    return output.size > 1 and output.ndim == 4 and not output.flags.c_contiguous


CONTRACTS = [
    Contract(
        function="reshape_query_for_spec_decode",
        calls=queries(),
        examples=0.3,
        hard_cases={
            "several requests of several tokens": lambda args: (
                1 < args["batch_size"] < len(args["query"]) and args["query"].size > 0
            ),
        },
    ),
    Contract(
        function="reshape_attn_output_for_spec_decode",
        calls=outputs(),
        examples=0.4,
        run=by_token,
        dense=frozenset({"attn_output"}),  # without the memory that it is a view of
        specials=(no_view,),
        hard_cases={
            "a strided output of several requests of several tokens": lambda args: (
                _has_gaps(args) and min(args["attn_output"].shape[:2]) > 1
            ),
            "one token of each, that lie apart": lambda args: (
                _has_gaps(args) and args["attn_output"].shape[1] == 1 < len(args["attn_output"])
            ),
        },
    ),
]
