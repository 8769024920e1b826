"""Measure a job on a batch: compare every result with `reference`'s, then time the calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from conformance.adapters.base import Unsupported
from conformance.targets.target import REFERENCE, Target
from conformance.values.comparison import first_difference
from kvtwin.bench.batches import Batch
from kvtwin.bench.jobs import Job
from kvtwin.bench.timing import Spin, Timing, time_in_turn

BASELINE: Final = "baseline"
"""The name of the baseline that `fast` is compared with, whichever module it is."""

REFERENCE_BLOCKS: Final = 3
"""Timed blocks of `reference`, each of one call, since it is slow."""


class WrongAnswerError(Exception):
    """A target to be timed returns another result than `reference`."""


@dataclass(frozen=True)
class Row:
    """The times of one job on one batch.

    Attributes:
        job: The job's name.
        kind: The batch's kind.
        num_reqs: Its requests.
        num_tokens: Its new tokens.
        timings: The time of each target, by its name; without targets that lack the function.
    """

    job: str
    kind: str
    num_reqs: int
    num_tokens: int
    timings: dict[str, Timing]

    def ratio(self, name: str = BASELINE) -> float | None:
        """Return the time of `fast` divided by another target's; None if that has none."""
        if name not in self.timings:
            return None
        return self.timings["fast"].median_us / self.timings[name].median_us

    def behind_us(self) -> float | None:
        """Return by how much `fast` is slower than the baseline; negative if it is faster."""
        if BASELINE not in self.timings:
            return None
        return self.timings["fast"].median_us - self.timings[BASELINE].median_us


def checked_call(job: Job, batch: Batch, target: Target, expected: Any) -> Callable[[], Any] | None:
    """Return a target's call, after checking that it returns the expected result.

    Return None if there is no such call, or the target does not support it.

    Raises:
        WrongAnswerError: It returns another result.
    """
    try:
        prepared = job.prepare(batch, target)
    except Unsupported:
        return None
    if prepared is None:
        return None
    device = torch.device(target.device or "cpu").type
    difference = first_difference(expected, prepared.observe(), device=device)
    if difference is not None:
        raise WrongAnswerError(f"{target.name}: {job.name}, {batch.name}: {difference.line}")
    return prepared.call


def measure(
    job: Job,
    batch: Batch,
    targets: Sequence[Target],
    spin: Spin,
    *,
    num_blocks: int = 7,
    with_reference: bool = True,
    beside: Mapping[str, Callable[[], Any]] | None = None,
) -> Row | None:
    """Compare and time a job on a batch.

    Args:
        job: Which function.
        batch: Its input.
        targets: Those that have the function are timed in turn.
        spin: Measures how fast the machine runs.
        num_blocks: Blocks of each that count.
        with_reference: Whether `reference` is timed too. It is called in any case.
        beside: Other calls, by name, that are timed in turn with the targets'.

    Returns:
        The times; None if the batch allows no such call.

    Raises:
        WrongAnswerError: A target returns another result than `reference`.
    """
    meant = job.prepare(batch, REFERENCE)
    if meant is None:
        return None
    expected = meant.observe()
    calls: dict[str, Callable[[], Any]] = {}
    for target in targets:
        if target.implementation.offers(job.function):
            call = checked_call(job, batch, target, expected)
            calls |= {} if call is None else {target.name: call}
    timings = time_in_turn({**calls, **(beside or {})}, spin, num_blocks=num_blocks)
    if with_reference:
        alone = time_in_turn(
            {"reference": meant.call}, spin, num_blocks=REFERENCE_BLOCKS, block_seconds=0.0
        )
        timings.update(alone)
    return Row(job.name, batch.kind, batch.num_reqs, batch.num_tokens, timings)
