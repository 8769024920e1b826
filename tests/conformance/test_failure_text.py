"""Failure reports of ten kinds of bugs, each of two screens at most."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from small_runs import HEAD, Runner

import fast
from conformance.arrays.guard_bands import guarded
from conformance.checks.contract_checks import ValidExample, same_answer
from conformance.checks.law_checks import law_checks
from conformance.checks.registry import find_contract
from conformance.conditions.condition_checks import condition_checks
from conformance.contracts.check import FAILURES, Check
from conformance.contracts.contract import Contract
from conformance.contracts.evaluation import exception_of
from conformance.contracts.sessions import SessionMismatch
from conformance.execution.invocations import PLAIN, CallVariant
from conformance.generation.profiles import PROFILES, Kind
from conformance.messages.formatting import WIDTH
from conformance.results.failure_text import MAX_LINES, difference_of, failure_text
from conformance.results.run import Run
from conformance.strategies.batch import Batch, Layout
from conformance.strategies.block_table import Operation, Session
from conformance.targets.implementations import Implementation
from conformance.targets.target import TARGETS, Target
from conformance.values.call import Call
from conformance.values.differences import Difference, Verdict

pytest_plugins = ["pytester"]

BATCH = Batch((2, 0, 3), (3, 0, 1), Layout(2), ((4, 9, 7), (), (1, 5)), num_padding_tokens=1)
LARGE = Batch((1,) * 5000, (3,) * 5000, Layout(2), tuple((i, i + 1) for i in range(1, 10000, 2)))


def slots(batch: Batch) -> Call:
    """Return a call of `compute_slot_mapping`."""
    arguments = {
        "block_table": batch.block_table(),
        "query_start_loc": batch.query_start_loc(),
        "positions": batch.positions(),
        "block_size": 2,
    }
    return Call("compute_slot_mapping", arguments, source=batch)


def split(batch: Batch) -> Call:
    """Return a call of `split_decodes_and_prefills`."""
    metadata = {"common_attn_metadata": batch.metadata()}
    return Call("split_decodes_and_prefills", metadata, source=batch)


def lengths() -> Call:
    """Return a call of `get_dcp_local_seq_lens`."""
    arguments = {"seq_lens": guarded([5, 8], np.int32), "dcp_size": 2, "dcp_rank": 0}
    return Call("get_dcp_local_seq_lens", arguments)


def micro_batches() -> Call:
    """Return a call of `create_ubatch_slices`."""
    return Call(
        "create_ubatch_slices",
        {"num_scheduled_tokens": guarded([2, 1], np.int32), "split_points": [1]},
    )


BLOCKS = Call(
    "BlockTables",
    {
        "block_sizes": [2],
        "max_num_reqs": 1,
        "max_num_batched_tokens": 1,
        "max_model_len": 2,
        "device": "cpu",
        "pin_memory": False,
    },
)


def long_life(number: int) -> Session:
    """Return a session of block tables: one row, and gathers of it."""
    again = [Operation.gathering([0])] * number
    return Session(BLOCKS, (Operation.appending([0], [[[7]]], [True]), *again))


def contract_of(call: Call) -> Contract:
    """Return the contract of a function, with one valid call."""
    found = find_contract(call.function)
    assert found is not None
    calls = st.just(call)
    return dataclasses.replace(found, calls=lambda _: calls, goals={}, pairs=(), axes={})


def planted(function: str, change: Callable[..., Any]) -> Target:
    """Return `fast` as a target, with one function wrapped by another."""
    module, right = ModuleType("mine"), getattr(fast, function)
    vars(module).update(vars(fast))

    @functools.wraps(right)
    def body(*args: Any, **keywords: Any) -> Any:  # noqa: ANN401  # as the right one
        return change(lambda: right(*args, **keywords), *args, *keywords.values())

    setattr(module, function, body)
    return Target("host", Implementation("mine", module))


def text_of(check: Check, target: Target, *, shrink: bool = False) -> list[str]:
    """Return the lines that a failing check prints."""
    FAILURES.clear()
    error = exception_of(check.bind(target, PROFILES["dev"], "minimal", shrink=shrink))
    assert error is not None
    lines = failure_text(check, target, FAILURES[-1], error, ["a command"]).splitlines()
    assert len(lines) <= MAX_LINES
    assert max(map(len, lines)) <= WIDTH
    assert ["To reproduce:", "    a command"] == lines[-2:]
    return lines[:-2]


def text_of_answer(
    call: Call, change: Callable[..., Any], variant: CallVariant = PLAIN
) -> list[str]:
    """Return the lines about the answer of one call."""
    example = ValidExample(call, 0, variant)
    check = dataclasses.replace(same_answer(contract_of(call)), examples=lambda _: st.just(example))
    return text_of(check, planted(call.function, change))


def changed(index: int) -> Callable[..., Any]:
    """Return a change of one element of a result."""

    def change(right: Callable[[], torch.Tensor], *_: object) -> torch.Tensor:
        result = right()
        result[index] += 1
        return result

    return change


def test_a_wrong_number_deep_in_a_large_array() -> None:
    """The element and its request come first; the table shows the requests around it."""
    lines = text_of_answer(slots(LARGE), changed(4321))
    assert [
        "compute_slot_mapping on host: wrong value",
        "    result[4321] = 17290, but should be 17289  (request 4321, token 0 of its 1)",
        "    1 of 5,000 elements differs; result[4318:4325]:",
        "    got       [17277, 17281, 17285, 17290, 17293, 17297, 17301]",
        "    expected  [17277, 17281, 17285, 17289, 17293, 17297, 17301]",
        "called with",
        "    block_size = 2",
        "    defaults: cp_world_size = 1, cp_rank = 0, cp_kv_cache_interleave_size = 1",
        "    request  tokens      block_table  positions",
        "    0        0..0        1 2          3",
        "    ...      ...         ...          ...",
        "    4316     4316..4316  8633 8634    3",
    ] == lines[:12]
    assert "    4321     4321..4321  8643 8644    3" in lines
    assert len(lines) < 28


def test_a_changed_setting_of_the_process() -> None:
    """A changed process setting is found after a whole test, so the report has no call."""

    def change(right: Callable[[], Any], *_: object) -> object:
        np.seterr(over="raise")
        return right()

    check, target = same_answer(contract_of(lengths())), planted("get_dcp_local_seq_lens", change)
    error = exception_of(check.bind(target, PROFILES["dev"], "minimal"))
    assert error is not None
    assert [
        "get_dcp_local_seq_lens on host: changes a setting of the process",
        "    numpy.geterr() = {'over': 'raise'}, but should be {'over': 'warn'}",
    ] == failure_text(check, target, None, error, []).splitlines()


def test_a_long_session() -> None:
    """Its operations are counted; equal ones in a row are one line."""
    difference = Difference(Verdict.VALUE, "slot mappings", (0, 0), 5, -1)
    error = SessionMismatch(long_life(200), 200, "host", difference)
    lines = str(error).splitlines()
    assert [
        "BlockTables.gather_block_tables on host: wrong value",
        "    slot mappings[0, 0] = 5, but should be -1",
        "called with",
        "    idx_mapping = [0]  (int32)",
        "after 200 operations (199 gather_block_tables, 1 append_block_ids)",
    ] == lines[:5]
    assert "    gather_block_tables(idx_mapping=[0]), 199 times" == lines[-1]
    assert len(lines) == 8


def test_an_exception() -> None:
    """The report has the exception, its place in the implementation, and the call variant."""

    def change(right: Callable[[], Any], _: object, dcp_size: object, *__: object) -> object:
        if isinstance(dcp_size, np.integer):
            raise KeyError("rank")
        return right()

    lines = text_of_answer(lengths(), change, CallVariant(True, True))
    assert [
        "get_dcp_local_seq_lens on host: an error",
        "    the call raised KeyError: 'rank', but should return a result",
        "called with NumPy's scalars:",
    ] == lines[:3]
    assert "Raised in" in lines
    assert lines[-1].endswith('raise KeyError("rank")')


def test_a_call_with_zeros_is_shown_itself() -> None:
    """An error in the call with zeros before a call is reported as that call."""

    def change(right: Callable[[], Any], counts: torch.Tensor, *_: object) -> object:
        if not counts.sum():
            raise RuntimeError("empty")
        return right()

    lines = text_of_answer(micro_batches(), change, CallVariant(follows_idle_step=True))
    assert [
        "create_ubatch_slices on host: an error",
        "    the call raised RuntimeError: empty, but should return a result or raise ValueError",
        "called with",
        "    num_scheduled_tokens = [0, 0]  (int32)",
        "    split_points = [1]",
        "Raised in",
    ] == lines[:6]


def test_results_have_the_names_of_the_definition() -> None:
    """At 4,097 requests and more, the wrong number has a name, and its request is in the table."""

    def change(right: Callable[[], Any], *_: object) -> object:
        num_decodes, *rest = right()
        return min(num_decodes, 4096), *rest

    lines = text_of_answer(split(LARGE), change)
    assert [
        "split_decodes_and_prefills on host: wrong value",
        "    num_decodes = 4096, but should be 5000",
    ] == lines[:2]
    assert any(line.startswith("    4096     4096..4096") for line in lines)


def test_a_flaky_answer() -> None:
    """A function that fails now and then is reported by how often it did."""
    count = itertools.count()

    def change(right: Callable[[], Any], *_: object) -> object:
        return right() + (next(count) % 7 == 6)

    check = same_answer(contract_of(lengths()))
    target = planted("get_dcp_local_seq_lens", change)
    lines = text_of(check, target, shrink=True)
    assert "get_dcp_local_seq_lens on host: different results for the same arguments" == lines[0]
    assert re.fullmatch(
        r"    the same call, repeated 50 times, fails \d+ times: number \d.*", lines[1]
    )
    assert not any("ypothesis" in line or "Flaky" in line for line in lines)


def test_a_broken_law() -> None:
    """The law is stated, and how it is broken."""
    check = next(check for check in law_checks(contract_of(slots(BATCH))) if check.law)
    target = planted("compute_slot_mapping", changed(0))
    lines = text_of(check, target)
    assert lines[0].startswith(f"compute_slot_mapping on host violates {check.law}: ")
    assert "called with" in lines


def test_a_condition() -> None:
    """The condition under which an answer is wrong is printed next to the function."""

    def change(right: Callable[[], Any], *_: object) -> object:
        return right() + (threading.current_thread() is not threading.main_thread())

    arguments = {"block_ids": guarded([1, 3], np.int32), "blocks_per_kv_block": 2}
    contract = contract_of(Call("map_to_kernel_blocks", arguments))
    [check] = [check for name, check in condition_checks(contract) if name.endswith("in_threads")]
    target = planted("map_to_kernel_blocks", change)
    lines = text_of(check, target)
    assert re.fullmatch(r"map_to_kernel_blocks on host, .*thread.*: wrong value", lines[0])
    line = difference_of(FAILURES[-1][-1], check)
    assert re.fullmatch(r"result\[0\] = 3, but should be 2 \(.*thread.*\)", line)


TOY = (
    HEAD
    + """
