"""Requests to serve: random prompts of mixed lengths that arrive over time."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from tools.runner.settings import LONGEST_PROMPT, MOST_NEW_TOKENS, VOCAB_SIZE

EDGES = (1, LONGEST_PROMPT, 33, 129, 16, 64, 7, 24, 128, 2, 32, 65, 9, 17, 31, 63, 25, 8, 23, 15)
"""Prompt lengths next to the edges of blocks, kernel blocks, windows, chunks and steps.

Long and short ones by turns: a few requests have both.
"""

STEPS_BETWEEN_ARRIVALS = (0, 0, 0, 1, 4)
"""How many steps after another request one arrives: any of these. Many come at once."""


@dataclass(eq=False)
class Request:
    """A request, as far as it has been served.

    Attributes:
        request_id: Its name.
        prompt_token_ids: Its prompt.
        max_new_tokens: How many tokens to generate.
        arrival_step: The step in which it arrives.
        output_token_ids: What was generated.
        num_computed_tokens: How many of its tokens are in the cache.
        block_ids: The blocks that it has, for each KV cache group.
    """

    request_id: str
    prompt_token_ids: list[int]
    max_new_tokens: int
    arrival_step: int = 0
    output_token_ids: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0
    block_ids: list[list[int]] = field(default_factory=list)

    @property
    def token_ids(self) -> list[int]:
        """All tokens that are known: the prompt and what was generated."""
        return self.prompt_token_ids + self.output_token_ids

    @property
    def num_tokens(self) -> int:
        """How many tokens are known."""
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    @property
    def num_missing_tokens(self) -> int:
        """How many tokens are still to be generated."""
        return self.max_new_tokens - len(self.output_token_ids)


def make_requests(count: int, seed: int) -> list[Request]:
    """Make requests to serve.

    Args:
        count: How many.
        seed: Of lengths, tokens and arrivals. The first lengths are `EDGES`, in any order among
            the others.

    Returns:
        The requests, by arrival.

    Example:
        >>> [len(request.prompt_token_ids) for request in make_requests(4, seed=0)]
        [33, 1, 200, 129]
    """
    draw = random.Random(seed)  # noqa: S311  # prompts are no secrets
    lengths = [
        EDGES[i] if i < len(EDGES) else draw.randint(1, LONGEST_PROMPT) for i in range(count)
    ]
    draw.shuffle(lengths)
    made = []
    arrival_step = 0
    for number, length in enumerate(lengths):
        arrival_step += draw.choice(STEPS_BETWEEN_ARRIVALS)
        made.append(
            Request(
                f"request-{number}",
                [draw.randrange(VOCAB_SIZE) for _ in range(length)],
                draw.randint(1, MOST_NEW_TOKENS),
                arrival_step,
            )
        )
    return made
