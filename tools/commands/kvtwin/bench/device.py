"""The cost of calls on a GPU: host time, device time, and the share of copy bandwidth."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final

import torch

from conformance.targets.target import REFERENCE, Target
from kvtwin.bench.batches import Batch
from kvtwin.bench.inputs import EMBED_DIM
from kvtwin.bench.jobs import Job
from kvtwin.bench.measuring import checked_call

SLEEP_CYCLES: Final = 50_000_000
"""About 30 ms of GPU time, in which the host enqueues many calls, as in torch's own tests."""

COPY_BYTES: Final = 2**30
"""The size of the copy whose bandwidth is the yardstick."""


def host_cost_us(call: Callable[[], Any], num_blocks: int = 20, num_calls: int = 50) -> float:
    """Return the host time of a warm call, in microseconds: the median over blocks."""
    call()
    blocks = []
    for _ in range(num_blocks):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(num_calls):
            call()
        blocks.append((time.perf_counter() - begin) / num_calls * 1e6)
    torch.cuda.synchronize()
    return statistics.median(blocks)


def device_seconds(call: Callable[[], Any], num_calls: int = 20) -> float:
    """Return the device time of a warm call; the device never waits for the host between calls."""
    call()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    torch.cuda._sleep(SLEEP_CYCLES)  # type: ignore[no-untyped-call]  # noqa: SLF001  # torch's own tests wait so
    begin.record()
    for _ in range(num_calls):
        call()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / num_calls / 1e3


@cache
def copy_bandwidth() -> float:
    """Return the bytes per second that the device reads and writes in a copy."""
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * COPY_BYTES / device_seconds(lambda: target.copy_(source))


def moved_bytes(job: Job, batch: Batch) -> int | None:
    """Return the bytes that a scatter or gather must read and write; None for other functions."""
    if job.function not in {"scatter_mm_placeholders", "gather_mm_placeholders"}:
        return None
    # Scattered: half of the rows are read, all are written. Gathered: half are read and written.
    rows = batch.num_reqs * (1.5 if job.function.startswith("scatter") else 1.0)
    return int(rows * EMBED_DIM * 2)


def measure_on_device(
    jobs: Sequence[Job], batches: Sequence[Batch], target: Target
) -> list[dict[str, Any]]:
    """Compare each job with `reference`, then measure its cost.

    Raises:
        WrongAnswerError: A result differs.
    """
    rows = []
    for job in jobs:
        for batch in batches:
            meant = job.prepare(batch, REFERENCE)
            call = None if meant is None else checked_call(job, batch, target, meant.observe())
            if call is None:
                continue
            seconds = device_seconds(call)
            num_bytes = moved_bytes(job, batch)
            share = None if num_bytes is None else num_bytes / seconds / copy_bandwidth()
            rows.append(
                {
                    "job": job.name,
                    "kind": batch.kind,
                    "num_reqs": batch.num_reqs,
                    "host_us": host_cost_us(call),
                    "device_us": seconds * 1e6,
                    "bandwidth_share": share,
                }
            )
    return rows
