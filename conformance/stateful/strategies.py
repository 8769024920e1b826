"""Strategies of the stateful test: the engine's setup, plans of steps, and arrivals."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from conformance.engine.settings import NO_LIMIT
from conformance.stateful.plan import Choice, Plan, Preference
from conformance.stateful.setup import Setup
from conformance.strategies import cached as st
from conformance.zoo.models import CHUNKED_LOCAL, FULL, SLIDING_WINDOW


@dataclass(frozen=True)
class Scale:
    """The sizes of an engine.

    Attributes:
        block_sizes: Block sizes of the KV cache groups, to choose from.
        max_model_lens: The longest sequence, in tokens, to choose from.
        token_budget: The most tokens of a step.
        prompt_lens: Lengths of prompts, to choose from.
        chunks: The most tokens of a request in a step, to choose from.
        paddings: Multiples to which batches are padded, to choose from.
    """

    block_sizes: tuple[tuple[int, ...], ...]
    max_model_lens: tuple[int, ...]
    token_budget: int
    prompt_lens: tuple[int, ...]
    chunks: tuple[int, ...]
    paddings: tuple[int, ...]


SMALL = Scale(
    block_sizes=((2, 4), (2,), (3, 2), (2, 4, 1), (4, 2, 2)),
    max_model_lens=(26, 16, 12),
    token_budget=18,
    prompt_lens=(5, 1, 2, 3, 4, 7, 8, 9, 11, 12, 13, 16, 17),
    chunks=(NO_LIMIT, NO_LIMIT, NO_LIMIT, NO_LIMIT, 5, 3, 2, 1),
    paddings=(4, 1, 8, 3),
)
"""Every edge is near."""

LARGE = Scale(
    block_sizes=((16, 32), (16,), (16, 8, 32)),
    max_model_lens=(120, 96),
    token_budget=64,
    prompt_lens=(20, 1, 15, 16, 17, 33, 47, 64, 65, 80),
    chunks=(NO_LIMIT, NO_LIMIT, 31, 16, 8, 7),
    paddings=(8, 1),
)
"""The block sizes of engines, a few blocks for each request."""

SCALES = {"minimal": SMALL, "real": LARGE}
"""The scales, by the size of a check."""

CHOICES = (
    Choice(Preference.WITH_REJECTED_DRAFTS, 0),
    Choice(Preference.WITH_REJECTED_DRAFTS, 1),
    Choice(Preference.IN_PREFILL, 0),
    Choice(Preference.SHARING, 0),
    Choice(Preference.SHARING, 1),
    Choice(Preference.ANY, 1),
)
"""Choices of the request to preempt or finish; rare kinds are as likely as any."""

KINDS = (CHUNKED_LOCAL, FULL, CHUNKED_LOCAL, SLIDING_WINDOW)


@st.composite
def setups(draw: st.DrawFn, scale: Scale) -> Setup:
    """Draw the setup of an engine."""
    block_sizes = draw(st.sampled_from(scale.block_sizes))
    max_model_len = draw(st.sampled_from(scale.max_model_lens))
    longest = sum(-(-max_model_len // size) for size in block_sizes)
    return Setup(
        block_sizes=block_sizes,
        kinds=tuple(draw(st.sampled_from(KINDS)) for _ in block_sizes),
        num_spare_blocks=draw(st.integers(0, longest)),
        reuses_latest=draw(st.booleans()),
        max_model_len=max_model_len,
        max_num_seqs=draw(st.sampled_from((4, 5, 3))),
        token_budget=scale.token_budget,
        num_speculative_tokens=draw(st.sampled_from((2, 3, 1, 3, 0))),
        micro_batches=draw(st.sampled_from((2, 3, 4, 1, 3))),
        padding=draw(st.sampled_from(scale.paddings)),
        is_checked=draw(st.booleans()),
        seed=draw(st.integers(0, 2**16)),
    )


@cache
def plans(scale: Scale) -> st.SearchStrategy[Plan]:
    """Draw the plan of a step."""
    budget = scale.token_budget
    no_one = (None,) * 5
    return st.builds(
        Plan,
        token_budget=st.sampled_from((budget, budget, budget, budget, budget // 2, budget // 4)),
        max_tokens_per_request=st.sampled_from(scale.chunks),
        skipped=st.sampled_from((frozenset[int](),) * 6 + (frozenset({0}), frozenset({1, 2}))),
        num_drafts=st.sampled_from((3, 2, 1, 3, 0)),
        accepted=st.lists(st.sampled_from((0, 1, 2, 3)), min_size=1, max_size=3).map(tuple),
        admits=st.sampled_from((True, True, True, True, False)),
        preempts=st.sampled_from((*no_one * 4, *CHOICES)),
        finishes=st.sampled_from((*no_one * 5, *CHOICES)),
    )


@cache
def arrivals(scale: Scale) -> st.SearchStrategy[list[tuple[int, int]]]:
    """Draw a few arrivals: the length of each prompt, and how many tokens to generate."""
    lengths = st.sampled_from(scale.prompt_lens)
    return st.lists(st.tuples(lengths, new_token_counts()), min_size=1, max_size=3)


@cache
def new_token_counts() -> st.SearchStrategy[int]:
    """Draw how many tokens to generate for a request."""
    return st.sampled_from((6, 1, 2, 4, 9, 12, 16))
