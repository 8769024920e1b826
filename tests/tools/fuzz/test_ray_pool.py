"""Workers on a real Ray cluster of two local nodes, one of which is killed in the middle."""

from __future__ import annotations

import collections
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvtwin.fuzz.workers import ray_cluster, ray_pool
from kvtwin.fuzz.workers.jobs import Event, Finished, Lost, Message
from kvtwin.fuzz.workers.ray_pool import NodeLost, RayPool
from kvtwin.fuzz.workers.worker import Limits
from tests.tools.fuzz import ray_jobs
from tests.tools.fuzz.nights import until
from tests.tools.fuzz.ray_jobs import (
    CountingJob,
    CrashingJob,
    GpuJob,
    LargeJob,
    RaisingJob,
    ReadingJob,
)
from tests.tools.fuzz.ray_nodes import Cluster, children_of, needs_ray

TIMEOUT_SECONDS = 300
"""Seconds after which an event will not come. Ray's processes take five times as long to start if
the rest of CI runs beside them."""

FILE = Path(ray_jobs.__file__)


def pool_on(address: str, **options: Any) -> RayPool:  # noqa: ANN401  # of any kind
    """Return a pool whose worker processes do not preload the harness."""
    return RayPool(address, preload=(), files=[FILE, *options.pop("files", ())], **options)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Return a cluster of one node."""
    found = Cluster()
    yield found
    found.close()


@pytest.fixture
def pool(cluster: Cluster) -> Iterator[RayPool]:
    """Return a pool on the cluster."""
    with contextlib.closing(pool_on(cluster.address)) as found:
        yield found


def collect(pool: RayPool, number: int) -> list[Event]:
    """Return the events until `number` jobs have ended."""
    events: list[Event] = []
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while sum(not isinstance(event, Message) for event in events) < number:
        assert time.monotonic() < deadline, f"{pool.size} workers, so far: {events}"
        events += pool.events(0.5)
    return events


def wait_for_size(pool: RayPool, size: int) -> None:
    """Wait until a pool has `size` workers."""
    until(lambda: pool.size == size, TIMEOUT_SECONDS)


def reported(events: list[Event], job: CountingJob) -> list[int]:
    """Return the numbers that a job reported."""
    contents = [event.content for event in events if isinstance(event, Message)]
    return [each[1] for each in contents if isinstance(each, tuple) and each[0] == job.number]


def wait_for_message(pool: RayPool, node: str | None = None) -> list[Event]:
    """Return the events up to the first message of a job, or the first from a node."""
    events: list[Event] = []
    until(
        lambda: (
            events.extend(pool.events(0.5))
            or any(
                isinstance(one, Message)
                and isinstance(one.content, tuple)
                and node in {None, one.content[2]}
                for one in events
            )
        ),
        TIMEOUT_SECONDS,
    )
    return events


def node_losses(events: list[Event]) -> list[Message]:
    """Return the messages about a job that lost its node."""
    return [e for e in events if isinstance(e, Message) and isinstance(e.content, NodeLost)]


def kill_workers() -> None:
    """Kill the workers on all nodes of this machine, but not the nodes."""
    workers = processes_called("ray::run_worker")
    assert workers
    for worker in workers:
        os.kill(worker, signal.SIGKILL)


def processes_called(title: str) -> list[int]:
    """Return the processes whose command line begins with a title."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if path.read_text(encoding="utf-8").startswith(title):
                found.append(int(path.parent.name))
    return found


def drivers() -> list[int]:
    """Return the Ray driver processes of this process's pools."""
    command = f"{sys.executable}\0-m\0kvtwin.fuzz.workers.ray_driver"
    return sorted(set(processes_called(command)) & set(children_of(os.getpid())))


