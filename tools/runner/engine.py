"""The engine: runs steps with scheduler and worker, and compares each new token."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from transformers import PreTrainedModel

from conformance.engine.arrivals import Arrivals
from conformance.engine.request import Request
from tools.runner.models import generate
from tools.runner.settings import Settings
from tools.runner.worker import Worker
from tools.runner.wrong_slot import WrongSlot


@dataclass
class Outcome:
    """The outcome of a run.

    Attributes:
        num_finished: Requests that got all their tokens.
        num_computed_tokens: Tokens that went through the model, without padding.
        num_equal_tokens: Generated tokens equal to those of `generate`.
        num_steps: Steps.
        num_preemptions: How often a request was preempted.
        num_micro_batched_steps: Steps that were cut into micro-batches.
        num_cut_requests: How often a request was cut by a micro-batch.
        seconds: The time of the steps.
        difference: The first token that differs, or None.
        wrong_slot: The injected error, or None.
    """

    num_finished: int = 0
    num_computed_tokens: int = 0
    num_equal_tokens: int = 0
    num_steps: int = 0
    num_preemptions: int = 0
    num_micro_batched_steps: int = 0
    num_cut_requests: int = 0
    seconds: float = 0.0
    difference: str | None = None
    wrong_slot: str | None = None


def expect(
    model: PreTrainedModel,
    requests: Sequence[tuple[int, Request]],
    on_request: Callable[[], object],
) -> dict[str, list[int]]:
    """Return the expected tokens of each request: those of `generate` for it alone.

    Args:
        model: The model, before a worker changes it.
        requests: The requests, each with the step in which it arrives.
        on_request: Called after each.

    Returns:
        The new tokens of each request, by id.
    """
    expected = {}
    for _, request in requests:
        tokens = generate(model, request.prompt_token_ids, request.max_new_tokens)
        expected[request.request_id] = tokens
        on_request()
    return expected


def serve(
    model: PreTrainedModel,
    requests: Sequence[tuple[int, Request]],
    expected: dict[str, list[int]],
    settings: Settings,
    *,
    wrong_slot_step: int | None = None,
    on_finished: Callable[[], object] = lambda: None,
) -> Outcome:
    """Serve requests until all are finished or a token differs.

    Args:
        model: The model; the worker changes a copy of it.
        requests: What to serve, each with the step in which it arrives; copies are served.
        expected: The expected tokens of each request, by ID.
        settings: The settings of the engine.
        wrong_slot_step: The step in which to shift a slot, or None.
        on_finished: Called after each request that is finished.

    Returns:
        The outcome.
    """
    requests = copy.deepcopy(requests)
    by_id = {request.request_id: request for _, request in requests}
    arrivals = Arrivals(requests)
    wrong_slot = None if wrong_slot_step is None else WrongSlot(wrong_slot_step, by_id)
    worker = Worker(copy.deepcopy(model), settings, wrong_slot)
    scheduler = settings.make_scheduler(len(worker.caches.builders))
    outcome = Outcome()
    started = time.perf_counter()
    while (arrivals or scheduler.has_requests) and outcome.difference is None:
        for request in arrivals.receive(is_idle=not scheduler.has_requests):
            scheduler.add_request(request)
        step = scheduler.schedule()
        sampled_token_ids = worker.execute(step)
        finished = scheduler.update_from_output(
            step, {req_id: [token_id] for req_id, token_id in sampled_token_ids.items()}
        )
        arrivals.clock += 1

        outcome.num_steps += 1
        outcome.num_computed_tokens += sum(step.num_scheduled_tokens.values())
        for req_id, token_id in sampled_token_ids.items():
            number = len(by_id[req_id].output_token_ids) - 1
            if token_id != expected[req_id][number]:
                outcome.difference = (
                    f"{req_id}: token {number} is {token_id}, but generate gives "
                    f"{expected[req_id][number]}"
                )
                break
            outcome.num_equal_tokens += 1
        for _ in finished:
            outcome.num_finished += 1
            on_finished()
    outcome.seconds = time.perf_counter() - started
    outcome.num_preemptions = scheduler.num_preemptions
    outcome.num_micro_batched_steps = worker.part_builder.num_micro_batched_steps
    outcome.num_cut_requests = worker.part_builder.num_cut_requests
    outcome.wrong_slot = None if wrong_slot is None else wrong_slot.line
    return outcome
