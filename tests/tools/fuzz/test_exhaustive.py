# ruff: noqa: ANN401  # results and arguments of any kind
"""Exhaustive checks of small scopes: every case is compared once, and one wrong case is found."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

import fast
from conformance.execution.invocations import Invocation
from conformance.generation.profiles import Kind
from conformance.messages.mismatch import Mismatch
from conformance.strategies.block_table import Session
from conformance.targets.target import RAISED, REFERENCE, TARGETS
from conformance.values.call import Call
from conformance.values.comparison import first_difference
from conformance.values.differences import Verdict
from conformance.values.parts import children, with_child
from kvtwin.fuzz.cases.properties import Subject
from kvtwin.fuzz.display import Display, State
from kvtwin.fuzz.exhaustive import jobs
from kvtwin.fuzz.exhaustive import progress as progress_module
from kvtwin.fuzz.exhaustive.comparing import Comparer
from kvtwin.fuzz.exhaustive.equality import is_same
from kvtwin.fuzz.exhaustive.examples import example_of
from kvtwin.fuzz.exhaustive.jobs import CaseFailure, ExhaustiveJob, compare_cases, crash_of
from kvtwin.fuzz.exhaustive.night import enumerate_scopes, failure_of_case
from kvtwin.fuzz.exhaustive.progress import FILE, Progress, StaleProgressError
from kvtwin.fuzz.exhaustive.registry import all_scopes
from kvtwin.fuzz.exhaustive.run import MAX_LOST, run
from kvtwin.fuzz.exhaustive.tables import with_refusals
from kvtwin.fuzz.findings.failures import Failure
from kvtwin.fuzz.findings.records import Findings
from kvtwin.fuzz.options import Options
from kvtwin.fuzz.report.record import Night
from kvtwin.fuzz.workers.jobs import Event, Finished, Job, Lost, Message
from tests.tools.fuzz.contexts import KeepingContext

HOST = TARGETS["host"]
ROOT = Path(fast.__file__).parents[1]
SLOTS = Subject(functions="compute_slot_mapping")
LENGTHS = Subject(functions="get_dcp_local_seq_lens")


class Pool:
    """A pool that runs each job in this process, when `events` is called."""

    def __init__(self) -> None:
        self.size = 1
        self.jobs: list[Job] = []
        self.notes: list[bytes] = []

    def submit(self, job: Job) -> None:
        """Queue a job."""
        self.jobs.append(job)

    def events(self, timeout: float) -> list[Event]:
        """Run a job."""
        del timeout
        job = self.jobs.pop(0)
        worker = KeepingContext()
        result = job.run(worker)
        self.notes += worker.inputs
        return [*(Message(job, found) for found in worker.messages), Finished(job, result, 0, 0)]

    def stop(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Lose the worker, as a Ray cluster does."""
        self.size = 0


