"""A paged KV cache that is NaN wherever a request may not read.

A layer's keys and values, those of the context too, are written only by slot. They are read only
through a block table, by `reference.paged_attention`, for one request at a time: everything that
was not written for that request is NaN. If slots, block tables and lengths are right, the output is
the layer's dense attention; if not, it is NaN or depends on wrong tokens of the request.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from hypothesis.strategies import SearchStrategy

import reference
from conformance.contracts.check import Check, property_check
from conformance.coverage.goals import Goals
from conformance.coverage.presets import Preset
from conformance.strategies.attention import PRESETS
from conformance.strategies.batch import Batch
from conformance.strategies.dense_layer import NO_REQUEST, Array, Layer, State
from conformance.targets.target import REFERENCE, Target


class PoisonedCache:
    """A layer's cache on one rank.

    Args:
        layer: The layer.
        array: Its memory, [2, num_blocks, block_size, num_kv_heads, head_size] of float32, already
            poisoned; None to allocate it, with the blocks that the layer's table lists.
        may_read: bool[num_blocks, block_size, num_reqs + 1], which requests may read each slot, as
            `Layer.readers_of` returns it; None if nothing has been written.
    """

    def __init__(
        self, layer: Layer, array: Array | None = None, may_read: Array | None = None
    ) -> None:
        self.layer = layer
        if array is None:
            count = layer.num_blocks * layer.batch.layout.blocks_per_kv_block
            shape = (2, count, layer.kernel_block_size, *layer.heads[1:])
            array = np.full(shape, np.nan, np.float32)
        self.array = array
        if may_read is None:
            may_read = np.zeros((*array.shape[1:3], layer.batch.num_reqs + 1), np.bool_)
        self.may_read = may_read

    @classmethod
    def with_context(cls, layer: Layer) -> PoisonedCache:
        """Return a new cache of a layer, with the context from earlier steps."""
        cache = cls(layer)
        cache.remember()
        return cache

    def in_blocks_of(self, layer: Layer) -> PoisonedCache:
        """Return the same memory in smaller blocks, as another layer's table lists them."""
        size = layer.kernel_block_size
        array = self.array.reshape(2, -1, size, *self.array.shape[3:])
        return PoisonedCache(layer, array, self.may_read.reshape(*array.shape[1:3], -1))

    def write(self, step: Batch, slots: Any, tokens: Any = slice(None)) -> None:
        """Write keys and values of a step's tokens to their slots; further slots are ignored."""
        rows = self.layer.tokens_of(step)[:, tokens]
        slots = as_numpy(slots)[: rows.shape[1]]
        reference.write_kv_cache(rows[0], rows[1], self.array, slots)
        is_stored = slots != reference.PAD_SLOT_ID
        blocks, offsets = np.divmod(slots[is_stored], self.array.shape[2])
        self.may_read[blocks, offsets] = self.layer.readers_of(step)[tokens][is_stored]

    def remember(self) -> None:
        """Write the context, to its slots in the earlier step."""
        self.write(self.layer.earlier, self.layer.earlier.slot_mapping())

    def attend(self, metadata: Any, tokens: Any = slice(None), **keywords: Any) -> State:
        """Return the attention of tokens of the layer's step, computed from a metadata object.

        The rows of each request come from a call in which all that it may not read is NaN.
        """
        queries, owners = self.layer.queries[tokens], self.layer.owners[tokens]
        output = np.zeros(queries.shape)
        lse = np.full(output.shape[:2], -np.inf)
        # Padding reads nothing from any request's cache, so it needs no iteration of its own.
        for request in sorted({*owners.tolist()} - {NO_REQUEST}) or [NO_REQUEST]:
            found = reference.paged_attention(
                queries,
                self.as_read_by(request),
                metadata,
                sliding_window=self.layer.window,
                **keywords,
            )
            rows = (owners == request) | (owners == NO_REQUEST)
            output[rows], lse[rows] = (state[rows] for state in found)
        return output, lse

    def as_read_by(self, request: int) -> Array:
        """Return the cache as a request may read it: NaN wherever it may not."""
        return np.where(self.may_read[..., request, None, None], self.array, np.nan)


def attention_law(
    function: str,
    examples: Callable[[Preset], SearchStrategy[Any]],
    *,
    goals: Goals,
    has_kernel: bool = False,
) -> Callable[[Callable[[Target, Any], None]], Check]:
    """Make a check of attention that runs on `reference` and a target; see `property_check`."""

    def decorate(body: Callable[[Target, Any], None]) -> Check:
        @functools.wraps(body)
        def of_both(target: Target, example: Any) -> None:
            __tracebackhide__ = True
            for twin in (REFERENCE, target):
                body(twin, example)

        made = property_check(
            function, examples, goals=goals, has_kernel=has_kernel, presets=PRESETS
        )
        return made(of_both)

    return decorate


def as_numpy(value: Any) -> Any:
    """Return an array of either twin as NumPy's; on the CPU it is the same memory."""
    return value.cpu().numpy() if isinstance(value, torch.Tensor) else value


def joined(states: Sequence[State]) -> State:
    """Return the attention of consecutive tokens, one part after the other.

    >>> state = np.zeros((2, 1, 3)), np.zeros((2, 1))
    >>> [array.shape for array in joined([state, state])]
    [(4, 1, 3), (4, 1)]
    """
    outputs, lses = zip(*states, strict=True)
    return np.concatenate(outputs), np.concatenate(lses)


def merged(states: Sequence[State]) -> State:
    """Merge the attention over each rank's keys into that over all keys."""
    outputs, lses = zip(*states, strict=True)
    return reference.merge_attention_states(np.stack(outputs), np.stack(lses))
