"""Whole nights: their duration, their seed, the effect of `CI`, and invalid options."""

from __future__ import annotations

import collections
import dataclasses
import io
import itertools
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch
from rich.console import Console

from conformance.generation.profiles import Kind
from kvtwin.fuzz import command_line
from kvtwin.fuzz.cases.case import Input, Status, run_case
from kvtwin.fuzz.cases.properties import Subject, properties_of
from kvtwin.fuzz.display import Display
from kvtwin.fuzz.findings.database import open_database
from kvtwin.fuzz.findings.failures import failure_of_case
from kvtwin.fuzz.findings.minimize import TRIES, MinimizeJob
from kvtwin.fuzz.findings.records import Findings
from kvtwin.fuzz.findings.replay import ReplayJob, ReplayResult
from kvtwin.fuzz.night import MAX_ERRORS, Fuzzing, Options
from kvtwin.fuzz.slices import SliceJob
from kvtwin.fuzz.workers.jobs import Event, Finished, Job, Lost, Message
from kvtwin.fuzz.workers.local_pool import LocalPool
from kvtwin.fuzz.workers.worker import Limits
from tests.tools.fuzz import nights
from tests.tools.fuzz.contexts import KeepingContext, new_memories
from tests.tools.fuzz.nights import PLANTED

FUNCTION = "UBatchSlice"
SMALL = Subject(target="host", functions=FUNCTION)
"""A subject of one property, whose cases are fast."""


class InlinePool:
    """Runs each job in this process when its events are read.

    Attributes:
        inputs: The inputs that the jobs noted, by property.
        jobs: The jobs that ran.
    """

    size = 1
    cluster_cpus = 0

    def __init__(self) -> None:
        self.inputs: collections.defaultdict[str, list[Input]] = collections.defaultdict(list)
        self.jobs: list[Job] = []
        self._waiting: collections.deque[Job] = collections.deque()
        self._found: list[Event] = []
        self._stopped: list[Event] = []

    def submit(self, job: Job) -> None:
        """Run a job later."""
        self._waiting.append(job)

    def events(self, timeout: float) -> Sequence[Event]:
        """Run a job, and return its events."""
        del timeout
        self._found, self._stopped = self._stopped, []
        if self._waiting:
            job = self._waiting.popleft()
            self.jobs.append(job)
            try:
                self._found.append(Finished(job, job.run(_Worker(self, job)), 0, 0))
            except ZeroDivisionError as error:
                self._found.append(Lost(job, "error", detail=repr(error)))
        return self._found

    def note(self, job: Job, message: object) -> None:
        """Record a message of the running job."""
        self._found.append(Message(job, message))

    def stop(self) -> None:
        """Report the waiting jobs as lost."""
        self._stopped = [Lost(job, "stopped") for job in self._waiting]
        self._waiting.clear()

    def close(self) -> None:
        """Do nothing."""


class _Worker:
    memory_bytes = None

    def __init__(self, pool: InlinePool, job: Job) -> None:
        self._pool, self._job = pool, job

    def note_input(self, data: bytes) -> None:
        if data and isinstance(self._job, SliceJob):
            found = Input.from_bytes(data)
            if found.seed:  # as requested, before it was drawn
                self._pool.inputs[found.property_name].append(found)

    def report(self, message: object) -> None:
        self._pool.note(self._job, message)

    def is_over(self) -> bool:
        return False


def unstarted(
    out: Path, *, seconds: float = 600.0, seed: int | None = None, subject: Subject = SMALL
) -> tuple[Fuzzing, InlinePool]:
    """Return a night that has not started, and its in-process pool."""
    pool = InlinePool()
    display = Display(Console(file=io.StringIO()), seconds)
    options = Options(subject, seconds, out, seed)
    return Fuzzing(options, pool, open_database(None, out), display), pool


