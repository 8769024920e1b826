"""The planner's steady state, checked against the project's own engine."""

import pytest

from conformance.engine.settings import NO_LIMIT
from conformance.targets.target import REFERENCE
from conformance.traffic.engine import TraceEngine
from conformance.traffic.settings import Settings
from conformance.traffic.trace import TraceRequest
from conformance.zoo.cache_config import block_bytes
from conformance.zoo.groups import make_groups
from conformance.zoo.models import get_model
from kvtwin.sizing import make_plan
from kvtwin.steady_state import Engine


def all_fit(model: str, settings: Settings, num_requests: int) -> bool:
    """Serve equal requests that arrive at once; return whether all run at once, none preempted."""
    generated = num_requests * settings.max_model_len // settings.token_budget + 8
    context = settings.max_model_len - generated
    engine = TraceEngine(
        [TraceRequest(0.0, context, generated)] * num_requests,
        get_model(model),
        settings,
        frees_skipped_blocks=True,
    )
    most = max(len(step.num_scheduled_tokens) for step in engine)
    return most == num_requests and engine.scheduler.num_preemptions == 0


@pytest.mark.parametrize(
    ("model", "length", "budget", "num_blocks"),
    [
        ("llama-3.1-8b", 2048, 2048, 3000),
        ("phi-3-mini-4k", 4096, 1024, 3000),
        ("gemma-3n-e4b", 4096, 1024, 16_000),
        ("gpt-oss-20b", 2048, 1024, 3000),
    ],
)
def test_as_many_requests_fit_as_the_formula_says(
    model: str, length: int, budget: int, num_blocks: int
) -> None:
    """An engine that frees skipped blocks runs the computed number of requests, but not 5% more."""
    settings = Settings(
        token_budget=budget,
        max_num_seqs=1024,
        max_model_len=length,
        num_blocks=num_blocks,
        long_prefill_token_threshold=NO_LIMIT,
    )
    serving = settings.serving(get_model(model))
    memory = num_blocks * block_bytes(REFERENCE, make_groups(REFERENCE, serving))
    [capacity] = make_plan(serving, memory, Engine(steps_in_flight=1)).capacities
    assert capacity.worst_case_requests <= capacity.steady_requests
    fitting = int(capacity.steady_requests)
    assert all_fit(model, settings, fitting)
    assert not all_fit(model, settings, fitting + 1 + fitting // 20)