@needs_ray
def test_jobs_report_at_once_and_a_crash_is_lost_with_its_input(pool: RayPool) -> None:
    """A Ray pool reports messages at once, crashes and errors with their input, and large data."""
    assert (1, 0) == (pool.size, pool.num_gpus)
    slow = CountingJob(0, messages=3, seconds=1)
    pool.submit(slow)
    times = []
    events: list[Event] = []
    while len(events) < 4:
        events += pool.events(0.1)
        times += [time.monotonic()] * (len(events) - len(times))
    assert times[1] - times[0] > 0.5, "messages come while the job runs"
    finished = events[3]
    assert isinstance(finished, Finished)
    assert (slow, 0) == (finished.job, finished.result)
    assert min(finished.rss_bytes, finished.peak_bytes) > 1 << 20

    pool.submit(CrashingJob())
    (crash,) = collect(pool, 1)
    assert isinstance(crash, Lost)
    assert ("signal SIGSEGV", b"the input") == (crash.reason, crash.input)
    assert crash.worker == f"worker 0 on {socket.gethostname()}"

    pool.submit(RaisingJob())
    (error,) = collect(pool, 1)
    assert isinstance(error, Lost)
    assert ("error", b"raises") == (error.reason, error.input)
    assert "ZeroDivisionError: planted" in error.detail

    size = 3 << 20
    pool.submit(LargeJob(size))
    message, large = collect(pool, 1)
    assert isinstance(message, Message)
    assert isinstance(large, Finished)
    assert (b"a" * size, b"b" * size) == (message.content, large.result)


@needs_ray
def test_files_reach_the_nodes_and_paths_are_those_of_the_reader(
    cluster: Cluster, tmp_path: Path
) -> None:
    """A job reads the copy of a file; the path that it returns is the coordinator's path."""
    file = tmp_path / "implementation.py"
    file.write_text("original", encoding="utf-8")
    with contextlib.closing(pool_on(cluster.address, files=[file])) as pool:
        file.write_text("changed since", encoding="utf-8")
        job = ReadingJob(str(file))
        pool.submit(job)
        message, finished = collect(pool, 1)
        assert isinstance(finished, Finished), finished
        assert (job, (str(file), "original")) == (finished.job, finished.result)
        assert isinstance(message, Message)
        assert len(str(file)) != message.content, "on the node it has another path"


@needs_ray
def test_a_hang_is_lost_and_stop_and_close_end_jobs(cluster: Cluster) -> None:
    """Limits hold on nodes too; `stop` reaches running jobs; `close` loses the rest as stopped."""
    pool = pool_on(cluster.address, limits=Limits(hang_seconds=2))
    try:
        pool.submit(CountingJob(1, messages=1, seconds=600))
        hang = collect(pool, 1)[-1]
        assert isinstance(hang, Lost)
        assert ("hang", b"1 0") == (hang.reason, hang.input)

        patient = CountingJob(5, messages=1, seconds=4, hang_timeout_seconds=120)
        pool.submit(patient)
        finished = collect(pool, 1)[-1]
        assert isinstance(finished, Finished), "its own patience is longer than the limit"
        assert patient == finished.job

        # On a busy machine a pause of 0.5 s may take 2 s.
        pool.submit(CountingJob(2, messages=600, seconds=0.5, hang_timeout_seconds=120))
        wait_for_message(pool)
        pool.stop()
        started = time.monotonic()
        assert isinstance(collect(pool, 1)[-1], Finished)
        assert time.monotonic() - started < 10

        pool.submit(CountingJob(3, messages=1, seconds=600, hang_timeout_seconds=600))
        pool.submit(CountingJob(4))
        wait_for_message(pool)
    finally:
        started = time.monotonic()
        pool.close()
    assert time.monotonic() - started < 12
    lost = [event for event in pool.events(0) if isinstance(event, Lost)]
    assert {3: "stopped", 4: "stopped"} == {event.job.number: event.reason for event in lost}
    assert not drivers()


