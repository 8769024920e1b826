"""Measure startup: importing `fast`, and each hot function's first call after `warmup()`.

Both are measured in separate processes; `python -m kvtwin.bench.startup` runs one of them.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from typing import Any

from kvtwin.checkout import ROOT

IMPORT = (
    "import time, torch; begin = time.perf_counter(); import fast; "
    "print(time.perf_counter() - begin)"
)
NUM_PROCESSES = 5
NUM_CALLS = 101
OTHER_BYTES = 2**23
"""More than the private caches of a core hold."""


def import_seconds() -> float:
    """Return the seconds of `import fast` after `import torch`: the median over processes."""
    return statistics.median(float(_run("-c", IMPORT)) for _ in range(NUM_PROCESSES))


def first_calls() -> dict[str, float]:
    """Return the time of each function's first call after `warmup()`, relative to its median.

    Each figure is the median over processes: a process has only one first call.
    """
    runs = [json.loads(_run("-m", "kvtwin.bench.startup")) for _ in range(NUM_PROCESSES)]
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}


def _run(*arguments: str) -> str:
    """Run Python in the project's folder and return what it prints."""
    command = [sys.executable, "-W", "ignore", *arguments]
    return subprocess.run(  # noqa: S603  # our own
        command, cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout


def _time_first_calls() -> dict[str, float]:
    """Warm up, then call every hot function for a mixed batch, and compare the first with the rest.

    The functions are called in turn, as in a step, and before each call the processor's caches are
    filled with other memory: otherwise the contents of the caches would make the first call slower.
    All calls are prepared first. That calls `append_block_ids` to fill tables, so its first call is
    not timed.
    """
    import numpy as np  # noqa: PLC0415
    import torch  # noqa: PLC0415  # only in the process that measures

    import fast  # noqa: PLC0415
    from conformance.targets.target import Target  # noqa: PLC0415
    from kvtwin.bench.batches import make_batch  # noqa: PLC0415
    from kvtwin.bench.jobs import JOBS  # noqa: PLC0415

    torch.set_num_threads(1)
    fast.warmup()
    batch, target = make_batch("mixed", 64), Target("fast")
    ready: dict[str, Any] = {job.name: job.prepare(batch, target) for job in JOBS}
    seconds: dict[str, list[float]] = {name: [] for name in ready}
    other = np.zeros(OTHER_BYTES, np.uint8)
    for _ in range(NUM_CALLS):
        for name, prepared in ready.items():
            other += 1
            begin = time.perf_counter()
            prepared.call()
            seconds[name].append(time.perf_counter() - begin)
    return {name: took[0] / statistics.median(took[1:]) for name, took in seconds.items()}


if __name__ == "__main__":
    print(json.dumps(_time_first_calls()))