class LosingPool(Pool):
    """A pool that loses each job in its first case.

    Args:
        reason: How jobs are lost.
        detail: The traceback.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__()
        self.reason, self.detail = reason, detail

    def events(self, timeout: float) -> list[Event]:
        """Lose a job."""
        del timeout
        job = self.jobs.pop(0)
        assert isinstance(job, ExhaustiveJob)
        return [Lost(job, self.reason, f"{job.scope}:{job.start}".encode(), self.detail)]


class States(Display):
    """A display that records what it shows."""

    def __init__(self) -> None:
        self.text = io.StringIO()
        super().__init__(Console(file=self.text), 60.0)
        self.states: list[State] = []

    def show(self, state: State) -> None:
        """Record a state."""
        self.states.append(state)


def night_of(
    out: Path,
    subject: Subject = LENGTHS,
    *,
    pool: Pool | None = None,
    display: Display | None = None,
    seconds: float = 600.0,
) -> Night:
    """Run a test-sized exhaustive run in a folder, and return its record."""
    options = Options(subject, seconds, out)
    return enumerate_scopes(options, 0, pool or Pool(), display or States())


def begin(out: Path, monkeypatch: pytest.MonkeyPatch) -> Progress:
    """Compare 1,000 cases of a test-sized exhaustive run in a folder, and return the progress."""
    monkeypatch.setattr(progress_module, "JOB_CASES", 500)
    progress, calls = Progress(LENGTHS, 0), iter((False, True))
    run(progress, Pool(), out, is_over=lambda: next(calls))
    return progress


def plus_one(right: Any, **arguments: Any) -> Any:
    """Return a wrong result of a function."""
    return right(**arguments) + 1


def failures_in(scope: str) -> dict[int, str]:
    """Return the differences of a test-sized scope on the CPU path, by index of the case."""
    found = all_scopes(0)[scope]
    failures = compare_cases(Comparer(HOST), found, 0, found.cases.count, KeepingContext())
    return {index: difference.line for index, difference in failures.items()}


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Callable[..., Any]], None]:
    """Return a function that replaces one of `fast`; the replacement also gets the original."""

    def planted(name: str, wrong: Callable[..., Any]) -> None:
        right = getattr(fast, name)
        monkeypatch.setattr(fast, name, lambda **arguments: wrong(right, **arguments))

    return planted


def is_in_the_combination(query_start_loc: Any, **more: Any) -> bool:
    """Return whether a call is for rank 1 of 2 and has three requests, the middle one empty."""
    starts = query_start_loc.tolist()
    is_empty = len(starts) == 4 and starts[0] < starts[1] == starts[2] < starts[3]
    return is_empty and more["cp_world_size"] == 2 and more["cp_rank"] == 1


def test_a_bug_in_one_combination_is_found(plant: Any) -> None:
    """A slot that is wrong only for an empty middle request on rank 1 of 2 is found, and no other.

    Fewer than one in 20 of the test-sized scope's 2,550 cases have the combination.
    """

    def wrong(right: Any, **arguments: Any) -> Any:
        slots = right(**arguments)
        if is_in_the_combination(**arguments):
            slots[-1] += 1
        return slots

    plant("compute_slot_mapping", wrong)
    found = failures_in("slots of batches")
    scope = all_scopes(0)["slots of batches"]
    expected = [
        index
        for index in range(scope.cases.count)
        if is_in_the_combination(**scope.cases.item(index).arguments)
    ]
    assert expected == list(found)
    assert 0 < len(expected) < scope.cases.count / 20
    example = example_of("slots of batches", expected[0], 0)
    with pytest.raises(AssertionError, match=r"compute_slot_mapping on host: wrong value"):
        example.check.body(HOST, example.value)
    assert not failures_in("slots in place")  # which has one request


def test_a_missing_refusal_is_found(plant: Any) -> None:
    """A bad split point that is accepted, and an exception of another class, are found."""

    def accepting(right: Any, **arguments: Any) -> Any:
        points = arguments["split_points"]
        if isinstance(points, list) and len(points) == 2 and points[0] == points[1] == 1:
            points = points[:1]
        return right(arguments["num_scheduled_tokens"], points)

    plant("create_ubatch_slices", accepting)
    lines = set(failures_in("created micro-batches").values())
    assert lines
    assert all(line.startswith("the call returned a result, but should raise") for line in lines)

    def mistyped(right: Any, **arguments: Any) -> Any:
        try:
            return right(**arguments)
        except ValueError as error:
            raise TypeError(str(error)) from error

    plant("get_dcp_local_seq_lens", mistyped)
    assert any("raised TypeError" in line for line in failures_in("local lengths").values())


def test_a_changed_argument_is_found(plant: Any) -> None:
    """A call that changes a shared argument is reported; the calls after it are not."""

    def changing(right: Any, **arguments: Any) -> Any:
        result = right(**arguments)
        if arguments["cp_world_size"] == 2 and arguments["block_size"] == 1:
            arguments["positions"][-1:] += 1
        return result

    plant("compute_slot_mapping", changing)
    scope = all_scopes(0)["slots of batches"]
    found = failures_in("slots of batches")
    expected = {
        index
        for index, call in enumerate(scope.cases.items())
        if call.arguments["cp_world_size"] == 2
        and call.arguments["block_size"] == 1
        and len(call.arguments["positions"])
    }
    assert expected == set(found)
    assert all(line.startswith("positions[") for line in found.values())


def test_a_written_argument_is_compared(plant: Any) -> None:
    """The elements of `out` that a function must not change are compared too."""

    def short(right: Any, **arguments: Any) -> Any:
        result = right(**arguments)
        out = arguments.get("out")
        if out is not None and len(out) > len(result):
            out[-1] = 7
        return result

    plant("compute_slot_mapping", short)
    lines = failures_in("slots in place").values()
    assert lines
    assert all(line.startswith("out[") for line in lines)


def test_a_bug_in_a_sequence_of_operations_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that a move loses before any gather is found; the harness' own check fails too."""

    class Forgetful(fast.BlockTables):
        has_gathered = False

        def gather_block_tables(self, idx_mapping: torch.Tensor) -> tuple[torch.Tensor, ...]:
            self.has_gathered = True
            return super().gather_block_tables(idx_mapping)

        def move_row(self, src: int, dst: int) -> None:
            super().move_row(src, dst)
            if not self.has_gathered:
                self.clear_row(dst)

    monkeypatch.setattr(fast, "BlockTables", Forgetful)
    name = "block tables, two groups"
    found = failures_in(name)
    assert found
    session = all_scopes(0)[name].cases.item(min(found))
    assert isinstance(session, Session)
    methods = [operation.method for operation in session.operations[2:-2]]
    assert ["append_block_ids", "move_row"] == methods
    example = example_of(name, min(found), 0)
    with pytest.raises(AssertionError, match=r"BlockTables\.\w+ on host"):
        example.check.body(HOST, example.value)
    monkeypatch.undo()
    example.check.body(HOST, example.value)


