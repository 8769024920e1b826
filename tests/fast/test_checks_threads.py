"""Checked mode in threads and asyncio tasks: a block only affects its own thread or task."""

import asyncio
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

import torch

import fast
from tests.fast.actors import actors
from tests.fast.interrupts import Interrupter


def refuses() -> bool:
    """Return whether a call refuses a bad value, which it only does in checked mode."""
    try:
        fast.get_dcp_local_seq_lens(torch.tensor([-1], dtype=torch.int32))
    except ValueError:
        return True
    return False


def test_an_interrupted_block_keeps_no_other_thread_waiting() -> None:
    def check() -> None:
        with fast.checks(enabled=True):
            refuses()

    at = 1
    while Interrupter(fast.checked_mode, at).run(lambda: copy_context().run(check)):
        other = threading.Thread(target=lambda: fast.checks(enabled=False), daemon=True)
        other.start()
        other.join(timeout=10)
        assert not other.is_alive(), at
        fast.checks(enabled=False)  # a block that was never entered has switched the process
        at += 1
    assert at > 100
    assert not refuses()


def test_threads_without_an_order() -> None:
    barrier = threading.Barrier(8)

    def run(seed: int) -> list[tuple[bool, bool]]:
        chance = random.Random(seed)  # noqa: S311  (no secret)
        seen = []
        barrier.wait(timeout=60)
        for number in range(200):
            enabled = chance.random() < 0.5
            with fast.checks(enabled):
                seen.append((enabled, refuses()))
                with fast.checks(not enabled):
                    seen.append((not enabled, refuses()))
                seen.append((enabled, refuses()))
            if number % 20 == 19:
                barrier.wait(timeout=60)
                seen.append((False, refuses()))
                barrier.wait(timeout=60)
        return seen

    with ThreadPoolExecutor(8) as pool:
        seen = [pair for each in pool.map(run, range(8)) for pair in each]
    wrong = [pair for pair in seen if pair[0] != pair[1]]
    assert not wrong, f"{len(wrong)} of {len(seen)} calls"
    assert not refuses()


def test_tasks_have_blocks_of_their_own() -> None:
    async def run(enabled: bool, turns: list[asyncio.Event], seen: list[bool]) -> None:
        with fast.checks(enabled):
            for mine, other in (turns, turns[::-1], turns):
                other.set()
                await asyncio.sleep(0)
                seen.append(refuses())
                mine.set()
                await asyncio.sleep(0)
        seen.append(refuses())

    async def run_both() -> tuple[list[bool], list[bool]]:
        turns = [asyncio.Event(), asyncio.Event()]
        on: list[bool] = []
        off: list[bool] = []
        await asyncio.gather(run(True, turns, on), run(False, turns[::-1], off))
        return on, off

    assert ([True, True, True, False], [False] * 4) == asyncio.run(run_both())
    assert not refuses()


def test_a_plain_call_inside_a_block() -> None:
    with actors(2) as (one, other):
        try:
            block = one.do(lambda: fast.checks(enabled=True).__enter__())
            one.do(lambda: fast.checks(enabled=True))
            assert (True, True) == (one.do(refuses), other.do(refuses))
            one.do(lambda: fast.checks(enabled=False))
            assert (True, False) == (one.do(refuses), other.do(refuses))
            one.do(lambda: fast.checks(enabled=True))
            one.do(lambda: block.__exit__(None, None, None))
            assert (True, True) == (one.do(refuses), other.do(refuses))
        finally:
            fast.checks(enabled=False)
        assert (False, False) == (one.do(refuses), other.do(refuses))


def test_one_object_is_entered_twice() -> None:
    block = fast.checks(enabled=True)
    with block:
        with block:
            assert refuses()
        assert refuses()
    assert not refuses()
