"""The engine of a trace: properties that its steps have, checked from the steps only."""

from collections import Counter
from dataclasses import replace
from itertools import chain, islice, pairwise
from typing import TypeAlias

import pytest

from conformance.engine.block_pool import BlockPool
from conformance.engine.scheduler_output import SchedulerOutput
from conformance.traffic.engine import TraceEngine, servable, trace_steps
from conformance.traffic.settings import Settings
from conformance.traffic.trace import DEFAULT_TRACE, TraceRequest, make_trace, read_trace
from conformance.zoo.models import MODELS, get_model

SMALL = Settings(token_budget=96, max_num_seqs=6, max_model_len=2048, num_blocks=160)
SPECULATIVE = Settings(
    token_budget=256,
    max_num_seqs=9,
    max_model_len=2048,
    num_blocks=150,
    num_speculative_tokens=3,
    long_prefill_token_threshold=100,
)
ONE_AT_A_TIME = Settings(token_budget=7, max_num_seqs=1, max_model_len=600, num_blocks=90)
TIGHT = Settings(token_budget=20, max_num_seqs=30, num_blocks=50, num_speculative_tokens=4)
RUNS = [
    pytest.param((model, settings), id=f"{model}-{name}")
    for model in ("llama-3.1-8b", "llama-4-scout")
    for name, settings in (
        ("small", SMALL),
        ("speculative", SPECULATIVE),
        ("one", ONE_AT_A_TIME),
        ("tight", TIGHT),
    )
] + [
    pytest.param((model, replace(settings, num_blocks=num_blocks)), id=f"{model}-{name}")
    for model, num_blocks in (("jamba-v0.1", 30), ("whisper-large-v3", 200))
    for name, settings in (("small", SMALL), ("speculative", SPECULATIVE))
]


Run: TypeAlias = tuple[TraceEngine, list[TraceRequest], list[SchedulerOutput]]


def make_run(model: str, settings: Settings) -> Run:
    """Serve the first requests of the project's own trace, and return all steps."""
    requests = servable(make_trace(40), model, settings)
    engine = TraceEngine(requests, get_model(model), settings, seed=5)
    return engine, requests, list(engine)


@pytest.fixture(scope="module", params=RUNS)
def run(request: pytest.FixtureRequest) -> Run:
    """Return each of the runs."""
    return make_run(*request.param)


def test_no_block_is_owned_twice(run: Run) -> None:
    """A block belongs to one request and group until that ends or is preempted; 0 is never used."""
    engine, _, steps = run
    owned: dict[str, list[int]] = {}
    for step in steps:
        for req_id in step.removed_req_ids:
            del owned[req_id]
        for req_id, new_block_ids in step.new_block_ids.items():
            assert (req_id in step.admitted_req_ids) == (req_id not in owned)
            owned.setdefault(req_id, []).extend(chain(*new_block_ids))
        all_ids = [*chain(*owned.values())]
        assert len(all_ids) == len(set(all_ids))
        assert all(0 < block_id < (engine.settings.num_blocks or 0) for block_id in all_ids)


def test_every_token_has_its_block(run: Run) -> None:
    """After a step each request has as many blocks in each group as its tokens need, no more."""
    engine, _, steps = run
    num_blocks: dict[str, list[int]] = {}
    for step in steps:
        for req_id, new_block_ids in step.new_block_ids.items():
            if req_id in step.admitted_req_ids:
                num_blocks[req_id] = [0] * len(new_block_ids)
            end = step.num_computed_tokens[req_id] + step.num_scheduled_tokens[req_id]
            assert end <= engine.settings.max_model_len
            drafts = engine.settings.num_speculative_tokens  # rejected ones leave blocks to spare
            for number, group in enumerate(engine.groups):
                num_blocks[req_id][number] += len(new_block_ids[number])
                most = group.num_blocks(end + drafts)
                assert group.num_blocks(end) <= num_blocks[req_id][number] <= most


