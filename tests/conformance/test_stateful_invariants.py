"""The invariants of the stateful test: each one, broken by hand, is reported with its request."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import fast
from conformance.coverage.goals import COVERAGE
from conformance.generation.profiles import PROFILES, Profile
from conformance.model_runner.batch import Batch
from conformance.model_runner.runner import Runner
from conformance.stateful import same_reads
from conformance.stateful.check import stateful_check
from conformance.stateful.invariants import (
    check_blocks,
    check_order,
    check_reads,
    check_rows,
    check_writes,
)
from conformance.stateful.machine import EngineStateMachine, StatefulMismatchError
from conformance.stateful.model_cache import Key, ModelCache
from conformance.stateful.plan import Plan
from conformance.stateful.scheduler import PlannedScheduler
from conformance.stateful.setup import Setup
from conformance.stateful.snapshot import Snapshot
from conformance.stateful.strategies import SMALL
from conformance.stateful.view import BrokenInvariantError, View, view_of
from conformance.targets.implementations import Implementation
from conformance.targets.target import REFERENCE, TARGETS, Target

SETUP = Setup(block_sizes=(2, 4), kinds=("full", "chunked_local"), padding=8)


def execute_a_step() -> tuple[Snapshot, Runner]:
    """Compute two requests in one step: five tokens in blocks 1..3, two in block 6."""
    scheduler = PlannedScheduler(SETUP)
    scheduler.arrive([101, 102, 103, 104, 105], 9)
    scheduler.arrive([201, 202], 9)
    snapshot = scheduler.start_step(Plan())
    assert snapshot is not None
    runner = Runner(REFERENCE, settings=SETUP.settings, groups=SETUP.groups, deploy=SETUP.deploy)
    runner.execute(snapshot.step)
    return snapshot, runner


def check_all(view: View, model: ModelCache) -> None:
    """Check all invariants."""
    check_blocks(view)
    check_writes(view, model, step=0)
    check_reads(view, model)
    check_rows(view)
    check_order(view)
    for check in same_reads.CHECKS:
        check(view)


def test_a_right_step_breaks_none() -> None:
    """A correct step breaks no invariant, and its keys are in the right slots."""
    snapshot, runner = execute_a_step()
    model = ModelCache(SETUP.block_sizes)
    view = view_of(runner, snapshot)
    check_all(view, model)
    assert [("request-0", 0), ("request-0", 1)] == view.tokens[:2]
    assert "the key of position 1 of request-1, written in step 0" == str(model.read(0, 13))


def slots(group: int) -> Callable[[Batch], Any]:
    """Return a getter of the slots of a group of a batch."""
    return lambda batch: batch.metadata[group].slot_mapping


def lengths(batch: Batch) -> np.ndarray[Any, Any]:
    """Return the sequence lengths of the first group."""
    return batch.metadata[0].seq_lens


def table(batch: Batch) -> np.ndarray[Any, Any]:
    """Return the block table of the first group."""
    return batch.metadata[0].block_table_tensor


G0, G1 = "group 0 (blocks of 2):", "group 1 (blocks of 4):"
T1, T3, T4 = "token 1 of request-1", "token 3 of request-0", "token 4 of request-0"


@pytest.mark.parametrize(
    ("part", "index", "value", "message"),
    [
        (slots(0), 3, -1, f"{G0} token 3 of request-0 is written nowhere"),
        (slots(0), 3, 4, f"{G0} {T3} and token 2 of request-0 are both written to slot 4"),
        (slots(0), 7, 40, f"{G0} token 7 of the batch, which is padding, is written to slot 40"),
        (slots(0), 3, 40, f"{G0} {T3} is written to slot 40 in block 20, which is free"),
        (slots(0), 6, 7, f"{G0} {T1} is written to slot 7 in block 3, which is not one of its "),
        (slots(1), 4, 23, f"{G1} {T4} reads slot 20 for position 4, which was never written"),
        (table, (1, 0), 2, f"{G0} block 2 is block 0 of request-1, but also block 1 of request-0 "),
        (table, (1, 0), 0, f"{G0} block 0 is block 0 of request-1, but is the null block"),
        (table, (0, 1), 5, f"{G1} block 5 is block 1 of request-0, but also block 1 of request-0 "),
        (table, (1, 1), 7, f"{G0} block 1 of request-1 is 7, but should be 0"),
        (table, (2, 0), 1, f"{G0} block 0 of request 2 of the batch, which is padding, is 1, but "),
        (lengths, 7, 5, f"{G0} request 7 of the batch, which is padding, has a sequence of 5 tok"),
        (lengths, 1, 3, f"{G0} token 0 of request-1 reads slot 13 for position 1, which comes aft"),
        (lambda batch: batch.req_ids, 1, "request-7", "the batch has ['request-0', 'request-7'], "),
        (
            lambda batch: vars(batch.metadata[0]),
            "max_seq_len",
            1,
            "the metadata is not valid: max_seq_len is 1, ",
        ),
    ],
)
def test_a_broken_invariant_is_named(
    part: Callable[[Batch], Any], index: object, value: object, message: str
) -> None:
    """A broken invariant of a runner's batch is reported in one sentence."""
    snapshot, runner = execute_a_step()
    assert runner.batch is not None
    part(runner.batch)[index] = value
    with pytest.raises(AssertionError) as caught:
        check_all(view_of(runner, snapshot), ModelCache(SETUP.block_sizes))
    assert str(caught.value).startswith(message)