@pytest.mark.parametrize("name", sorted(all_scopes(0)))
def test_cases_are_examples_of_the_harness(name: str) -> None:
    """Cases of each scope are valid examples of the harness' own check, which finds no difference.

    If a call has two invalid inputs, the twins may report different ones.
    """
    count = all_scopes(0)[name].cases.count
    for step in range(8):
        example = example_of(name, step * 1_000_003 % count, 0)
        try:
            example.check.body(HOST, example.value)
        except Mismatch as error:
            assert Kind.SAME_REFUSAL is example.check.kind
            assert Verdict.WORDING is error.difference.verdict  # noqa: PT017


@pytest.mark.parametrize("name", sorted(all_scopes(0)))
def test_cases_of_each_scope_can_be_stored(name: str) -> None:
    """A failing case of each scope becomes a failure with a stored case."""
    scope = all_scopes(0)[name]
    index = scope.cases.count // 2
    found = CaseFailure("host", name, index, scope.functions[0], "", "wrong", is_crash=True)
    failure = failure_of_case(found, Progress(Subject(), 0))
    assert failure.case is not None
    assert f"scale 0, {name}:{index}" == failure.property_name


def test_refused_operations_can_be_tried_again() -> None:
    """Sessions with appends that do not fit are valid examples of the harness' own check."""
    name = "block tables, three rows"
    refused = 0
    for index in range(0, all_scopes(1)[name].cases.count, 1_517):
        session = all_scopes(1)[name].cases.item(index)
        assert isinstance(session, Session)
        if any(operation.refused for operation in with_refusals(session).operations):
            refused += 1
            example = example_of(name, index)
            example.check.body(HOST, example.value)
    assert refused > 3


