"""Checked mode: a `with` block applies to its own thread, and restores the mode on exit."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial
from itertools import pairwise
from typing import Any

import torch

from conformance.contracts.check import property_check
from conformance.contracts.evaluation import check_error, exception_of
from conformance.coverage.presets import MINIMAL, Preset
from conformance.execution.actors import Actor, actors
from conformance.generation.profiles import Kind
from conformance.strategies import cached as st
from conformance.targets.target import Target
from conformance.values.call import Call

NUM_THREADS = 3

NUM_BLOCKS = 1000
"""The number of blocks of one thread, enough for an 8-bit counter to wrap."""


@dataclasses.dataclass(frozen=True)
class Blocks:
    """Blocks that threads enter and leave.

    Attributes:
        steps: The thread of each step, and the mode of the block that it makes and enters next,
            or None if it leaves its innermost block.
        lags: Whether other threads make their blocks before this one enters its own.
    """

    steps: tuple[tuple[int, bool | None], ...]
    lags: bool


@st.composite
def interleaved_blocks(draw: st.DrawFn, _preset: Preset) -> Blocks:
    """Draw the order in which threads enter and leave blocks."""
    depths = [0] * NUM_THREADS
    steps: list[tuple[int, bool | None]] = []
    for _ in range(draw(st.integers(2, 12))):
        thread = draw(st.integers(0, NUM_THREADS - 1))
        modes = (True, False, None) if depths[thread] else (True, False)
        mode = draw(st.sampled_from(modes))
        depths[thread] += -1 if mode is None else 1
        steps.append((thread, mode))
    return Blocks(tuple(steps), draw(st.booleans()))


def _overlap(example: Blocks) -> bool:
    """Return whether a thread leaves a block while a later one of another thread is open."""
    open_blocks: list[int] = []
    for thread, mode in example.steps:
        if mode is not None:
            open_blocks.append(thread)
        elif open_blocks[-1] != thread:
            return True
        else:
            open_blocks.pop()
    return False


@property_check(
    "checks",
    interleaved_blocks,
    goals={
        "blocks of two threads overlap": _overlap,
        "blocks are nested": lambda e: any(
            a == b and None not in {mode, inner} for (a, mode), (b, inner) in pairwise(e.steps)
        ),
        "threads make their blocks at the same time": lambda e: e.lags,
    },
    presets=[MINIMAL],
)
def test_blocks_hold_in_their_threads(target: Target, example: Blocks) -> None:
    """The mode of a block applies to its thread only; after all blocks, the old mode is back."""
    checks = target.lookup("checks")
    refuses = partial(_refuses, target)

    def enter(*, enabled: bool) -> Any:
        return checks(enabled=enabled).__enter__()

    with actors(NUM_THREADS) as threads:
        outside = threads[0].do(refuses)
        checks(enabled=False)  # for the whole process
        entered: dict[Actor, list[tuple[bool, Any]]] = {thread: [] for thread in threads}
        try:
            if example.lags:
                made = [thread.do(lambda: checks(enabled=True)) for thread in threads]
                for thread, block in zip(threads, made, strict=True):
                    thread.do(block.__enter__)
                    entered[thread].append((True, block))
            for number, mode in example.steps:
                thread = threads[number]
                if mode is None:
                    _leave(thread, entered[thread])
                else:
                    block = thread.do(partial(enter, enabled=mode))
                    entered[thread].append((mode, block))
                expected = [bool(inside) and inside[-1][0] for inside in entered.values()]
                assert expected == [thread.do(refuses) for thread in threads]
        finally:
            for thread, inside in entered.items():
                while inside:
                    _leave(thread, inside)
            found = [thread.do(refuses) for thread in threads]
            checks(enabled=outside)
        assert [False] * NUM_THREADS == found


@dataclasses.dataclass(frozen=True)
class Step:
    """A call `checks(enabled)` outside blocks, or an action on the object of an earlier call.

    Attributes:
        what: `call` and drop the object, `keep` it, `enter` a kept one, or `drop` a kept one.
        enabled: The mode of a call.
        of: The number of the step that kept the object.
    """

    what: str
    enabled: bool = False
    of: int = -1


@st.composite
def process_steps(draw: st.DrawFn, _preset: Preset) -> tuple[Step, ...]:
    """Draw plain calls, and blocks that begin with the object of an earlier call."""
    if not draw(st.integers(0, 5)):  # the first of three is dropped, then the last begins a block
        first = draw(st.booleans())
        three = (Step("keep", enabled) for enabled in (first, not first, first))
        return (*three, Step("drop", of=0), Step("enter", of=2))
    steps: list[Step] = []
    kept: list[int] = []
    for number in range(draw(st.integers(1, 10))):
        whats = ("call", "keep", "enter", "drop") if kept else ("call", "keep")
        what = draw(st.sampled_from(whats))
        if what in {"call", "keep"}:
            steps.append(Step(what, draw(st.booleans())))
            kept += [number] * (what == "keep")
        else:
            steps.append(Step(what, of=kept.pop(draw(st.integers(0, len(kept) - 1)))))
    return tuple(steps)


@property_check(
    "checks",
    process_steps,
    goals={
        "a plain call": lambda steps: any(step.what == "call" for step in steps),
        "a block begins after a later plain call": lambda steps: any(
            step.what == "enter" and any(later.what == "call" for later in steps[step.of : i])
            for i, step in enumerate(steps)
        ),
        "the last plain call begins a block": lambda steps: any(
            step.what == "enter" and step.of == i - 1 for i, step in enumerate(steps)
        ),
        "one is dropped before the last of two others begins a block": lambda steps: (
            [step.what for step in steps] == [*["keep"] * 3, "drop", "enter"]
        ),
        "an object is dropped that never began a block": lambda steps: any(
            step.what == "drop" for step in steps
        ),
    },
    presets=[MINIMAL],
)
def test_the_last_plain_call_holds(target: Target, example: tuple[Step, ...]) -> None:
    """The last `checks` call that began no block sets the mode of all threads outside blocks."""
    checks = target.lookup("checks")
    refuses = partial(_refuses, target)
    kept: dict[int, Any] = {}
    with actors(2) as threads:
        here, _ = threads
        outside = here.do(refuses)
        calls = {-1: outside}
        try:
            for number, step in enumerate(example):
                if step.what == "call":
                    calls[number] = step.enabled
                    here.do(partial(_switch, checks, enabled=step.enabled))
                elif step.what == "keep":
                    calls[number] = step.enabled
                    kept[number] = here.do(partial(checks, enabled=step.enabled))
                elif step.what == "enter":
                    inside, block = calls.pop(step.of), kept.pop(step.of)
                    here.do(block.__enter__)
                    found = [thread.do(refuses) for thread in threads]
                    here.do(partial(block.__exit__, None, None, None))
                    assert [inside, _last(calls)] == found
                else:
                    del kept[step.of]
                assert [_last(calls)] * 2 == [thread.do(refuses) for thread in threads]
        finally:
            kept.clear()
            here.do(partial(_switch, checks, enabled=outside))


def _switch(checks: Any, *, enabled: bool) -> None:
    """Make a plain call, and drop its object."""
    checks(enabled=enabled)


def _last(calls: Mapping[int, bool]) -> bool:
    """Return the mode of the last call."""
    return calls[max(calls)]


def _refuses(target: Target) -> bool:
    """Return whether values of tensors are checked now."""
    lengths = torch.tensor([-1], dtype=torch.int32, device=target.device)
    try:
        target.lookup("get_dcp_local_seq_lens")(lengths)
    except ValueError:
        return True
    return False


@property_check(
    "checks",
    lambda _: st.sampled_from((0, 1, None, "1")),
    presets=[MINIMAL],
    tests_invalid_inputs=True,
)
def test_a_mode_is_a_bool(target: Target, example: object) -> None:
    """A mode that is not a bool is refused."""
    error = exception_of(lambda: target.lookup("checks")(enabled=example))
    call = Call("checks", {"enabled": example})
    check_error(target, call, error, (TypeError, "enabled"), "enabled is no bool")


@property_check("checks", lambda _: st.booleans(), presets=[MINIMAL], kind=Kind.CONDITIONS)
def test_a_thousand_blocks_hold(target: Target, example: bool) -> None:
    """Each of many blocks works, one after the other and nested."""
    checks = target.lookup("checks")
    with target.running(checked=not example):
        for _ in range(NUM_BLOCKS):
            with checks(enabled=example):
                assert example is _refuses(target)
            assert example is not _refuses(target)
        entered = [checks(enabled=example).__enter__() for _ in range(NUM_BLOCKS)]
        while entered:
            assert example is _refuses(target)
            entered.pop().__exit__(None, None, None)
        assert example is not _refuses(target)


def _leave(thread: Actor, inside: list[tuple[bool, Any]]) -> None:
    """Leave a thread's innermost block."""
    _, block = inside.pop()
    thread.do(lambda: block.__exit__(None, None, None))