def test_keys_of_different_requests_are_distinguished() -> None:
    """A slot's content is identified by its tokens, its writer, and its group."""
    snapshot, runner = execute_a_step()
    view = view_of(runner, snapshot)
    model = ModelCache(SETUP.block_sizes)
    check_writes(view, model, step=0)
    model.write(0, 3, Key(99, 5, "request-9", 4))
    with pytest.raises(BrokenInvariantError) as caught:
        check_reads(view, model)
    assert str(caught.value) == (
        f"{G0} token 1 of request-0 reads slot 3 for position 1, which holds the key of "
        "position 5 of request-9, written in step 4"
    )
    model.write(1, 4, Key(99, 5, "request-9", 4))
    with pytest.raises(BrokenInvariantError) as caught:
        check_reads(view, model)
    assert str(caught.value) == (
        f"{G0} token 0 of request-0 reads slot 2 for position 0, whose block was overwritten by "
        "group 1"
    )


def test_a_batch_is_in_order() -> None:
    """A prefill before a decode is reported."""
    snapshot, runner = execute_a_step()
    view = view_of(runner, snapshot)
    decode = dataclasses.replace(snapshot.requests["request-1"], start=1)
    view.snapshot = dataclasses.replace(
        snapshot, requests={**snapshot.requests, "request-1": decode}
    )
    with pytest.raises(BrokenInvariantError) as caught:
        check_order(view)
    assert "request-0, a prefill, comes before request-1, a decode" == str(caught.value)


@pytest.mark.parametrize(
    "name",
    ["unpadded", "micro_batches", "small_chunks", "logits_tokens", "cp_slot_mappings"],
)
def test_what_is_not_made_is_missed(name: str) -> None:
    """A runner that leaves out a result of a batch fails."""
    snapshot, runner = execute_a_step()
    runner.results[name] = []
    with pytest.raises(ValueError, match=r"^zip\(\) argument"):
        check_all(view_of(runner, snapshot), ModelCache(SETUP.block_sizes))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("unpadded", "in the batch without padding, token 0 of request-0 reads slot 42 for key"),
        (
            "micro_batches",
            "in micro-batches, token 0 of request-0 reads slot 42 for key",
        ),
        ("small_chunks", "in the virtual batch of chunks of 16, token 0 of request-0 reads"),
        ("logits_tokens", "in the batch of tokens with logits, token 4 of request-0 reads slot"),
        ("kernel_block_tables", "in the table of kernel blocks, token 0 of request-0 reads slot"),
        (
            "cp_slot_mappings",
            "in the slots of rank 0, token 0 of request-0 writes slot 3, but",
        ),
    ],
)
def test_what_is_made_of_a_batch_reads_what_it_does(name: str, message: str) -> None:
    """Other blocks in a derived result of the first group are reported by that result's name."""
    snapshot, runner = execute_a_step()
    made = runner.results[name][0]
    first = made[0] if name == "micro_batches" else made
    if name == "cp_slot_mappings":
        made[0] = 3
    else:
        table = first if name == "kernel_block_tables" else first.block_table_tensor.copy()
        table[0] += 20
        if name != "kernel_block_tables":
            first.block_table_tensor = table
    with pytest.raises(AssertionError) as caught:
        check_all(view_of(runner, snapshot), ModelCache(SETUP.block_sizes))
    assert str(caught.value).startswith(f"{G0} {message}")