def _results(scope: str, number: int) -> Iterator[tuple[Any, Any]]:
    """Yield the results of `reference` and of the CPU path for some cases of a scope."""
    cases = all_scopes(0)[scope]
    count = cases.cases.count
    for step in range(count):
        call = cases.cases.item(step * 1_000_003 % count)
        assert isinstance(call, Call)
        try:
            expected = Invocation(REFERENCE, call).run()
        except RAISED:
            continue
        yield expected, Invocation(HOST, call).run()
        number -= 1
        if not number:
            return


FUNCTIONS = [name for name, scope in all_scopes(0).items() if "BlockTables" not in scope.functions]


def _changed(value: Any) -> Iterator[Any]:  # a branch for each type
    """Yield copies of a result that differ from it in one part."""
    if isinstance(value, torch.Tensor):
        if value.numel():
            other = value.clone()
            other.view(-1)[-1] += 1
            yield other
        yield value.to(torch.float16)
        yield value.unsqueeze(0)
        yield value.numpy()
    elif isinstance(value, bool | int):
        yield value + 1
        yield float(value)
        yield np.int64(value)
    elif isinstance(value, list | tuple):
        yield type(value)([*value, None])
    elif isinstance(value, dict):
        yield {**value, "more": 1}
    elif isinstance(value, slice):
        yield slice(value.start, value.stop, 1)
        return
    elif not children(value):
        yield 0
    for key, inner in children(value).items():
        yield from (with_child(value, key, other) for other in _changed(inner))


@pytest.mark.parametrize("scope", FUNCTIONS)
def test_the_quick_comparison_agrees_with_the_harness(scope: str) -> None:
    """Equal results of all functions are found equal, and unequal if any part is changed.

    If the quick comparison were unsure of equal results, a run would take much longer.
    """
    number = 0
    for expected, got in _results(scope, 12):
        assert first_difference(expected, got) is None
        assert is_same(expected, got)
        for other in _changed(got):
            assert first_difference(expected, other) is not None
            assert not is_same(expected, other)
            number += 1
    assert number > 10


def test_every_case_runs_once(tmp_path: Path) -> None:
    """A run notes each case of each scope once, and all are equal."""
    progress, pool = Progress(LENGTHS, 0), Pool()
    run(progress, pool, tmp_path)
    count = all_scopes(0)["local lengths"].cases.count
    assert [f"local lengths:{index}".encode() for index in range(count)] == pool.notes
    assert progress.is_complete


def test_a_stopped_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that stops in the middle of a job resumes at the next case."""
    monkeypatch.setattr(progress_module, "JOB_CASES", 500)
    calls = iter(range(100))
    first = Progress.resume(tmp_path, SLOTS, 0)
    pool = Pool()
    run(first, pool, tmp_path, is_over=lambda: next(calls) == 3)
    assert not first.is_complete
    [job] = [job for job in first.jobs() if job.scope == "slots of positions"][:1]
    half = job.run(KeepingContext(is_over=lambda: True))
    assert 256 == half.stop - half.start < job.stop - job.start
    with monkeypatch.context() as patch:
        patch.setattr(jobs, "JOB_SECONDS", 0.0)
        assert half.stop == job.run(KeepingContext()).stop
    [rest] = first.add(job, half)
    assert (half.stop, job.stop) == (rest.start, rest.stop)
    first.write(tmp_path)
    second, pool_of_second = Progress.resume(tmp_path, SLOTS, 0), Pool()
    assert first.done == second.done
    run(second, pool_of_second, tmp_path)
    assert second.is_complete
    notes = [*pool.notes, *(f"{job.scope}:{i}".encode() for i in range(half.start, half.stop))]
    notes += pool_of_second.notes
    expected = [
        f"{s.name}:{i}".encode() for s in second.scopes.values() for i in range(s.cases.count)
    ]
    assert sorted(expected) == sorted(notes)
    assert not Progress.resume(tmp_path, SLOTS, 0).jobs()


def test_progress_of_something_else_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Progress of a run with another scale, other functions or other code is rejected."""
    Progress(SLOTS, 0).write(tmp_path)
    Progress.resume(tmp_path, SLOTS, 0)
    with pytest.raises(StaleProgressError, match=r"json belongs to a run with other scale\."):
        Progress.resume(tmp_path, SLOTS, 1)
    with pytest.raises(StaleProgressError, match=r"other bounds \(host: slots of batches, "):
        Progress.resume(tmp_path, LENGTHS, 0)
    digests = progress_module.code_digests([HOST])
    assert {"reference", "conformance", "fast", "kvtwin.fuzz.exhaustive"} < set(digests)
    monkeypatch.setattr(progress_module, "code_digests", lambda _: {**digests, "fast": "other"})
    with pytest.raises(StaleProgressError, match=r"other code \(fast\)\. Remove the file"):
        Progress.resume(tmp_path, SLOTS, 0)
    (tmp_path / FILE).write_text("{}", encoding="utf-8")
    with pytest.raises(StaleProgressError, match=r"is not a file of progress .* remove it"):
        Progress.resume(tmp_path, SLOTS, 0)


