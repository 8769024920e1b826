"""Time calls in turn, in short blocks, while the machine runs at full speed.

A machine with other tenants becomes slower by a factor of 2 for a while, at random. A fixed loop is
timed around each block, and a block next to a slow loop is discarded. torch's benchmark utilities
do the rest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from torch.utils.benchmark import Measurement, Timer

SPIN_STEPS: Final = 4000
MAX_SLOWED: Final = 1.15
"""How much slower than its best the fixed loop may be, for a block to count."""

MAX_TRIES: Final = 4
"""The factor by which more blocks are tried than needed, before slow ones are used."""


@dataclass(frozen=True)
class Timing:
    """The time of a call.

    Attributes:
        median_us: The median of its blocks, in microseconds.
        iqr_us: Their interquartile range, in microseconds.
        num_blocks: How many blocks there were.
        is_steady: Whether the machine ran at full speed in all of them.
    """

    median_us: float
    iqr_us: float
    num_blocks: int
    is_steady: bool


class Spin:
    """The fixed loop, and its best time so far.

    Example:
        >>> spin = Spin()
        >>> spin.slowed() >= 1.0
        True
    """

    def __init__(self) -> None:
        self._best = min(self._seconds() for _ in range(200))

    def slowed(self) -> float:
        """Run the loop, and return its time divided by the best time."""
        seconds = self._seconds()
        self._best = min(self._best, seconds)
        return seconds / self._best

    @staticmethod
    def _seconds() -> float:
        begin = time.perf_counter()
        total = 0
        for i in range(SPIN_STEPS):
            total += i
        return time.perf_counter() - begin


def time_in_turn(
    calls: Mapping[str, Callable[[], Any]],
    spin: Spin,
    *,
    num_blocks: int = 7,
    block_seconds: float = 2e-3,
) -> dict[str, Timing]:
    """Time calls side by side, a block of each in turn.

    Args:
        calls: By name; each is made a few times first.
        spin: Measures how fast the machine runs.
        num_blocks: Blocks of each that count.
        block_seconds: The approximate length of a block; a longer call is a block.

    Returns:
        The time of each call, by name.
    """
    timers = {name: Timer("call()", globals={"call": call}) for name, call in calls.items()}
    numbers = {name: _calls_in_a_block(timer, block_seconds) for name, timer in timers.items()}
    steady: dict[str, list[Measurement]] = {name: [] for name in calls}
    slow: dict[str, list[Measurement]] = {name: [] for name in calls}
    for _ in range(num_blocks * MAX_TRIES):
        for name, timer in timers.items():
            if len(steady[name]) >= num_blocks:
                continue
            before = spin.slowed()
            block = timer.timeit(numbers[name])
            is_steady = max(before, spin.slowed()) <= MAX_SLOWED
            (steady if is_steady else slow)[name].append(block)
        if all(len(blocks) >= num_blocks for blocks in steady.values()):
            break
    return {name: _merge(steady[name], slow[name], num_blocks) for name in calls}


def _calls_in_a_block(timer: Timer, block_seconds: float) -> int:
    """Return how many calls fill a block, after some to warm up."""
    first = timer.timeit(1).mean
    if first > block_seconds:
        return 1
    warm = min(timer.timeit(max(1, min(20, int(block_seconds / first / 4)))).mean for _ in range(2))
    return max(1, int(block_seconds / warm))


def _merge(steady: list[Measurement], slow: list[Measurement], num_blocks: int) -> Timing:
    """Return the time over the blocks; the fastest slow ones replace missing steady ones."""
    missing = max(0, num_blocks - len(steady))
    blocks = steady + sorted(slow, key=lambda block: float(block.mean))[:missing]
    times_us = np.array([block.mean for block in blocks]) * 1e6
    low, middle, high = np.percentile(times_us, [25, 50, 75])
    return Timing(float(middle), float(high - low), len(blocks), is_steady=missing == 0)
