"""How many requests an engine holds at once: the worst case, and the steady state.

The worst case is the estimate that an engine makes at startup: each request has as many tokens as
possible, and a whole step's tokens beyond its windows and chunks. In the steady state the requests
share a step's tokens, as they share its token budget: all requests but one hold only the blocks
that they need while they decode.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from conformance.targets.target import Target
from conformance.zoo.cache_config import make_vllm_config
from conformance.zoo.groups import CacheGroup
from conformance.zoo.layer import CHUNKED_LOCAL, CROSS, MAMBA, SLIDING_WINDOW
from conformance.zoo.serving import Serving


@dataclass(frozen=True, kw_only=True)
class Engine:
    """How an engine schedules, and the devices that share its caches.

    Attributes:
        steps_in_flight: Steps that are scheduled before the first one's tokens are known: 2 with
            asynchronous scheduling.
        decode_context_parallel_size: Tensor-parallel ranks that divide the tokens of each sequence
            among them.
        prefill_context_parallel_size: Further devices that divide these tokens.
        data_parallel_size: Engines, each with its own requests; they share only experts.
    """

    steps_in_flight: int = 2
    decode_context_parallel_size: int = 1
    prefill_context_parallel_size: int = 1
    data_parallel_size: int = 1

    @property
    def context_parallel_size(self) -> int:
        """Ranks that each have a part of a sequence's tokens."""
        return self.decode_context_parallel_size * self.prefill_context_parallel_size


@dataclass(frozen=True)
class Capacity:
    """The requests of one length that fit; the docstring of `kvtwin.plan` describes the fields."""

    request_tokens: int
    worst_case_blocks: int
    worst_case_requests: float
    steady_blocks: int
    step_blocks: int
    steady_requests: float


def make_capacity(
    target: Target,
    serving: Serving,
    engine: Engine,
    groups: Sequence[CacheGroup],
    config: Any,  # noqa: ANN401  # an implementation's own
    num_tokens: int,
) -> Capacity:
    """Return how many requests of a length fit into the blocks of `config`.

    Args:
        target: The implementation.
        serving: The model, and how it is served.
        engine: How its engine schedules.
        groups: Its KV cache groups.
        config: Its `KVCacheConfig`.
        num_tokens: The length of each request: its prompt and what is generated.
    """
    usable = config.num_blocks - 1  # the null block is never allocated
    worst = worst_case_blocks(target, serving, engine, config, num_tokens)
    steady = [steady_blocks(serving, engine, group, num_tokens) for group in groups]
    budget = in_flight_tokens(serving, engine)
    step = sum(
        min(-(-budget // group.block_size), -(-budget // num_tokens) * max(more - held, 0))
        for group, more, held in zip(groups, worst, steady, strict=True)
    )
    first = sum(steady) + step  # of a single request
    return Capacity(
        request_tokens=num_tokens,
        worst_case_blocks=sum(worst),
        worst_case_requests=usable / sum(worst),
        steady_blocks=min(sum(steady), sum(worst)),  # the request may be the longest of all
        step_blocks=step,
        steady_requests=max(
            usable / sum(worst), usable / first if usable < first else (usable - step) / sum(steady)
        ),
    )


def in_flight_tokens(serving: Serving, engine: Engine) -> int:
    """Return the maximum number of tokens of all steps in flight."""
    return serving.max_num_batched_tokens * engine.steps_in_flight


def worst_case_blocks(
    target: Target,
    serving: Serving,
    engine: Engine,
    config: Any,  # noqa: ANN401  # an implementation's own
    num_tokens: int,
) -> list[int]:
    """Return the largest number of blocks that a request of a length needs, for each group."""
    shorter = dataclasses.replace(
        serving,
        requested_max_model_len=num_tokens,
        max_num_batched_tokens=in_flight_tokens(serving, engine),
    )
    parallel = {
        "decode_context_parallel_size": engine.decode_context_parallel_size,
        "prefill_context_parallel_size": engine.prefill_context_parallel_size,
    }
    vllm_config = make_vllm_config(target, shorter, parallel=parallel)
    specs = [group.kv_cache_spec for group in config.kv_cache_groups]
    return [spec.max_memory_usage_bytes(vllm_config) // spec.page_size_bytes for spec in specs]


def steady_blocks(serving: Serving, engine: Engine, group: CacheGroup, num_tokens: int) -> int:
    """Return the blocks of a group that a request of a length holds while it decodes.

    A decode includes its draft tokens and, with two steps in flight, the tokens of the next step.
    Windows and chunks may begin inside a block.

    Example:
        >>> from conformance.targets.target import REFERENCE
        >>> from conformance.zoo.groups import make_groups
        >>> from conformance.zoo.models import get_model
        >>> serving = Serving(model=get_model("mistral-7b-v0.1"))
        >>> [group] = make_groups(REFERENCE, serving)
        >>> steady_blocks(serving, Engine(), group, 32_768)  # a window of 4096, in blocks of 16
        257
    """
    if not group.has_kv_cache or group.kind == CROSS:
        return group.num_blocks(num_tokens)
    if group.kind == MAMBA:
        return (2 if serving.mamba_cache_mode == "align" else 1) + serving.num_further_states
    query_len = (1 + serving.num_speculative_tokens) * engine.steps_in_flight
    length = min(num_tokens + query_len - 1, serving.max_model_len)
    blocks = -(-length // (group.block_size * engine.context_parallel_size))
    if group.kind == SLIDING_WINDOW:
        others = int(group.sliding_window or 0) - 2 + query_len
        return min(blocks, -(-others // group.block_size) + 1)
    if group.kind == CHUNKED_LOCAL:
        return min(
            blocks, -(-(int(group.attention_chunk_size or 0) - 1 + query_len) // group.block_size)
        )
    return blocks
