"""Causal convolutions over a ragged batch: which program computes which tokens."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

import reference
from conformance.contracts.check import property_check, same_in_any_order
from conformance.contracts.contract import Contract
from conformance.coverage.presets import Preset
from conformance.coverage.size_axes import Axis
from conformance.execution.invocations import Invocation
from conformance.invalid_inputs.causal_conv1d import CONV1D_INVALID_INPUTS
from conformance.laws.access import Access, Half
from conformance.laws.changes import Change
from conformance.laws.interpretation import Interpretation, Reader, with_batch
from conformance.laws.statements import BLOCK_M
from conformance.strategies import cached as st
from conformance.strategies.batch import Batch, Layout
from conformance.strategies.causal_conv1d import LENGTH, SEQUENCES, compute_conv1d_calls
from conformance.targets.target import Target
from conformance.values.call import Call


def _of_batches(preset: Preset) -> st.SearchStrategy[Call]:
    """Return calls whose source is a batch of new sequences."""

    def of_batch(call: Call) -> Call:
        rows = tuple((1,) * -(-length // BLOCK_M) for length in call.source)
        batch = Batch(call.source, (0,) * len(call.source), Layout(BLOCK_M), rows)
        return with_batch(call, batch)

    return compute_conv1d_calls(preset).map(of_batch)


def _runs_of_batch(reader: Reader, call: Call) -> Iterator[Access]:
    """Yield the writes of each program: its tokens, each to one slot."""
    for run in runs_of(reader.target, with_batch(call, call.source.query_lens)):
        yield Access(writes=frozenset((token, 0) for token in run))


def _with_change(call: Call, change: Change) -> Call:
    """Return the call about a changed batch, with its hint."""
    batch = change(call.source)
    starts = batch.query_start_loc()
    call = call.hinting(**dict.fromkeys(call.hints, starts))
    return with_batch(call, batch, query_start_loc_p=starts)


def runs_of(target: Target, call: Call) -> list[range]:
    """Return the tokens of each program, as a kernel computes them."""
    starts = [0, *accumulate(call.source)]
    found = []
    _, sequences, offsets = Invocation(target, call).answer()
    for sequence, offset in zip(sequences.tolist(), offsets.tolist(), strict=True):
        if sequence != reference.PAD_SLOT_ID:
            first = starts[sequence] + BLOCK_M * offset
            found.append(range(first, min(first + BLOCK_M, starts[sequence + 1])))
    return found


PROGRAMS = Interpretation(_runs_of_batch, _with_change, shows=Half.WRITES, calls=_of_batches)
"""Interprets `compute_causal_conv1d_metadata`: one part for each program."""


def _programs(call: Call) -> int:
    return sum(-(-length // BLOCK_M) for length in call.source)


def _has_remainder(remainder: int) -> Any:
    return lambda call: any(n > BLOCK_M and n % BLOCK_M == remainder for n in call.source)


test_compute_causal_conv1d_metadata = Contract(
    "compute_causal_conv1d_metadata",
    compute_conv1d_calls,
    {
        "no sequences": lambda call: not call.source,
        "no tokens": lambda call: bool(call.source) and not any(call.source),
        "a sequence of no tokens between others": lambda call: any(
            not n and any(call.source[:i]) and any(call.source[i:])
            for i, n in enumerate(call.source)
        ),
        "a sequence ends with a program": _has_remainder(0),
        "a sequence ends just before": _has_remainder(7),
        "a sequence ends just past": _has_remainder(1),
        "a sequence of one program": lambda call: BLOCK_M in call.source,
        "several sequences of several programs": lambda call: (
            sum(n > BLOCK_M for n in call.source) > 1
        ),
        "as many programs as the least room": lambda call: _programs(call) == 1024,
        "more programs than the least room": lambda call: _programs(call) > 1024,
        "strided starts": lambda call: call["query_start_loc_p"].strides[0] > 4,
        "the starts are on the CPU too": lambda call: bool(call.hints),
    },
    pairs=(("strided starts", "more programs than the least room"),),
    axes={
        SEQUENCES: Axis(lambda call: len(call.source)),
        LENGTH: Axis(lambda call: max(call.source, default=0)),
    },
    invalid_inputs=CONV1D_INVALID_INPUTS,
    compares_views=True,
    has_kernel=True,
    laws=("programs_cover", "padding_adds_nothing", "any_order_means_the_same"),
    interpretation=PROGRAMS,
    on_device=("query_start_loc_p_cpu",),
    has_arrays=True,
    returns=("nums_dict", "batch_ptr", "token_chunk_offset_ptr"),
)


def _convolved(tokens: Any, weights: Any) -> Any:
    """Return the plain causal convolution of one sequence, channel by channel."""
    width = len(weights)
    padded = np.concatenate([np.zeros((width - 1, tokens.shape[1]), tokens.dtype), tokens])
    return sum(weights[k] * padded[k : k + len(tokens)] for k in range(width))


def _run_program(tokens: Any, weights: Any, run: range, first: int) -> Any:
    """Return what one program computes: it reads its tokens, and those just before."""
    rows = []
    for token in run:
        row = np.zeros_like(tokens[0])
        for back, weight in enumerate(weights[::-1]):
            if token - back >= first:
                row += weight * tokens[token - back]
        rows.append(row)
    return rows


@property_check(
    "compute_causal_conv1d_metadata",
    lambda preset: compute_conv1d_calls(preset, is_long=False),
    goals={
        "convolved: a program that begins inside a sequence": lambda call: any(
            n > BLOCK_M for n in call.source
        )
    },
)
def test_programs_make_the_plain_convolution(target: Target, call: Call) -> None:
    """A convolution run program by program, in integers, equals that of each whole sequence."""
    rng = np.random.default_rng(len(call.source))
    tokens = rng.integers(-9, 9, (sum(call.source), 2))
    weights = rng.integers(-9, 9, (4, 2))
    starts = [0, *accumulate(call.source)]
    expected = [_convolved(tokens[start:end], weights) for start, end in pairwise(starts)]
    got = np.full_like(tokens, 99)
    for run in runs_of(target, call):
        first = max(start for start in starts if start <= run.start)
        got[run.start : run.stop] = _run_program(tokens, weights, run, first)
    assert np.concatenate([tokens[:0], *expected]).tolist() == got.tolist()


test_any_order_of_threads_lists_alike = same_in_any_order(
    "compute_causal_conv1d_metadata",
    lambda preset: compute_conv1d_calls(preset, is_long=False),
    lambda result: [list_ptr.tolist() for list_ptr in result[1:]],
)