@needs_ray
def test_nothing_that_was_reported_is_lost_with_a_node(cluster: Cluster) -> None:
    """All jobs finish though a node is killed; the pool shrinks, and grows with another node."""
    second = cluster.add_node("second")
    with contextlib.closing(pool_on(cluster.address)) as pool:
        wait_for_size(pool, 2)
        jobs = [CountingJob(number, messages=10, seconds=0.2) for number in range(8)]
        for job in jobs:
            pool.submit(job)
        events = wait_for_message(pool, "second")
        cluster.kill_node(second)
        ended = sum(not isinstance(event, Message) for event in events)
        events += collect(pool, len(jobs) - ended)

        ends = [event for event in events if not isinstance(event, Message)]
        assert {job.number: Finished for job in jobs} == {e.job.number: type(e) for e in ends}
        assert len(jobs) == len(ends), "each job ends once"
        for job in jobs:
            assert list(range(10)) == sorted(set(reported(events, job)))
        [loss] = node_losses(events)
        before = reported(events[: events.index(loss)], loss.job)
        assert before, "what the lost node had reported is here"
        assert "worker " in loss.content.worker
        assert 1 == loss.content.times
        counts = collections.Counter(reported(events, loss.job))
        assert all(counts[index] == 2 for index in before), "it ran again from its beginning"

        wait_for_size(pool, 1)
        third = cluster.add_node("third")
        wait_for_size(pool, 2)
        for number in range(2):
            pool.submit(CountingJob(10 + number, messages=5, seconds=1))
        events = collect(pool, 2)
        nodes = {event.content[2] for event in events if isinstance(event, Message)}
        assert {"head", "third"} == nodes
    cluster.kill_node(third)


