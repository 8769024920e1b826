# ruff: noqa: ANN401  # a bug takes any function's place
"""Bugs of the engine, whose steps both twins execute alike: the stateful test finds each.

The twins agree, so only the invariants of each by itself can find them.
"""

from __future__ import annotations

from typing import Any

import pytest
from planted_bugs import never
from stateful_bugs import NO_KEY, OTHERS_KEY, TWO_OWNERS, Bug, assert_found

from conformance.engine.block_pool import BlockPool
from conformance.engine.prefix_cache import PrefixCache
from conformance.engine.request import Request


def freeing_for_all(_: Any) -> Any:
    """Free a block when one of those who hold it leaves."""

    def free_blocks(pool: BlockPool, block_ids: list[int]) -> None:
        for block_id in block_ids:
            if pool._ref_counts[block_id]:
                pool._ref_counts[block_id] = 0
                pool._freed[block_id] = None

    return free_blocks


def rounding_up(find: Any) -> Any:
    """Share also a last block of which only the beginning is common."""

    def broken(cache: PrefixCache, request: Request) -> tuple[int, Any]:
        found: tuple[int, Any] = find(cache, request)
        num_tokens, block_ids = found
        return (num_tokens + 1, block_ids) if 0 < num_tokens < request.num_tokens - 1 else found

    return broken


def keeping_what_was_computed(find: Any) -> Any:
    """Resume a request behind the first half of its tokens, whose keys its blocks do not have."""

    def broken(cache: PrefixCache, request: Request) -> tuple[int, Any]:
        found: tuple[int, Any] = find(cache, request)
        return found if found[0] else ((request.num_tokens - 1) // 2, found[1])

    return broken


def accepting_one_more(append: Any) -> Any:
    """Keep the key of the first rejected draft for the token that takes its place."""

    def broken(request: Request, sampled: list[int], num_scheduled_tokens: int) -> None:
        append(request, sampled, num_scheduled_tokens)
        if request.num_rejected_tokens:
            request.token_ids.append(-sampled[-1])
            request.num_computed_tokens += 1
            request.num_rejected_tokens -= 1

    return broken


def before_its_last_key(cache_full_blocks: Any) -> Any:
    """Let others find a block that is full but for the key of the token sampled last."""

    def broken(cache: PrefixCache, request: Request) -> None:
        num_computed_tokens = request.num_computed_tokens
        sizes = zip(request.block_ids, cache._block_sizes, strict=True)
        held = min(len(ids) * size for ids, size in sizes)
        request.num_computed_tokens = min(request.num_tokens, held)
        cache_full_blocks(cache, request)
        request.num_computed_tokens = num_computed_tokens

    return broken


BUGS: list[tuple[str, list[tuple[object, str]], Bug, str]] = [
    (
        "sharing: a block is free when one of its requests leaves",
        [(BlockPool, "free_blocks")],
        freeing_for_all,
        rf"which is free|{TWO_OWNERS}",
    ),
    (
        "sharing: a block is found by what stood in it before it was handed out anew",
        [(BlockPool, "_evict")],
        never,
        rf"{TWO_OWNERS}|{OTHERS_KEY}|{NO_KEY}",
    ),
    (
        "sharing: a block that is only begun is shared",
        [(PrefixCache, "find_longest_prefix")],
        rounding_up,
        rf"{NO_KEY}|{OTHERS_KEY}",
    ),
    (
        "sharing: a block is found before its last key is written",
        [(PrefixCache, "cache_full_blocks")],
        before_its_last_key,
        rf"{NO_KEY}|{OTHERS_KEY}|{TWO_OWNERS}",
    ),
    (
        "speculation: a rejected draft's key is kept",
        [(Request, "append")],
        accepting_one_more,
        OTHERS_KEY,
    ),
    (
        "preemption: a request goes on behind what it had computed",
        [(PrefixCache, "find_longest_prefix")],
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
    """The default run finds it and names the request, though the twins agree."""
    assert_found(places, make_bug, message, monkeypatch)
