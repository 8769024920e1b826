"""Run jobs in forked processes, so that each begins with the state of this one and may crash."""

from __future__ import annotations

import json
import os
import select
import signal
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeAlias

LIMIT: Final = 120  # seconds of a job

Result: TypeAlias = dict[str, Any]


def in_children(
    jobs: Iterable[tuple[str, Callable[[], Result]]], number: int = 1, limit: float = LIMIT
) -> Iterator[tuple[str, Result]]:
    """Yield what each job returned in a child; after a crash, or after `limit` seconds, that."""
    waiting = [*jobs][::-1]
    running: dict[int, tuple[str, int, float]] = {}
    while waiting or running:
        while waiting and len(running) < number:
            name, job = waiting.pop()
            reader, writer = os.pipe()
            child = os.fork()
            if child == 0:
                _run(job, writer)
            os.close(writer)
            running[reader] = name, child, time.monotonic() + limit
        ready = select.select([*running], [], [], 0.5)[0]
        for reader, (name, child, end) in [*running.items()]:
            if reader not in ready and time.monotonic() < end:
                continue
            found: Result = {"stopped": f"still running after {limit} s"}
            if reader not in ready:
                os.kill(child, signal.SIGKILL)
            else:
                with os.fdopen(os.dup(reader), encoding="utf-8") as lines:
                    line = lines.readline()
                found = json.loads(line) if line else {}
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            found = found or {"stopped": f"the process ended with {status}"}
            os.close(reader)
            del running[reader]
            yield name, found


def _run(job: Callable[[], Result], writer: int) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(1, 2)
    try:
        found = job()
    except BaseException:  # noqa: BLE001  # the parent shows it
        found = {"error": traceback.format_exc(limit=-4)}
    os.write(writer, json.dumps(found).encode() + b"\n")
    os._exit(0)
