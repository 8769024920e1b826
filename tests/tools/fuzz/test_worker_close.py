"""A local worker that is closed while it runs a job."""

from __future__ import annotations

import threading
import time

import pytest

from tests.tools.fuzz.ray_jobs import CountingJob
from tools.fuzz.jobs import Event, Lost
from tools.fuzz.worker import Limits, LocalWorker, Start


@pytest.mark.parametrize("delay", [0.0, 0.005, 0.01, 0.02, 0.05])
def test_a_closed_worker_loses_its_job_as_stopped(delay: float) -> None:
    """Whatever it is doing then: it is no crash of the case, and no error of the fuzzer."""
    worker = LocalWorker("worker", Limits(), Start(preload=()))
    events: list[Event] = []
    job = CountingJob(1, messages=10**6, seconds=0.001)
    seen = threading.Event()

    def follow() -> None:
        for event in worker.run(job):
            events.append(event)
            seen.set()

    thread = threading.Thread(target=follow)
    thread.start()
    assert seen.wait(60)
    time.sleep(delay)
    worker.close()
    thread.join(20)
    last = events[-1]
    assert isinstance(last, Lost)
    assert "stopped" == last.reason
