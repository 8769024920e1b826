"""Workers on a Ray cluster: see `jobs.Pool`, and docs/cluster.md for how to start one.

A separate process, `ray_driver`, starts the workers; it is restarted if it ends with the head node.
Each worker connects to this process, receives jobs, and sends each event at once, so no finding is
lost with a node. The job that ran there runs again on another node.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import queue
import secrets
import socket
import tempfile
import threading
import time
from collections.abc import Iterable
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from pathlib import Path
from typing import Any, Final

from kvtwin.fuzz.workers.jobs import Event, Finished, Job, Lost, Message
from kvtwin.fuzz.workers.local_pool import take_events
from kvtwin.fuzz.workers.ray_cluster import Cluster, Config, Resources, check_address
from kvtwin.fuzz.workers.ray_worker import CLOSE, STOP, WorkerConfig
from kvtwin.fuzz.workers.shipping import copy_code, dump, load
from kvtwin.fuzz.workers.worker import PRELOAD, Limits

CLOSE_SECONDS: Final = 6.0
"""How long to wait for the workers to end."""

KEEPALIVE_SECONDS: Final = 5
"""The interval of TCP keepalive probes; a node that misses four is lost."""

MAX_LOST_NODES: Final = 4
"""A job that loses this many nodes is not run again: it may be the cause."""


@dataclasses.dataclass(frozen=True)
class NodeLost:
    """A worker that was lost with its node: the content of a `Message` of the job that ran there.

    Attributes:
        worker: The name of the worker.
        times: How often the job has lost its node so far.
    """

    worker: str
    times: int


@dataclasses.dataclass(eq=False)
class _Task:
    """A job that has not ended, with its pickle, and how often it lost its node."""

    job: Job
    data: bytes
    lost_nodes: int = 0


class RayPool:
    """Workers on a Ray cluster; see `jobs.Pool`.

    Each job ends once, as `Finished` or `Lost`. A job whose node is lost reports a `NodeLost` and
    runs again, so its earlier messages may come twice. At the loss of its `MAX_LOST_NODES`-th node
    it ends as `Lost` with the reason `node`.

    Args:
        address: `HOST:PORT` of the head node, or `auto` for the cluster of this machine. This
            machine must be a node of the cluster.
        limits: The limits of each worker.
        workers: The most workers that use no GPU; None for one for each CPU of the cluster.
        use_gpus: Whether to start a worker for each GPU too, for jobs that need one.
        preload: Modules that the workers' processes import once.
        files: Files and folders that jobs need in addition to this checkout, such as the file of
            an implementation.

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
        use_gpus: bool = False,
        preload: tuple[str, ...] = PRELOAD,
        files: Iterable[Path] = (),
    ) -> None:
        check_address(address)
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._jobs: dict[bool, queue.Queue[_Task]] = {False: queue.Queue(), True: queue.Queue()}
        self._tasks: set[_Task] = set()
        self._workers: dict[Connection, socket.socket] = {}
        self._lock = threading.Lock()
        self._is_stopped = False
        self._sending = threading.Lock()
        self._is_closed = False
        with contextlib.ExitStack() as opened:
            folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="kvtwin-ray-")))
            self._places = copy_code(files, folder / "code")
            # Workers connect from all nodes of the cluster, and authenticate themselves.
            self._server = opened.enter_context(socket.create_server(("", 0)))
            opened.callback(self._server.shutdown, socket.SHUT_RDWR)  # `accept` returns
            self._key = secrets.token_bytes()
            config = Config(
                address,
                str(folder / "code"),
                self._server.getsockname()[1],
                WorkerConfig(self._key, self._places, limits or Limits(), preload),
                workers,
                use_gpus,
            )
            self._cluster = opened.enter_context(
                contextlib.closing(Cluster(config, folder / "log"))
            )
            threading.Thread(target=self._accept, daemon=True).start()
            self._cluster.wait_for_worker(lambda: bool(self._workers))
            self._opened = opened.pop_all()
        self._cluster.watch(self._note)

    @property
    def size(self) -> int:
        """The number of workers now."""
        return len(self._workers)

    @property
    def cluster_cpus(self) -> int:
        """The number of CPUs that the cluster has now."""
        found = self._cluster.resources
        return 0 if found is None else found.cpus

    @property
    def num_gpus(self) -> int:
        """The number of GPUs that the cluster has now."""
        found = self._cluster.resources
        return 0 if found is None else found.gpus

    def submit(self, job: Job) -> None:
        """Run a job as soon as a worker is free."""
        task = _Task(job, dump(job, self._places))
        self._tasks.add(task)
        self._jobs[job.needs_gpu].put(task)

    def events(self, timeout: float) -> list[Event]:
        """Return what happened since the last call; wait up to `timeout` seconds for the first."""
        return take_events(self._events, timeout)

    def stop(self) -> None:
        """Signal all jobs to end."""
        self._is_stopped = True
        self._send_all(STOP)

    def close(self) -> None:
        """End all workers; running and waiting jobs are lost as `stopped`."""
        self._is_closed = True
        self._send_all(CLOSE)
        until = time.monotonic() + CLOSE_SECONDS
        while self._workers and time.monotonic() < until:
            time.sleep(0.05)
        self._opened.close()
        for connection in list(self._workers.values()):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for task in list(self._tasks):
            self._finish(task, Lost(task.job, "stopped"))

    def _note(self, resources: Resources) -> None:
        """End waiting jobs that need a GPU as `Lost` if the cluster has none."""
        if resources.gpus:
            return
        detail = "no node has a GPU: start one with `ray start --num-gpus N`"
        with contextlib.suppress(queue.Empty):
            while True:
                task = self._jobs[True].get_nowait()
                self._finish(task, Lost(task.job, "node", detail=detail, worker="no worker"))

    def _accept(self) -> None:
        """Accept the connections of workers until the pool is closed: the body of a thread."""
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._server.accept()
                threading.Thread(target=self._follow, args=(connection,), daemon=True).start()

    def _follow(self, connection: socket.socket) -> None:
        """Run jobs in one worker: the body of a thread."""
        _notice_lost_node(connection)
        pipe = Connection(os.dup(connection.fileno()))
        with connection, pipe, contextlib.suppress(OSError, EOFError, AuthenticationError):
            deliver_challenge(pipe, self._key)
            answer_challenge(pipe, self._key)
            name, has_gpu = pipe.recv()
            self._workers[pipe] = connection
            try:
                if self._is_stopped:
                    self._send(pipe, STOP)
                while not pipe.poll():  # a worker without a job sends nothing until it ends
                    with contextlib.suppress(queue.Empty):
                        self._run(self._jobs[has_gpu].get(timeout=0.2), pipe, name)
            finally:
                del self._workers[pipe]

    def _run(self, task: _Task, pipe: Connection, worker: str) -> None:
        """Run a job in a worker; pass on its events."""
        try:
            self._send(pipe, (task.data, task.job.hang_timeout_seconds))
            while task in self._tasks:
                self._pass_on(task, *load(pipe.recv_bytes(), self._places))
        except (EOFError, OSError):
            if not self._is_closed:
                self._lose_node(task, worker)
        except Exception as error:  # a job must not be lost silently
            self._finish(task, Lost(task.job, "error", detail=repr(error), worker=worker))
            raise

    def _pass_on(self, task: _Task, kind: str, *content: Any) -> None:
        if kind == "message":
            self._events.put(Message(task.job, load(content[0], self._places)))
        elif kind == "finished":
            result, *memory = content
            self._finish(task, Finished(task.job, load(result, self._places), *memory))
        else:
            self._finish(task, Lost(task.job, *content))

    def _lose_node(self, task: _Task, worker: str) -> None:
        """Run a job again that lost its node, unless it lost too many."""
        task.lost_nodes += 1
        if task.lost_nodes >= MAX_LOST_NODES:
            self._finish(task, Lost(task.job, "node", worker=worker))
            return
        self._events.put(Message(task.job, NodeLost(worker, task.lost_nodes)))
        self._jobs[task.job.needs_gpu].put(task)

    def _finish(self, task: _Task, event: Event) -> None:
        """Emit the final event of a job, unless it has ended."""
        with self._lock:
            if task in self._tasks:
                self._tasks.remove(task)
                self._events.put(event)

    def _send(self, pipe: Connection, content: tuple[bytes, float | None] | str) -> None:
        with self._sending:  # two threads may use one pipe
            pipe.send(content)

    def _send_all(self, text: str) -> None:
        for pipe in list(self._workers):
            with contextlib.suppress(OSError):  # it was lost meanwhile
                self._send(pipe, text)


def _notice_lost_node(connection: socket.socket) -> None:
    """Enable TCP keepalive, so that a connection ends if the other machine is gone."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL):
        connection.setsockopt(socket.IPPROTO_TCP, option, KEEPALIVE_SECONDS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)
