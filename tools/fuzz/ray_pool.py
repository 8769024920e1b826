"""Workers on a Ray cluster: see `jobs.Pool`, and docs/cluster.md for how to start one.

Each event reaches this process at once, so what was found is here when a node is lost. The job that
ran there runs again elsewhere. Ray itself runs in another process, `ray_driver`, which is started
again if it ends with the head node.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import itertools
import multiprocessing
import os
import queue
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from tools.fuzz.jobs import Event, Finished, Job, Lost, Message
from tools.fuzz.ray_driver import FIRST_WORKER_SECONDS, Config
from tools.fuzz.shipping import copy_code, dump, load
from tools.fuzz.worker import Limits, Start

REACH_SECONDS: Final = 5.0
"""What the head node may take to accept a connection."""

CONNECT_SECONDS: Final = 60.0
"""What Ray may take to connect, before the first worker starts."""

RECONNECT_SECONDS: Final = 10.0
"""What is waited before the driver is started again."""

CLOSE_SECONDS: Final = 6.0
"""What the driver may take to end."""

MAX_LOST_NODES: Final = 4
"""A job that loses its node so often is not run again: it may be the cause itself."""


@dataclasses.dataclass(frozen=True)
class NodeLost:
    """A worker that was lost with its node: the content of a `Message` of the job that ran there.

    Attributes:
        worker: Which worker it was.
        detail: What Ray says.
        times: How often the job lost its node so far; it runs again.
    """

    worker: str
    detail: str
    times: int


@dataclasses.dataclass
class _Task:
    """A job that has not ended."""

    job: Job
    data: bytes
    is_running: bool = False
    lost_nodes: int = 0


class RayPool:
    """Workers on a Ray cluster; see `jobs.Pool`.

    Each job ends once, as `Finished` or `Lost`. One whose node is lost reports a `NodeLost` and
    runs again, so its earlier messages may come twice. Only after `MAX_LOST_NODES` of
    them is it `Lost` with the reason `node`.

    Args:
        address: `HOST:PORT` of the head node, or `auto` for the cluster of this machine. This
            machine must be a node of the cluster.
        limits: What each worker may take.
        workers: The most workers that use no GPU; None for one for each CPU of the cluster. Jobs
            that need a GPU have one worker for each GPU next to these.
        start: How the workers' child processes are started.
        files: Files and folders that jobs need next to this checkout, such as the file of an
            implementation.

    Attributes:
        num_gpus: The GPUs that the cluster has now.

    Raises:
        ValueError: Ray is not installed; the cluster cannot be reached, has another version of Ray
            or Python, or has no free CPU; a file that cannot be copied.
    """

    def __init__(
        self,
        address: str,
        *,
        limits: Limits | None = None,
        workers: int | None = None,
        start: Start | None = None,
        files: Iterable[Path] = (),
    ) -> None:
        self.num_gpus = 0
        self._address = address
        _check_installed(address)
        _check_reachable(address)
        self._folder = tempfile.TemporaryDirectory(prefix="kvtwin-ray-")
        self._size = 0
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._tasks: dict[int, _Task] = {}
        self._ids = itertools.count()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._is_stopped = False
        try:
            code = Path(self._folder.name) / "code"
            self._places = copy_code(files, code)
            self._config = Config(
                address, str(code), self._places, limits or Limits(), start or Start(), workers
            )
            self._driver = _DriverProcess(self._config, Path(self._folder.name) / "log")
            try:
                self._wait_until_ready()
            except BaseException:
                self._driver.kill()
                raise
        except BaseException:
            self._folder.cleanup()
            raise
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    @property
    def size(self) -> int:
        """The number of workers now."""
        return self._size

    def submit(self, job: Job) -> None:
        """Run a job as soon as a worker is free."""
        task = _Task(job, dump(job, self._places))
        with self._lock:
            number = next(self._ids)
            self._tasks[number] = task
            self._send_task(number, task)

    def events(self, timeout: float) -> list[Event]:
        """Return what happened since the last call; wait up to `timeout` seconds for the first."""
        found: list[Event] = []
        with contextlib.suppress(queue.Empty):
            found.append(self._events.get(timeout=max(timeout, 0)))
            while True:
                found.append(self._events.get_nowait())
        return found

    def stop(self) -> None:
        """Ask all running jobs to end."""
        with self._lock:
            self._is_stopped = True
            self._driver.send("stop")

    def close(self) -> None:
        """End all workers; jobs that are running or wait are lost as `stopped`."""
        self._closed.set()
        with self._lock:
            self._driver.send("close")
        self._thread.join(CLOSE_SECONDS)  # until the driver has sent all and ended
        self._driver.kill()
        self._thread.join()
        for task in self._tasks.values():
            self._events.put(Lost(task.job, "stopped"))
        self._tasks.clear()
        self._folder.cleanup()

    def _wait_until_ready(self) -> None:
        """Wait for the first worker."""
        until = time.monotonic() + CONNECT_SECONDS + FIRST_WORKER_SECONDS
        while not self._size:
            if not self._driver.pipe.poll(max(until - time.monotonic(), 0)):
                raise self._refusal(f"it did not answer; {self._driver.last_words()}")
            try:
                kind, *content = self._driver.pipe.recv()
            except (EOFError, OSError):
                raise self._refusal(f"Ray ended; {self._driver.last_words()}") from None
            if kind == "refused":
                raise self._refusal(content[0])
            self._size, self.num_gpus = content

    def _refusal(self, why: str) -> ValueError:
        return ValueError(f"the Ray cluster {self._address!r} cannot be used: {why}")

    def _listen(self) -> None:
        """Receive what the driver sends; start it again if it ends: the body of a thread."""
        while True:
            try:
                while True:
                    self._handle(*self._driver.pipe.recv())
            except (EOFError, OSError):
                pass
            self._driver.kill()
            if self._closed.is_set():
                return
            self._lose_driver(f"the process that talks to Ray ended; {self._driver.last_words()}")
            if self._closed.wait(RECONNECT_SECONDS):
                return
            self._start_again()

    def _start_again(self) -> None:
        with self._lock:
            if self._closed.is_set():
                return
            log = Path(self._folder.name) / "log"
            self._driver = _DriverProcess(self._config, log)
            if self._is_stopped:
                self._driver.send("stop")
            for number, task in self._tasks.items():
                self._send_task(number, task)

    def _handle(self, kind: str, *content: Any) -> None:
        if kind == "size":
            self._size, self.num_gpus = content
        elif kind == "started":
            task = self._tasks.get(content[0])
            if task is not None:
                task.is_running = True
        elif kind == "event":
            number, data = content
            self._handle_event(number, *load(data, self._places))
        elif kind == "lost":
            number, reason, detail, worker = content
            if reason == "node":
                self._lose_node(number, detail, worker)
            else:
                self._end(number, lambda job: Lost(job, reason, detail=detail, worker=worker))

    def _handle_event(self, number: int, kind: str, *content: Any) -> None:
        if kind == "message":
            task = self._tasks.get(number)
            if task is not None:
                self._events.put(Message(task.job, load(content[0], self._places)))
        elif kind == "finished":
            result, *memory = content
            value = load(result, self._places)
            self._end(number, lambda job: Finished(job, value, *memory))
        else:
            self._end(number, lambda job: Lost(job, *content))

    def _end(self, number: int, event_of: Callable[[Job], Event]) -> None:
        with self._lock:
            task = self._tasks.pop(number, None)
        if task is not None:
            self._events.put(event_of(task.job))

    def _lose_driver(self, detail: str) -> None:
        """Let all jobs run again after the driver was started again."""
        self._size = 0
        for task in list(self._tasks.values()):
            if task.is_running:
                task.is_running = False
                self._events.put(Message(task.job, NodeLost("driver", detail, task.lost_nodes)))

    def _lose_node(self, number: int, detail: str, worker: str) -> None:
        """Run a job again that lost its node, unless it did so too often."""
        task = self._tasks.get(number)
        if task is None:
            return
        task.is_running = False
        task.lost_nodes += 1
        if task.lost_nodes >= MAX_LOST_NODES:
            self._end(number, lambda job: Lost(job, "node", detail=detail, worker=worker))
            return
        self._events.put(Message(task.job, NodeLost(worker, detail, task.lost_nodes)))
        with self._lock:
            self._send_task(number, task)

    def _send_task(self, number: int, task: _Task) -> None:
        self._driver.send("run", number, task.data, task.job.needs_gpu)


class _DriverProcess:
    """The process that talks to Ray, and the pipe to it.

    Args:
        config: What it needs to know.
        log: Where its output goes.
    """

    def __init__(self, config: Config, log: Path) -> None:
        self.pipe: Connection
        self.pipe, theirs = multiprocessing.Pipe()
        self._log = log
        environment = {
            **os.environ,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # the default of later versions
            "PYTHONUNBUFFERED": "1",
        }
        with log.open("ab") as output:
            self._process = subprocess.Popen(  # noqa: S603  # our own module
                [sys.executable, "-m", "tools.fuzz.ray_driver", str(theirs.fileno())],
                cwd=config.code,
                env=environment,
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # a terminal sends Ctrl-C to all processes of a session
            )
        theirs.close()
        self.pipe.send(config)

    def send(self, *message: Any) -> None:
        """Send a message; a process that has ended is noticed elsewhere."""
        with contextlib.suppress(OSError):
            self.pipe.send(message)

    def last_words(self) -> str:
        """Return the end of what it printed, on one line."""
        text = self._log.read_text(encoding="utf-8", errors="replace")
        return " ".join(text[-1000:].split()) or "it printed nothing"

    def kill(self) -> None:
        """End it; Ray ends the workers of a process that is gone."""
        self._process.kill()
        self._process.wait()


def _check_installed(address: str) -> None:
    if importlib.util.find_spec("ray") is None:
        raise ValueError(
            f"the Ray cluster {address!r} needs Ray, which is not installed: pip install"
            " 'kvtwin[ray]'"
        )


def _check_reachable(address: str) -> None:
    """Raise if nothing listens at an address."""
    if address == "auto":
        return
    host, colon, port = address.rpartition(":")
    if not (colon and host and port.isdecimal()) or "/" in address:
        advice = ""
        if address.startswith("ray://"):
            advice = (
                ". Ray Client cannot stream results: let this machine join the cluster with `ray"
                " start --address HOST:PORT --num-cpus 0` and name it `auto`"
            )
        raise ValueError(
            f"the address of a Ray cluster is HOST:PORT or auto, not {address!r}{advice}"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), REACH_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ValueError(
            f"the Ray cluster {address!r} cannot be reached: {error}; start one with `ray start"
            " --head`, which prints its address"
        ) from None
