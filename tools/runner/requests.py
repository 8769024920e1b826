"""Requests to serve: random prompts of mixed lengths that arrive over time."""

from __future__ import annotations

import random

from conformance.engine.request import Request
from tools.runner.settings import LONGEST_PROMPT, MAX_NEW_TOKENS, VOCAB_SIZE

EDGES = (1, LONGEST_PROMPT, 33, 129, 16, 64, 7, 24, 128, 2, 32, 65, 9, 17, 31, 63, 25, 8, 23, 15)
"""Prompt lengths next to the edges of blocks, kernel blocks, windows, chunks and steps.

Long and short ones alternate, so that even a few requests have both.
"""

STEPS_BETWEEN_ARRIVALS = (0, 0, 0, 1, 4)
"""The possible numbers of steps between two arrivals; many requests arrive together."""


def make_requests(count: int, seed: int) -> list[tuple[int, Request]]:
    """Make requests to serve.

    Args:
        count: How many.
        seed: The seed of lengths, tokens and arrivals. The lengths include those of `EDGES`, in
            random order.

    Returns:
        The requests by arrival, each with the step in which it arrives.

    Example:
        >>> [(step, request.num_prompt_tokens) for step, request in make_requests(4, seed=0)]
        [(0, 33), (0, 1), (4, 200), (8, 129)]
    """
    draw = random.Random(seed)  # noqa: S311  # prompts are not secrets
    lengths = [
        EDGES[i] if i < len(EDGES) else draw.randint(1, LONGEST_PROMPT) for i in range(count)
    ]
    draw.shuffle(lengths)
    made = []
    arrival_step = 0
    for number, length in enumerate(lengths):
        arrival_step += draw.choice(STEPS_BETWEEN_ARRIVALS)
        prompt = [draw.randrange(VOCAB_SIZE) for _ in range(length)]
        request = Request(f"request-{number}", prompt, draw.randint(1, MAX_NEW_TOKENS))
        made.append((arrival_step, request))
    return made
