"""Compare each function with `reference`, then time it: on the host in turn, and on a GPU."""

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


class WrongAnswerError(Exception):
    """A function to be timed returns another result than `reference`."""


@dataclass(frozen=True)
class Row:
    """The times of a function for a batch."""

    function: str
    kind: str
    num_reqs: int
    fast_us: float  # on a GPU, the host's time of a call
    baseline_us: float | None = None
    device_us: float | None = None
    is_steady: bool = True  # most blocks are about as fast as the best

    @property
    def ratio(self) -> float | None:
        """The time of `fast` divided by the baseline's."""
        return None if self.baseline_us is None else self.fast_us / self.baseline_us


def measure(
    job: Job, batch: Batch, targets: Sequence[Side], num_blocks: int = NUM_BLOCKS
) -> Row | None:
    """Compare and time a function of `fast` and of a baseline, or of `fast` alone on a GPU.

    Return None if a target does not have it, or does not support the call.

    Raises:
        WrongAnswerError: A target returns another result than `reference`.
    """
    expected = job.prepare(batch, REFERENCE).observe()
    calls = []
    for target in targets:
        # An adapter may do a job of a step in its own way.
        own = getattr(target.implementation.adapter, "jobs", {}).get(job.function)
        if own is None and not target.implementation.offers(job.needs or job.function):
            return None
        try:
            prepared = (own or job.prepare)(batch, *([target] if own is None else [job]))
        except Unsupported:
            return None
        device = torch.device(target.device or "cpu").type
        difference = Comparison(device).difference(expected, prepared.observe())
        if difference is not None:
            where = f"{target.name}: {job.name}, {batch.kind}, {batch.num_reqs}"
            raise WrongAnswerError(
                f"{where}: {difference.where} = {difference.got}, not {difference.expected}"
            )
        calls.append(prepared)
    about = (job.name, batch.kind, batch.num_reqs)
    if targets[0].device == "cuda":
        call, _, reset, _ = calls[0]
        cost_us = host_cost_us(call, reset=reset)
        if reset is not None:
            reset()
        return Row(*about, cost_us, device_us=device_seconds(call) * 1e6)
    blocks = time_in_turn(calls, num_blocks)
    ours, theirs = map(min, blocks)
    is_steady = all(statistics.median(of_call) < MAX_SLOWED * min(of_call) for of_call in blocks)
    return Row(*about, ours, theirs, is_steady=is_steady)


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


def host_cost_us(
    call: Call, num_blocks: int = 20, num_calls: int = 40, reset: Call | None = None
) -> float:
    """Return the host time of a warm call on a GPU, in microseconds: the median over blocks."""
    call()
    blocks = []
    for _ in range(num_blocks):
        if reset is not None:
            reset()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(num_calls):
            call()
        blocks.append((time.perf_counter() - begin) / num_calls * 1e6)
    torch.cuda.synchronize()
    return statistics.median(blocks)


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