def test_failures_are_stored(tmp_path: Path, plant: Any) -> None:
    """A failure is shown once, its repetitions are counted, and a resumed run still has it."""
    plant("get_dcp_local_seq_lens", plus_one)
    shown: list[str] = []
    progress = Progress(LENGTHS, 0)
    run(progress, Pool(), tmp_path, note=shown.append)
    [line] = shown
    assert line.startswith("FAILS: get_dcp_local_seq_lens on host, local lengths:")
    again = Progress.resume(tmp_path, LENGTHS, 0)
    assert list(progress.failures) == list(again.failures)
    assert again.done["host", "local lengths"].failed > 100
    assert [line] == [failure.text for failure in again.failures.values()]


def test_declared_deviations_are_no_failures(tmp_path: Path) -> None:
    """Deviations that an adapter declares are counted separately, and are not failures."""
    folder = ROOT / "tests" / "conformance"
    adapter = (str(folder / "engine_adapter.py"),)
    engine = Subject((str(folder / "engine_style.py"),), adapter, None, "compute_slot_mapping")
    progress = Progress(engine, 0)
    run(progress, Pool(), tmp_path)
    done = progress.done["host", "slots of batches"]
    assert done.declared > 100
    assert not progress.failures


def test_a_lost_worker(tmp_path: Path) -> None:
    """The case in which a worker died is a failure; the job's other cases run again."""
    progress = Progress(SLOTS, 0)
    job = progress.jobs()[0]
    failure = crash_of(job, "signal SIGSEGV", b"slots of batches:7")
    progress.add_failure(failure)
    rest = progress.add_lost(job, failure)
    assert ("compute_slot_mapping", 7) == (failure.function, failure.index)
    assert "the worker was lost: signal SIGSEGV" == failure.line
    assert [(0, 7), (8, job.stop)] == [(part.start, part.stop) for part in rest]
    assert [[7, 8]] == progress.done["host", "slots of batches"].ranges
    progress.write(tmp_path)
    assert [failure] == list(Progress.resume(tmp_path, SLOTS, 0).failures.values())


