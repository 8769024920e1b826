"""The batches that are timed: four kinds of any size, and batches of a trace."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from conformance.engine.trace import DEFAULT_TRACE, SETTINGS, trace_steps

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

KINDS: Final = ("decode", "speculative", "mixed", "prefill")
SIZES: Final = (1, 8, 64, 256, 1024)
"""The numbers of requests in the timed batches."""

MAX_CONTEXT: Final = 8000
"""The longest sequence, in tokens."""

BLOCK_SIZE: Final = 16
NUM_GROUPS: Final = 4
"""KV cache groups, each with blocks of `BLOCK_SIZE`."""

NUM_DRAFTS: Final = 3
"""Draft tokens of a speculative decode."""

TOKEN_BUDGET: Final = 8192
"""The tokens of a step that prefills share; on average each gets at least `MIN_CHUNK`."""

MIN_CHUNK: Final = 16


@dataclass(frozen=True)
class Batch:
    """One step's batch, in batch order: decodes, then extends, then prefills.

    Attributes:
        kind: One of `KINDS`, or where in a trace it was cut.
        query_lens: int32[num_reqs], new tokens.
        num_computed_tokens: int32[num_reqs], tokens in the cache before the step.
        decode_threshold: The most new tokens of a decode.
    """

    kind: str
    query_lens: Array
    num_computed_tokens: Array
    decode_threshold: int = 1
    seed: int = field(default=0, repr=False)

    @property
    def name(self) -> str:
        """The name of the batch in tables and files."""
        return f"{self.kind}, {self.num_reqs}"

    @property
    def num_reqs(self) -> int:
        """How many requests it has."""
        return len(self.query_lens)

    @property
    def num_tokens(self) -> int:
        """How many new tokens it has."""
        return int(self.query_lens.sum())

    @cached_property
    def seq_lens(self) -> Array:
        """int32[num_reqs], computed and new tokens."""
        return (self.num_computed_tokens + self.query_lens).astype(np.int32)

    @cached_property
    def starts(self) -> Array:
        """int32[num_reqs + 1], each request's first token, then their number."""
        return np.concatenate([[0], np.cumsum(self.query_lens)]).astype(np.int32)

    @cached_property
    def positions(self) -> Array:
        """int64[num_tokens], the position of each new token in its sequence."""
        within = np.arange(self.num_tokens) - np.repeat(self.starts[:-1], self.query_lens)
        found: Array = np.repeat(self.num_computed_tokens, self.query_lens) + within
        return found.astype(np.int64)

    @property
    def num_columns(self) -> int:
        """How many blocks a row of a block table has."""
        longest = max(MAX_CONTEXT, int(self.seq_lens.max()))
        return -(-longest // BLOCK_SIZE)

    @cached_property
    def num_blocks(self) -> Array:
        """int64[num_reqs], blocks of each sequence."""
        return -(-self.seq_lens.astype(np.int64) // BLOCK_SIZE)

    @cached_property
    def block_ids(self) -> Array:
        """int32[blocks of all], the blocks of one request after another, from a pool."""
        return self._random.permutation(int(self.num_blocks.sum())).astype(np.int32) + 1

    @cached_property
    def block_table(self) -> Array:
        """int32[num_reqs, num_columns], the blocks of each request, nulls after them."""
        table = np.zeros((self.num_reqs, self.num_columns), np.int32)
        table[np.arange(self.num_columns) < self.num_blocks[:, None]] = self.block_ids
        return table

    @cached_property
    def arrival(self) -> Array:
        """int64[num_reqs], the requests in order of arrival: some are out of batch order."""
        order = np.arange(self.num_reqs)
        moved = np.flatnonzero(self._random.random(self.num_reqs) < 0.2)
        order[moved] = self._random.permutation(moved)
        return order

    @property
    def _random(self) -> np.random.Generator:
        return np.random.default_rng([self.seed, self.num_reqs])


def make_batch(kind: str, num_reqs: int) -> Batch:
    """Make a batch of a kind, the same one in each call.

    Args:
        kind: One of `KINDS`: all decode; all verify `NUM_DRAFTS` draft tokens; three of four
            decode, and the rest compute a further or a first chunk of their prompt; all compute
            their first.
        num_reqs: How many requests it has.

    Returns:
        The batch. Contexts have up to `MAX_CONTEXT` tokens. Prompt chunks share `TOKEN_BUDGET`.

    Example:
        >>> make_batch("speculative", 3).query_lens.tolist()
        [4, 4, 4]
    """
    random = np.random.default_rng([KINDS.index(kind), num_reqs])
    threshold = 1 + NUM_DRAFTS if kind == "speculative" else 1
    query_lens = np.full(num_reqs, threshold)
    num_chunks = {"mixed": -(-num_reqs // 4), "prefill": num_reqs}.get(kind, 0)
    if num_chunks:
        longest = max(2 * TOKEN_BUDGET // num_chunks, 2 * MIN_CHUNK)
        lengths = random.integers(threshold + 1, min(longest, MAX_CONTEXT) + 1, num_chunks)
        query_lens[num_reqs - num_chunks :] = lengths
    computed = random.integers(1, MAX_CONTEXT - query_lens + 1, num_reqs)
    num_first = num_reqs if kind == "prefill" else num_chunks // 2
    computed[num_reqs - num_first :] = 0
    return Batch(kind, query_lens.astype(np.int32), computed.astype(np.int32), threshold)


def trace_batches(path: Path | None, num_batches: int) -> list[Batch]:
    """Cut batches from a run of a trace, evenly spread over its steps.

    Args:
        path: The trace; None: the project's own.
        num_batches: The number of batches.

    Raises:
        ValueError: A trace that cannot be read.
    """
    settings = dataclasses.replace(SETTINGS, token_budget=TOKEN_BUDGET, max_num_seqs=256)
    steps = trace_steps(path or DEFAULT_TRACE, 400, settings)
    picked = np.linspace(0, len(steps) - 1, num_batches + 2).astype(int)[1:-1]
    return [
        Batch(
            f"trace, step {at}",
            np.array(steps[at].query_lens, np.int32),
            np.array(steps[at].num_computed_tokens, np.int32),
            settings.decode_threshold,
        )
        for at in picked.tolist()
    ]


def all_batches(
    kinds: Sequence[str], sizes: Sequence[int], trace: Path | None, num_of_trace: int
) -> list[Batch]:
    """Make all batches of these kinds and sizes, and some of a trace."""
    made = [make_batch(kind, size) for kind in kinds for size in sizes]
    return made + trace_batches(trace, num_of_trace)
