"""The batches of scopes: requests with bounded numbers of new and computed tokens."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, TypeAlias

import reference
from conformance.arrays.guard_bands import Array, guarded
from conformance.strategies.batch import Batch, Layout
from kvtwin.fuzz.exhaustive import spaces as sp

Request: TypeAlias = tuple[int, int]
"""The new and the computed tokens of a request."""

Requests: TypeAlias = tuple[Request, ...]

GARBAGE = 2**31 - 1
"""The filler of memory that may not be read."""


def block_id(label: int) -> int:
    """Return the id of a block by its label, from 1 on: ids are far apart and in no order.

    Tables that differ only in the names of blocks are enumerated once, so an id must not equal a
    row, a column or a count that a bug might use in its place.

    >>> [block_id(label) for label in (1, 2, 3, 4)]
    [37, 74, 10, 47]
    >>> len({block_id(label) for label in range(1, 101)})
    100
    """
    if not 1 <= label <= 100:
        raise ValueError(f"label is {label}, expected 1 to 100")
    return label * 37 % 101


def all_requests(
    maximum: int, query: int, computed: int | Sequence[int], minimum: int = 0
) -> sp.Space[Requests]:
    """Return all batches of at most `maximum` requests.

    Args:
        maximum: The maximum number of requests.
        query: The maximum number of new tokens of a request.
        computed: The maximum number of computed tokens of a request, or those that it may have.
        minimum: The minimum number of requests.
    """
    contexts = sp.ints(0, computed) if isinstance(computed, int) else sp.values(computed)
    return sp.sequences(sp.product(sp.ints(0, query), contexts), maximum, minimum)


def num_tokens(requests: Requests) -> int:
    """Return the number of new tokens of a batch."""
    return sum(query for query, _ in requests)


@functools.lru_cache(maxsize=64)
def array_of(numbers: tuple[int, ...], dtype: Any, stride: int = 1) -> Array:
    """Return numbers as an array, the same object for consecutive calls."""
    return guarded(numbers, dtype, stride)


@functools.lru_cache(maxsize=64)
def batch_of(requests: Requests, block_size: int = 2, **options: int | bool) -> Batch:
    """Return a batch whose requests have distinct blocks, as many as their sequences need.

    Args:
        requests: The requests.
        block_size: Positions in a block.
        **options: Further fields of `Batch`.
    """
    layout = Layout(block_size)
    rows, used = [], 0
    for query, computed in requests:
        count = layout.num_blocks(query + computed)
        rows.append(tuple(block_id(used + k + 1) for k in range(count)))
        used += count
    query_lens = tuple(query for query, _ in requests)
    computed_tokens = tuple(computed for _, computed in requests)
    fields = {"filler": GARBAGE, **options}
    return Batch(query_lens, computed_tokens, layout, tuple(rows), **fields)  # type: ignore[arg-type]


@functools.lru_cache(maxsize=64)
def metadata_of(
    requests: Requests, block_size: int = 2, **options: int | bool
) -> reference.CommonAttentionMetadata:
    """Return the metadata of `batch_of` with these arguments, the same object for equal ones."""
    return batch_of(requests, block_size, **options).metadata()


def metadata_with_padding(
    requests: sp.Space[Requests],
) -> sp.Space[reference.CommonAttentionMetadata]:
    """Return the metadata of batches with no padded token and with one."""
    return sp.product(requests, sp.ints(0, 1)).starmap(
        lambda found, number: metadata_of(found, num_padding_tokens=number)
    )
