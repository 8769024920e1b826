"""Batches: the requests of one step, from which all arguments about requests are derived."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

import reference
from conformance.strategies import cached as st
from conformance.strategies.arrays import Array, guarded, guarded_table
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
from conformance.strategies.presets import Preset
from conformance.strategies.traffic import traffic_batches

KINDS = ("decode", "speculative decode", "short extend", "mixed", "extend", "prefill", "none")
ROLES = ("decode", "short extend", "extend", "prefill", "idle")
"""What a request may be in a mixed batch."""

FILLERS = (0, -1, 7, 2**31 - 1)
"""What is where nothing may be read: past the end of a table's row, at padding's positions."""


@dataclasses.dataclass(frozen=True)
class Layout:
    """How a request's positions lie in blocks.

    Attributes:
        block_size: Tokens in a block, on one rank.
        kernel_block_size: Tokens in a block of the table, where kernel blocks split the manager's.
        cp_world_size: Number of context-parallel ranks.
        cp_rank: This rank.
        cp_kv_cache_interleave_size: Consecutive tokens on one rank.
    """

    block_size: int
    kernel_block_size: int | None = None
    cp_world_size: int = 1
    cp_rank: int = 0
    cp_kv_cache_interleave_size: int = 1

    @property
    def blocks_per_kv_block(self) -> int:
        """Return how many of the table's blocks make one of the manager's."""
        return self.block_size // (self.kernel_block_size or self.block_size)

    def num_blocks(self, seq_len: int) -> int:
        """Return the manager's blocks that hold this rank's part of a sequence."""
        return -(-seq_len // (self.block_size * self.cp_world_size))

    def keywords(self) -> dict[str, Any]:
        """Return the keyword arguments of the functions that read a layout."""
        return {name: value for name, value in vars(self).items() if name != "block_size"}


@dataclasses.dataclass(frozen=True)
class Batch:
    """One step, in batch order, padding requests included.

    Attributes:
        query_lens: New tokens of each request.
        num_computed_tokens: Tokens of each request in the cache before the step.
        layout: How positions lie in blocks.
        rows: The blocks of the table that each request owns.
        num_padding_tokens: Tokens past the last request's, added for a CUDA graph.
        extra_columns: Columns of the table that no request needs.
        extra_rows: Rows of the table past the last request's.
        filler: What is in the table and in positions where nothing may be read.
        stride: The step between elements in memory; more than 1 makes every array a strided view.
        raised: How far `max_query_len` and `max_seq_len` lie above the true maxima.
        causal: Whether attention is causal.
        drift: How far `num_computed_tokens_cpu` lies below the tokens before the query, as after
            fast prefill, and above them where there is no query: what an old step left.
        extra_slots: Slots past the last token, which may not be read.
        has_numpy_ints: Whether counts are NumPy ints, as arithmetic on arrays gives them, and
            `causal` NumPy's bool.
    """

    query_lens: tuple[int, ...]
    num_computed_tokens: tuple[int, ...]
    layout: Layout
    rows: tuple[tuple[int, ...], ...]
    num_padding_tokens: int = 0
    extra_columns: int = 0
    extra_rows: int = 0
    filler: int = 0
    stride: int = 1
    raised: int = 0
    causal: bool = True
    drift: int = 0
    extra_slots: int = 0
    has_numpy_ints: bool = False

    @property
    def num_reqs(self) -> int:
        """Return the number of requests, padding included."""
        return len(self.query_lens)

    @property
    def num_padded_reqs(self) -> int:
        """Return the number of requests at the end that have no tokens."""
        return self.num_reqs - max((i + 1 for i, q in enumerate(self.query_lens) if q), default=0)

    @property
    def seq_lens(self) -> tuple[int, ...]:
        """Return each request's sequence length."""
        return tuple(c + q for c, q in zip(self.num_computed_tokens, self.query_lens, strict=True))

    @property
    def starts(self) -> tuple[int, ...]:
        """Return the query starts, `num_reqs + 1` of them."""
        return (0, *accumulate(self.query_lens))

    @property
    def num_tokens(self) -> int:
        """Return the number of tokens that belong to requests."""
        return sum(self.query_lens)

    @property
    def num_actual_tokens(self) -> int:
        """Return the number of tokens in the batch, padding included."""
        return self.num_tokens + self.num_padding_tokens

    def query_start_loc(self) -> Array:
        """Return the query starts as an array."""
        return guarded(self.starts, np.int32, self.stride)

    def positions(self) -> Array:
        """Return every token's position, the filler for padding's."""
        found = [
            c + j
            for c, q in zip(self.num_computed_tokens, self.query_lens, strict=True)
            for j in range(q)
        ]
        return guarded(found + [self.filler] * self.num_padding_tokens, np.int64, self.stride)

    def block_table(self) -> Array:
        """Return the block table, the filler past each row's end."""
        width = max(map(len, self.rows), default=0) + self.extra_columns
        num_rows = self.num_reqs + self.extra_rows
        return guarded_table(self.rows, num_rows, width, self.filler, self.stride)

    def slot_mapping(self) -> Array:
        """Return every token's slot in the cache, -1 for padding's, and 7 for what is no token."""
        slots = reference.compute_slot_mapping(
            self.block_table(),
            self.query_start_loc(),
            self.positions(),
            self.layout.block_size,
            **self.layout.keywords(),
        )
        return guarded(slots.tolist() + [7] * self.extra_slots, np.int64, self.stride)

    def reported_computed_tokens(self) -> list[int]:
        """Return what `num_computed_tokens_cpu` says of each request."""
        pairs = zip(self.num_computed_tokens, self.query_lens, strict=True)
        return [max(c - self.drift, 0) if q else c + self.drift for c, q in pairs]

    def metadata(self) -> reference.CommonAttentionMetadata:
        """Return the batch's attention metadata, as `reference` holds it."""
        starts = self.query_start_loc()
        number: Callable[[int], Any] = np.int32 if self.has_numpy_ints else int
        boolean: Callable[[bool], Any] = np.bool_ if self.has_numpy_ints else bool
        seq_lens = guarded(self.seq_lens, np.int32, self.stride)
        return reference.CommonAttentionMetadata(
            query_start_loc=starts,
            query_start_loc_cpu=starts,
            seq_lens=seq_lens,
            seq_lens_cpu=seq_lens,
            num_computed_tokens_cpu=guarded(self.reported_computed_tokens(), np.int32, self.stride),
            num_reqs=number(self.num_reqs),
            num_actual_tokens=number(self.num_actual_tokens),
            max_query_len=number(max(self.query_lens, default=0) + self.raised),
            max_seq_len=number(max(self.seq_lens, default=0) + self.raised),
            block_table_tensor=self.block_table(),
            slot_mapping=self.slot_mapping(),
            causal=boolean(self.causal),
        )


