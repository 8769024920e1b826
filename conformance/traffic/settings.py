"""The settings of an engine that serves a model of the zoo."""

from dataclasses import dataclass, fields, replace
from functools import cache

from conformance.engine.scheduler import longest_request
from conformance.engine.settings import NO_LIMIT, EngineSettings
from conformance.targets.target import REFERENCE
from conformance.zoo.groups import CacheGroup, make_groups
from conformance.zoo.layer import CROSS, MAMBA
from conformance.zoo.models import Model
from conformance.zoo.serving import Serving


@dataclass(frozen=True, kw_only=True)
class Settings(EngineSettings):
    """The settings of an engine that serves a model.

    The longest sequence has `max_model_len` tokens, or fewer if the model is published for fewer.
    Block tables have columns for all of them, so engines limit the length too.

    Attributes:
        block_size: Tokens in a block, before hybrid models raise it; None: the default of the
            model's backends.
        num_blocks: Blocks in the pool that all KV cache groups share; None: enough for
            `DEFAULT_POOL_TOKENS` tokens in `DEFAULT_POOL_REQUESTS` requests.
        long_prefill_token_threshold: The default is vLLM's, 4% of `max_model_len`; its chunks do
            not end where those of chunked local attention do.

    Raises:
        TypeError: A setting is not an int.
        ValueError: A setting is too small, or too large for an int32.
    """

    block_size: int | None = None
    num_blocks: int | None = None
    long_prefill_token_threshold: int = 655
    micro_batches: int = 2

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.default is None and value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool):
                raise TypeError(f"{field.name} is {value!r}, but should be an int")
            minimum = 0 if field.name == "num_speculative_tokens" else 1
            if value < minimum:
                raise ValueError(f"{field.name} is {value}, but should be at least {minimum}")
            if value > NO_LIMIT:
                raise ValueError(f"{field.name} is {value}, but should be at most {NO_LIMIT}")

    def serving(self, model: Model) -> Serving:
        """Return how a model is served with these settings, on one rank."""
        return Serving(
            model=model,
            requested_block_size=self.block_size,
            requested_max_model_len=min(self.max_model_len, model.max_context_tokens),
            max_num_batched_tokens=self.token_budget,
            max_num_seqs=self.max_num_seqs,
            num_speculative_tokens=self.num_speculative_tokens,
        )

    def cache_groups(self, model: Model) -> tuple[CacheGroup, ...]:
        """Return the KV cache groups of a model that take blocks: all but encoder-only ones."""
        return _cache_groups(self.serving(model))

    def blocks_for(self, model: Model, num_tokens: int) -> int:
        """Return the number of blocks of a sequence in all KV cache groups.

        Example:
            >>> from conformance.zoo.models import get_model
            >>> Settings().blocks_for(get_model("llama-4-scout"), 49)  # 4 of 16 in 4 groups
            16
        """
        return sum(group.num_blocks(num_tokens) for group in self.cache_groups(model))

    def pool_blocks(self, model: Model) -> int:
        """Return the number of blocks of the pool, including the null block (number 0)."""
        if self.num_blocks is not None:
            return self.num_blocks
        return 1 + sum(
            group.num_blocks(DEFAULT_POOL_TOKENS)
            if group.kind not in (CROSS, MAMBA)
            else DEFAULT_POOL_REQUESTS * group.num_blocks(1)
            for group in self.cache_groups(model)
        )

    def longest_request(self, model: Model) -> int:
        """Return the tokens (prompt and output) of the longest request that can be served.

        It fits into the pool on its own.

        Example:
            >>> from conformance.zoo.models import get_model
            >>> Settings(num_blocks=5).longest_request(get_model("llama-3.1-8b"))
            64
        """
        served = replace(self, max_model_len=self.serving(model).max_model_len)
        # The null block is never handed out.
        return longest_request(served, self.cache_groups(model), self.pool_blocks(model) - 1)


@cache
def _cache_groups(serving: Serving) -> tuple[CacheGroup, ...]:
    """Return the groups that take blocks, cached for each `Serving`."""
    return tuple(group for group in make_groups(REFERENCE, serving) if group.has_kv_cache)


DEFAULT_POOL_TOKENS = 20_480
"""Small on purpose: a few long prompts fill it, so that requests are preempted."""
DEFAULT_POOL_REQUESTS = 16
"""Requests for which the default pool has states, or blocks of cross attention."""
