"""The runner's requests, and the engine's scheduler with the runner's settings."""

import itertools

import pytest

from conformance.engine.arrivals import Arrivals
from conformance.engine.request import Request
from conformance.engine.scheduler_output import SchedulerOutput
from tools.runner.requests import EDGES, make_requests
from tools.runner.settings import LONGEST_PROMPT, MAX_NEW_TOKENS, Settings


def serve(
    requests: list[tuple[int, Request]], settings: Settings, num_groups: int
) -> list[SchedulerOutput]:
    """Let the scheduler serve requests whose next token is always 0; return its steps."""
    scheduler, arrivals = settings.make_scheduler(num_groups), Arrivals(requests)
    by_id = {request.request_id: request for _, request in requests}
    steps = []
    while arrivals or scheduler.has_requests:
        for request in arrivals.receive(is_idle=not scheduler.has_requests):
            scheduler.add_request(request)
        steps.append(step := scheduler.schedule())
        num_owned = [len(b) for _, request in requests for b in request.block_ids]
        assert sum(num_owned) < settings.pool_blocks(num_groups)
        for req_id, num_scheduled_tokens in step.num_scheduled_tokens.items():
            request = by_id[req_id]
            end = request.num_computed_tokens + num_scheduled_tokens
            assert (end == request.num_tokens) == (req_id in step.sampled_req_ids)
            assert request.token_ids[request.num_computed_tokens : end] == step.token_ids[req_id]
        scheduler.update_from_output(step, {req_id: [0] for req_id in step.sampled_req_ids})
        arrivals.clock += 1
    assert scheduler.num_preemptions == len(find_preempted(steps))
    return steps


def find_preempted(steps: list[SchedulerOutput]) -> list[str]:
    """Return the requests that were preempted: those that are admitted again."""
    admitted = [req_id for step in steps for req_id in step.admitted_req_ids]
    return [req_id for req_id in set(admitted) for _ in range(admitted.count(req_id) - 1)]


def test_a_prompt_is_prefilled_in_chunks() -> None:
    """A prompt longer than the budget takes several steps, and shares the last with the next."""
    requests = [(0, Request("a", [1] * 100, 2)), (0, Request("b", [1] * 3, 1))]
    steps = serve(requests, Settings(), num_groups=2)
    assert [{"a": 64}, {"a": 36, "b": 3}, {"a": 1}] == [s.num_scheduled_tokens for s in steps]
    assert [[], [], ["b"]] == [list(step.removed_req_ids) for step in steps]


def test_a_dry_pool_preempts_the_latest() -> None:
    """When no block is free for the first request, the second is preempted and frees its blocks.

    The pool has 14 blocks: the first request's 10 and the second's 4. It computes the second again,
    its generated token too, once the first has finished.
    """
    settings = Settings(max_model_len=224, requests_in_pool=1, token_budget=300)
    requests = [(0, Request("a", [1] * 160, 3)), (0, Request("b", [1] * 60, 3))]
    first, second, third, fourth, *_ = serve(requests, settings, num_groups=1)
    assert {"a": 160, "b": 60} == first.num_scheduled_tokens
    assert {"a": 1} == second.num_scheduled_tokens
    assert ("b",) == second.preempted_req_ids
    assert {"a": 1} == third.num_scheduled_tokens  # 3 blocks are free, and b needs 4
    assert {"b": 61} == fourth.num_scheduled_tokens
    assert fourth.resumed_req_ids == ("b",)
    assert [0] * 3 == requests[1][1].output_token_ids


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("num_groups", [1, 3])
def test_all_requests_are_served(seed: int, num_groups: int) -> None:
    """The default set of requests is finished, and the pool runs dry on the way."""
    requests = make_requests(32, seed)
    steps = serve(requests, Settings(), num_groups)
    assert find_preempted(steps)
    assert all(0 == request.num_missing_tokens for _, request in requests)
    assert not any(request.block_ids for _, request in requests)
    assert any(1 < len(step.num_scheduled_tokens) for step in steps)


def test_the_default_requests_reach_every_edge() -> None:
    """They have prompts of all lengths next to an edge, arrive over time, and are reproducible."""
    requests = make_requests(32, seed=0)
    lengths = [request.num_prompt_tokens for _, request in requests]
    assert set(EDGES) <= set(lengths)
    assert 1 == min(lengths)
    assert LONGEST_PROMPT == max(lengths)
    assert len({arrival_step for arrival_step, _ in requests}) > 5
    assert all(a <= b for (a, _), (b, _) in itertools.pairwise(requests))
    assert all(1 <= request.max_new_tokens <= MAX_NEW_TOKENS for _, request in requests)
    again = make_requests(32, seed=0)
    assert [r.prompt_token_ids for _, r in again] == [r.prompt_token_ids for _, r in requests]


@pytest.mark.parametrize(
    ("num_prompt_tokens", "max_new_tokens"), [(0, 1), (1, 0), (224, 1), (200, 25)]
)
def test_what_cannot_be_served_is_refused(num_prompt_tokens: int, max_new_tokens: int) -> None:
    """A request without a prompt or new tokens, or above the maximum length, is rejected."""
    request = Request("a", [1] * num_prompt_tokens, max_new_tokens)
    message = f"a has {num_prompt_tokens} prompt tokens and max_new_tokens {max_new_tokens}"
    with pytest.raises(ValueError, match=message):
        Settings().make_scheduler(num_groups=1).add_request(request)
