"""The size axes of batches, and the requests of batches that are large along one of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import numpy as np

from conformance.size_axes import Axis
from conformance.strategies import cached as st
from conformance.strategies.presets import Preset

if TYPE_CHECKING:
    from conformance.strategies.batches import Batch

REQUESTS: Final = "requests"
TOKENS: Final = "tokens"
QUERY_LENGTH: Final = "query length"
COMPUTED_TOKENS: Final = "computed tokens"
PADDED_REQUESTS: Final = "padded requests"
PADDED_TOKENS: Final = "padded tokens"
SPARE_COLUMNS: Final = "spare columns of the table"
SPARE_ROWS: Final = "spare rows of the table"
SPARE_SLOTS: Final = "slots past the last token"
EXCESS: Final = "excess of max_query_len"
BLOCK_SIZE: Final = "block size"
BLOCK_IDS: Final = "block ids"

SLOW: Final = "`reference` takes too long for 65,536"


def batch_axes(*, may_be_empty: bool = True, last_count: int = 4097) -> dict[str, Axis]:
    """Return the axes of calls whose facts are a `Batch`.

    Args:
        may_be_empty: Whether there may be no tokens.
        last_count: The largest numbers of requests and tokens.
    """
    least = 0 if may_be_empty else 1

    def count(size: Callable[[Batch], int], first: int = 0) -> Axis:
        return Axis(lambda call: size(call.facts), last_count, SLOW, first)

    return {
        REQUESTS: count(lambda b: b.num_reqs - b.num_padded_reqs, least),
        TOKENS: count(lambda b: b.num_tokens, least),
        QUERY_LENGTH: count(lambda b: max(b.query_lens, default=0), least),
        COMPUTED_TOKENS: Axis(lambda call: _context(call.facts), 2**31 - 32),
        PADDED_REQUESTS: count(lambda b: b.num_padded_reqs),
        PADDED_TOKENS: count(lambda b: b.num_padding_tokens),
        SPARE_COLUMNS: Axis(lambda call: call.facts.extra_columns, 65_537),
        SPARE_ROWS: Axis(lambda call: call.facts.extra_rows, 65_537),
        BLOCK_IDS: Axis(
            lambda call: max(map(max, filter(None, call.facts.rows)), default=0), 2**31 - 1
        ),
    }


def metadata_axes(*, may_be_empty: bool = True, last_count: int = 4097) -> dict[str, Axis]:
    """Return the axes of calls with the metadata of a batch, which also has slots and maxima.

    Args:
        may_be_empty: Whether there may be no tokens.
        last_count: The largest numbers of requests and tokens.
    """
    return {
        **batch_axes(may_be_empty=may_be_empty, last_count=last_count),
        SPARE_SLOTS: Axis(lambda call: call.facts.extra_slots, 65_537),
        EXCESS: Axis(lambda call: call.facts.raised, 2**31 - 2**16),
    }


def _context(batch: Batch) -> int:
    """Return the most computed tokens of a request that has new ones."""
    pairs = zip(batch.query_lens, batch.num_computed_tokens, strict=True)
    return max((computed for query_len, computed in pairs if query_len), default=0)


@st.composite
def large_requests(
    draw: st.DrawFn, preset: Preset, kind: str | None
) -> tuple[list[int], list[int]]:
    """Draw query lengths and computed tokens of a preset that is large along an axis.

    They come from a seed, since Hypothesis cannot draw thousands of numbers. Each decode has one
    token, or two if it is speculative. Other requests share the tokens at random, with one each if
    there are so many. A kind that contradicts the axis is ignored.
    """
    num_reqs = draw(preset.sizes(REQUESTS, st.just(3)))
    if not num_reqs:
        return [], []
    num_tokens = draw(preset.sizes(TOKENS, st.just(num_reqs + 4)))
    longest = draw(preset.sizes(QUERY_LENGTH, st.just(num_tokens)))
    most_computed = draw(preset.sizes(COMPUTED_TOKENS, st.just(20)))
    seed = draw(st.integers(0, 2**16))
    chance = np.random.default_rng(seed)
    if preset.axis in {TOKENS, QUERY_LENGTH, COMPUTED_TOKENS}:
        kind = None
    if kind in {"decode", "speculative decode"}:
        query_lens = np.full(num_reqs, 1 if kind == "decode" else 2)
    else:
        least = int(num_tokens >= num_reqs)
        shares = chance.dirichlet(np.full(num_reqs, 0.5))
        query_lens = least + chance.multinomial(num_tokens - least * num_reqs, shares)
    if preset.axis == QUERY_LENGTH:
        query_lens = np.minimum(query_lens, longest)
        query_lens[chance.integers(num_reqs)] = longest
    if seed % 2 == 0:  # decodes come first
        query_lens.sort()
    computed = chance.integers(0, min(most_computed, 40), num_reqs, endpoint=True)
    if kind == "prefill":
        computed[:] = 0
    else:
        computed[chance.choice(np.flatnonzero(query_lens == query_lens.max()))] = most_computed
    return query_lens.tolist(), computed.tolist()