def test_findings_whose_cases_are_equal_are_fixed(
    tmp_path: Path, plant: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a fix, a fresh run reports the finding as fixed; one of a night stays open."""
    plant("get_dcp_local_seq_lens", plus_one)
    assert ["new"] == [finding.status for finding in night_of(tmp_path).findings]
    monkeypatch.undo()
    (tmp_path / FILE).unlink()
    assert ["known"] == [finding.status for finding in night_of(tmp_path, seconds=0).findings]
    display = States()
    night = night_of(tmp_path, display=display)
    assert ["fixed"] == [finding.status for finding in night.findings]
    assert "passed" == night.verdict
    assert "fixed: result[0, 0] = 1, but should be 0" in display.text.getvalue()
    name = "test_context_parallel::test_get_dcp_local_seq_lens@host"
    failure = Failure("get_dcp_local_seq_lens", "host", name, "law", "", "AssertionError", "wrong")
    Findings(tmp_path / "findings").add(failure)
    (tmp_path / FILE).unlink()
    statuses = {finding.property: finding.status for finding in night_of(tmp_path).findings}
    assert "known" == statuses.pop(name)
    assert ["fixed"] == list(statuses.values())


@pytest.mark.parametrize(
    ("old", "new"),
    [("scale 0, ", "scale 1, "), ("local lengths:", "slots in place:"), ("lengths:", "lengths:9")],
)
def test_findings_whose_cases_were_not_compared_stay_open(
    tmp_path: Path, plant: Any, monkeypatch: pytest.MonkeyPatch, old: str, new: str
) -> None:
    """A finding of another scale, of a scope that was not selected, or of no case stays open."""
    plant("get_dcp_local_seq_lens", plus_one)
    night_of(tmp_path)
    monkeypatch.undo()
    (tmp_path / FILE).unlink()
    path = tmp_path / "findings" / "findings.json"
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
    night = night_of(tmp_path)
    assert ["known"] == [finding.status for finding in night.findings]
    assert "failed" == night.verdict


def test_findings_that_fail_again_stay_open(
    tmp_path: Path, plant: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A finding stays open if its scope fails in another case, or another scope in the same way.

    Only the first failure of each key is recorded, so the case itself may have failed again.
    """
    function = "reorder_batch_to_split_decodes_and_prefills"

    def findings_if_wrong(threshold: int, num_reqs: int) -> list[tuple[str, str]]:
        """Run with a wrong result for a threshold and a number of requests."""

        def wrong(right: Any, **arguments: Any) -> Any:
            tokens = arguments["scheduler_output"].num_scheduled_tokens
            is_wrong = (threshold, num_reqs) == (arguments["decode_threshold"], len(tokens))
            return right(**arguments) ^ is_wrong

        (tmp_path / FILE).unlink(missing_ok=True)
        plant(function, wrong)
        found = night_of(tmp_path, Subject(functions=function)).findings
        monkeypatch.undo()
        return [(finding.status, finding.property.partition(":")[0]) for finding in found]

    requests, regions = "scale 0, reordered requests", "scale 0, reordered regions"
    assert [("new", requests)] == findings_if_wrong(2, 1)
    assert [("known", requests)] == findings_if_wrong(2, 2)
    assert [("new", regions)] == findings_if_wrong(1, 3)


def test_a_run_ends_after_many_lost_workers(tmp_path: Path) -> None:
    """If each case crashes, the run ends with an error and a finding, and can be continued."""
    display = States()
    night = night_of(tmp_path, pool=LosingPool("signal SIGSEGV"), display=display)
    lost = MAX_LOST + 1
    [error] = night.errors
    assert error.where.startswith("exhaustive:local lengths:")
    assert error.message == (
        f"The run ended early: {lost} workers were lost, the last by signal SIGSEGV;"
        " the same command continues it"
    )
    assert f"{error.where}: {error.message}" in display.text.getvalue()
    assert "failed" == night.verdict
    [finding] = night.findings
    assert "the worker was lost: signal SIGSEGV" in finding.line
    [scope] = night.exhaustive
    assert scope.cases == scope.different >= lost
    again = night_of(tmp_path)
    [scope_again] = again.exhaustive
    assert not again.errors
    assert scope_again.is_finished
    assert scope.different == scope_again.different


def test_a_run_ends_if_the_comparison_fails(
    tmp_path: Path, plant: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the comparison itself fails, the run reports that, and the failures found before."""
    plant("get_dcp_local_seq_lens", plus_one)
    progress = begin(tmp_path, monkeypatch)
    night = night_of(tmp_path, pool=LosingPool("error", "Traceback ...\nKeyError: 'x'\n"))
    [error] = night.errors
    assert "exhaustive:local lengths:" in error.where
    assert error.message == (
        "The run ended early: the comparison itself failed\nTraceback ...\nKeyError: 'x'\n"
    )
    assert ["new"] == [finding.status for finding in night.findings]
    assert progress.cases == night.exhaustive[0].cases


def test_a_resumed_run_counts_its_own_cases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resumed run's rate is of its own cases, and its scopes have those of all runs.

    The number of its workers is read before the pool is closed.
    """
    progress = begin(tmp_path, monkeypatch)
    assert 1_000 == progress.cases < progress.total
    night = night_of(tmp_path)
    assert (progress.total - progress.cases, 1) == (night.cases, night.workers)
    assert [progress.total] == [scope.cases for scope in night.exhaustive]
    assert "passed" == night.verdict
    again = night_of(tmp_path)
    assert 0 == again.cases == again.cases_per_second
    assert "passed" == again.verdict
    assert [progress.total] == [scope.cases for scope in again.exhaustive]


def test_the_progress_is_shown(tmp_path: Path, plant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The display has the cases of this run, of earlier ones and of all, and the failures."""
    plant("get_dcp_local_seq_lens", plus_one)
    progress = begin(tmp_path, monkeypatch)
    display = States()
    night_of(tmp_path, display=display)
    first, last = display.states[0], display.states[-1]
    assert 500 == first.cases
    assert (progress.cases, progress.total) == (last.earlier, last.total)
    assert last.total == last.earlier + last.cases
    assert (1, 1) == (last.open, last.workers)


def test_jobs_cover_each_scope() -> None:
    """Jobs of limited size cover each scope without a gap or an overlap."""
    progress = Progress(Subject())
    every_job = progress.jobs()
    for (target, name), scope in progress.scopes.items():
        parts = [
            (job.start, job.stop) for job in every_job if (job.target, job.scope) == (target, name)
        ]
        assert [0, *(stop for _, stop in parts)] == [
            *(start for start, _ in parts),
            scope.cases.count,
        ]
        assert all(stop - start <= progress_module.JOB_CASES for start, stop in parts)
    assert not any(job.needs_gpu for job in every_job)


WRONG = """
    import os, signal
    import fast
    from fast import checks

    def get_dcp_local_seq_lens(**arguments):
        result = fast.get_dcp_local_seq_lens(**arguments)
        sizes = [arguments[f"{name}_size"] for name in ("dcp", "cp_kv_cache_interleave")]
        if arguments["seq_lens"].tolist() == [3] and arguments["dcp_rank"] == 1:
            if sizes == [4, 3]:
                os.kill(os.getpid(), signal.SIGSEGV)
            result += 1
        return result
"""


@pytest.mark.usefixtures("forked_processes")
def test_a_run_of_workers(tmp_path: Path) -> None:
    """A wrong case and a crashing case of an implementation are both found.

    The failures are stored, and a resumed run still has them.
    """
    (tmp_path / "wrong.py").write_text(textwrap.dedent(WRONG), encoding="utf-8")
    out = tmp_path / "out"
    command = [sys.executable, "-m", "kvtwin.fuzz", "--exhaustive", "--scale", "0"]
    command += ["--impl", str(tmp_path / "wrong.py"), "--workers", "1", "--out", str(out)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S603
    assert 1 == ended.returncode
    [result] = ended.stdout.splitlines()
    assert result.startswith("failed: ")
    assert "the worker was lost: signal SIGSEGV" in ended.stderr
    count = all_scopes(0)["local lengths"].cases.count
    assert re.search(
        rf"local lengths on host: Every .*: {count:,} cases, \d\d different\.", ended.stderr
    )
    progress = Progress.resume(out, Subject((str(tmp_path / "wrong.py"),)), 0)
    assert progress.is_complete
    assert {"", "result"} == {failure.field for failure in progress.failures.values()}
    cases = sorted((out / "findings" / "cases").glob("*.json"))
    functions = [json.loads(case.read_text(encoding="utf-8"))["function"] for case in cases]
    assert ["get_dcp_local_seq_lens"] * 2 == functions