@pytest.fixture(autouse=True)
def _without_memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give each test the state of a new worker."""
    with new_memories(monkeypatch):
        yield


def test_a_seed_gives_the_same_first_round(tmp_path: Path) -> None:
    """With the same seed the first slices have the same order and seeds; another seed differs."""
    subject = Subject(target="host", functions="map_to_kernel_blocks,slice_query_start_locs")
    count = len(properties_of(subject))
    rounds = []
    for name, seed in (("a", 7), ("b", 7), ("c", 8)):
        fuzzing, _ = unstarted(_folder(tmp_path, name), seed=seed, subject=subject)
        jobs = [fuzzing._schedule.next([], 0.0, 2) for _ in range(count)]
        rounds.append([(job.name, job.seed) for job in jobs if isinstance(job, SliceJob)])
    assert count == len(dict(rounds[0]))
    assert rounds[0] == rounds[1] != rounds[2]


def test_a_slice_can_be_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a new worker, a slice with the same seed draws the same inputs."""
    [name] = properties_of(SMALL)
    drawn = []
    for seed in (3, 3, 4):
        pool = InlinePool()
        pool.submit(SliceJob(SMALL, name, seed, 60.0, max_cases=20))
        with new_memories(monkeypatch):
            [event] = pool.events(0)
        assert isinstance(event, Finished)
        assert 20 == event.result.cases
        drawn.append(pool.inputs[name])
    assert drawn[0] == drawn[1]
    assert set(drawn[0]).isdisjoint(drawn[2])


@pytest.mark.usefixtures("forked_processes")
def test_ci_does_not_fix_the_draws_of_workers(tmp_path: Path) -> None:
    """Two nights differ with `CI` set, although Hypothesis' profile for `CI` is derandomized."""
    options = ("--minutes", "5", "--workers", "1", "--target", "host", "--functions", FUNCTION)
    seeds, drawn = [], []
    for name in "ab":
        out = tmp_path / name
        night = nights.start(*options, "--out", out, CI="true")
        nights.until(lambda out=out: covering(out))
        night.send_signal(signal.SIGTERM)
        status, printed = nights.ended(night)
        assert 143 == status, printed
        report = nights.report(out)
        assert (True, "true", []) == (
            report["profile"]["is_random"],
            report["profile"]["ci"],
            report["errors"],
        )
        seeds.append(report["seed"])
        drawn.append(covering(out))
    assert seeds[0] != seeds[1]
    assert drawn[0] != drawn[1]


def covering(out: Path) -> set[bytes]:
    """Return the inputs of `SMALL` that a night has stored because they covered something new."""
    [name] = properties_of(SMALL)
    return set(open_database(None, out).covering(name))


@pytest.mark.usefixtures("forked_processes")
def test_a_signal_while_reports_are_written(tmp_path: Path) -> None:
    """The reports are written before the night ends with the status of the signal."""
    begins = tmp_path / "begins"
    script = tmp_path / "slow_reports.py"
    script.write_text(SLOW_REPORTS.format(path=str(begins)), encoding="utf-8")
    options = ("--minutes", "0.02", "--workers", "1", "--target", "host", "--functions", FUNCTION)
    night = nights.start(*options, "--out", tmp_path / "out", script=script)
    nights.until(begins.exists)
    night.send_signal(signal.SIGTERM)
    status, out = nights.ended(night)
    assert 143 == status, out
    assert (tmp_path / "out" / "report.html").exists()
    assert FUNCTION in nights.report(tmp_path / "out")["selected"]


SLOW_REPORTS = """
import pathlib, sys, time
from kvtwin.fuzz import actions, command_line

def write_reports(night, out, write=actions.write_reports):
    pathlib.Path({path!r}).touch()
    time.sleep(1)
    write(night, out)

actions.write_reports = write_reports
if __name__ == "__main__":
    raise SystemExit(command_line.main())
"""


@pytest.mark.usefixtures("forked_processes")
def test_time_is_used(tmp_path: Path) -> None:
    """A night takes as long as its budget, within 10 s, and its curve covers all of it."""
    started = time.monotonic()
    options = ("--minutes", "0.15", "--workers", "1", "--target", "host", "--functions", FUNCTION)
    status, out = nights.run(*options, "--out", tmp_path)
    taken = time.monotonic() - started
    report = nights.report(tmp_path)
    assert 0 == status, out
    assert 9 <= report["seconds"] <= 19
    assert report["cases"] > 0
    assert report["curve"][-1]["seconds"] >= 9
    assert taken > 9


