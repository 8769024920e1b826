"""Detect that the memory of a process grows with the number of cases of a property."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import gc
import json
import os
import tempfile
from collections.abc import Callable
from typing import ClassVar, Final

from conformance.execution.forked_calls import run_in_child
from conformance.execution.process_memory import rss_bytes
from kvtwin.fuzz.cases.case import Input, Status, run_case
from kvtwin.fuzz.cases.properties import Property, PropertyJob, properties_of
from kvtwin.fuzz.findings.failures import Failure, failure_of_case
from kvtwin.fuzz.workers.jobs import WorkerContext

STAGES: Final = 8
"""The number of stages in which memory must grow, after a first one that fills caches.

Without any leak, the C allocator's cache of freed memory grew for five stages.
"""

ROUNDS: Final = 3
"""How often the same cases run in a stage."""

CASES: Final = 24
"""The number of cases in a round."""

MAX_SECONDS: Final = 240.0
"""The time limit of a measurement; slower properties are not measured."""

MIN_BYTES: Final = 32 << 10
"""The growth per case, in each stage, that is reported; the harness' caches add 5 KiB."""


SHARE: Final = 0.01
"""The largest share of a night's worker time that one measurement may take.

In a night of three minutes, measuring properties with large inputs took a tenth of the time.
"""


class MemoryGrowthError(AssertionError):
    """The memory of the process grows each time that the same inputs are checked again."""


@dataclasses.dataclass(frozen=True)
class GrowthJob(PropertyJob):
    """Run the same cases again and again in a forked child, and measure its memory.

    Attributes:
        seed: The seed of the first case; each further one adds 1.
    """

    seed: int
    task: ClassVar[str] = "measure memory of"

    def run(self, worker: WorkerContext) -> Failure | None:
        """Return the failure if the memory grows in each stage; None if it does not."""
        return self.measure(worker.note_input)

    def measure(self, note: Callable[[bytes], None] = lambda _: None) -> Failure | None:
        """Return the failure if the memory grows in each stage; None if it does not.

        Args:
            note: Called with each input before it runs.
        """
        prop = properties_of(self.subject)[self.property_name]
        if prop.calls_other_functions:
            return None  # the memory may be theirs, and other properties measure that
        sizes = self._measure(prop, note)
        if len(sizes) <= STAGES:
            return None
        case = run_case(prop, Input(prop.name, self.seed), note)
        each = (sizes[-1] - sizes[0]) / (STAGES * ROUNDS * CASES) / 1024
        error = MemoryGrowthError(f"the memory of the process grows by {each:,.0f} KiB each case")
        failed = dataclasses.replace(case, status=Status.FAILED, error=error)
        found = failure_of_case(prop, failed, kind="memory growth")
        # Without a prefix: a replay measures again, since a single case shows nothing.
        return dataclasses.replace(found, input=Input(prop.name, self.seed).to_bytes())

    def _measure(self, prop: Property, note: Callable[[bytes], None]) -> list[int]:
        """Return a child's resident bytes after each stage, until one grows too little."""
        with tempfile.TemporaryFile() as file:

            def measure() -> None:
                sizes: list[int] = []
                while len(sizes) <= STAGES:
                    for number in range(ROUNDS * CASES):
                        input_ = Input(prop.name, self.seed + number % CASES)
                        if run_case(prop, input_, note).status is Status.FAILED:
                            return  # the report that it leaves behind would be measured too
                    gc.collect()
                    _trim()
                    size = rss_bytes(os.getpid())
                    if sizes and size - sizes[-1] < MIN_BYTES * ROUNDS * CASES:
                        break
                    sizes.append(size)
                os.write(file.fileno(), json.dumps(sizes).encode())

            run_in_child(measure, MAX_SECONDS)
            file.seek(0)
            found: list[int] = json.loads(file.read() or "[]")
            return found


def can_measure(seconds_per_case: float, worker_seconds: float) -> bool:
    """Return whether a night has the time to measure a property without growth.

    Args:
        seconds_per_case: The seconds per case of the property.
        worker_seconds: The seconds of the night, times its workers.

    >>> can_measure(0.01, 360), can_measure(0.1, 360), can_measure(0.1, 3600), can_measure(1, 1e6)
    (True, False, True, False)
    """
    stage = ROUNDS * CASES * seconds_per_case
    return 2 * stage <= SHARE * worker_seconds and (1 + STAGES) * stage <= MAX_SECONDS


def _trim() -> None:
    """Return free memory to the system, if the C library has `malloc_trim`."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
