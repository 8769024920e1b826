"""One engine in its own process: its tokens, and the times of its steps."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

from tools.engine_demo.engine import generate, make_engine, make_requests
from tools.engine_demo.models import write_model
from tools.engine_demo.step_times import Time, time_steps
from tools.engine_demo.weights import use_random_weights
from tools.engine_demo.wrong_slot import wrong_slots

WRONG_STEP = 12
"""The first step in which slots are shifted: requests of all kinds are running."""


@dataclass(frozen=True)
class Plan:
    """The work of an engine.

    Attributes:
        model: The name of its model.
        with_plugin: Whether it runs with the plugin.
        num_requests: Requests whose tokens are compared.
        batch_sizes: Numbers of requests for which steps are timed.
        num_steps: How many steps are timed for each.
    """

    model: str
    with_plugin: bool
    num_requests: int
    batch_sizes: tuple[int, ...]
    num_steps: int


@dataclass
class Outcome:
    """The results of an engine.

    Attributes:
        tokens: The new tokens of each request.
        wrong_tokens: The same with slots shifted by one, from WRONG_STEP on.
        seconds: How long the requests took.
        replaced: The functions of vLLM that were replaced.
        kept: Why the other functions were not replaced, by name.
        methods: Times of `METHODS`, by number of requests and name.
        functions: Times of the replaced functions, by number of requests and name.
    """

    tokens: list[list[int]] = field(default_factory=list)
    wrong_tokens: list[list[int]] = field(default_factory=list)
    seconds: float = 0.0
    replaced: list[str] = field(default_factory=list)
    kept: dict[str, str] = field(default_factory=dict)
    methods: dict[int, dict[str, Time]] = field(default_factory=dict)
    functions: dict[int, dict[str, Time]] = field(default_factory=dict)


def run_engine(plan: Plan, outcomes: Connection) -> None:
    """Make an engine, follow a plan, and send the outcome."""
    use_random_weights()
    if plan.with_plugin:
        import kvtwin_vllm  # noqa: PLC0415  # it is not in the plain engine's process

        kvtwin_vllm.register()  # as vLLM does where the plugin is installed
    requests = make_requests(plan.num_requests)
    outcome = Outcome()
    with tempfile.TemporaryDirectory() as folder:
        write_model(plan.model, Path(folder))
        engine = make_engine(folder, max(plan.batch_sizes, default=plan.num_requests))
        start = time.perf_counter()
        outcome.tokens = generate(engine, requests)
        outcome.seconds = time.perf_counter() - start
        if plan.with_plugin:
            from kvtwin_vllm.installation import INSTALLED  # noqa: PLC0415  # set by now

            assert INSTALLED is not None  # noqa: S101  # for mypy
            outcome.replaced, outcome.kept = INSTALLED.replaced, INSTALLED.kept
            with wrong_slots(WRONG_STEP):
                outcome.wrong_tokens = generate(engine, requests)
            for size in plan.batch_sizes:
                outcome.methods[size] = time_steps(engine, INSTALLED, size, plan.num_steps)
                outcome.functions[size] = time_steps(
                    engine, INSTALLED, size, plan.num_steps, each_function=True
                )
    outcomes.send(outcome)