def known_failure(out: Path, *, is_minimal: bool = False) -> tuple[str, Subject]:
    """Write a finding of an earlier night; return its id and its subject."""
    subject = Subject((str(PLANTED),), target="host", functions="map_to_kernel_blocks")
    properties = properties_of(subject).items()
    name, prop = next(item for item in properties if item[1].check.kind is Kind.SAME_ANSWER)
    cases = (run_case(prop, Input(name, seed)) for seed in itertools.count())
    failing = next(case for case in cases if case.status is Status.FAILED and len(case.choices) > 9)
    failure = failure_of_case(prop, failing, is_minimal=is_minimal)
    Findings(out / "findings").add(failure)
    return failure.id, subject


def night_that_replayed(out: Path, subject: Subject, fails: int) -> Fuzzing:
    """Return a night that has only replayed the finding of an earlier one."""
    fuzzing, _ = unstarted(out, subject=subject)
    job = fuzzing._schedule.next([], 0.0, 1)
    assert isinstance(job, ReplayJob)
    fuzzing._handle_finished(Finished(job, ReplayResult(job.id, fails, TRIES), 0, 0))
    return fuzzing


def test_what_was_not_minimized_is_by_the_next_night(tmp_path: Path) -> None:
    """A failure that one night had no time to minimize is minimized by the next."""
    known, subject = known_failure(tmp_path)
    fuzzing = night_that_replayed(tmp_path, subject, fails=TRIES)
    before = fuzzing.findings.by_id[known].failure
    job = fuzzing._schedule.next([], 0.0, 1)
    assert isinstance(job, MinimizeJob)
    assert before.input == job.input
    fuzzing._handle_finished(Finished(job, job.run(KeepingContext()), 0, 0))
    [found] = Findings(tmp_path / "findings").by_id.values()
    assert ("known", True, TRIES) == (found.status, found.failure.is_minimal, found.failure.tries)
    assert (None, "call") == (before.case, found.failure.case["kind"])
    after = Input.from_bytes(found.failure.input)
    assert len(after.prefix) < len(Input.from_bytes(before.input).prefix)


CRASHES_WHEN_SMALL = """
import os
import fast

def map_to_kernel_blocks(block_ids, blocks_per_kv_block):
    if block_ids.numel() < 3:
        os.abort()
    return fast.map_to_kernel_blocks(block_ids, blocks_per_kv_block) + 1
"""


def test_a_crash_while_minimizing_is_a_finding(tmp_path: Path) -> None:
    """An input that crashes while a wrong answer is minimized is reported, and minimized too."""
    path = tmp_path / "crashes_when_small.py"
    path.write_text(CRASHES_WHEN_SMALL, encoding="utf-8")
    subject = Subject((str(path),), target="host", functions="map_to_kernel_blocks")
    fuzzing, _ = unstarted(tmp_path, subject=subject)
    prop = next(one for one in fuzzing.properties.values() if one.check.kind is Kind.SAME_ANSWER)
    quiet = dataclasses.replace(prop, check=dataclasses.replace(prop.check, body=lambda *_: None))
    cases = (run_case(quiet, Input(prop.name, seed)) for seed in itertools.count())
    large = next(case for case in cases if case.example.call.arguments["block_ids"].size > 9)
    wrong = failure_of_case(prop, run_case(prop, Input(prop.name, 0, large.choices)))
    pool = LocalPool(1, Limits(hang_seconds=120.0))
    try:
        fuzzing._add(wrong)
        for _ in range(2):
            job = fuzzing._schedule.urgent.popleft()
            fuzzing._outstanding.append(job)
            pool.submit(job)
            ended = False
            while not ended:
                events = pool.events(nights.SECONDS)
                assert events
                fuzzing._handle(events)
                ended = any(isinstance(event, Finished | Lost) for event in events)
    finally:
        pool.close()
    found = {one.failure.kind: one.failure for one in fuzzing.findings.by_id.values()}
    assert {"same answer", "crash"} == set(found)
    assert ("SIGABRT", True) == (found["crash"].error, found["crash"].is_minimal)
    assert ["signal SIGABRT"] == [one.reason for one in fuzzing.lost]


