"""The size axes of batches, and the requests of batches that are large along one of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from conformance.coverage.presets import Preset
from conformance.coverage.size_axes import Axis
from conformance.strategies import cached as st
from conformance.strategies.batch import Batch

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
RANKS: Final = "context-parallel ranks"
INTERLEAVE: Final = "interleave"
KERNEL_BLOCKS: Final = "kernel blocks of a block"
ROOM: Final = "room in out"
SPLIT_POINTS: Final = "split points"


def request_axes(
    *,
    of: Callable[[Any], Batch] = lambda call: call.source,
    may_be_empty: bool = True,
    last_length: int = 65_537,
) -> dict[str, Axis]:
    """Return the axes of the requests and tokens of calls that are drawn from a batch.

    Args:
        of: Returns the batch of a call.
        may_be_empty: Whether there may be no tokens.
        last_length: The longest query, and the most tokens.
    """
    first = 0 if may_be_empty else 1
    return {
        REQUESTS: Axis(lambda call: of(call).num_reqs - of(call).num_padded_reqs, first=first),
        TOKENS: Axis(lambda call: of(call).num_tokens, last_length, first=first),
        QUERY_LENGTH: Axis(
            lambda call: max(of(call).query_lens, default=0), last_length, first=first
        ),
        PADDED_REQUESTS: Axis(lambda call: of(call).num_padded_reqs),
    }


def batch_axes(
    *, of: Callable[[Any], Batch] = lambda call: call.source, may_be_empty: bool = True
) -> dict[str, Axis]:
    """Return the axes of calls with the tokens and the block table of a batch.

    Args:
        of: Returns the batch of a call.
        may_be_empty: Whether there may be no tokens.
    """
    return {
        **request_axes(of=of, may_be_empty=may_be_empty),
        COMPUTED_TOKENS: Axis(lambda call: _context(of(call)), 2**31 - 32),
        PADDED_TOKENS: Axis(lambda call: of(call).num_padding_tokens),
        SPARE_COLUMNS: Axis(lambda call: of(call).extra_columns),
        SPARE_ROWS: Axis(lambda call: of(call).extra_rows),
        BLOCK_IDS: Axis(
            lambda call: max(map(max, filter(None, of(call).rows)), default=0), 2**31 - 1
        ),
    }


def metadata_axes(*, may_be_empty: bool = True) -> dict[str, Axis]:
    """Return the axes of calls with the metadata of a batch, which also has slots and maxima.

    Args:
        may_be_empty: Whether there may be no tokens.
    """
    return {
        **batch_axes(may_be_empty=may_be_empty),
        SPARE_SLOTS: Axis(lambda call: call.source.extra_slots),
        EXCESS: Axis(lambda call: call.source.raised, 2**30),
    }


def _context(batch: Batch) -> int:
    """Return the most computed tokens of a request that has new ones."""
    pairs = zip(batch.query_lens, batch.num_computed_tokens, strict=True)
    return max((computed for query_len, computed in pairs if query_len), default=0)


@st.composite
def large_requests(
    draw: st.DrawFn, preset: Preset, kind: str | None, block_tokens: int
) -> tuple[list[int], list[int]]:
    """Draw query lengths and computed tokens of a preset that is large along an axis.

    They come from a seed, since Hypothesis cannot draw thousands of numbers. Each decode has one
    token, or two if it is speculative. Other requests share the tokens at random, with at least one
    each if there are enough. A kind that contradicts the axis is ignored. Contexts are longer than
    a block of all ranks, which has `block_tokens` tokens.
    """
    num_reqs = draw(preset.sizes(REQUESTS, st.just(3)))
    if not num_reqs:
        return [], []
    num_tokens = draw(preset.sizes(TOKENS, st.just(num_reqs + 4)))
    num_tokens += 2 * draw(preset.sizes(SPLIT_POINTS, st.just(0)))
    longest = draw(preset.sizes(QUERY_LENGTH, st.just(num_tokens)))
    most_computed = draw(preset.sizes(COMPUTED_TOKENS, st.just(block_tokens + 4)))
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
