"""An attention layer in one step, and its dense attention.

A `Layer` has queries, keys and values for every token of a batch. It computes their attention
request by request with an explicit mask, as the expected result of paged attention.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

import reference
from conformance.strategies.batch import Batch

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
State: TypeAlias = "tuple[Array, Array]"
"""The result of attention: the output, and the log-sum-exp."""

NO_REQUEST = -1
"""The request of a padding token; as an index, the last column of `Layer.readers_of`."""

TOLERANCE = 1e-12
"""The largest difference of float64 sums of the same numbers in another order."""


@dataclasses.dataclass(frozen=True)
class Layer:
    """An attention layer in a step.

    Attributes:
        batch: The step, with the blocks of the layer's KV cache group, in a small cache.
        num_blocks: The manager's blocks in that cache, the null block included.
        heads: The number of query heads, the number of KV heads, and the head size.
        seed: The seed of queries, keys and values.
        window: The latest positions that a token attends to, its own included; None: all.
        num_freed_tokens: The number of leading positions of each request, before its window, whose
            blocks were freed.
        chunk: The chunk size of chunked local attention, in tokens; None: no chunks.
        query_seed: A second seed of the queries, which differ between layers that share a cache.
    """

    batch: Batch
    num_blocks: int
    heads: tuple[int, int, int]
    seed: int = 0
    window: int | None = None
    num_freed_tokens: tuple[int, ...] = ()
    chunk: int | None = None
    query_seed: int = 0

    @functools.cached_property
    def shared(self) -> tuple[int, ...]:
        """Return how many leading positions of each request are in the first one's blocks."""
        rows, layout = self.batch.rows, self.batch.layout
        if not rows or any(self.num_freed_tokens):  # freed blocks are null blocks
            return (0,) * len(rows)
        pairs = [zip(rows[0], row, strict=False) for row in rows[1:]]
        in_common = [len([*itertools.takewhile(lambda ab: ab[0] == ab[1], p)]) for p in pairs]
        length = layout.block_size * layout.cp_world_size
        return 0, *(n // layout.blocks_per_kv_block * length for n in in_common)

    @functools.cached_property
    def owners(self) -> Array:
        """Return the request of each of the step's tokens, `NO_REQUEST` for padding."""
        batch = self.batch
        found = np.repeat(np.arange(batch.num_reqs), batch.query_lens)
        return np.concatenate([found, np.full(batch.num_padding_tokens, NO_REQUEST)])

    @functools.cached_property
    def content(self) -> list[Array]:
        """Return each request's keys and values, [2, seq_len, num_kv_heads, head_size]."""
        rng = np.random.default_rng(self.seed)
        lens = self.batch.seq_lens
        found = [rng.standard_normal((2, s, *self.heads[1:]), np.float32) for s in lens]
        for one, shared in zip(found, self.shared, strict=True):
            one[:, :shared] = found[0][:, :shared]
        return found

    @functools.cached_property
    def queries(self) -> Array:
        """Return each token's query, [num_actual_tokens, num_heads, head_size], NaN for padding."""
        rng = np.random.default_rng((self.seed, self.query_seed))
        num_heads, _, size = self.heads
        found = rng.standard_normal((self.batch.num_actual_tokens, num_heads, size))
        found[self.batch.num_tokens :] = np.nan
        return found

    @functools.cached_property
    def earlier(self) -> Batch:
        """Return an earlier step that wrote the context of the requests that have tokens now.

        The first request wrote the tokens in its blocks, and freed tokens are in no block.
        """
        batch = self.batch
        first = [
            max(a, b)
            for a, b in zip(self.shared, self.num_freed_tokens or self.shared, strict=True)
        ]
        ends = [
            c if q or not i else f
            for i, (c, q, f) in enumerate(
                zip(batch.num_computed_tokens, batch.query_lens, first, strict=True)
            )
        ]
        return dataclasses.replace(
            batch,
            query_lens=tuple(max(e - f, 0) for e, f in zip(ends, first, strict=True)),
            num_computed_tokens=tuple(first),
            num_padding_tokens=0,
            extra_slots=0,
        )

    def tokens_of(self, step: Batch) -> Array:
        """Return the keys and values of a step's tokens, with NaN for padding.

        The step is the layer's, or an earlier one of the same requests. The shape is [2,
        num_actual_tokens, num_kv_heads, head_size].
        """
        pairs = zip(self.content, step.num_computed_tokens, step.query_lens, strict=True)
        parts = [one[:, c : c + q] for one, c, q in pairs]
        padding = np.full((2, step.num_padding_tokens, *self.heads[1:]), np.nan, np.float32)
        return np.concatenate([*parts, padding], axis=1)

    def readers_of(self, step: Batch) -> Array:
        """Return which requests may read each token of a step, bool[tokens, num_reqs + 1].

        The step is the layer's, or an earlier one of the same requests. A token is read by its own
        request; one of the first request also by those that share it as a prefix. Padding is not
        read, and `NO_REQUEST`, the last column, reads nothing.
        """
        requests = np.repeat(np.arange(step.num_reqs), step.query_lens)
        positions = step.positions()[: step.num_tokens, None]
        found = np.zeros((step.num_actual_tokens, step.num_reqs + 1), np.bool_)
        found[np.arange(step.num_tokens), requests] = True
        is_prefix = (requests == 0)[:, None] & (positions < np.array(self.shared, np.int64))
        found[: step.num_tokens, :-1] |= is_prefix
        return found

    def mask(self, request: int) -> Array:
        """Return which positions each token of a request may see, bool[query_len, seq_len]."""
        seq_len, query_len = self.batch.seq_lens[request], self.batch.query_lens[request]
        key = np.arange(seq_len)
        position = key[seq_len - query_len :, None]
        if not self.batch.causal:
            return np.full((query_len, seq_len), fill_value=True)
        found = key <= position
        if self.window is not None:
            found &= key > position - self.window
        if self.chunk is not None:
            found &= key // self.chunk == position // self.chunk
        return np.asarray(found)

    @functools.cached_property
    def dense(self) -> State:
        """Return each token's attention, computed from the whole sequences."""
        batch = self.batch
        output = np.zeros(self.queries.shape)
        lse = np.full(output.shape[:2], -np.inf)
        for i, (keys, values) in enumerate(self.content):
            rows = slice(batch.starts[i], batch.starts[i + 1])
            output[rows], lse[rows] = reference.dense_attention(
                self.queries[rows], keys, values, self.mask(i)
            )
        return output, lse

    def assert_close_to_dense(self, found: State, tokens: Sequence[int] | None = None) -> None:
        """Check that attention equals the dense attention of the layer's tokens.

        Args:
            found: The computed attention.
            tokens: The token of each row; None: all, in order.

        Raises:
            AssertionError: It differs; the message names the token by its request and position.
        """
        __tracebackhide__ = True
        rows = [*range(self.batch.num_actual_tokens)] if tokens is None else [*tokens]
        expected = tuple(state[rows] for state in self.dense)
        assert [state.shape for state in expected] == [state.shape for state in found]
        if all(map(_is_close, found, expected)):
            return
        for row, token in enumerate(rows):
            (want, want_lse), (got, got_lse) = (
                [s[row] for s in states] for states in (expected, found)
            )
            if not (_is_close(got, want) and _is_close(got_lse, want_lse)):
                raise AssertionError(
                    f"attention of {self.name(token)} is {got.tolist()} (lse {got_lse.tolist()}), "
                    f"but should be {want.tolist()} (lse {want_lse.tolist()})"
                )

    def name(self, token: int) -> str:
        """Return a description of a token by its request and position."""
        request = self.owners[token]
        if request == NO_REQUEST:
            return f"token {token}, padding"
        position = self.batch.num_computed_tokens[request] + token - self.batch.starts[request]
        return f"token {token} (request {request}, position {position})"

    @property
    def reads_context(self) -> bool:
        """Return whether a request with new tokens has a context from an earlier step."""
        pairs = zip(self.batch.query_lens, self.batch.num_computed_tokens, strict=True)
        return any(q and c for q, c in pairs)

    @property
    def is_scattered(self) -> bool:
        """Return whether some request's block ids are not in ascending order."""
        return any(a > b for row in self.batch.rows for a, b in itertools.pairwise(row))

    @property
    def hides_keys(self) -> bool:
        """Return whether a sliding window hides earlier tokens from some token."""
        pairs = zip(self.batch.query_lens, self.batch.seq_lens, strict=True)
        return self.window is not None and any(q and s > self.window for q, s in pairs)

    @property
    def kernel_block_size(self) -> int:
        """Return the number of positions in a block of the table."""
        return self.batch.layout.kernel_block_size or self.batch.layout.block_size


def _is_close(got: Array, want: Array) -> bool:
    """Return whether numbers are equal within `TOLERANCE`; NaN never is."""
    return np.allclose(got, want, rtol=0, atol=TOLERANCE)