from conformance.targets.target import LOOKED_UP

@property_check("slow", digits)
def test_first(target, n):
    "Nine is no digit."
    LOOKED_UP.add("slow")
    assert n < 9

@property_check("slow", digits)
def test_second(target, n):
    "There are no large digits."
    assert n < 5

@property_check("user", digits)
def test_user(target, n):
    "It uses what is slow."
    LOOKED_UP.update(["slow", "user"])
    assert n < 7
"""
)


def test_a_run_prints_the_first_failure_of_a_function(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other failed tests of a function, and functions that use it, are counted in one line each."""
    runner = Runner(pytester, monkeypatch, "--failures=scripts", "--target=host")
    pytester.makepyfile(test_toy=TOY)
    result = runner.run()
    result.assert_outcomes(failed=6)
    result.stdout.fnmatch_lines(
        [
            "slow on host contradicts: Nine is no digit.",
            "    assert 9 < 9",
            "    example = 9",
            "To reproduce:",
            # A stored case would name a check outside of conformance, which no case may import.
            "    python -m conformance 'test_toy.py::test_first?host-minimal?' *",
            "3 more tests of this function fail (law 3); --all-failures prints them.",
            "user * fails with slow *",
            "FAILS: slow on host: *",
            "fails with slow: user on host",
            "FAILED *test_first*host-minimal*",
        ]
    )
    result.stdout.no_fnmatch_line("*contradicts: It uses*")
    result.stdout.no_fnmatch_line("*properties.py*")
    assert len(result.outlines) < 50
    result = runner.run("--all-failures")
    result.stdout.fnmatch_lines(["user on host contradicts: It uses what is slow."])


def failed(test: str, difference: str, **found: object) -> pytest.TestReport:
    """Return the report of a failed test of one function."""
    properties = {"kind": Kind.SAME_ANSWER.value, "difference": difference, **found}
    where = (test, 0, test)
    report = pytest.TestReport(test, where, {}, "failed", "a text", "call")
    report.user_properties = list(properties.items())
    return report


def test_the_lines_at_the_end_of_a_run() -> None:
    """Failures with an example come first; a crash also has a line, since the table has it."""
    run = Run([TARGETS["host"]], PROFILES["dev"])
    run.note(failed("test[host-minimal]", "a setting = 2, but should be 1"), "slots", "host")
    run.note(failed("large[host-real]", "the call hangs", crash="HANGS"), "slots", "host")
    assert [
        "FAILS: slots on host: a setting = 2, but should be 1",
        "FAILS: slots on host: the call hangs",
    ] == list(run.failure_lines())
    run.note(failed("test[host-real]", "result = 2, but should be 1", source="a"), "slots", "host")
    assert [
        "FAILS: slots on host: result = 2, but should be 1",
        "FAILS: slots on host: the call hangs",
    ] == list(run.failure_lines())
