"""Attention layers in a step, and calls of the functions that make metadata for them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from conformance.coverage.presets import FEW_PAIRS, MINIMAL, Preset
from conformance.strategies import cached as st
from conformance.strategies.batch import Batch, Layout
from conformance.strategies.batches import batches
from conformance.strategies.dense_layer import Layer
from conformance.values.call import Call

FEW_TOKENS = dataclasses.replace(
    FEW_PAIRS,
    name="few tokens",
    block_sizes=(4, 8),
    chunk_blocks=(1, 2),
    max_query_len=12,
    max_context_len=36,
    max_num_tokens=28,
)
"""For tests that compute the attention of every token: few tokens, in long sequences."""

PRESETS = (MINIMAL, FEW_TOKENS)

HEADS = ((2, 1, 2), (2, 2, 2), (4, 2, 3))
"""Numbers of query heads, numbers of KV heads, and head sizes."""

KINDS = (
    *("mixed", "extend", "speculative decode", "mixed", "extend", "mixed", "extend"),
    *("decode", "short extend", "prefill"),
)
"""Kinds of batches that have tokens; those with a context are listed more than once."""


@dataclasses.dataclass(frozen=True)
class Example:
    """An attention layer in a step, and a call that derives metadata from the step.

    Attributes:
        layer: The layer.
        call: The call.
        logits_tokens: The tokens that have logits, for fast prefill.
    """

    layer: Layer
    call: Call
    logits_tokens: tuple[int, ...] = ()

    @property
    def batch(self) -> Batch:
        """Return the step."""
        return self.layer.batch


def shuffled_ids(count: int, seed: int) -> Iterator[int]:
    """Return the block ids of a pool in random order, without the null block.

    >>> sorted(shuffled_ids(3, seed=0))
    [1, 2, 3]
    """
    order = np.random.default_rng(seed).permutation(count) + 1
    return iter(order.tolist())


def in_pool(batch: Batch, ids: Iterator[int]) -> Batch:
    """Return a batch with its blocks replaced from a pool; shared blocks stay shared."""
    n = batch.layout.blocks_per_kv_block
    known: dict[int, int] = {}
    rows = []
    for row in batch.rows:
        for block in row:
            if block // n not in known:
                known[block // n] = next(ids)
        rows.append(tuple(known[block // n] * n + block % n for block in row))
    return dataclasses.replace(batch, rows=tuple(rows))


def pool_size(batch: Batch) -> int:
    """Return the number of manager blocks of a batch, plus two that it does not use."""
    n = batch.layout.blocks_per_kv_block
    return len({block // n for row in batch.rows for block in row}) + 2


@st.composite
def layers(
    draw: st.DrawFn,
    preset: Preset,
    *,
    layout: Layout | None = None,
    is_causal: bool | None = None,
    kind: str | None = None,
) -> Layer:
    """Draw an attention layer in a step, with its blocks scattered over a small cache."""
    kind = draw(st.sampled_from(KINDS)) if kind is None else kind
    has_prefix = draw(st.SOMETIMES)
    batch = draw(batches(preset, layout=layout, is_shared=False if has_prefix else None, kind=kind))
    if has_prefix:
        # Which requests have a prefix in common with the first one.
        others = draw(st.sets(st.integers(1, 3), min_size=1))
        batch = _behind_a_prefix(batch, others)
    if is_causal is not None:
        batch = dataclasses.replace(batch, causal=is_causal)
    seed = draw(st.integers(0, 2**16))
    count = pool_size(batch)
    batch = in_pool(batch, shuffled_ids(count, seed))
    window = draw(st.sampled_from((None, None, 1, 2, 5))) if batch.causal else None
    return Layer(batch, count + 1, draw(st.sampled_from(HEADS)), seed, window)


def _behind_a_prefix(batch: Batch, others: set[int]) -> Batch:
    """Return a batch whose first request and some others start with one more, shared, block."""
    layout, n = batch.layout, batch.layout.blocks_per_kv_block
    new = n * (1 + max((block // n for row in batch.rows for block in row), default=0))
    have = [i in {0, *others} for i in range(batch.num_reqs)]
    length = layout.block_size * layout.cp_world_size
    pairs = zip(batch.num_computed_tokens, have, strict=True)
    rows = zip(batch.rows, have, strict=True)
    return dataclasses.replace(
        batch,
        num_computed_tokens=tuple(c + length * has for c, has in pairs),
        rows=tuple((*range(new, new + n), *row) if has else row for row, has in rows),
    )


def slots_call(step: Batch, **changes: Any) -> Call:
    """Return the call that computes a step's slots."""
    arguments = {
        "block_table": step.block_table(),
        "query_start_loc": step.query_start_loc(),
        "positions": step.positions(),
        "block_size": step.layout.block_size,
        **step.layout.keywords(),
        **changes,
    }
    return Call("compute_slot_mapping", arguments, step)


@st.composite
def layers_in_kernel_blocks(draw: st.DrawFn, preset: Preset) -> Layer:
    """Draw layers on one rank, with the manager's blocks or kernel blocks in the table."""
    size = draw(st.sampled_from((*preset.block_sizes, 4)))
    kernel = draw(st.sampled_from((None, 1, 2, 2) if size % 2 == 0 else (None, 1)))
    return draw(layers(preset, layout=Layout(size, kernel)))


@st.composite
def layers_on_ranks(draw: st.DrawFn, preset: Preset, *, kind: str | None = None) -> Layer:
    """Draw layers whose positions are interleaved over several context-parallel ranks."""
    layout = Layout(
        draw(st.sampled_from((2, 4))),
        draw(st.sampled_from((None, 2))),
        cp_world_size=draw(st.sampled_from((2, 3, 4))),
        cp_kv_cache_interleave_size=draw(st.sampled_from((1, 2, 2))),
    )
    return draw(layers(preset, layout=layout, kind=kind))


LAYER_GOALS: dict[str, Callable[[Layer], bool]] = {
    "a context": lambda layer: layer.reads_context,
    "a context in scattered blocks": lambda layer: layer.reads_context and layer.is_scattered,
    "a prefix in shared blocks": lambda layer: any(layer.shared),
    "a sliding window that hides keys": lambda layer: layer.hides_keys,
    "padded tokens": lambda layer: layer.batch.num_padding_tokens > 0 < layer.batch.num_tokens,
    "not causal": lambda layer: not layer.batch.causal and layer.batch.num_tokens > 0,
    "kernel blocks": lambda layer: (
        layer.batch.layout.blocks_per_kv_block > 1 and layer.reads_context
    ),
    "an interleave of more than 1": lambda layer: (
        layer.batch.layout.cp_kv_cache_interleave_size > 1 and layer.reads_context
    ),
}
"""Coverage goals of a layer in a step."""


def of_layer(*names: str) -> dict[str, Any]:
    """Return coverage goals of an example's layer, with the prefix `attention:` in their names.

    Args:
        *names: Names in `LAYER_GOALS`.
    """

    def lifted(holds: Callable[[Layer], bool]) -> Callable[[Any], bool]:
        return lambda example: holds(example if isinstance(example, Layer) else example.layer)

    return {f"attention: {name}": lifted(LAYER_GOALS[name]) for name in names}


IN_ANY_STEP = (
    *("a context in scattered blocks", "a prefix in shared blocks"),
    *("a sliding window that hides keys", "padded tokens"),
)
"""Names of `LAYER_GOALS` that any step may reach; only some laws have them as goals."""
