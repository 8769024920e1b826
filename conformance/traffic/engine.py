"""An engine that serves a trace: the steps of a continuous-batching scheduler, without a model.

Time is simulated. A step takes `SECONDS_PER_STEP` and `SECONDS_PER_TOKEN` for each of its tokens,
about what an 8B model takes on one A100, so requests arrive while others run, queue up in a burst,
and thin out after it.

A trace has the lengths of requests, not their tokens: all tokens are `PLACEHOLDER`. Prefixes are
not shared, and how many drafts are accepted is random.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator, Sequence

from conformance.engine.arrivals import Arrivals
from conformance.engine.block_pool import BlockPool
from conformance.engine.request import Request
from conformance.engine.scheduler import Scheduler
from conformance.engine.scheduler_output import SchedulerOutput
from conformance.traffic.settings import Settings
from conformance.traffic.trace import TraceRequest
from conformance.zoo.models import Model

SECONDS_PER_STEP = 0.03
SECONDS_PER_TOKEN = 0.0001
ACCEPTANCE_RATE = 0.7
"""How likely a draft token is accepted when those before it were."""
PLACEHOLDER = 0


class TraceEngine:
    """Serves a trace of requests step by step.

    Args:
        requests: The trace, by arrival.
        model: Which serves them.
        settings: Of the engine.
        seed: Of the accepted draft tokens.

    Attributes:
        settings: As given.
        groups: The KV cache groups that take blocks.
        scheduler: Makes the steps.

    Raises:
        ValueError: A request is longer than the engine's longest sequence, or would not fit into
            the pool of blocks on its own.

    Example:
        >>> from conformance.zoo.models import get_model
        >>> trace = [TraceRequest(0.0, 5, 2), TraceRequest(0.0, 3, 1)]
        >>> settings = Settings(token_budget=4)
        >>> for output in TraceEngine(trace, get_model("llama-3.1-8b"), settings):
        ...     print(output.num_scheduled_tokens)
        {'request-0': 4}
        {'request-0': 1, 'request-1': 3}
        {'request-0': 1}
    """

    def __init__(
        self,
        requests: Sequence[TraceRequest],
        model: Model,
        settings: Settings,
        *,
        seed: int = 0,
    ) -> None:
        self.settings = settings
        self.groups = settings.cache_groups(model)
        max_model_len = settings.serving(model).max_model_len
        num_blocks = settings.pool_blocks(model)
        longest = settings.longest_request(model)
        for number, request in enumerate(requests):
            if request.total_tokens > longest:
                raise ValueError(
                    f"requests[{number}] has {request.total_tokens} tokens, but at most {longest} "
                    f"fit: max_model_len is {max_model_len} and the pool has {num_blocks} blocks, "
                    f"one of them the null block"
                )
        self.scheduler = Scheduler(
            dataclasses.replace(settings, max_model_len=max_model_len),
            self.groups,
            BlockPool(num_blocks, reuses_latest=True),
        )
        self._arrivals = Arrivals(
            (request.arrival_seconds, (f"request-{number}", request))
            for number, request in enumerate(requests)
        )
        self._random = random.Random(seed)  # noqa: S311  # a simulation has no secrets

    @property
    def clock_seconds(self) -> float:
        """The simulated time."""
        return self._arrivals.clock

    def __iter__(self) -> Iterator[SchedulerOutput]:
        """Yield step after step until every request has ended."""
        while self._arrivals or self.scheduler.has_requests:
            for req_id, request in self._arrivals.receive(is_idle=not self.scheduler.has_requests):
                prompt = [PLACEHOLDER] * request.context_tokens
                self.scheduler.add_request(Request(req_id, prompt, request.generated_tokens))
            output = self.scheduler.schedule()
            if output is not None:
                self._execute(output)
                yield output

    def _execute(self, output: SchedulerOutput) -> None:
        """Let a step happen: time passes, and tokens are sampled."""
        num_tokens = sum(output.num_scheduled_tokens.values())
        self._arrivals.clock += SECONDS_PER_STEP + SECONDS_PER_TOKEN * num_tokens
        sampled, drafts = {}, {}
        for request in self.scheduler.running:
            req_id = request.request_id
            if req_id in output.sampled_req_ids:
                accepted = self._count_accepted(len(request.spec_token_ids))
                accepted = min(accepted, request.num_missing_tokens - 1)
                sampled[req_id] = [PLACEHOLDER] * (accepted + 1)
                drafts[req_id] = [PLACEHOLDER] * self.settings.num_speculative_tokens
        self.scheduler.update_from_output(output, sampled, drafts)

    def _count_accepted(self, num_draft_tokens: int) -> int:
        """Draw how many draft tokens are accepted: up to the first rejected one."""
        for accepted in range(num_draft_tokens):
            if self._random.random() >= ACCEPTANCE_RATE:
                return accepted
        return num_draft_tokens
