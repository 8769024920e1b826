"""The engine of a life: blocks that requests share, steps as they are planned, and settled."""

from __future__ import annotations

import pytest

from conformance.life.blocks import SharedBlocks
from conformance.life.engine import Engine
from conformance.life.plan import Choice, Plan, Preference
from conformance.life.setup import Setup
from conformance.life.situations import Event

PROMPT = [101, 102, 103, 104, 105, 106]


def engine(**changed: object) -> Engine:
    """Make an engine of two groups with blocks of 2 and 4 tokens."""
    setup: dict[str, object] = {"block_sizes": (2, 4), "kinds": ("full", "full"), **changed}
    return Engine(Setup(**setup))  # type: ignore[arg-type]  # by name


def run(scheduler: Engine, *plans: Plan) -> None:
    """Let steps happen."""
    for plan in plans:
        assert scheduler.schedule(plan) is not None
        scheduler.settle(plan)


def test_a_shared_prefix_is_whole_blocks_of_all_groups() -> None:
    """Of six common tokens four are shared: the longest prefix that fills blocks of 2 and of 4."""
    scheduler = engine()
    scheduler.arrive(PROMPT, 4)
    run(scheduler, Plan())
    scheduler.arrive(PROMPT, 4)
    scene = scheduler.schedule(Plan())
    assert scene is not None
    first, second = (scene.turns[f"request-{number}"] for number in (0, 1))
    assert 4 == second.start == second.num_shared_tokens
    assert first.block_ids[0][:2] == second.block_ids[0][:2]
    assert first.block_ids[1][:1] == second.block_ids[1][:1]
    assert not set(first.block_ids[0][2:]) & set(second.block_ids[0])
    assert scene.step.num_computed_tokens["request-1"] == 4
    assert scene.step.new_block_ids["request-1"] == tuple(map(list, second.block_ids))
    assert Event.SHARED_WITH_LIVE in scheduler.take_events()


def test_a_request_never_shares_its_last_token() -> None:
    """Of four common tokens none is shared: the logits of the last one are wanted."""
    scheduler = engine()
    scheduler.arrive(PROMPT[:4], 4)
    run(scheduler, Plan())
    scheduler.arrive(PROMPT[:4], 4)
    scene = scheduler.schedule(Plan())
    assert scene is not None
    assert 0 == scene.turns["request-1"].start


def test_only_computed_tokens_are_shared() -> None:
    """What a chunked prefill has not computed yet is nobody's prefix."""
    scheduler = engine()
    scheduler.arrive(PROMPT, 4)
    run(scheduler, Plan(chunk=3))
    scheduler.arrive(PROMPT, 4)
    scene = scheduler.schedule(Plan(chunk=3))
    assert scene is not None
    assert [3, 0] == [turn.start for turn in scene.turns.values()]


def test_a_prefix_outlives_its_request() -> None:
    """Blocks of a request that ended are shared until they are handed out anew."""
    scheduler = engine()
    scheduler.arrive(PROMPT, 1)
    run(scheduler, Plan())
    assert ["request-0"] == [request.request_id for request in scheduler.ended]
    scheduler.arrive(PROMPT, 1)
    scene = scheduler.schedule(Plan())
    assert scene is not None
    assert 4 == scene.turns["request-1"].start
    assert Event.SHARED_WITH_GONE in scheduler.take_events()


def test_a_block_that_is_handed_out_anew_is_found_no_more() -> None:
    """What stood in it is forgotten when it is taken, and not before."""
    blocks = SharedBlocks(3, (2,), takes_latest=True)
    [first] = blocks.take(0, 1)
    blocks.remember([7, 8], [[first]])
    assert [first] == blocks.give_back([first])
    assert (2, [[first]]) == blocks.find([7, 8, 9], 2)
    assert [first] == blocks.take(0, 1)
    assert (0, [[]]) == blocks.find([7, 8, 9], 2)
    assert {Event.PREFIX_FORGOTTEN, Event.FREED_AND_TAKEN} == blocks.events


def test_no_more_blocks_than_there_are() -> None:
    """A pool that is dry says so, and gives nothing."""
    blocks = SharedBlocks(3, (2,))
    with pytest.raises(ValueError, match=r"^count is 3, but only 2 blocks are free$"):
        blocks.take(0, 3)
    assert 2 == blocks.num_free


def test_rejected_drafts_are_written_again() -> None:
    """Behind one accepted draft of three, the next step begins where the second one stands."""
    scheduler = engine(num_speculative_tokens=3)
    scheduler.arrive(PROMPT[:5], 9)
    plan = Plan(num_drafts=3, accepted=(1,))
    run(scheduler, plan, plan)
    [request] = scheduler.running
    assert (7, 8, 2) == (request.num_computed_tokens, request.num_tokens, request.num_rejected)
    scene = scheduler.schedule(plan)
    assert scene is not None
    turn = scene.turns["request-0"]
    assert (7, 11, 3) == (turn.start, turn.stop, turn.num_drafts)
    assert scheduler.take_events() >= {
        Event.DRAFTS_REJECTED,
        Event.REJECTED_ACROSS_BLOCKS,
        Event.WRITTEN_AGAIN,
    }


def test_the_latest_is_preempted_when_the_pool_is_dry() -> None:
    """Its blocks go to one before it, and it is computed again from its prefix on."""
    scheduler = engine(num_spare_blocks=0, max_model_len=12)
    scheduler.arrive(PROMPT[:4], 6)
    scheduler.arrive([1, 2, 3, 4], 6)
    run(scheduler, Plan(), Plan())
    assert {Event.POOL_DRY, Event.PREEMPTED_DECODE} <= scheduler.take_events()
    [waiting] = scheduler.waiting
    assert ("request-1", 0, True) == (
        waiting.request_id,
        waiting.num_computed_tokens,
        waiting.is_preempted,
    )
    run(scheduler, *[Plan()] * 5)
    assert ["request-0"] == [request.request_id for request in scheduler.ended]
    assert Event.RESUMED_ELSEWHERE in scheduler.take_events()


def test_a_plan_says_who_leaves_and_who_sits_out() -> None:
    """One request is preempted, one ends and one sits the step out, as the plan wants."""
    scheduler = engine()
    for number in range(4):
        scheduler.arrive([10 * number + 1, 10 * number + 2], 5)
    run(scheduler, Plan())
    anyone = Choice(Preference.ANY, 0)
    scene = scheduler.schedule(
        Plan(ends=anyone, preempts=anyone, idle=frozenset({0}), admits=False)
    )
    assert scene is not None
    assert ("request-0",) == scene.step.finished_ids
    assert ("request-1",) == scene.step.preempted_ids
    assert ["request-3"] == list(scene.step.num_scheduled_tokens)
    assert ["request-2"] == [turn.request_id for turn in scene.others]


def test_nothing_to_compute_is_no_step() -> None:
    """Who left is told to runners with the next step that there is."""
    scheduler = engine()
    scheduler.arrive(PROMPT, 5)
    run(scheduler, Plan())
    assert scheduler.schedule(Plan(ends=Choice(Preference.ANY, 0))) is None
    scheduler.settle(Plan())
    scheduler.arrive(PROMPT, 5)
    scene = scheduler.schedule(Plan())
    assert scene is not None
    assert ("request-0",) == scene.step.finished_ids
