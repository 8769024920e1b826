"""Compare each function with `reference`, then time it in turn: on the host, and on a GPU."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch.utils.benchmark import Timer

from conformance.adapters.base import Unsupported
from conformance.harness.compare import Comparison
from kvtwin.bench.jobs import REFERENCE, Batch, Call, Job, Prepared, Side

NUM_BLOCKS: Final = 15
BLOCK_SECONDS: Final = 2e-3
MAX_SLOWED: Final = 1.15
SLEEP_CYCLES: Final = 50_000_000
"""About 30 ms of GPU time, in which the host enqueues many calls, as in torch's own tests."""
MIN_DEVICE_US: Final = 0.5
"""A call that takes less GPU time has launched nothing."""


class WrongAnswerError(Exception):
    """A function to be timed returns another result than `reference`."""


@dataclass(frozen=True)
class Row:
    """The times of a function for a batch; without a baseline those of `fast` alone."""

    function: str
    kind: str
    num_reqs: int
    fast_us: float  # on a GPU too, the host's time of a call
    baseline_us: float | None = None
    device_us: float | None = None  # None if nothing runs on a GPU
    is_steady: bool = True  # most blocks are about as fast as the best
    baseline_device_us: float | None = None

    @property
    def ratio(self) -> float | None:
        """The time of `fast` divided by the baseline's."""
        return None if self.baseline_us is None else self.fast_us / self.baseline_us

    @property
    def device_ratio(self) -> float | None:
        """The same of the times on the device."""
        if self.device_us is None or self.baseline_device_us is None:
            return None
        return self.device_us / self.baseline_device_us


def measure(
    job: Job, batch: Batch, targets: Sequence[Side], num_blocks: int = NUM_BLOCKS
) -> Row | None:
    """Compare and time a function of `fast` and of a baseline.

    If the baseline does not have it, or does not support the call, `fast` is timed alone on a GPU;
    on a CPU it is not timed: return None.

    Raises:
        WrongAnswerError: A target returns another result than `reference`.
    """
    calls = compare(job, batch, targets)
    about = (job.name, batch.kind, batch.num_reqs)
    if targets[0].device == "cuda":
        (ours, ours_there), *others = time_on_gpu(calls)
        theirs, theirs_there = others[0] if others else (None, None)
        return Row(*about, ours, theirs, device_us=ours_there, baseline_device_us=theirs_there)
    if len(calls) < len(targets):
        return None
    blocks = time_in_turn(calls, num_blocks)
    ours, theirs = map(min, blocks)
    is_steady = all(statistics.median(of_call) < MAX_SLOWED * min(of_call) for of_call in blocks)
    return Row(*about, ours, theirs, is_steady=is_steady)


def compare(job: Job, batch: Batch, targets: Sequence[Side]) -> list[Prepared]:
    """Return the calls of those targets that have a function and support the call.

    Raises:
        WrongAnswerError: A target returns another result than `reference`.
    """
    expected = job.prepare(batch, REFERENCE).observe()
    calls = []
    for target in targets:
        # An adapter may do a job of a step in its own way.
        own = getattr(target.implementation.adapter, "jobs", {}).get(job.function)
        if own is None and not target.implementation.offers(job.needs or job.function):
            continue
        try:
            prepared = (own or job.prepare)(batch, *([target] if own is None else [job]))
        except Unsupported:
            continue
        device = torch.device(target.device or "cpu").type
        difference = Comparison(device).difference(expected, prepared.observe())
        if difference is not None:
            where = f"{target.name}: {job.name}, {batch.kind}, {batch.num_reqs}"
            raise WrongAnswerError(
                f"{where}: {difference.where} = {difference.got}, not {difference.expected}"
            )
        calls.append(prepared)
    return calls


def time_in_turn(calls: Sequence[Prepared], num_blocks: int = NUM_BLOCKS) -> list[list[float]]:
    """Time calls, a block of each in turn; return the microseconds of a call in each block.

    The best block is the time of a call: in the others, the machine did something else too.
    """
    timers = [
        Timer("call()", "reset()", globals={"call": each.call, "reset": each.reset or int})
        for each in calls
    ]
    numbers = []
    for timer, each in zip(timers, calls, strict=True):
        seconds = min(timer.timeit(1).mean for _ in range(3))
        number = max(1, int(BLOCK_SECONDS / seconds))
        numbers.append(min(number, each.most_calls or number))
    blocks = [
        [timer.timeit(number).mean * 1e6 for timer, number in zip(timers, numbers, strict=True)]
        for _ in range(num_blocks)
    ]
    return [list(of_call) for of_call in zip(*blocks, strict=True)]


def best_us(call: Call) -> float:
    """Return the microseconds of a call in the best block of calls."""
    return min(time_in_turn([Prepared(call, call)])[0])


def time_on_gpu(
    calls: Sequence[Prepared], num_blocks: int = 10, num_calls: int = 20
) -> list[tuple[float, float | None]]:
    """Return the microseconds of each call on the host, and on the device (None: nothing runs).

    Blocks of calls take turns. On the host the median block counts, on the device the better of
    two.
    """
    for each in calls:
        each.call()
    on_host = [
        [_host_block_us(each.call, num_calls, each.reset) for each in calls]
        for _ in range(num_blocks)
    ]
    torch.cuda.synchronize()
    on_device = []
    for _ in range(2):
        for each in calls:
            (each.reset or int)()
            on_device.append(device_seconds(each.call, num_calls) * 1e6)
    best = [min(times) for times in (on_device[k :: len(calls)] for k in range(len(calls)))]
    return [
        (statistics.median(blocks), us if us >= MIN_DEVICE_US else None)
        for blocks, us in zip(zip(*on_host, strict=True), best, strict=True)
    ]


def host_cost_us(call: Call, num_blocks: int = 20, num_calls: int = 40) -> float:
    """Return the host time of a warm call on a GPU, in microseconds: the median over blocks."""
    call()
    blocks = [_host_block_us(call, num_calls, None) for _ in range(num_blocks)]
    torch.cuda.synchronize()
    return statistics.median(blocks)


def _host_block_us(call: Call, num_calls: int, reset: Call | None) -> float:
    (reset or int)()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(num_calls):
        call()
    return (time.perf_counter() - begin) / num_calls * 1e6


def device_seconds(call: Call, num_calls: int = 20) -> float:
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
