"""The runner's scheduler: chunks, a dry pool, and the blocks that requests have."""

import itertools

import pytest

from tools.runner.requests import EDGES, Request, make_requests
from tools.runner.scheduler import Scheduler, Step
from tools.runner.settings import LONGEST_PROMPT, MOST_NEW_TOKENS, Settings


def serve(requests: list[Request], settings: Settings, num_groups: int) -> list[Step]:
    """Let the scheduler serve requests whose next token is always 0; check each step."""
    scheduler = Scheduler(requests, settings, num_groups)
    pool = set(range(1, settings.pool_blocks(num_groups)))
    steps = []
    while scheduler.has_requests:
        step = scheduler.schedule()
        steps.append(step)
        assert step.scheduled
        assert sum(step.num_scheduled_tokens.values()) <= settings.token_budget
        owned = [b for r in requests for block_ids in r.block_ids for b in block_ids]
        assert len(owned) == len(set(owned))
        assert set(owned) <= pool
        for entry in step.scheduled.values():
            end = entry.request.num_computed_tokens + entry.num_new_tokens
            assert 0 < entry.num_new_tokens
            assert end <= entry.request.num_tokens
            num_blocks = [len(block_ids) for block_ids in entry.request.block_ids]
            assert [settings.num_blocks(end)] * num_groups == num_blocks
        sampled = {req_id: 0 for req_id, entry in step.scheduled.items() if entry.is_sampled}
        scheduler.update(step, sampled)
    assert scheduler.num_preemptions == len(find_preempted(steps))
    return steps


def find_preempted(steps: list[Step]) -> list[str]:
    """Say who was preempted: who runs once more after being gone."""
    admitted = [
        req_id for step in steps for req_id, entry in step.scheduled.items() if entry.is_admitted
    ]
    return [req_id for req_id in set(admitted) for _ in range(admitted.count(req_id) - 1)]


def test_a_prompt_is_prefilled_in_chunks() -> None:
    """A prompt longer than the budget takes several steps, and shares the last with the next."""
    requests = [Request("a", [1] * 100, 2), Request("b", [1] * 3, 1)]
    steps = serve(requests, Settings(), num_groups=2)
    assert [{"a": 64}, {"a": 36, "b": 3}, {"a": 1}] == [s.num_scheduled_tokens for s in steps]
    assert [[], [], ["b"]] == [step.gone_ids for step in steps]


def test_a_dry_pool_preempts_the_latest() -> None:
    """When the first request needs a block that is not there, the second gives up all of its own.

    The pool has 14 blocks: the first request's 10 and the second's 4. It computes the second again,
    its generated token too, once the first has finished.
    """
    settings = Settings(max_model_len=224, requests_in_pool=1, token_budget=300)
    requests = [Request("a", [1] * 160, 3), Request("b", [1] * 60, 3)]
    first, second, third, fourth, *_ = serve(requests, settings, num_groups=1)
    assert {"a": 160, "b": 60} == first.num_scheduled_tokens
    assert {"a": 1} == second.num_scheduled_tokens
    assert ["b"] == second.gone_ids
    assert {"a": 1} == third.num_scheduled_tokens  # 3 blocks are free, and b wants 4
    assert {"b": 61} == fourth.num_scheduled_tokens
    assert fourth.scheduled["b"].is_admitted
    assert [0] * 3 == requests[1].output_token_ids


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("num_groups", [1, 3])
def test_all_requests_are_served(seed: int, num_groups: int) -> None:
    """The default set of requests is finished, and the pool runs dry on the way."""
    requests = make_requests(32, seed)
    steps = serve(requests, Settings(), num_groups)
    assert find_preempted(steps)
    assert all(0 == request.num_missing_tokens for request in requests)
    assert not any(request.block_ids for request in requests)
    assert any(1 < len(step.scheduled) for step in steps)


def test_the_default_requests_reach_every_edge() -> None:
    """They have prompts of all lengths next to an edge, arrive over time, and are reproducible."""
    requests = make_requests(32, seed=0)
    lengths = [len(request.prompt_token_ids) for request in requests]
    assert set(EDGES) <= set(lengths)
    assert 1 == min(lengths)
    assert LONGEST_PROMPT == max(lengths)
    assert len({request.arrival_step for request in requests}) > 5
    assert all(a.arrival_step <= b.arrival_step for a, b in itertools.pairwise(requests))
    assert all(1 <= request.max_new_tokens <= MOST_NEW_TOKENS for request in requests)
    again = make_requests(32, seed=0)
    assert [r.prompt_token_ids for r in again] == [r.prompt_token_ids for r in requests]


@pytest.mark.parametrize(
    ("num_prompt_tokens", "max_new_tokens"), [(0, 1), (1, 0), (224, 1), (200, 25)]
)
def test_what_cannot_be_served_is_refused(num_prompt_tokens: int, max_new_tokens: int) -> None:
    """No prompt, no token wanted, or more tokens than the longest sequence."""
    requests = [Request("a", [1] * num_prompt_tokens, max_new_tokens)]
    message = f"a has {num_prompt_tokens} prompt tokens and wants {max_new_tokens} more"
    with pytest.raises(ValueError, match=message):
        Scheduler(requests, Settings(), num_groups=1)
