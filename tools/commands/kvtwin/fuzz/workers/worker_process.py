"""The child process of a worker: it receives jobs through a pipe, and sends their results.

A Ray task imports this module, but not the harness: only jobs import that.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import importlib
import os
import resource
import signal
import threading
import time
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

from conformance.execution.process_memory import rss_bytes

INPUT_BYTES: Final = 1 << 20
"""The longest input that can be noted."""

LOST_CONTEXT_EXIT: Final = 78
"""The exit status of a child whose GPU context was lost."""

USED_GPU: Final = "used GPU"
"""The reason for which a child returns a job: it must fork, and the process has used a GPU."""

COLLECT_SECONDS: Final = 3.0
"""How often garbage is collected between jobs, so that memory growth is noticed.

The remaining objects are frozen: scanning all objects of strategies each time took 5% of the time.
"""

UNFREEZE_SECONDS: Final = 30.0
"""How often frozen objects are unfrozen and collected too."""


class SharedState(ctypes.Structure):
    """Memory that a child shares with its coordinator, which can read it after a crash.

    Attributes:
        is_over: Whether the job should end soon.
        count: How many inputs were noted.
    """

    _fields_ = (
        ("is_over", ctypes.c_bool),
        ("count", ctypes.c_int64),
        ("length", ctypes.c_int64),
        ("data", ctypes.c_uint8 * INPUT_BYTES),
    )

    def write(self, data: bytes) -> None:
        """Note an input; an input that is too long is cut, and cannot be decoded."""
        self.count += 1
        self.length = min(len(data), INPUT_BYTES)
        ctypes.memmove(self.data, data, self.length)

    def read(self) -> bytes:
        """Return the last input."""
        return ctypes.string_at(self.data, self.length)


class ChildContext:
    """The `WorkerContext` of a child."""

    def __init__(self, pipe: Connection, shared: SharedState, memory_bytes: int | None) -> None:
        self._pipe, self._shared, self.memory_bytes = pipe, shared, memory_bytes
        self.note_input = shared.write

    def report(self, message: object) -> None:
        """Send a message to the coordinator."""
        self._pipe.send(("message", message))

    def is_over(self) -> bool:
        """Return whether the job should end soon."""
        return bool(self._shared.is_over)


def run_jobs(
    pipe: Connection,
    shared: SharedState,
    stacks: str,
    parent: int,
    preload: Sequence[str],
    memory_bytes: int,
) -> None:
    """Run jobs until the pipe closes: the body of a child process.

    Args:
        pipe: The pipe to the coordinator.
        shared: The memory shared with the coordinator.
        stacks: The file to which `faulthandler` writes stacks.
        parent: The process id of the coordinator.
        preload: Modules whose `prepare()` is called first, if they have one.
        memory_bytes: The memory limit of this process, and of each of its children.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends Ctrl-C to all processes
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    file = Path(stacks).open("w", encoding="utf-8")  # noqa: SIM115  # open until the process ends
    faulthandler.enable(file, all_threads=False)
    faulthandler.register(signal.SIGUSR1, file, all_threads=False)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    try:
        for name in preload:  # the fork server may have imported them
            prepare = getattr(importlib.import_module(name), "prepare", None)
            if prepare is not None:
                prepare()
    except Exception:  # noqa: BLE001  # the coordinator reports it
        pipe.recv()
        pipe.send(("error", traceback.format_exc()))
        return
    context = ChildContext(pipe, shared, memory_bytes)
    collected = unfrozen = time.monotonic()
    while True:
        try:
            job = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            result = job.run(context)
        except BaseException as error:  # noqa: BLE001  # the coordinator reports it
            from conformance.execution.gpu_context import ContextLostError, UsedGpuError  # noqa: PLC0415

            if isinstance(error, ContextLostError):
                os._exit(LOST_CONTEXT_EXIT)  # a new process has a new context
            reason = USED_GPU if isinstance(error, UsedGpuError) else "error"
            pipe.send((reason, traceback.format_exc()))
            return
        if time.monotonic() - collected > COLLECT_SECONDS:
            if time.monotonic() - unfrozen > UNFREEZE_SECONDS:
                gc.unfreeze()
                unfrozen = time.monotonic()
            gc.collect()
            gc.freeze()
            collected = time.monotonic()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        pipe.send(("finished", (result, rss_bytes(os.getpid()), peak)))


def _end_with(parent: int) -> None:
    """End this process when the coordinator is gone, even if it was killed."""
    while True:
        try:
            os.kill(parent, 0)
        except ProcessLookupError:
            os._exit(1)
        except PermissionError:
            pass
        time.sleep(1)
