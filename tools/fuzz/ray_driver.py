"""The process that talks to a Ray cluster for `ray_pool.RayPool`.

It is a process of its own because Ray ends the process that uses it when the head node is lost, and
because Ray prints. It receives jobs and sends their events, all pickled, through one pipe.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import queue
import sys
import threading
import time
from multiprocessing.connection import Connection
from typing import Any, Final

from tools.fuzz.ray_worker import RayWorker
from tools.fuzz.shipping import Places
from tools.fuzz.worker import Limits, Start

WATCH_SECONDS: Final = 2.0
"""How often the nodes of the cluster are looked at."""

FIRST_WORKER_SECONDS: Final = 60.0
"""What the first worker may take to be placed on a node and started."""

PAUSE_SECONDS: Final = 10.0
"""What is waited after a worker could not be started."""

GPU_SECONDS: Final = 10.0
"""How long a job waits for a GPU where no node has one."""

CLOSE_SECONDS: Final = 2.0
"""What running jobs may take to end when the pool is closed."""


@dataclasses.dataclass(frozen=True)
class Config:
    """What the driver needs to know.

    Attributes:
        address: Of the cluster.
        code: The folder that is copied to the nodes.
        places: Where the coordinator has what the folder contains.
        limits: What a worker's child may take.
        start: How it is started.
        workers: The most workers on CPUs; None for one for each CPU.
    """

    address: str
    code: str
    places: Places
    limits: Limits
    start: Start
    workers: int | None


@dataclasses.dataclass(frozen=True)
class Task:
    """A job that waits or runs.

    Attributes:
        id: What the coordinator calls it.
        data: The job, pickled.
        since: When it came, by `time.monotonic`.
    """

    id: int
    data: bytes
    since: float


class Driver:
    """The workers on the cluster, each followed by a thread.

    Args:
        pipe: To the coordinator.
        config: What it needs to know.
    """

    def __init__(self, pipe: Connection, config: Config) -> None:
        self.config = config
        self.jobs: dict[bool, queue.Queue[Task]] = {False: queue.Queue(), True: queue.Queue()}
        self.is_stopped = self.is_closed = False
        self.last_failure = ""
        self._pipe, self._sending = pipe, threading.Lock()
        self._slots: list[_Slot] = []
        self._number = 0
        self._started = time.monotonic()
        self._pause_until = 0.0
        self._num_gpus = 0
        self._reported: tuple[int, int] | None = None
        self._wants_gpu = False

    def run(self) -> None:
        """Connect, and serve the coordinator until it closes the pipe."""
        import ray  # noqa: PLC0415  # of the extra `ray`

        try:
            ray.init(
                self.config.address,
                runtime_env={"working_dir": self.config.code},
                log_to_driver=False,
                logging_level="ERROR",
            )
        except Exception as error:  # noqa: BLE001  # Ray raises all kinds
            self.send("refused", " ".join(str(error).split()) or type(error).__name__)
            return
        self._node = ray.get_runtime_context().get_node_id()
        threading.Thread(target=self._watch, daemon=True).start()
        with contextlib.suppress(EOFError, OSError):
            self._serve()
        self._close()
        ray.shutdown()

    def send(self, *message: Any) -> None:
        """Send a message to the coordinator; it may be gone."""
        with self._sending, contextlib.suppress(OSError):
            self._pipe.send(message)

    def _serve(self) -> None:
        while True:
            kind, *content = self._pipe.recv()
            if kind == "close":
                return
            if kind == "stop":
                self.is_stopped = True
                for slot in self._slots:
                    slot.request("stop")
            else:
                number, data, needs_gpu = content
                self._wants_gpu |= needs_gpu
                self.jobs[needs_gpu].put(Task(number, data, time.monotonic()))

    def _close(self) -> None:
        """End the workers; what their jobs reported is sent before."""
        self.is_closed = True
        for slot in self._slots:
            slot.request("close")
        until = time.monotonic() + CLOSE_SECONDS
        for slot in self._slots:
            slot.join(max(until - time.monotonic(), 0))

    def _watch(self) -> None:
        """Have as many workers as the cluster has room for: the body of a thread."""
        while not self.is_closed:
            try:
                self._look()
            except Exception as error:  # noqa: BLE001  # the head may be away
                print(f"the nodes cannot be listed: {error!r}", file=sys.stderr)
            time.sleep(WATCH_SECONDS if self._reported else 0.2)

    def _look(self) -> None:
        import ray  # noqa: PLC0415

        nodes = {node["NodeID"]: node["Resources"] for node in ray.nodes() if node["Alive"]}
        if self._node not in nodes:
            # Ray ends the actors of a driver whose node is gone; another process has to begin
            # again.
            os._exit(3)
        for slot in self._slots:
            slot.is_lost |= slot.node is not None and slot.node not in nodes
        cpus = sum(int(resources.get("CPU", 0)) for resources in nodes.values())
        gpus = sum(int(resources.get("GPU", 0)) for resources in nodes.values())
        limit = cpus if self.config.workers is None else min(cpus, self.config.workers)
        self._adjust(False, limit)
        self._adjust(True, gpus if self._wants_gpu else 0)
        if self._wants_gpu and not gpus:
            self._refuse_gpu_jobs()
        self._slots = [slot for slot in self._slots if slot.is_alive()]
        self._num_gpus = gpus
        self.report_size()
        if self._reported is None and time.monotonic() - self._started > FIRST_WORKER_SECONDS:
            free = int(ray.available_resources().get("CPU", 0))
            self.send(
                "refused",
                f"no worker started within {FIRST_WORKER_SECONDS:g} s: {free} of its {cpus} CPUs"
                f" are free. {self.last_failure}".strip(),
            )
            self._started = float("inf")
        if self._reported is None and not cpus:
            self.send("refused", "its nodes have no CPUs: start one with `ray start --num-cpus N`")
            self._started = float("inf")

    def report_size(self) -> None:
        """Send the number of workers, if there are any now or were before."""
        size = sum(slot.node is not None and not slot.is_lost for slot in self._slots)
        now = size, self._num_gpus
        if now != self._reported and (size or self._reported is not None):
            self._reported = now
            self.send("size", *now)

    def _adjust(self, needs_gpu: bool, num_slots: int) -> None:
        """Start workers that the cluster has room for; give up those that wait for room."""
        slots = [slot for slot in self._slots if slot.needs_gpu == needs_gpu and slot.is_alive()]
        slots = [slot for slot in slots if not slot.is_lost]
        waiting = [slot for slot in slots if slot.node is None]
        for slot in waiting[: max(len(slots) - num_slots, 0)]:
            slot.is_lost = True
        if time.monotonic() < self._pause_until:
            return
        for _ in range(num_slots - len(slots)):
            slot = _Slot(self, self._number, needs_gpu)
            self._number += 1
            self._slots.append(slot)
            slot.start()

    def _refuse_gpu_jobs(self) -> None:
        jobs = self.jobs[True]
        with contextlib.suppress(queue.Empty):
            while jobs.queue and time.monotonic() - jobs.queue[0].since > GPU_SECONDS:
                detail = "no node has a GPU: start one with `ray start --num-gpus N`"
                self.send("lost", jobs.get_nowait().id, "node", detail, "no worker")

    def note_failed_start(self, detail: str) -> None:
        """Wait before the next worker is started: this one could not be."""
        self._pause_until = time.monotonic() + PAUSE_SECONDS
        self.last_failure = detail
        print(detail, file=sys.stderr)


class _Slot(threading.Thread):
    """Follows a worker on a node of the cluster.

    Args:
        driver: Where its jobs come from.
        number: Of the worker.
        needs_gpu: Whether it has a GPU.

    Attributes:
        node: The id of its node; None until it is placed on one.
        is_lost: Whether its node is gone.
    """

    def __init__(self, driver: Driver, number: int, needs_gpu: bool) -> None:
        super().__init__(daemon=True, name=f"slot {number}")
        self.needs_gpu = needs_gpu
        self.node: str | None = None
        self.is_lost = False
        self._driver, self._number = driver, number
        self._actor: Any = None
        self._title = f"worker {number}"

    def run(self) -> None:
        """Start the worker and give it jobs."""
        import ray  # noqa: PLC0415

        try:
            if not self._start():
                return
        except ray.exceptions.RayError as error:
            self._driver.note_failed_start(str(error))
            return
        finally:
            if self.node is None and self._actor is not None:
                ray.kill(self._actor)
        jobs = self._driver.jobs[self.needs_gpu]
        while not self.is_lost and not self._driver.is_closed:
            with contextlib.suppress(queue.Empty):
                task = jobs.get(timeout=0.2)
                if self.is_lost:
                    jobs.put(task)
                else:
                    self._run_task(task)
        self._driver.report_size()
        ray.kill(self._actor)

    def _start(self) -> bool:
        """Create the actor and wait until it runs; return whether it does."""
        import ray  # noqa: PLC0415

        config = self._driver.config
        options = {
            "num_cpus": 0 if self.needs_gpu else 1,
            "num_gpus": 1 if self.needs_gpu else 0,
            "max_concurrency": 2,  # `stop` while a job runs
        }
        self._actor = (
            ray.remote(RayWorker)
            .options(**options)
            .remote(self._number, config.limits, config.start, config.places)
        )
        description = self._actor.describe.remote()
        while not self.is_lost and not self._driver.is_closed:
            ready, _ = ray.wait([description], timeout=0.2)
            if ready:
                self.node, self._title = ray.get(description)
                return True
        return False

    def _run_task(self, task: Task) -> None:
        import ray  # noqa: PLC0415

        self._driver.send("started", task.id)
        method = self._actor.run.options(num_returns="streaming")
        whole = b""
        try:
            for reference in method.remote(task.data, self._driver.is_stopped):
                is_last, piece = ray.get(reference)
                whole += piece
                if is_last:
                    self._driver.send("event", task.id, whole)
                    whole = b""
        except ray.exceptions.RayTaskError as error:
            self._driver.send("lost", task.id, "error", str(error), self._title)
        except ray.exceptions.RayError as error:
            self.is_lost = True
            reason = "stopped" if self._driver.is_closed else "node"
            self._driver.send("lost", task.id, reason, str(error), self._title)

    def request(self, method: str) -> None:
        """Call `stop` or `close` of the worker, without waiting for it."""
        if self.node is not None and not self.is_lost:
            with contextlib.suppress(Exception):
                getattr(self._actor, method).remote()


def main() -> None:
    """Serve the coordinator, whose end of the pipe the command line names."""
    pipe = Connection(int(sys.argv[1]))
    Driver(pipe, pipe.recv()).run()


if __name__ == "__main__":
    main()
