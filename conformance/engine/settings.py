"""The settings of an engine, and the policy of a step."""

from __future__ import annotations

from dataclasses import dataclass

NO_LIMIT = 2**31 - 1
"""Counts, lengths and block ids are int32."""


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """How an engine is set up.

    Attributes:
        token_budget: The most tokens in one step.
        max_num_seqs: The most requests running at once.
        max_model_len: The longest sequence that is served, in tokens.
        long_prefill_token_threshold: The most tokens of one request in one step, so that several
            prompts are prefilled side by side.
        num_speculative_tokens: The most draft tokens of a decode.
        micro_batches: Parts that each batch is cut into; 1: not at all.
        padding: CUDA graphs are captured for multiples of so many requests and tokens.
    """

    token_budget: int = 2048
    max_num_seqs: int = 64
    max_model_len: int = 16_384
    long_prefill_token_threshold: int = NO_LIMIT
    num_speculative_tokens: int = 0
    micro_batches: int = 1
    padding: int = 8

    @property
    def decode_threshold(self) -> int:
        """The most new tokens of a decode: the last one sampled, and the drafts after it."""
        return 1 + self.num_speculative_tokens

    def padded(self, count: int) -> int:
        """Round a number of requests or tokens up to the next multiple of `padding`.

        Example:
            >>> EngineSettings(padding=8).padded(9)
            16
        """
        return -(-count // self.padding) * self.padding


@dataclass(frozen=True, kw_only=True)
class Policy:
    """How a step is scheduled. The default is first come, first served, within the settings.

    Attributes:
        token_budget: The most tokens of the step.
        max_tokens_per_request: The most tokens of one request.
        skipped: Positions in the list of running requests of those that are not scheduled.
        admits: Whether waiting requests are admitted.
        admits_after_preemption: Whether they are admitted in a step that preempts. A preempted
            request is first in the queue, so it would be resumed at once.
    """

    token_budget: int = NO_LIMIT
    max_tokens_per_request: int = NO_LIMIT
    skipped: frozenset[int] = frozenset()
    admits: bool = True
    admits_after_preemption: bool = False


FIRST_COME_FIRST_SERVED = Policy()
