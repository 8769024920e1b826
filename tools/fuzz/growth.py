"""Detect that the memory of a process grows with the number of cases of a property."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import gc
import json
import os
import resource
from collections.abc import Callable
from typing import Final

from conformance.gpu_context import check_can_fork
from tools.fuzz.cases import Input, Status, run_case
from tools.fuzz.failures import Failure
from tools.fuzz.jobs import WorkerContext
from tools.fuzz.properties import Property, Subject, properties_of, uses_gpu
from tools.fuzz.slices import failure_of_case
from tools.fuzz.worker_process import rss_bytes

STAGES: Final = 8
"""Memory must grow in so many stages, after a first one that fills caches.

What a C library keeps of freed memory has grown for five of them, in a function that leaks nothing.
"""

ROUNDS: Final = 3
"""How often the same cases are run in a stage."""

CASES: Final = 24
"""Cases of a round."""

MAX_SECONDS: Final = 120
"""Of processor time; a property whose cases take longer is not measured."""

MIN_BYTES: Final = 32 << 10
"""What each case must add in each stage to be reported; the harness' own caches add 5 KiB."""


class MemoryGrowthError(AssertionError):
    """The memory of the process grows each time that the same inputs are checked again."""


@dataclasses.dataclass(frozen=True)
class GrowthJob:
    """Run the same cases again and again in a forked child, and measure its memory.

    Attributes:
        subject: What is fuzzed.
        property_name: The property's name.
        seed: What the cases are drawn from.
    """

    subject: Subject
    property_name: str
    seed: int

    @property
    def name(self) -> str:
        """The property, with what is done to it."""
        return f"measure memory of {self.property_name}"

    @property
    def needs_gpu(self) -> bool:
        """Whether the target is a GPU."""
        return uses_gpu(self.subject, self.property_name)

    def run(self, worker: WorkerContext) -> Failure | None:
        """Return the failure if the memory grows in each stage; None if it does not."""
        return self.measure(worker.note_input)

    def measure(self, note: Callable[[bytes], None] = lambda _: None) -> Failure | None:
        """Return the failure if the memory grows in each stage; None if it does not.

        Args:
            note: Writes down each input before it runs.
        """
        prop = properties_of(self.subject)[self.property_name]
        sizes = self._measure(prop, note)
        if len(sizes) <= STAGES:
            return None
        case = run_case(prop, Input(prop.name, self.seed), note)
        each = (sizes[-1] - sizes[0]) / (STAGES * ROUNDS * CASES) / 1024
        error = MemoryGrowthError(f"the memory of the process grows by {each:,.0f} KiB each case")
        failed = dataclasses.replace(case, status=Status.FAILED, error=error)
        found = failure_of_case(prop, failed, kind="memory growth")
        # Measured again: a single case would show nothing.
        return dataclasses.replace(found, input=Input(prop.name, self.seed).to_bytes())

    def _measure(self, prop: Property, note: Callable[[bytes], None]) -> list[int]:
        """Return the resident bytes after each stage of a child, up to one that adds too few."""
        check_can_fork()
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            resource.setrlimit(resource.RLIMIT_CPU, (MAX_SECONDS, MAX_SECONDS))
            sizes: list[int] = []
            minimum = MIN_BYTES * ROUNDS * CASES
            try:
                while len(sizes) <= STAGES:
                    for number in range(ROUNDS * CASES):
                        run_case(prop, Input(prop.name, self.seed + number % CASES), note)
                    gc.collect()
                    _trim()
                    size = rss_bytes(os.getpid())
                    if sizes and size - sizes[-1] < minimum:
                        break
                    sizes.append(size)
                os.write(writer, json.dumps(sizes).encode())
            finally:
                os._exit(0)
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            written = pipe.read()
        os.waitpid(pid, 0)
        return json.loads(written) if written else []


def _trim() -> None:
    """Give memory that is free back to the system, where the C library can do that."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