@functools.cache
def lengths(preset: Preset, maximum: int, layout: Layout) -> st.SearchStrategy[int]:
    """Draw token counts up to `maximum`, often close to a multiple of a block or chunk.

    What matters: the block size, the chunk size, and 8, the tokens of a convolution's program.
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

    What is None is drawn. Batches of real traffic have a `kind` and a first request of their own;
    those that are large along an axis have a first request of their own.

    Args:
        draw: Hypothesis' `draw`.
        preset: The sizes.
        layout: How positions lie in blocks.
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
    # A padded request has no tokens; its sequence length is nothing, or what an old step left.
    left = draw(st.lists(st.sampled_from((0, 0, 1, 5)), min_size=min(num_padding, 3), max_size=3))
    computed += [left[i % len(left)] for i in range(num_padding)]
    is_bare = not any(query_lens) and draw(st.booleans())
    if is_bare:  # padding alone, and a table of no columns
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

    If the preset is large along `BLOCK_IDS`, that size is the last of them. Of each request, so
    many leading tokens are shareable with the first request.
    """
    n = layout.blocks_per_kv_block
    counts = [layout.num_blocks(s) for s in seq_lens]
    total = sum(counts)
    order = draw(st.sampled_from(("ascending", "descending", "shuffled")))
    is_high = draw(st.booleans())
    ids = list(range(1, total + 1))
    if order == "descending":
        ids.reverse()
    elif order == "shuffled":
        np.random.default_rng(draw(st.integers(0, 2**16))).shuffle(ids)
    last = draw(preset.sizes(BLOCK_IDS, st.just(-1)))
    if last >= 0:
        ids = [max(last // n + 1 - i, 0) for i in ids]
    elif is_high:
        ids = [2**31 // n - 1 - i for i in ids]
    rows: list[list[int]] = []
    for i, (start, stop) in enumerate(pairwise(accumulate(counts, initial=0))):
        row = ids[start:stop]
        if i:
            # Only whole blocks, computed in both, can be shared.
            common = min(shareable[i], shareable[0]) // (layout.block_size * layout.cp_world_size)
            row[:common] = rows[0][:common]
        rows.append(row)
    return tuple(tuple(b * n + k for b in row for k in range(n)) for row in rows)


def is_padded(batch: Batch) -> bool:
    """Return whether the last request is padding."""
    return bool(batch.query_lens) and batch.query_lens[-1] == 0


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
"""Coverage goals of a batch that every function about requests must reach."""


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
"""Coverage goals of a metadata that every function that takes one should reach."""


def _of_facts(goals: dict[str, Callable[[Batch], bool]]) -> dict[str, Any]:
    return {name: lambda call, holds=holds: holds(call.facts) for name, holds in goals.items()}


def of_metadata() -> dict[str, Any]:
    """Return coverage goals of a call: those of the metadata that its strategy drew."""
    return _of_facts(METADATA_GOALS)


def of_batch(*names: str) -> dict[str, Any]:
    """Return coverage goals of a call: those of its batch with these names, or all of them."""
    return _of_facts({name: BATCH_GOALS[name] for name in names or BATCH_GOALS})
