"""Worker processes: the events of a job, however it ends."""

from __future__ import annotations

import contextlib
import multiprocessing.forkserver
import multiprocessing.process
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kvtwin.fuzz.workers.jobs import Event, Finished, Job, Lost, Message
from kvtwin.fuzz.workers.local_pool import LocalPool
from kvtwin.fuzz.workers.shipping import PACKAGES, copy_code
from kvtwin.fuzz.workers.worker import (
    START_SECONDS,
    STARTING,
    Limits,
    LocalWorker,
)
from kvtwin.fuzz.workers.worker_process import INPUT_BYTES, SharedState
from tests.tools.fuzz import nights
from tests.tools.fuzz.ray_jobs import CountingJob, CrashingJob, RaisingJob
from tests.tools.fuzz.worker_jobs import (
    ContextLosingJob,
    ExitingJob,
    ForkingJob,
    HangingJob,
    KeepingJob,
    PidJob,
    SlowJob,
)

ROOMY = Limits(hang_seconds=120.0)


@pytest.fixture
def worker() -> Iterator[LocalWorker]:
    """Return a worker whose limits a busy machine does not reach."""
    found = LocalWorker("the worker", ROOMY)
    yield found
    found.close()


def end_of(worker: LocalWorker, job: Job) -> Finished | Lost:
    """Run a job; return its last event."""
    *_, last = worker.run(job)
    assert isinstance(last, Finished | Lost)
    return last


def result_of(worker: LocalWorker, job: Job) -> object:
    """Run a job that finishes; return its result."""
    last = end_of(worker, job)
    assert isinstance(last, Finished), last
    return last.result


def test_messages_come_before_the_result(worker: LocalWorker) -> None:
    """Messages come in order before the result, and the worker is used for the next job."""
    job = CountingJob(7, messages=3, seconds=0.0)
    *messages, last = worker.run(job)
    assert [0, 1, 2] == [event.content[1] for event in messages if isinstance(event, Message)]
    assert isinstance(last, Finished)
    assert (job, 7) == (last.job, last.result)
    assert min(last.peak_bytes, last.rss_bytes) > 1 << 20
    assert result_of(worker, PidJob()) == worker.pid
    assert 0 == worker.restarts


def test_a_crash_is_lost_with_its_input(worker: LocalWorker) -> None:
    """A crash has the input that was noted last, and another process takes the next job."""
    before = result_of(worker, PidJob())
    lost = end_of(worker, CrashingJob())
    assert isinstance(lost, Lost)
    assert ("signal SIGSEGV", b"the input", "the worker") == (lost.reason, lost.input, lost.worker)
    assert "Fatal Python error: Segmentation fault" in lost.detail
    assert "ray_jobs.py" in lost.detail
    assert before != result_of(worker, PidJob())
    assert 1 == worker.restarts


def test_an_exception_is_lost_with_its_traceback(worker: LocalWorker) -> None:
    """An exception of a job is an error of the fuzzer, with its traceback."""
    lost = end_of(worker, RaisingJob())
    assert isinstance(lost, Lost)
    assert "error" == lost.reason
    assert "ZeroDivisionError: planted" in lost.detail
    assert isinstance(result_of(worker, PidJob()), int)


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        (ExitingJob(3), "exit 3"),
        (ExitingJob(0), "exit 0"),
        (ContextLosingJob(), "lost GPU context"),
    ],
    ids=["3", "0", "lost"],
)
def test_an_exit_is_lost(job: Job, reason: str, worker: LocalWorker) -> None:
    """A job that ends its process is lost, even with status 0."""
    lost = end_of(worker, job)
    assert isinstance(lost, Lost)
    assert (reason, b"exits") == (lost.reason, lost.input)


def test_a_job_that_forks_gets_a_process_without_a_gpu(worker: LocalWorker) -> None:
    """A job that must fork runs again in a new process if this one has used a GPU."""
    before = result_of(worker, ForkingJob(succeeds=True))
    assert before != result_of(worker, ForkingJob(succeeds=True))
    assert 1 == worker.restarts
    lost = end_of(worker, ForkingJob(succeeds=False))
    assert isinstance(lost, Lost)
    assert "error" == lost.reason
    assert "UsedGpuError: this process has used a GPU" in lost.detail
    assert 2 == worker.restarts


