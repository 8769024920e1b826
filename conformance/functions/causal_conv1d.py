"""Causal convolutions over a ragged batch: which program computes which tokens."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from hypothesis import strategies as st

import reference
from conformance.adapters import Unsupported
from conformance.harness.contract import Arguments, Contract
from conformance.harness.pair import Pair
from conformance.harness.sizes import fit, sizes, vectors
from conformance.laws import batch_laws as laws
from conformance.laws.access import Access, Half
from conformance.laws.batch_laws import BLOCK_M, Description
from conformance.laws.batches import Batch, IntArray, choices, deferred
from reference._checks import check_array

if TYPE_CHECKING:
    from conformance.harness.objects import Twin
    from conformance.harness.targets import Target

NAME: Final = "compute_causal_conv1d_metadata"

LENGTHS: Final = (0, 1, 8, 9, 7, 16, 17, 15, 24)
"""Lengths around the tokens of one program, and of two."""

LONG: Final = (8192, 16_401, 8193, 8185)
"""Lengths around 1,024 programs, above which the lists grow, and one of 2,051 programs."""


@st.composite
def calls(draw: st.DrawFn) -> st.SearchStrategy[Arguments]:
    """Draw sequences about as long as a program, or of many; sometimes with a copy on the host."""
    number = draw(sizes(0, 2100))
    most, long, is_copied = choices(
        draw, (8, 1, 9, 24, 300), (*[0] * 12, *LONG), (False, False, True)
    )
    [number, most] = fit(20_000, number, most) if number else (0, most)

    def contents(draw: st.DrawFn) -> Arguments:
        rare = LENGTHS if most > 1 else ()
        lens = draw(vectors(number, 0, most, np.int64, rare=rare))
        if long and number:
            lens[draw(st.integers(0, number - 1))] = long
        starts = np.cumsum([0, *lens]).astype(np.int32)
        copies = {"query_start_loc_p_cpu": starts.copy()} if is_copied else {}
        return {"query_start_loc_p": starts, **copies}

    return deferred(contents)


def copy_of_fewer_tokens(_: Arguments, rng: random.Random) -> Arguments:
    """Let the starts need more programs than the lists hold that are made for their copy."""
    starts = np.array([0, 2**13, 2**14 + rng.randrange(9)], np.int32)
    return {
        "query_start_loc_p": starts,
        "query_start_loc_p_cpu": starts // 2**13 * rng.randrange(2),
    }


def with_copy(twin: Twin, *, query_start_loc_p: Any, query_start_loc_p_cpu: Any = None) -> Any:
    """Make the call; what `fast` takes besides is a copy of the starts on the host."""
    call = twin.function(NAME)
    if query_start_loc_p_cpu is None:
        return call(query_start_loc_p=query_start_loc_p)
    if twin.target is not None:
        if not twin.target.is_fast:
            raise Unsupported("only `fast` takes a copy of the starts")
        return call(query_start_loc_p, query_start_loc_p_cpu=query_start_loc_p_cpu)
    answer = call(query_start_loc_p)
    copy = check_array("query_start_loc_p_cpu", query_start_loc_p_cpu, np.int32, 1)
    if len(copy) != len(query_start_loc_p):
        raise ValueError(
            f"query_start_loc_p_cpu has {len(copy)} entries, but query_start_loc_p has "
            f"{len(query_start_loc_p)}"
        )
    for at in np.flatnonzero(query_start_loc_p != copy).tolist():
        raise ValueError(
            f"query_start_loc_p_cpu[{at}] is {copy[at]}, but query_start_loc_p[{at}] is "
            f"{query_start_loc_p[at]}"
        )
    return answer


def programs(starts: IntArray, result: Any) -> list[range]:
    found = []
    for sequence, offset in zip(*(pointer.tolist() for pointer in result[1:]), strict=True):
        if sequence != reference.PAD_SLOT_ID:
            first, end = int(starts[sequence]) + BLOCK_M * offset, int(starts[sequence + 1])
            found.append(range(first, min(first + BLOCK_M, end)))
    return found


def programs_make_the_plain_convolution(target: Target, arguments: Arguments) -> None:
    """A convolution run program by program, in integers, equals that of each whole sequence."""
    starts = arguments["query_start_loc_p"]
    if starts[-1] > 200:
        return
    rng, width = np.random.default_rng(len(starts)), 4
    tokens, weights = rng.integers(-9, 9, starts[-1]), rng.integers(-9, 9, width)
    owners = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    expected = [
        int(np.convolve(tokens[starts[owner] : token + 1], weights)[token - starts[owner]])
        for token, owner in enumerate(owners)
    ]
    got = [99] * len(tokens)
    result = Pair(CONTRACTS[0], target, arguments).outcome().value
    for sequence, run in zip(result[1].tolist(), programs(starts, result), strict=False):
        for token in run:
            window = range(max(token - width + 1, int(starts[sequence])), token + 1)
            got[token] = sum(int(weights[token - k] * tokens[k]) for k in window)
    assert got == expected, f"{got} program by program, {expected} of whole sequences"


def _of_batch(batch: Batch, _: object) -> Arguments:
    return {"query_start_loc_p": batch.query_start_loc()}


def _runs(_: Batch, arguments: Arguments, result: Any) -> list[Access]:
    """Return the writes of each program: its tokens, each to one slot."""
    found = programs(arguments["query_start_loc_p"], result)
    return [Access(writes=frozenset((token, 0) for token in run)) for run in found]


def _num_programs(arguments: Arguments) -> int:
    return int((-(-np.diff(arguments["query_start_loc_p"]) // BLOCK_M)).sum())


CONTRACTS = [
    Contract(
        function=NAME,
        calls=calls(),
        run=with_copy,
        examples=0.7,
        has_kernel=True,
        specials=(copy_of_fewer_tokens,),
        is_affordable=lambda args: args["query_start_loc_p"].max(initial=0) < 60_000,
        properties=(programs_make_the_plain_convolution,),
        laws=(laws.programs_cover, laws.padding_adds_nothing, laws.any_order_means_the_same),
        description=Description(_of_batch, _runs, shows=Half.WRITES, has_ranks=False),
        hard_cases={
            "no sequences": lambda args: len(args["query_start_loc_p"]) == 1,
            "as many programs as the least room": lambda args: _num_programs(args) == 1024,
            "more programs than that": lambda args: _num_programs(args) > 1024,
        },
    ),
]
