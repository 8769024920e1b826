"""Causal convolutions over a ragged batch: which program computes which tokens."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from hypothesis import strategies as st

import reference
from conformance.checks import law, same_answer, same_refusal
from conformance.contracts import Call, Contract
from conformance.faults.causal_conv1d import CONV1D_FAULTS
from conformance.laws import About, Access, Change, Meaning, Reader, about, obeys
from conformance.sides import Side
from conformance.strategies.batches import Batch, Layout
from conformance.strategies.causal_conv1d import compute_conv1d_calls
from conformance.strategies.presets import Preset
from conformance.targets import Target

BLOCK_M = 8


def _programs(call: Call) -> int:
    return sum(-(-length // BLOCK_M) for length in call.facts)


def _has_remainder(remainder: int) -> Any:
    return lambda call: any(n > BLOCK_M and n % BLOCK_M == remainder for n in call.facts)


def _of_batches(preset: Preset) -> st.SearchStrategy[Call]:
    """Return calls whose facts are a batch of sequences that are all new."""

    def of_batch(call: Call) -> Call:
        rows = tuple((1,) * -(-length // BLOCK_M) for length in call.facts)
        batch = Batch(call.facts, (0,) * len(call.facts), Layout(BLOCK_M), rows)
        return about(call, batch)

    return compute_conv1d_calls(preset).map(of_batch)


def _runs_of_batch(reader: Reader, call: Call) -> Iterator[Access]:
    """Yield what each program writes: its tokens, each to the one place that it has."""
    for run in _runs(reader.target, about(call, call.facts.query_lens)):
        yield Access(writes=frozenset((token, 0) for token in run))


def _starting(call: Call, change: Change) -> Call:
    batch = change.of(call.facts)
    starts = batch.query_start_loc()
    call = call.hinting(**dict.fromkeys(call.hints, starts))
    return about(call, batch, query_start_loc_p=starts)


CONV1D = Contract(
    "compute_causal_conv1d_metadata",
    compute_conv1d_calls,
    {
        "no sequences": lambda call: not call.facts,
        "no tokens": lambda call: bool(call.facts) and not any(call.facts),
        "a sequence of no tokens between others": lambda call: any(
            not n and any(call.facts[:i]) and any(call.facts[i:]) for i, n in enumerate(call.facts)
        ),
        "a sequence ends with a program": _has_remainder(0),
        "a sequence ends just before": _has_remainder(7),
        "a sequence ends just past": _has_remainder(1),
        "a sequence of one program": lambda call: BLOCK_M in call.facts,
        "several sequences of several programs": lambda call: (
            sum(n > BLOCK_M for n in call.facts) > 1
        ),
        "as many programs as the least room": lambda call: _programs(call) == 1024,
        "more programs than the least room": lambda call: _programs(call) > 1024,
        "strided starts": lambda call: call.arguments["query_start_loc_p"].strides[0] > 4,
        "the starts are on the CPU too": lambda call: bool(call.hints),
    },
    pairs=(("strided starts", "more programs than the least room"),),
    faults=CONV1D_FAULTS,
    compares_views=True,
    has_kernel=True,
    laws=("programs_cover", "padding_adds_nothing", "any_order_means_the_same"),
    meaning=Meaning(
        _runs_of_batch,
        _starting,
        tells=About.WRITES,
        calls=_of_batches,
    ),
)

test_compute_causal_conv1d_metadata = same_answer(CONV1D)
test_compute_causal_conv1d_metadata_refuses = same_refusal(CONV1D)
test_compute_causal_conv1d_metadata_laws = obeys(CONV1D)


def _listed(target: Target, call: Call, seed: int = 0) -> tuple[list[int], list[int]]:
    """Return the two lists of programs that a target makes, padding included."""
    with target.running(checked=True, seed=seed):
        _, sequences, offsets = Side(target, call).run()
    return sequences.tolist(), offsets.tolist()


def _runs(target: Target, call: Call) -> list[range]:
    """Return the tokens of each program, as a kernel finds them."""
    starts = [0, *accumulate(call.facts)]
    found = []
    for sequence, offset in zip(*_listed(target, call), strict=True):
        if sequence != reference.PAD_SLOT_ID:
            first = starts[sequence] + BLOCK_M * offset
            found.append(range(first, min(first + BLOCK_M, starts[sequence + 1])))
    return found


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


@law(
    "compute_causal_conv1d_metadata",
    lambda preset: compute_conv1d_calls(preset, is_long=False),
    situations={
        "convolved: a program that begins inside a sequence": lambda call: any(
            n > BLOCK_M for n in call.facts
        )
    },
)
def test_programs_make_the_plain_convolution(target: Target, call: Call) -> None:
    """Run program by program, in integers, a convolution is the plain one of each sequence."""
    rng = np.random.default_rng(len(call.facts))
    tokens = rng.integers(-9, 9, (sum(call.facts), 2))
    weights = rng.integers(-9, 9, (4, 2))
    starts = [0, *accumulate(call.facts)]
    wanted = [_convolved(tokens[start:end], weights) for start, end in pairwise(starts)]
    got = np.full_like(tokens, 99)
    for run in _runs(target, call):
        first = max(start for start in starts if start <= run.start)
        got[run.start : run.stop] = _run_program(tokens, weights, run, first)
    assert np.concatenate([tokens[:0], *wanted]).tolist() == got.tolist()


@law(
    "compute_causal_conv1d_metadata",
    lambda preset: compute_conv1d_calls(preset, is_long=False),
    has_kernel=True,
)
def test_any_order_of_threads_lists_alike(target: Target, call: Call) -> None:
    """Whatever the order of blocks and threads, and however many there are, the lists are one."""
    found = [_listed(target, call, seed) for seed in range(3)]
    assert found == found[:1] * 3


def test_worked_example_of_programs() -> None:
    """Reference gives the definition's example: sequences of 9, 0 and 16 tokens."""
    nums, sequences, offsets = reference.compute_causal_conv1d_metadata(
        np.array([0, 9, 9, 25], np.int32)
    )
    programs = nums[8]
    assert [2, 0, 2] == programs["nums"].tolist()
    assert [0, 0, 2, 2] == programs["mlist"].tolist() == sequences[:4].tolist()
    assert [0, 1, 0, 1] == programs["offsetlist"].tolist() == offsets[:4].tolist()
    assert (4, 4, 2048) == (programs["tot"], programs["mlist_len"], len(sequences))
