"""Presets whose sizes are log-uniform over the whole range of an engine.

A random run draws one of the presets of its target. These were drawn once, with a fixed seed, so
that a stored choice means the same preset on every machine. The first ones are `MINIMAL`, towards
which failing inputs shrink. Two thirds of all are, since small inputs take less time, and some
coverage goals are met only by them, such as a batch of one request.
"""

from __future__ import annotations

import math
import random
from typing import Final

from conformance.coverage.presets import FEW_PAIRS, MINIMAL, TRAFFIC, Preset

NUM_DRAWN: Final = 96

BLOCK_SIZES: Final = (1, 2, 3, 4, 8, 16, 24, 32, 48, 64, 128, 256, 544, 1024)
"""Powers of two and others; hybrid models need blocks as large as a Mamba state."""


def log_uniform(random_: random.Random, minimum: int, maximum: int) -> int:
    """Return an int between two bounds, both included, whose logarithm is uniform.

    >>> draws = [log_uniform(random.Random(n), 1, 1024) for n in range(1000)]
    >>> min(draws), sum(n <= 32 for n in draws) // 100
    (1, 5)
    """
    return min(int(math.exp(random_.uniform(math.log(minimum), math.log(maximum + 1)))), maximum)


def make_presets(
    *, requests: int, query: int, context: int, tokens: int, cells: int, number: int = NUM_DRAWN
) -> tuple[Preset, ...]:
    """Draw presets.

    Args:
        requests: The most requests of a batch.
        query: The most new tokens of a request.
        context: The most computed tokens of a request.
        tokens: The most new tokens of a batch.
        cells: The most entries of a block table; requests times blocks of the longest.
        number: How many to draw.
    """
    chance = random.Random(0)  # noqa: S311  # no secret
    axes = [_spread(chance, maximum, number) for maximum in (requests, context, query, tokens)]
    found = []
    for index, (num_reqs, longest, longest_query, num_tokens) in enumerate(zip(*axes, strict=True)):
        room = log_uniform(chance, cells >> 8, cells)
        while not (fitting := _block_sizes_for(num_reqs, longest, room)):
            if chance.random() < 0.5:
                num_reqs = max(num_reqs // 2, 1)  # noqa: PLW2901  # too large with the other
            else:
                longest = max(longest // 2, 1)  # noqa: PLW2901  # likewise
        if chance.random() < 0.5:  # one long prefill, which needs as many tokens
            num_tokens = max(num_tokens, longest_query)  # noqa: PLW2901  # likewise
        count = min(chance.choice((1, 2, 4)), len(fitting))
        found.append(
            Preset(
                f"drawn {index}",
                tuple(sorted(chance.sample(fitting, count))),
                tuple(sorted({log_uniform(chance, 1, 512) for _ in range(3)})),
                max_num_reqs=num_reqs,
                max_query_len=longest_query,
                max_context_len=longest,
                max_num_tokens=max(num_tokens, num_reqs),
            )
        )
    return tuple(found)


def _spread(chance: random.Random, maximum: int, number: int) -> list[int]:
    """Return log-uniform ints from 1 to `maximum`, one of each of `number` parts of the range."""
    shares = [(index + chance.random()) / number for index in range(number)]
    found = [min(int((maximum + 1) ** share), maximum) for share in shares]
    chance.shuffle(found)
    return found


def _block_sizes_for(num_reqs: int, context: int, cells: int) -> list[int]:
    """Return the block sizes with which a block table has at most this many cells."""
    return [size for size in BLOCK_SIZES if num_reqs * -(-context // size) <= cells]


def _with_minimal(*presets: Preset) -> tuple[Preset, ...]:
    """Return presets and twice as many copies of `MINIMAL`, a sixth of these before the others.

    More copies in front would move the indices of presets, with which stored inputs begin.
    """
    first = len(presets) // 3
    return (MINIMAL,) * first + presets + (MINIMAL,) * (2 * len(presets) - first)


ON_HOST: Final = _with_minimal(
    TRAFFIC,
    *make_presets(requests=1024, query=8192, context=131_072, tokens=8192, cells=1 << 16),
)
"""For targets that run compiled code."""

IN_SIMULATOR: Final = _with_minimal(
    *make_presets(requests=16, query=64, context=131_072, tokens=64, cells=1 << 10, number=48),
)
"""For kernels in the simulator, where a thread costs 50 us."""

OF_PAIRS: Final = _with_minimal(
    FEW_PAIRS,
    *make_presets(requests=16, query=64, context=512, tokens=96, cells=1 << 9, number=48),
)
"""For statements about every pair of a query and a key."""