def test_the_bounds_hold(run: Run) -> None:
    """No step passes the token budget or the number of requests, or is empty."""
    engine, _, steps = run
    for step in steps:
        lengths = step.num_scheduled_tokens.values()
        assert sum(lengths) <= engine.settings.token_budget
        assert 1 <= len(lengths) <= engine.settings.max_num_seqs
        assert 1 <= min(lengths) <= max(lengths) <= engine.settings.long_prefill_token_threshold


def test_every_request_finishes_with_exactly_its_tokens(run: Run) -> None:
    """Each request ends once, and then all its tokens but the last have been computed."""
    engine, requests, steps = run
    ends: dict[str, int] = {}
    finished: Counter[str] = Counter()
    for step in steps:
        finished.update(step.finished_req_ids)
        for req_id, num_tokens in step.num_scheduled_tokens.items():
            ends[req_id] = step.num_computed_tokens[req_id] + num_tokens
    assert len(requests) == engine.scheduler.num_finished
    assert set(finished.values()) <= {1}
    assert {f"request-{i}" for i in range(len(requests))} == set(ends)
    for i, request in enumerate(requests):
        past_end = ends[f"request-{i}"] - (request.total_tokens - 1)
        assert 0 <= past_end <= engine.settings.num_speculative_tokens  # drafts that came too late


def test_computed_tokens_only_grow_but_for_preemption(run: Run) -> None:
    """A request goes on where it stopped, less rejected drafts; a preempted one starts again."""
    engine, _, steps = run
    ends: dict[str, int] = {}
    for step in steps:
        ends |= dict.fromkeys(step.preempted_req_ids, 0)
        for req_id, computed in step.num_computed_tokens.items():
            before = ends.get(req_id, 0)
            assert before - engine.settings.num_speculative_tokens <= computed <= before
            ends[req_id] = computed + step.num_scheduled_tokens[req_id]
            assert computed == 0 or req_id not in step.resumed_req_ids
    is_tight = engine.settings is not ONE_AT_A_TIME
    assert is_tight == any(step.preempted_req_ids for step in steps)


def test_first_come_is_first_served(run: Run) -> None:
    """A step's requests are in order of arrival, and the latest running ones are preempted."""
    _, _, steps = run
    running: list[int] = []
    for step in steps:
        ended = {number(req_id) for req_id in step.finished_req_ids}
        running = [i for i in running if i not in ended]
        preempted = [number(req_id) for req_id in step.preempted_req_ids]
        assert sorted(running)[len(running) - len(preempted) :] == sorted(preempted)
        running = [i for i in running if i not in preempted]
        admitted = sorted(number(req_id) for req_id in step.admitted_req_ids)
        assert all(i > max(running, default=-1) for i in admitted)
        running += admitted
        scheduled = [number(req_id) for req_id in step.num_scheduled_tokens]
        assert running[: len(scheduled)] == scheduled


def number(req_id: str) -> int:
    """Return a request's number, which is its place in the trace."""
    return int(req_id.removeprefix("request-"))


def test_some_running_requests_may_not_be_scheduled() -> None:
    """If decodes alone exceed the budget, the latest of them have to wait a step."""
    waiting = 0
    running: set[str] = set()
    for step in make_run("llama-3.1-8b", TIGHT)[2]:
        running -= set(step.removed_req_ids)
        running |= set(step.num_scheduled_tokens)
        waiting += len(running) > len(step.num_scheduled_tokens)
    assert waiting > 0


def test_drafts_are_brought_along_and_some_rejected() -> None:
    """Every decode brings its drafts; none, some or all of them are accepted."""
    settings = Settings(num_speculative_tokens=3)
    trace = [TraceRequest(0.0, 10, 200)]
    steps = list(TraceEngine(trace, get_model("llama-3.1-8b"), settings))[1:]
    assert {4} == {step.num_scheduled_tokens["request-0"] for step in steps}
    computed = [step.num_computed_tokens["request-0"] for step in steps]
    gains = {b - a for a, b in pairwise(computed)}
    assert {1, 2, 3, 4} == gains