def test_an_exit_is_seen_while_others_start(
    worker: LocalWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exit status is right although another thread reads it at the same time."""
    read = multiprocessing.forkserver.read_signed  # type: ignore[attr-defined]  # typeshed lacks it
    is_over = threading.Event()

    def slow_read(file: int) -> int:
        is_main = threading.current_thread() is threading.main_thread()
        time.sleep(0.5 if is_main else 0.1)  # so that the other is the first of two
        return int(read(file))

    def call_all() -> None:
        while not is_over.wait(0.01):
            with STARTING:
                multiprocessing.process._cleanup()  # type: ignore[attr-defined]  # likewise

    monkeypatch.setattr("multiprocessing.forkserver.read_signed", slow_read)
    with ThreadPoolExecutor(1) as threads:
        pending = threads.submit(call_all)
        try:
            lost = end_of(worker, ExitingJob(3))
        finally:
            is_over.set()
    pending.result()
    assert isinstance(lost, Lost)
    assert "exit 3" == lost.reason


def test_a_hang_is_killed(worker: LocalWorker) -> None:
    """A hang is killed, and its input and stack are reported."""
    result_of(worker, PidJob())
    worker.limits = Limits(hang_seconds=1.0)
    started = time.monotonic()
    lost = end_of(worker, HangingJob())
    assert isinstance(lost, Lost)
    assert time.monotonic() - started < START_SECONDS / 2, "it was known that the job had begun"
    assert ("hang", b"hangs") == (lost.reason, lost.input)
    assert "worker_jobs.py" in lost.detail
    worker.limits = ROOMY
    assert isinstance(result_of(worker, PidJob()), int)


def test_a_slow_job_does_not_hang(worker: LocalWorker) -> None:
    """The limit is for an input, not for a job."""
    result_of(worker, PidJob())
    worker.limits = Limits(hang_seconds=3.0)
    assert False is result_of(worker, SlowJob(6.0))


def test_too_much_memory_is_killed(worker: LocalWorker) -> None:
    """A worker that takes too much memory is lost as `memory`, with the input."""
    result_of(worker, PidJob())
    worker.limits = Limits(hang_seconds=120.0, memory_bytes=1 << 30)
    lost = end_of(worker, KeepingJob(1 << 30, seconds=120.0))
    assert isinstance(lost, Lost)
    assert ("memory", b"takes memory") == (lost.reason, lost.input)


def test_a_large_worker_is_recycled(worker: LocalWorker) -> None:
    """A worker that has grown is replaced after its job, and nothing is lost."""
    first = result_of(worker, PidJob())
    worker.limits = Limits(hang_seconds=120.0, recycle_bytes=700 << 20)
    assert first == result_of(worker, KeepingJob(1 << 20))
    assert first == result_of(worker, KeepingJob(700 << 20))
    assert first != result_of(worker, PidJob())
    assert (1, 1) == (worker.recycled, worker.restarts)


def test_a_worker_that_dies_while_idle(worker: LocalWorker) -> None:
    """After a worker died while idle, the next job is lost or runs; it does not hang."""
    first = result_of(worker, PidJob())
    assert isinstance(first, int)
    os.kill(first, signal.SIGKILL)
    last = end_of(worker, PidJob())
    if isinstance(last, Lost):
        assert "signal SIGKILL" == last.reason
        assert first != result_of(worker, PidJob())
    else:
        assert first != last.result


def test_a_closed_worker_runs_nothing(worker: LocalWorker) -> None:
    """A closed worker has no process, and a job is lost as `stopped`."""
    pid = result_of(worker, PidJob())
    assert isinstance(pid, int)
    worker.close()
    lost = end_of(worker, PidJob())
    assert isinstance(lost, Lost)
    assert "stopped" == lost.reason
    assert not Path(f"/proc/{pid}").exists()


def wait_for(pool: LocalPool, number: int) -> Sequence[Event]:
    """Return the events of a pool until `number` jobs have ended."""
    found: list[Event] = []
    deadline = time.monotonic() + nights.SECONDS
    while sum(not isinstance(event, Message) for event in found) < number:
        assert time.monotonic() < deadline, found
        found += pool.events(0.2)
    return found


def test_a_pool_runs_all_jobs() -> None:
    """Two workers run all jobs; a crash loses only its own job."""
    pool = LocalPool(2, ROOMY)
    try:
        jobs = [CountingJob(number, messages=1, seconds=0.2) for number in range(6)]
        for job in (*jobs[:3], CrashingJob(), *jobs[3:]):
            pool.submit(job)
        events = wait_for(pool, 7)
    finally:
        pool.close()
    assert set(range(6)) == {event.result for event in events if isinstance(event, Finished)}
    assert [CrashingJob()] == [event.job for event in events if isinstance(event, Lost)]
    assert set(range(6)) == {event.content[0] for event in events if isinstance(event, Message)}
    assert 2 == pool.size


def test_a_pool_stops_jobs_that_look() -> None:
    """`is_over` becomes true in the job that runs, and in those that wait."""
    pool = LocalPool(1, ROOMY)
    try:
        pool.submit(SlowJob(200.0))
        pool.submit(SlowJob(200.0))
        nights.until(lambda: pool.events(0.1))
        pool.stop()
        ends = [event for event in wait_for(pool, 2) if isinstance(event, Finished)]
    finally:
        pool.close()
    assert [True, True] == [event.result for event in ends]


def test_closing_a_pool_loses_what_runs_and_what_waits() -> None:
    """Jobs that run and jobs that wait are lost as `stopped`."""
    pool = LocalPool(1, ROOMY)
    jobs: list[Job] = [SlowJob(200.0), PidJob()]
    for job in jobs:
        pool.submit(job)
    nights.until(lambda: pool.events(0.1))
    pool.close()
    lost = [event for event in pool.events(0) if isinstance(event, Lost)]
    assert ["stopped", "stopped"] == [event.reason for event in lost]
    assert jobs == [event.job for event in lost]


def test_a_worker_that_cannot_be_prepared_is_an_error() -> None:
    """A module that cannot be imported is an error with its traceback, not a crash."""
    worker = LocalWorker("worker", Limits(), preload=("no_such_module",))
    with contextlib.closing(worker):
        [lost] = worker.run(PidJob())
    assert isinstance(lost, Lost)
    assert "error" == lost.reason
    assert "No module named 'no_such_module'" in lost.detail


def test_all_modules_are_copied_to_a_cluster(tmp_path: Path) -> None:
    """The copy for the nodes has every module of the packages."""
    copy_code([], tmp_path)
    for package in PACKAGES:
        folder = Path(str(package.__file__)).resolve().parent
        modules = {path.relative_to(folder) for path in folder.rglob("*.py")}
        copied = tmp_path / package.__name__
        assert modules == {path.relative_to(copied) for path in copied.rglob("*.py")}


@pytest.mark.parametrize("delay", [0.0, 0.005, 0.01, 0.02, 0.05])
def test_a_closed_worker_loses_its_job_as_stopped(delay: float) -> None:
    """Closing a worker is neither a crash of the case nor an error of the fuzzer, at any moment."""
    worker = LocalWorker("worker", Limits(), preload=())
    with ThreadPoolExecutor(1) as threads:
        events = worker.run(CountingJob(1, messages=10**6, seconds=0.001))
        assert isinstance(next(events), Message)
        pending = threads.submit(list, events)
        time.sleep(delay)
        worker.close()
        last = pending.result(20)[-1]
    assert isinstance(last, Lost)
    assert "stopped" == last.reason


def test_an_input_that_is_too_long_is_cut() -> None:
    """The memory that a worker shares with its child holds one input of at most 1 MiB."""
    shared = SharedState()
    assert (0, b"") == (shared.count, shared.read())
    for number, data in enumerate((b"abc", b"", b"longer than \0 the first"), 1):
        shared.write(data)
        assert (number, data) == (shared.count, shared.read())
    shared.write(b"x" * (INPUT_BYTES + 1))
    assert b"x" * INPUT_BYTES == shared.read()