def test_what_builders_are_given_is_the_batch() -> None:
    """A layer that gets another batch than its group's is reported."""
    snapshot, runner = execute_a_step()
    built = runner.results["attn_metadata"][0]
    built.common.block_table_tensor = built.common.block_table_tensor + 20
    with pytest.raises(BrokenInvariantError, match=r"in the layer's batch, token 0 of request-0"):
        check_all(view_of(runner, snapshot), ModelCache(SETUP.block_sizes))


def test_a_failure_is_reported_with_all_previous_steps() -> None:
    """The first line says what is wrong, then come the engine and the steps, blocks and drafts."""

    class Impostor(ModuleType):
        """`fast`, which refuses its third micro-batches."""

        calls = 0

        def __getattr__(self, name: str) -> object:
            return getattr(fast, name)

        def split_attn_metadata(self, *args: object) -> object:
            """Split, or refuse."""
            self.calls += 1
            if self.calls > 4:
                raise ValueError("refused")
            return fast.split_attn_metadata(*args)  # type: ignore[arg-type]

    target = Target("host", Implementation("impostor", Impostor("impostor")))
    machine = EngineStateMachine(target, SMALL)  # type: ignore[no-untyped-call]
    machine.set_up(dataclasses.replace(SETUP, num_speculative_tokens=1))
    machine.scheduler.arrive([7, 8, 9], 6)
    machine.run_step(Plan(num_drafts=1))
    machine.run_step(Plan(num_drafts=1))
    with pytest.raises(StatefulMismatchError) as caught:
        machine.run_step(Plan(num_drafts=1))
    lines = str(caught.value).splitlines()
    assert [
        "stateful test on host fails",
        (
            "    step 2: split_attn_metadata raised ValueError: refused, but should return a "
            "result (of request-0)"
        ),
        "after",
    ] == lines[:3]
    assert lines[3].startswith("    an engine with full attention in blocks of 2 and chunked_local")
    assert [
        "    request-0 arrives with the tokens [7 8 9] and max_new_tokens = 6",
        "    step 0:",
        "      request-0 computes 0..2 in the blocks [1 2] and [3]",
        "    step 1:",
        "      request-0 computes 3..4 (1 drafts) in the blocks [1 2 4] and [3 5]",
        "      request-0 accepts 0 of 1",
        "    step 2:",
        "      request-0 computes 4..5 (1 drafts) in the blocks [1 2 4] and [3 5]",
    ] == lines[4:]


def test_examples_are_the_same_each_time() -> None:
    """Two runs of the same profile reach the same goals; with another seed they differ."""

    def reached(profile: Profile) -> dict[tuple[str, str], int]:
        before = COVERAGE.reached.copy()
        stateful_check().bind(TARGETS["host"], profile, "minimal")()
        return dict(COVERAGE.reached - before)

    few = dataclasses.replace(PROFILES["default"], stateful_examples=2)
    first = reached(few)
    assert first
    assert first == reached(few)
    assert first != reached(dataclasses.replace(few, seed=1))
