# ruff: noqa: ANN401  # a bug takes any function's place
"""Bugs of an engine, which both twins are told alike: a life finds each.

The twins agree, so only what is true of each of them by itself can tell.
"""

from __future__ import annotations

from typing import Any

import pytest
from life_bugs import NO_KEY, OTHERS_KEY, TWO_OWNERS, Bug, assert_found
from planted_bugs import never

from conformance.life.blocks import SharedBlocks
from conformance.life.engine import Engine
from conformance.life.request import Request


def freeing_for_all(_: Any) -> Any:
    """Free a block when one of those who hold it leaves."""

    def give_back(blocks: SharedBlocks, block_ids: list[int]) -> list[int]:
        freed = [block_id for block_id in block_ids if blocks._holders[block_id]]
        for block_id in freed:
            blocks._holders[block_id] = 0
        blocks._free.extend(freed)
        return freed

    return give_back


def rounding_up(find: Any) -> Any:
    """Share also a last block of which only the beginning is common."""

    def broken(blocks: SharedBlocks, prefixes: list[int], most: int) -> tuple[int, list[list[int]]]:
        found: tuple[int, list[list[int]]] = find(blocks, prefixes, most)
        num_tokens, block_ids = found
        return (num_tokens + 1, block_ids) if 0 < num_tokens < most else found

    return broken


def keeping_what_was_computed(admit: Any) -> Any:
    """Resume a request behind the first half of its tokens, whose keys its blocks do not have."""

    def broken(blocks: SharedBlocks, prefixes: list[int], most: int) -> tuple[int, list[list[int]]]:
        found: tuple[int, list[list[int]]] = admit(blocks, prefixes, most)
        return found if found[0] else (most // 2, found[1])

    return broken


def accepting_one_more(sample: Any) -> Any:
    """Keep the key of the first rejected draft for the token that takes its place."""

    def broken(request: Request, most: int, token: int, prefixes: Any) -> int:
        accepted: int = sample(request, most, token, prefixes)
        if request.num_rejected:
            request.tokens.append(-token)
            request.prefixes += prefixes.along([-token], request.prefixes[-1])
            request.num_computed_tokens += 1
            request.num_rejected -= 1
        return accepted

    return broken


def before_its_last_key(settle: Any) -> Any:
    """Let others find a block that is full but for the key of the token sampled last."""

    def broken(engine: Engine, plan: Any) -> None:
        settle(engine, plan)
        for request in engine.running:
            sizes = zip(request.block_ids, engine.setup.block_sizes, strict=True)
            held = min(len(ids) * size for ids, size in sizes)
            engine.blocks.remember(request.prefixes[:held], request.block_ids)

    return broken


BUGS: list[tuple[str, list[tuple[object, str]], Bug, str]] = [
    (
        "sharing: a block is free when one of its requests leaves",
        [(SharedBlocks, "give_back")],
        freeing_for_all,
        rf"which is free|{TWO_OWNERS}",
    ),
    (
        "sharing: a block is found by what stood in it before it was handed out anew",
        [(SharedBlocks, "_forget")],
        never,
        rf"{TWO_OWNERS}|{OTHERS_KEY}|{NO_KEY}",
    ),
    (
        "sharing: a block that is only begun is shared",
        [(SharedBlocks, "find")],
        rounding_up,
        rf"{NO_KEY}|{OTHERS_KEY}",
    ),
    (
        "sharing: a block is found before its last key is written",
        [(Engine, "settle")],
        before_its_last_key,
        rf"{NO_KEY}|{OTHERS_KEY}|{TWO_OWNERS}",
    ),
    (
        "speculation: a rejected draft's key is kept",
        [(Request, "sample")],
        accepting_one_more,
        OTHERS_KEY,
    ),
    (
        "preemption: a request goes on behind what it had computed",
        [(SharedBlocks, "find")],
        keeping_what_was_computed,
        rf"{NO_KEY}|{OTHERS_KEY}",
    ),
]


@pytest.mark.parametrize(
    ("places", "make_bug", "message"), [bug[1:] for bug in BUGS], ids=[bug[0] for bug in BUGS]
)
def test_a_bug_of_the_engine_is_found(
    places: list[tuple[Any, str]],
    make_bug: Bug,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The default run's lives find it, in the words of requests, though the twins agree."""
    assert_found(places, make_bug, message, monkeypatch)
