"""Draws that may crash or hang run in a forked child."""

from __future__ import annotations

import mmap
import os
import random
import signal
import time
from collections.abc import Callable

import pytest
from hypothesis import strategies as st
from hypothesis.control import BuildContext
from hypothesis.internal.conjecture.data import ConjectureData

from conformance.execution.forked_calls import run_in_child
from conformance.execution.process_memory import rss_bytes
from kvtwin.fuzz.findings.forked_draws import draw_in_child


@pytest.mark.parametrize(
    ("call", "how"),
    [
        (lambda: None, ""),
        (lambda: 1 / 0, ""),
        (lambda: os._exit(3), "exit 3"),
        (lambda: os._exit(0), "exit 0"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "SIGKILL"),
        (lambda: bytearray(1 << 60), "out of memory"),
    ],
    ids=["returns", "raises", "exits", "exits early", "is killed", "has no memory"],
)
def test_how_a_child_ends(call: Callable[[], None], how: str) -> None:
    """A child's death is reported by signal or exit status; an exception is not a death."""
    assert how == run_in_child(call, 60.0)


def test_a_child_that_hangs() -> None:
    """A child that hangs is killed when its time is over."""
    started = time.monotonic()
    assert "hang" == run_in_child(lambda: time.sleep(1000), 0.5)
    assert time.monotonic() - started < 60


def test_a_child_that_takes_memory() -> None:
    """A child is killed when it has more memory than it may have; one with less is not."""
    limit = rss_bytes(os.getpid()) + (64 << 20)

    def take(num_bytes: int) -> None:
        taken = bytearray(num_bytes)
        taken[:: mmap.PAGESIZE] = bytes([1]) * len(taken[:: mmap.PAGESIZE])
        time.sleep(0.5)

    started = time.monotonic()
    assert "out of memory" == run_in_child(lambda: take(256 << 20), 60.0, max_bytes=limit)
    assert time.monotonic() - started < 30
    assert not run_in_child(lambda: take(4 << 20), 60.0, max_bytes=limit)


ANYTHING = st.lists(
    st.one_of(st.integers(), st.text(), st.floats(), st.binary(), st.booleans(), st.none())
)
"""Draws of each kind; some of them are parts of others, and some are discarded."""


def draw_anything(data: ConjectureData) -> None:
    """Draw values of all kinds."""
    with BuildContext(data, is_final=False, wrapped_test=draw_anything):
        data.draw(ANYTHING.filter(lambda found: len(found) > 3))


def draw_and_die(data: ConjectureData) -> None:
    """Draw, and be killed."""
    draw_anything(data)
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("seed", range(20))
def test_what_a_child_draws_is_drawn_here(seed: int) -> None:
    """The parent repeats a child's draws: it has the same choices and spans."""
    here, there = (ConjectureData(random=random.Random(seed)) for _ in range(2))  # noqa: S311
    draw_anything(here)
    assert "SIGKILL" == draw_in_child(draw_and_die, there)
    for data in (here, there):
        data.freeze()
    assert here.nodes
    assert here.nodes == there.nodes
    expected = [(one.label, one.start, one.end, one.discarded) for one in here.spans]
    assert expected == [(one.label, one.start, one.end, one.discarded) for one in there.spans]


def test_a_child_that_draws_too_much() -> None:
    """A child whose data overruns has not died, and the parent's data overruns too."""
    data = ConjectureData(random=random.Random(0), max_choices=2)  # noqa: S311
    assert "" == draw_in_child(draw_and_die, data)
    assert data.frozen
    assert 2 == len(data.choices)
