"""Batches: the requests of one step, from which all arguments about requests are derived."""

from __future__ import annotations

import functools
from collections.abc import Callable
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from conformance.coverage.presets import Preset
from conformance.strategies import cached as st
from conformance.strategies.batch import Batch, Layout, is_padded
from conformance.strategies.large_batches import (
    BLOCK_IDS,
    BLOCK_SIZE,
    EXCESS,
    PADDED_REQUESTS,
    PADDED_TOKENS,
    SPARE_COLUMNS,
    SPARE_ROWS,
    SPARE_SLOTS,
    large_requests,
)
from conformance.strategies.traffic import traffic_batches

KINDS = ("decode", "speculative decode", "short extend", "mixed", "extend", "prefill", "none")
ROLES = ("decode", "short extend", "extend", "prefill", "idle")
"""The roles of requests in a mixed batch."""

FILLERS = (0, -1, 7, 2**31 - 1)
"""Values that must not be read: past the end of a table row, and in padding positions."""


@functools.cache
def lengths(preset: Preset, maximum: int, layout: Layout) -> st.SearchStrategy[int]:
    """Draw token counts up to `maximum`, often close to a multiple of a block or chunk.

    The third edge is 8, the tokens of a convolution's program.
    """
    edges = {layout.block_size, layout.block_size * preset.chunk_blocks[-1], 8}
    near = [
        st.builds(
            lambda k, d, edge=edge: min(max(k * edge + d, 0), maximum),
            st.integers(0, max(maximum // edge, 1)),
            st.sampled_from((0, -1, 1)),
        )
        for edge in sorted(edges)
        if edge <= maximum
    ]
    return st.one_of(st.integers(0, maximum), *near)


@st.composite
def batches(
    draw: st.DrawFn,
    preset: Preset,
    *,
    layout: Layout | None = None,
    is_shared: bool | None = None,
    kind: str | None = None,
    is_first_idle: bool | None = None,
) -> Batch:
    """Draw a valid batch, with idle and padded requests and padded tokens.

    Arguments that are None are drawn. Batches of real traffic ignore `kind` and `is_first_idle`;
    batches that are large along an axis ignore `is_first_idle`.

    Args:
        draw: Hypothesis' `draw`.
        preset: The sizes.
        layout: The layout of positions in blocks.
        is_shared: Whether some requests share the physical blocks of a common prefix.
        kind: One of `KINDS`.
        is_first_idle: Whether the first request has no tokens.
    """
    if layout is None:
        layout = Layout(draw(preset.sizes(BLOCK_SIZE, st.sampled_from(preset.block_sizes))))
    if preset.axis:
        query_lens, computed = draw(
            large_requests(preset, kind, layout.block_size * layout.cp_world_size)
        )
    elif preset.is_traffic:
        step = draw(traffic_batches())
        query_lens, computed = list(step.query_lens), list(step.num_computed_tokens)
    else:
        kind = draw(st.sampled_from((*KINDS, "none"))) if kind is None else kind
        query_lens, computed = draw(_requests(preset, layout, kind))
        if draw(st.integers(0, 5)) == 5 if is_first_idle is None else is_first_idle:
            query_lens[:1] = [0] * len(query_lens[:1])
    few = st.integers(0, 2) if query_lens else st.sampled_from((0, 2))
    num_padding = draw(preset.sizes(PADDED_REQUESTS, few))
    query_lens += [0] * num_padding
    # A padded request has no tokens; its sequence length is 0, or left by an earlier step.
    left = draw(st.lists(st.sampled_from((0, 0, 1, 5)), min_size=min(num_padding, 3), max_size=3))
    computed += [left[i % len(left)] for i in range(num_padding)]
    is_bare = not any(query_lens) and draw(st.booleans())
    if is_bare:  # only padding, and a table without columns
        computed = [0] * len(computed)
    seq_lens = [c + q for c, q in zip(computed, query_lens, strict=True)]
    if is_shared is None:
        is_shared = draw(st.booleans())
    columns = st.just(0) if is_bare else st.integers(0, 2)
    return Batch(
        tuple(query_lens),
        tuple(computed),
        layout,
        draw(_rows(preset, layout, seq_lens, computed if is_shared else [0] * len(computed))),
        num_padding_tokens=draw(preset.sizes(PADDED_TOKENS, st.integers(0, 3))),
        extra_columns=draw(preset.sizes(SPARE_COLUMNS, columns)),
        extra_rows=draw(preset.sizes(SPARE_ROWS, st.integers(0, 1))),
        filler=draw(st.sampled_from(FILLERS)),
        stride=draw(st.sampled_from((1, 2))),
        raised=draw(preset.sizes(EXCESS, st.sampled_from((0, 3)))),
        causal=draw(st.MOSTLY),
        drift=draw(st.sampled_from((0, 0, 2))),
        extra_slots=draw(preset.sizes(SPARE_SLOTS, st.sampled_from((0, 0, 3)))),
        has_numpy_ints=draw(st.SOMETIMES),
    )


@st.composite
def _requests(
    draw: st.DrawFn, preset: Preset, layout: Layout, kind: str
) -> tuple[list[int], list[int]]:
    """Draw the query lengths and the computed tokens of a batch of one kind."""
    num_reqs = 0 if kind == "none" else draw(st.integers(1, preset.max_num_reqs))
    context = lengths(preset, preset.max_context_len, layout)
    query = lengths(preset, preset.max_query_len, layout)
    uniform = draw(st.integers(2, 4))
    query_lens: list[int] = []
    computed: list[int] = []
    left = preset.max_num_tokens
    for _ in range(num_reqs):
        role = draw(st.sampled_from(ROLES)) if kind == "mixed" else kind
        query_len = {"decode": 1, "speculative decode": uniform, "idle": 0}.get(role)
        if role == "speculative decode" and draw(st.integers(0, 5)) == 5:
            query_len = draw(st.integers(0, 4))
        if query_len is None:
            query_len = draw(st.integers(1, 4) if role == "short extend" else query)
        query_lens.append(min(left, query_len))
        left -= query_lens[-1]
        computed.append(0 if role == "prefill" else draw(context))
    return query_lens, computed


@st.composite
def _rows(
    draw: st.DrawFn, preset: Preset, layout: Layout, seq_lens: list[int], shareable: list[int]
) -> tuple[tuple[int, ...], ...]:
    """Draw the blocks of each request: distinct ids in some order, low or near 2**31.

    If the preset is large along `BLOCK_IDS`, it sets the largest id. `shareable` is the
    number of leading tokens of each request that it may share with the first request.
    """
    n = layout.blocks_per_kv_block
    counts = [layout.num_blocks(s) for s in seq_lens]
    total = sum(counts)
    order = draw(st.sampled_from(("ascending", "descending", "shuffled")))
    is_high = draw(st.booleans())
    numbers = np.arange(1, total + 1)
    if order == "descending":
        numbers = numbers[::-1]
    elif order == "shuffled":
        np.random.default_rng(draw(st.integers(0, 2**16))).shuffle(numbers)
    last = draw(preset.sizes(BLOCK_IDS, st.just(-1)))
    if last >= 0:
        numbers = np.maximum(last // n + 1 - numbers, 0)
    elif is_high:
        numbers = 2**31 // n - 1 - numbers
    if n > 1:
        numbers = np.add.outer(numbers * n, np.arange(n)).ravel()
    ids: tuple[int, ...] = tuple(numbers.tolist())
    stops = accumulate((n * count for count in counts), initial=0)
    rows = [ids[start:stop] for start, stop in pairwise(stops)]
    for i in range(1, len(rows)):
        # Only whole blocks, computed in both, can be shared.
        common = min(shareable[i], shareable[0]) // (layout.block_size * layout.cp_world_size)
        if common:
            rows[i] = rows[0][: n * common] + rows[i][n * common :]
    return tuple(rows)


BATCH_GOALS: dict[str, Callable[[Batch], bool]] = {
    "no requests": lambda b: b.num_reqs == 0,
    "one request": lambda b: b.num_reqs == 1,
    "padded requests at the end": is_padded,
    "padded tokens at the end": lambda b: b.num_padding_tokens > 0,
    "a request of no tokens before one with some": lambda b: any(
        q == 0 and any(b.query_lens[i:]) for i, q in enumerate(b.query_lens)
    ),
    "strided arrays": lambda b: b.stride > 1,
    "a batch of real traffic's size": lambda b: b.num_tokens > 64,
}
"""Coverage goals that every function that takes a batch must reach."""


METADATA_GOALS: dict[str, Callable[[Batch], bool]] = {
    "fewer tokens are computed than are before the query": lambda b: any(
        q and said < c
        for q, c, said in zip(
            b.query_lens, b.num_computed_tokens, b.reported_computed_tokens(), strict=True
        )
    ),
    "an idle request with stale computed tokens": lambda b: b.drift > 0 and 0 in b.query_lens,
    "more slots than tokens": lambda b: b.extra_slots > 0,
    "more rows of the table than requests": lambda b: b.extra_rows > 0,
    "counts are NumPy's": lambda b: b.has_numpy_ints,
}
"""Coverage goals that every function that takes metadata should reach."""


def _of_source(goals: dict[str, Callable[[Batch], bool]]) -> dict[str, Any]:
    return {name: lambda call, holds=holds: holds(call.source) for name, holds in goals.items()}


def of_metadata() -> dict[str, Any]:
    """Return the coverage goals of a call's metadata."""
    return _of_source(METADATA_GOALS)


def of_batch(*names: str) -> dict[str, Any]:
    """Return the coverage goals of a call's batch: those with these names, or all."""
    return _of_source({name: BATCH_GOALS[name] for name in names or BATCH_GOALS})
