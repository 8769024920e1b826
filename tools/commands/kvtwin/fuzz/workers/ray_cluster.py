"""The coordinator's side of a Ray cluster: its resources, and the driver process that uses Ray."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import multiprocessing
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

from conformance.entry_point import how_to_install
from kvtwin.fuzz.workers.ray_worker import WorkerConfig

REACH_SECONDS: Final = 5.0
"""How long the head node may take to accept a connection."""

CONNECT_SECONDS: Final = 120.0
"""How long Ray may take to connect: several times the usual 5 to 10 s, for a busy machine."""

FIRST_WORKER_SECONDS: Final = 120.0
"""How long the first worker may take to start, after that."""

RECONNECT_SECONDS: Final = 10.0
"""How long to wait before the driver is started again."""


@dataclasses.dataclass(frozen=True)
class Config:
    """The configuration of the driver.

    Attributes:
        address: The address of the cluster.
        code: The folder that is copied to the nodes.
        port: The port on this machine at which the coordinator listens for workers.
        worker: The configuration of each worker.
        workers: The most workers on CPUs; None for one for each CPU.
        use_gpus: Whether to start a worker on each GPU too.
    """

    address: str
    code: str
    port: int
    worker: WorkerConfig
    workers: int | None
    use_gpus: bool


@dataclasses.dataclass(frozen=True)
class Resources:
    """The resources of a cluster.

    Attributes:
        cpus: The CPUs of its nodes.
        free_cpus: The CPUs that are not in use.
        gpus: The GPUs of its nodes.
        failure: The last error of a worker; empty if none has failed.
    """

    cpus: int
    free_cpus: int
    gpus: int
    failure: str = ""


class Cluster:
    """A cluster on which `ray_driver` starts workers.

    Args:
        config: The configuration of the driver.
        log: The file for its output.

    Attributes:
        resources: The current resources; None until they are known.
    """

    def __init__(self, config: Config, log: Path) -> None:
        self.resources: Resources | None = None
        self._config, self._log = config, log
        self._closed = threading.Event()
        self._starting = threading.Lock()
        self._watcher: threading.Thread | None = None
        self._start()

    def wait_for_worker(self, has_worker: Callable[[], bool]) -> None:
        """Wait until there is a worker.

        Raises:
            ValueError: The cluster cannot be used, or starts none in time.
        """
        until = time.monotonic() + CONNECT_SECONDS
        while not has_worker():
            if self._pipe.poll(0.1):
                if self.resources is None:
                    until = time.monotonic() + FIRST_WORKER_SECONDS
                self._receive()
                if self.resources is not None and not self.resources.cpus:
                    raise self._refusal(
                        "its nodes have no CPUs: start one with `ray start --num-cpus N`"
                    )
            elif time.monotonic() > until:
                raise self._refusal(self._why_no_worker())

    def watch(self, note: Callable[[Resources], None]) -> None:
        """Start a thread that calls a function with each update of the resources, until `close`."""
        self._watcher = threading.Thread(target=self._watch, args=(note,), daemon=True)
        self._watcher.start()

    def _watch(self, note: Callable[[Resources], None]) -> None:
        while True:
            with contextlib.suppress(ValueError):  # the driver has ended
                while True:
                    note(self._receive())
            self._kill()
            if self._closed.wait(RECONNECT_SECONDS):
                return
            with self._starting:
                if not self._closed.is_set():
                    self._start()

    def close(self) -> None:
        """End the driver; Ray then ends its workers."""
        with self._starting:
            self._closed.set()
            self._kill()
        if self._watcher is not None:
            self._watcher.join()

    def _receive(self) -> Resources:
        try:
            received: Resources | str = self._pipe.recv()
        except (EOFError, OSError):
            raise self._refusal(f"Ray ended; {self._last_words()}") from None
        if isinstance(received, str):
            raise self._refusal(received)
        self.resources = received
        return received

    def _why_no_worker(self) -> str:
        found = self.resources
        if found is None:
            return f"it did not answer; {self._last_words()}"
        return (
            f"no worker started within {FIRST_WORKER_SECONDS:g} s: {found.free_cpus} of its"
            f" {found.cpus} CPUs are free. {found.failure}"
        ).strip()

    def _refusal(self, why: str) -> ValueError:
        return ValueError(f"the Ray cluster {self._config.address!r} cannot be used: {why}")

    def _start(self) -> None:
        self._pipe: Connection
        self._pipe, theirs = multiprocessing.Pipe()
        environment = {
            **os.environ,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # the default of later versions
            "PYTHONUNBUFFERED": "1",
        }
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(  # noqa: S603  # our own module
                [sys.executable, "-m", "kvtwin.fuzz.workers.ray_driver", str(theirs.fileno())],
                cwd=self._config.code,
                env=environment,
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # a terminal sends Ctrl-C to all processes of a session
            )
        theirs.close()
        self._pipe.send(self._config)

    def _last_words(self) -> str:
        """Return the end of the driver's output, on one line."""
        text = self._log.read_text(encoding="utf-8", errors="replace")
        return " ".join(text[-1000:].split()) or "it printed nothing"

    def _kill(self) -> None:
        self._process.kill()
        self._process.wait()


def check_address(address: str) -> None:
    """Check that Ray is installed, and that something listens at an address.

    Raises:
        ValueError: Ray is not installed; the address is malformed; nothing listens there.
    """
    if importlib.util.find_spec("ray") is None:
        raise ValueError(
            f"the Ray cluster {address!r} needs Ray, which is not installed:"
            f" {how_to_install('ray')}"
        )
    if address == "auto":
        return
    host, colon, port = address.rpartition(":")
    if not (colon and host and port.isdecimal()) or "/" in address:
        advice = ""
        if address.startswith("ray://"):
            advice = (
                ". Ray Client is not enough: workers connect to this machine. Let it join the"
                " cluster with `ray start --address HOST:PORT --num-cpus 0` and name it `auto`"
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