@pytest.mark.parametrize(("is_minimal", "fails"), [(True, TRIES), (False, TRIES - 1)])
def test_what_need_not_be_minimized(is_minimal: bool, fails: int, tmp_path: Path) -> None:
    """A minimal failure and a flaky one are not minimized."""
    _, subject = known_failure(tmp_path, is_minimal=is_minimal)
    fuzzing = night_that_replayed(tmp_path, subject, fails)
    assert isinstance(fuzzing._schedule.next([], 0.0, 1), SliceJob)


def test_errors_of_the_fuzzer_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception of the fuzzer itself is reported as an error, not as a failure."""

    def broken(self: SliceJob, worker: object) -> None:
        del self, worker
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(SliceJob, "run", broken)
    fuzzing, _ = unstarted(tmp_path)
    fuzzing.run()
    assert 0 == fuzzing.num_cases
    assert len(fuzzing.errors) > MAX_ERRORS
    assert "planted" in fuzzing.errors[0].message
    assert not fuzzing.findings.by_id


def _folder(path: Path, name: str) -> Path:
    folder = path / name
    folder.mkdir()
    return folder


UNUSABLE = {
    "unknown function": (["--functions", "compute_slots"], "function 'compute_slots' is unknown"),
    "unknown target": (["--target", "gpu"], "target 'gpu' is unknown"),
    "no GPU": (["--target", "host,cuda"], "target 'cuda' needs a GPU, but torch finds none"),
    "no module": (["--impl", "nowhere.py"], "nowhere.py' is not a file"),
    "no functions": (["--impl", "math"], "--impl 'math' offers none of the"),
    "nothing to check": (
        ["--impl", str(Path(__file__).with_name("only_slots.py")), "--functions", "KVCacheConfig"],
        "there is nothing to check",
    ),
    "no time": (["--minutes", "0"], "must be a number greater than 0, got '0'"),
    "negative time": (["--minutes", "-1"], "must be a number greater than 0, got '-1'"),
    "endless": (["--minutes", "inf"], "must be a number greater than 0, got 'inf'"),
    "no workers": (["--workers", "0"], "must be an integer >= 1, got '0'"),
    "other database": (["--database", "http://x"], "the example database is a folder"),
    "two actions": (["--exhaustive", "--replay", "x"], "--exhaustive and --replay exclude each"),
    "no history": (["--exhaustive", "--history", "x"], "--exhaustive does not use --history"),
    "no JSON": (["--replay", "x", "--json", "y"], "--replay does not use --json"),
    "several": (["--bisect", "x", "a", "b", "--impl", "m", "--impl", "n"], "takes one --impl"),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_what_cannot_be_used(
    name: str, tmp_path: Path, refusal: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong option ends the night before anything runs, with one line and status 2."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    arguments, message = UNUSABLE[name]
    line = refusal(command_line.main, [*arguments, "--out", str(tmp_path)])
    assert line.startswith("kvtwin fuzz: ")
    assert message in line


def test_an_out_that_is_a_file(tmp_path: Path, refusal: Callable[..., str]) -> None:
    """An `--out` that is a file, or is inside one, is refused."""
    path = tmp_path / "file"
    path.touch()
    for out in (path, path / "inside"):
        assert str(path) in refusal(command_line.main, ["--target", "host", "--out", str(out)])


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"format": "other"}', '{"format": "kvtwin findings 1"}', "\x00"]
)
def test_corrupt_findings(text: str, tmp_path: Path, refusal: Callable[..., str]) -> None:
    """Damaged findings are not overwritten, and the message says what to do."""
    path = tmp_path / "findings" / "findings.json"
    path.parent.mkdir()
    path.write_text(text, encoding="utf-8")
    arguments = ["--target", "host", "--functions", FUNCTION, "--out", str(tmp_path)]
    assert "cannot be read as findings" in refusal(command_line.main, arguments)
    assert text == path.read_text(encoding="utf-8")
