"""The scheduler of the stateful test: shared blocks, and steps as they are planned."""

from __future__ import annotations

from conformance.stateful.coverage import Goal
from conformance.stateful.plan import Choice, Plan, Preference
from conformance.stateful.scheduler import PlannedScheduler, RecordedPool
from conformance.stateful.setup import Setup
from conformance.stateful.snapshot import Snapshot

PROMPT = [101, 102, 103, 104, 105, 106]


def make_scheduler(**changed: object) -> PlannedScheduler:
    """Make a scheduler of two groups with blocks of 2 and 4 tokens."""
    setup: dict[str, object] = {"block_sizes": (2, 4), "kinds": ("full", "full"), **changed}
    return PlannedScheduler(Setup(**setup))  # type: ignore[arg-type]  # by name


def start(scheduler: PlannedScheduler, plan: Plan | None = None) -> Snapshot:
    """Schedule a step, which is not empty."""
    snapshot = scheduler.start_step(plan or Plan())
    assert snapshot is not None
    return snapshot


def run(scheduler: PlannedScheduler, *plans: Plan) -> None:
    """Run steps."""
    for plan in plans:
        start(scheduler, plan)
        scheduler.finish_step(plan)


def test_a_shared_prefix_is_whole_blocks_of_all_groups() -> None:
    """Of six common tokens four are shared: the longest prefix that fills blocks of 2 and of 4."""
    scheduler = make_scheduler()
    scheduler.arrive(PROMPT, 4)
    run(scheduler, Plan())
    scheduler.arrive(PROMPT, 4)
    snapshot = start(scheduler)
    first, second = (snapshot.requests[f"request-{number}"] for number in (0, 1))
    assert 4 == second.start == second.num_cached_tokens
    assert first.block_ids[0][:2] == second.block_ids[0][:2]
    assert first.block_ids[1][:1] == second.block_ids[1][:1]
    assert not set(first.block_ids[0][2:]) & set(second.block_ids[0])
    assert snapshot.step.num_computed_tokens["request-1"] == 4
    assert snapshot.step.new_block_ids["request-1"] == tuple(map(list, second.block_ids))
    assert Goal.SHARED_WITH_LIVE in scheduler.take_goals()


def test_a_request_never_shares_its_last_token() -> None:
    """Of four common tokens none is shared: the last one needs logits."""
    scheduler = make_scheduler()
    scheduler.arrive(PROMPT[:4], 4)
    run(scheduler, Plan())
    scheduler.arrive(PROMPT[:4], 4)
    snapshot = start(scheduler)
    assert 0 == snapshot.requests["request-1"].start


def test_only_computed_tokens_are_shared() -> None:
    """Tokens that a chunked prefill has not computed yet are not shared as a prefix."""
    scheduler = make_scheduler()
    scheduler.arrive(PROMPT, 4)
    run(scheduler, Plan(max_tokens_per_request=3))
    scheduler.arrive(PROMPT, 4)
    snapshot = start(scheduler, Plan(max_tokens_per_request=3))
    assert [3, 0] == [request_snapshot.start for request_snapshot in snapshot.requests.values()]


def test_a_prefix_outlives_its_request() -> None:
    """Blocks of a request that ended are shared until they are handed out again."""
    scheduler = make_scheduler()
    scheduler.arrive(PROMPT, 1)
    run(scheduler, Plan())
    assert ["request-0"] == [request.request_id for request in scheduler.finished]
    scheduler.arrive(PROMPT, 1)
    snapshot = start(scheduler)
    assert 4 == snapshot.requests["request-1"].start
    assert Goal.SHARED_WITH_GONE in scheduler.take_goals()


def test_a_block_that_is_handed_out_anew_is_found_no_more() -> None:
    """A freed block stays in the prefix cache until it is allocated again."""
    pool = RecordedPool(3, reuses_latest=True)
    [first] = pool.get_new_blocks(1)
    key = 0, (7, 8)
    pool.cache_block(key, first)
    pool.free_blocks([first])
    assert first == pool.get_cached_block(key)
    assert [first] == pool.get_new_blocks(1)
    assert pool.get_cached_block(key) is None
    assert {Goal.PREFIX_FORGOTTEN, Goal.FREED_AND_TAKEN} == pool.goals


def test_rejected_drafts_are_written_again() -> None:
    """After one accepted draft of three, the next step begins where the second one was."""
    scheduler = make_scheduler(num_speculative_tokens=3)
    scheduler.arrive(PROMPT[:5], 9)
    plan = Plan(num_drafts=3, accepted=(1,))
    run(scheduler, plan, plan)
    [request] = scheduler.running
    assert [7, 8] == [request.num_computed_tokens, request.num_tokens]
    assert 2 == request.num_rejected_tokens
    snapshot = start(scheduler, plan)
    again = snapshot.requests["request-0"]
    assert [7, 11, 3] == [again.start, again.stop, again.num_drafts]
    goals = {Goal.DRAFTS_REJECTED, Goal.REJECTED_ACROSS_BLOCKS, Goal.WRITTEN_AGAIN}
    assert goals <= scheduler.take_goals()


def test_the_latest_is_preempted_when_the_pool_is_dry() -> None:
    """If the pool is dry, the latest request gives up its blocks and is recomputed later."""
    scheduler = make_scheduler(num_spare_blocks=0, max_model_len=12)
    scheduler.arrive(PROMPT[:4], 6)
    scheduler.arrive([1, 2, 3, 4], 6)
    run(scheduler, Plan(), Plan())
    assert {Goal.POOL_DRY, Goal.PREEMPTED_DECODE} <= scheduler.take_goals()
    [waiting] = scheduler.waiting
    assert ("request-1", 0) == (waiting.request_id, waiting.num_computed_tokens)
    assert waiting.is_preempted
    run(scheduler, *[Plan()] * 5)
    assert ["request-0"] == [request.request_id for request in scheduler.finished]
    assert Goal.RESUMED_ELSEWHERE in scheduler.take_goals()


def test_a_plan_says_who_leaves_and_who_sits_out() -> None:
    """One request is preempted, one ends and one skips the step, as planned."""
    scheduler = make_scheduler()
    for number in range(4):
        scheduler.arrive([10 * number + 1, 10 * number + 2], 5)
    run(scheduler, Plan())
    anyone = Choice(Preference.ANY, 0)
    snapshot = start(
        scheduler, Plan(finishes=anyone, preempts=anyone, skipped=frozenset({0}), admits=False)
    )
    assert ("request-0",) == snapshot.step.finished_req_ids
    assert ("request-1",) == snapshot.step.preempted_req_ids
    assert ["request-3"] == list(snapshot.step.num_scheduled_tokens)
    assert ["request-2"] == [request_snapshot.request_id for request_snapshot in snapshot.others]


def test_nothing_to_compute_is_no_step() -> None:
    """Without tokens there is no step; the next step reports the requests that have finished."""
    scheduler = make_scheduler()
    scheduler.arrive(PROMPT, 5)
    run(scheduler, Plan())
    assert scheduler.start_step(Plan(finishes=Choice(Preference.ANY, 0))) is None
    scheduler.finish_step(Plan())
    scheduler.arrive(PROMPT, 5)
    snapshot = start(scheduler)
    assert ("request-0",) == snapshot.step.finished_req_ids