def test_the_longest_sequence_is_not_passed_by_drafts() -> None:
    """Drafts do not make a sequence longer than the longest one allowed."""
    settings = Settings(num_speculative_tokens=3, max_model_len=32)
    steps = list(TraceEngine([TraceRequest(0.0, 2, 30)], get_model("llama-3.1-8b"), settings))
    ends = [step.num_computed_tokens["request-0"] for step in steps]
    assert max(ends) <= 31


def test_arrivals_follow_the_clock() -> None:
    """A request is not scheduled before it arrives, and an idle engine waits for it."""
    trace = [TraceRequest(0.0, 4, 1), TraceRequest(100.0, 4, 1)]
    engine = TraceEngine(trace, get_model("llama-3.1-8b"), Settings())
    first, second = list(engine)
    assert list(first.num_scheduled_tokens) == ["request-0"]
    assert list(second.num_scheduled_tokens) == ["request-1"]
    assert second.finished_req_ids == ("request-0",)
    assert engine.clock_seconds > 100


def test_the_same_seed_makes_the_same_steps() -> None:
    """Steps depend only on the trace, the settings and the seed."""

    def run(seed: int) -> list[SchedulerOutput]:
        engine = TraceEngine(make_trace(20), get_model("gpt-oss-20b"), settings, seed=seed)
        return list(islice(engine, 60))

    settings = Settings(num_speculative_tokens=2)
    assert run(1) == run(1) != run(2)


def test_a_request_that_never_fits_is_refused() -> None:
    """A request longer than the pool or the engine's longest sequence is refused by its number."""
    trace = [TraceRequest(0.0, 4, 1), TraceRequest(0.0, 60, 5)]
    for settings in (Settings(num_blocks=5), Settings(max_model_len=64)):
        with pytest.raises(ValueError, match=r"requests\[1\] has 65 tokens, but at most 64 fit"):
            TraceEngine(trace, get_model("llama-3.1-8b"), settings)


def test_a_pool_hands_out_what_was_freed_last() -> None:
    """Ids come back scattered, never the null block, and no more than there are."""
    pool = BlockPool(8, reuses_latest=True)
    taken = pool.get_new_blocks(7)
    assert taken == [1, 2, 3, 4, 5, 6, 7]
    pool.free_blocks([4, 2])
    pool.free_blocks([7])
    assert pool.get_new_blocks(3) == [7, 2, 4]
    with pytest.raises(ValueError, match="count is 1, but only 0 blocks are free"):
        pool.get_new_blocks(1)


@pytest.mark.parametrize("model", MODELS)
def test_batches_are_cut_from_the_run(model: str) -> None:
    """Batches of the steps are in order by kind, and have the lengths of their requests."""
    batches = trace_steps(model=model, limit=120)
    settings = Settings()
    requests = servable(read_trace(DEFAULT_TRACE), model, settings)
    kinds: Counter[tuple[bool, bool]] = Counter()
    steps = islice(TraceEngine(requests, get_model(model), settings), 120)
    for batch, step in zip(batches, steps, strict=True):
        expected = [(n, step.num_computed_tokens[r]) for r, n in step.num_scheduled_tokens.items()]
        lengths = list(zip(batch.query_lens, batch.num_computed_tokens, strict=True))
        assert sorted(expected) == sorted(lengths)
        order = [0 if new <= 1 else 2 if computed == 0 else 1 for new, computed in lengths]
        assert sorted(order) == order
        kinds[max(order) > 0, min(order) > 0] += 1
    assert {(False, False), (True, False), (True, True)} == set(kinds)


def test_batches_are_made_once() -> None:
    """The same arguments give the same batches, in a new list."""
    first, again = trace_steps(limit=5), trace_steps(limit=5)
    assert all(a is b for a, b in zip(first, again, strict=True))
    assert first is not again
    assert sum(trace_steps(limit=5, settings=Settings(token_budget=9))[0].query_lens) <= 9
    with pytest.raises(ValueError, match=r"has no request that .* can serve"):
        trace_steps(settings=Settings(num_blocks=1))
