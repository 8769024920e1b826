"""An engine that serves a trace: the steps of a continuous-batching scheduler, without a model.

Time is simulated. A step takes `SECONDS_PER_STEP` and `SECONDS_PER_TOKEN` for each of its tokens,
about what an 8B model takes on one A100, so requests arrive while others run, queue up in a burst,
and thin out after it.

A trace has the lengths of requests, not their tokens: all tokens are `PLACEHOLDER`. Prefixes are
not shared, and how many drafts are accepted is random.
"""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from conformance.engine.arrivals import Arrivals
from conformance.engine.block_pool import BlockPool
from conformance.engine.request import Request
from conformance.engine.scheduler import Scheduler
from conformance.engine.scheduler_output import SchedulerOutput
from conformance.traffic.settings import Settings
from conformance.traffic.trace import DEFAULT_TRACE, TraceRequest, read_trace
from conformance.zoo.models import Model, get_model

SECONDS_PER_STEP = 0.03
SECONDS_PER_TOKEN = 0.0001
ACCEPTANCE_RATE = 0.7
"""The probability that a draft token is accepted if those before it were."""
PLACEHOLDER = 0


class TraceEngine:
    """Serves a trace of requests step by step.

    Args:
        requests: The trace, by arrival.
        model: The model that serves them.
        settings: The settings of the engine.
        seed: The random seed of draft acceptance.
        frees_skipped_blocks: Whether blocks before windows and chunks are freed.

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
        frees_skipped_blocks: bool = False,
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
            frees_skipped_blocks=frees_skipped_blocks,
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
        """Simulate a step: advance the clock, and sample tokens."""
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


DEFAULT_SETTINGS = Settings()


@dataclasses.dataclass(frozen=True)
class TraceBatch:
    """The lengths of one step's requests, in batch order: decodes, then extends, then prefills.

    Attributes:
        query_lens: New tokens of each request.
        num_computed_tokens: Tokens of each request in the cache before the step.
    """

    query_lens: tuple[int, ...]
    num_computed_tokens: tuple[int, ...]


def trace_steps(
    path: str | Path | None = None,
    model: str = "llama-3.1-8b",
    limit: int = 200,
    *,
    settings: Settings = DEFAULT_SETTINGS,
    seed: int = 0,
) -> list[TraceBatch]:
    """Serve a trace and return the batches of its steps, at most `limit`.

    The batches are cached within the process. The default trace is the project's own. Requests that
    the engine cannot serve are left out; `seed` decides which drafts are accepted.

    Raises:
        KeyError: No such model, or no such column in the trace.
        ValueError: A trace that cannot be read, or has no request that the engine can serve.

    Example:
        >>> first = trace_steps(limit=3)[0]
        >>> first.query_lens, first.num_computed_tokens
        ((21,), (0,))
    """
    return list(_trace_steps(Path(path or DEFAULT_TRACE), model, limit, settings, seed))


def servable(
    requests: Sequence[TraceRequest], model: str, settings: Settings
) -> list[TraceRequest]:
    """Return the requests that an engine can serve: they fit its maximum length and its blocks.

    Example:
        >>> trace = [TraceRequest(0.0, 90, 20), TraceRequest(0.5, 9, 2)]
        >>> servable(trace, "llama-3.1-8b", Settings(max_model_len=100))
        [TraceRequest(arrival_seconds=0.5, context_tokens=9, generated_tokens=2)]
    """
    longest = settings.longest_request(get_model(model))
    return [request for request in requests if request.total_tokens <= longest]


@functools.lru_cache(maxsize=16)
def _trace_steps(
    path: Path, model: str, limit: int, settings: Settings, seed: int
) -> tuple[TraceBatch, ...]:
    """Serve a trace and make the batches of its steps."""
    requests = servable(read_trace(path), model, settings)
    if not requests:
        raise ValueError(f"{path} has no request that settings {settings} can serve")
    engine = TraceEngine(requests, get_model(model), settings, seed=seed)
    return tuple(_make_batch(step, settings) for step in islice(engine, limit))


def _make_batch(step: SchedulerOutput, settings: Settings) -> TraceBatch:
    """Put the lengths of a step's requests in batch order."""
    lengths = [
        (num_tokens, step.num_computed_tokens[req_id])
        for req_id, num_tokens in step.num_scheduled_tokens.items()
    ]
    lengths.sort(key=lambda pair: _region(pair[0], pair[1], settings))
    return TraceBatch(*zip(*lengths, strict=True))


def _region(query_len: int, num_computed_tokens: int, settings: Settings) -> int:
    """Return the place of a request in batch order: decode, extend or prefill."""
    if query_len <= settings.decode_threshold:
        return 0
    return 1 if num_computed_tokens > 0 else 2