@needs_ray
def test_a_job_that_loses_its_worker_runs_again_and_is_given_up_at_last(
    pool: RayPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that is killed is replaced; a job that loses each of its workers is given up."""
    monkeypatch.setattr(ray_pool, "MAX_LOST_NODES", 2)
    job = CountingJob(1, messages=600, seconds=0.2)
    pool.submit(job)
    for _ in range(2):
        wait_for_message(pool)
        kill_workers()
    events = collect(pool, 1)
    assert isinstance(events[-1], Lost)
    assert (job, "node") == (events[-1].job, events[-1].reason)
    pool.submit(CountingJob(2))
    assert isinstance(collect(pool, 1)[-1], Finished)


@needs_ray
def test_jobs_that_need_a_gpu_run_where_one_is(cluster: Cluster) -> None:
    """A job that needs a GPU gets one of its own; without any GPU it is lost."""
    gpus = cluster.add_node("gpus", num_gpus=2, num_cpus=0)
    with contextlib.closing(pool_on(cluster.address, use_gpus=True)) as pool:
        wait_for_size(pool, 3)
        assert 2 == pool.num_gpus
        pool.submit(GpuJob())
        pool.submit(CountingJob(1))
        ends = [e for e in collect(pool, 2) if isinstance(e, Finished)]
        results = {event.job.name: event.result for event in ends}
        assert results["GpuJob"] in {"0", "1"}
        assert 1 == results["counting 1"]

        cluster.kill_node(gpus)
        wait_for_size(pool, 1)
        until(lambda: not pool.num_gpus, TIMEOUT_SECONDS)
        pool.submit(GpuJob())
        (lost,) = collect(pool, 1)
        assert isinstance(lost, Lost)
        assert "node" == lost.reason
        assert "no node has a GPU: start one with `ray start --num-gpus N`" in lost.detail


@needs_ray
def test_no_more_workers_than_requested(cluster: Cluster) -> None:
    """A pool has at most `workers` workers, although the cluster has more CPUs."""
    second = cluster.add_node("second", num_cpus=2)
    with contextlib.closing(pool_on(cluster.address, workers=2)) as pool:
        wait_for_size(pool, 2)
        time.sleep(3)
        assert 2 == pool.size
    cluster.kill_node(second)


@needs_ray
def test_the_coordinator_outlives_the_process_that_talks_to_ray(
    pool: RayPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed Ray driver process is restarted, and the jobs run again."""
    monkeypatch.setattr(ray_cluster, "RECONNECT_SECONDS", 0.5)
    job = CountingJob(1, messages=4, seconds=0.5)
    pool.submit(job)
    pool.submit(CountingJob(2))
    events = wait_for_message(pool)
    [driver] = drivers()
    os.kill(driver, signal.SIGKILL)
    events += collect(pool, 2)
    assert [0, 1, 2, 3] == sorted(set(reported(events, job)))
    assert 2 == sum(isinstance(event, Finished) for event in events)
    assert job in {loss.job for loss in node_losses(events)}


@needs_ray
def test_a_whole_cluster_that_is_lost_ends_nothing_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the head killed, the pool closes in time, and all jobs are lost as stopped."""
    monkeypatch.setattr(ray_cluster, "RECONNECT_SECONDS", 0.5)
    lost = Cluster()
    try:
        pool = pool_on(lost.address)
        try:
            pool.submit(CountingJob(1, messages=600, seconds=0.2))
            wait_for_message(pool)
            lost.kill_head()
            wait_for_size(pool, 0)
            time.sleep(2)
            pool.submit(CountingJob(2))
        finally:
            started = time.monotonic()
            pool.close()
        assert time.monotonic() - started < 12
        ends = [event for event in pool.events(0) if isinstance(event, Lost)]
        assert {1: "stopped", 2: "stopped"} == {e.job.number: e.reason for e in ends}
    finally:
        lost.close()


@needs_ray
def test_a_cluster_without_a_free_cpu_is_refused() -> None:
    """A cluster without CPUs is refused at once."""
    empty = Cluster(num_cpus=0)
    try:
        with pytest.raises(ValueError, match="its nodes have no CPUs: start one with `ray start"):
            RayPool(empty.address)
    finally:
        empty.close()
    assert not drivers()


@needs_ray
def test_another_version_of_ray_is_refused(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message has both versions of Ray."""
    (tmp_path / "sitecustomize.py").write_text(
        "import ray\nray.__version__ = '0.0.1'\n", encoding="utf-8"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(ValueError, match=r"Ray: \d+\.\d+\.\d+ .*Ray: 0\.0\.1 ") as refused:
        RayPool(cluster.address)
    assert f"the Ray cluster '{cluster.address}' cannot be used: " in str(refused.value)
    assert "\n" not in str(refused.value)


@needs_ray
def test_an_address_where_something_else_listens_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An address where another program listens is refused after some time."""
    monkeypatch.setattr(ray_cluster, "CONNECT_SECONDS", 3.0)
    monkeypatch.setattr(ray_cluster, "FIRST_WORKER_SECONDS", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(ValueError, match=f"the Ray cluster '{address}' cannot be used: "):
            RayPool(address)
    assert not drivers()


@needs_ray
@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("127.0.0.1:1", "cannot be reached: .*refused; start one with `ray start --head`"),
        ("head", "the address of a Ray cluster is HOST:PORT or auto, not 'head'"),
        ("http://head:80", "is HOST:PORT or auto, not"),
        ("ray://head:10001", "Ray Client is not enough: .*Let it join the cluster with `ray start"),
        ("127.0.0.1:99999", "cannot be reached: "),
    ],
)
def test_an_address_that_cannot_be_used_is_refused(address: str, message: str) -> None:
    """The message says what form an address has, or how to start a cluster."""
    with pytest.raises(ValueError, match=message):
        RayPool(address)


def test_without_ray_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names the extra."""
    monkeypatch.setattr(ray_cluster.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ValueError, match=r"pip install -e '\.\[ray\]'"):
        RayPool("auto")


def test_the_coordinator_does_not_import_ray() -> None:
    """Ray changes how a process handles signals, so the coordinator does not import it."""
    script = "import sys, kvtwin.fuzz.workers.ray_pool; sys.exit('ray' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)  # noqa: S603
