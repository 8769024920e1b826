"""Scopes of batches that are split or shortened: micro-batches, and metadata without padding."""

from __future__ import annotations

import functools
from typing import Any, TypeAlias

import numpy as np

import reference
from conformance.calls import Call
from conformance.strategies.arrays import guarded
from conformance.strategies.ubatch import slices_between
from tools.fuzz.exhaustive.batches import (
    Requests,
    all_requests,
    batch_of,
    ints,
    metadata_of,
    num_tokens,
)
from tools.fuzz.exhaustive.scope import Scope
from tools.fuzz.exhaustive.spaces import Chain, Product, Sequences, Space, Subsets, Values

Tokens: TypeAlias = tuple[Any, tuple[int, ...]]
"""The dtype and the entries of a batch's numbers of tokens."""


def _created(case: tuple[Tokens, Any]) -> Call:
    tokens, points = case
    split_points = list(points) if isinstance(points, tuple) else points
    dtype, lens = tokens
    arguments = {"num_scheduled_tokens": _tokens(dtype, lens), "split_points": split_points}
    return Call("create_ubatch_slices", arguments)


@functools.lru_cache(maxsize=64)
def _tokens(dtype: Any, lens: tuple[int, ...]) -> Any:
    return guarded(lens, dtype)


def created_slices(scale: int) -> Scope:
    """Return the scope of batches that are cut into micro-batches."""
    requests, tokens = [(2, 2), (5, 3), (6, 3)][scale]
    dtypes = Values((np.int32, np.int64))
    few = min(requests, 2)

    def points(batch: Tokens) -> Space[Any]:
        return Subsets(1, max(sum(batch[1]) - 1, 0))

    def any_points(batch: Tokens) -> Space[Any]:
        numbers = ints(-1, sum(batch[1]) + 1)
        return Chain(numbers, Sequences(numbers, 3))

    cases = Chain(
        Product(dtypes, Sequences(ints(0, tokens), requests)).then(points),
        Product(dtypes, Sequences(ints(-1, tokens), few)).then(any_points),
    )
    return Scope(
        "created micro-batches",
        ("create_ubatch_slices",),
        f"batch with at most {requests} requests of at most {tokens} tokens, as int32 and int64, "
        "cut at every set of tokens; and at every int and every list of at most 3 ints from -1 to "
        f"one past the end, with at most {few} requests of -1 to {tokens} tokens",
        cases.map(_created),
        120,
    )


@functools.lru_cache(maxsize=64)
def _with_encoder(requests: Requests, **options: int) -> reference.CommonAttentionMetadata:
    """Return a metadata that has lengths of encoders and of a context-parallel rank."""
    found = batch_of(requests, **options).metadata()
    found.encoder_seq_lens = np.arange(7, 7 + len(requests), dtype=np.int32)
    found.dcp_local_seq_lens = np.arange(len(requests), dtype=np.int32)
    return found


def _metadata(requests: Requests, num_padding: int, has_more: bool) -> Any:
    make = _with_encoder if has_more else metadata_of
    return make(requests, num_padding_tokens=num_padding, raised=int(has_more))


def _sliced(case: tuple[tuple[Requests, int, bool], tuple[int, int, int, int]]) -> Call:
    batch, (first, stop, token, token_stop) = case
    ubatch = reference.UBatchSlice(slice(first, stop), slice(token, token_stop))
    return Call(
        "_make_metadata_with_slice", {"ubatch_slice": ubatch, "attn_metadata": _metadata(*batch)}
    )


def all_slices(scale: int) -> Scope:
    """Return the scope of every slice of every batch, good and bad."""
    requests, query, computed = [(1, 1, 1), (3, 2, 1), (3, 3, 1)][scale]
    batches = Product(all_requests(requests, query, computed), ints(0, 1), Values((False, True)))

    def slices(batch: tuple[Requests, int, bool]) -> Space[Any]:
        found, num_padding, _ = batch
        rows = ints(0, len(found) + 1)
        tokens = ints(0, num_tokens(found) + num_padding + 1)
        return Product(rows, rows, tokens, tokens)

    return Scope(
        "every micro-batch",
        ("_make_metadata_with_slice",),
        f"slice of the requests and tokens, up to one past the end, of every batch with at most "
        f"{requests} requests of at most {query} new and {computed} computed tokens and 1 padded "
        "token, with and without encoder lengths; slices that must be refused included",
        batches.then(slices).map(_sliced),
        170,
    )


def _split(case: tuple[tuple[Requests, int, bool], tuple[int, ...]]) -> Call:
    (requests, num_padding, has_more), points = case
    batch = batch_of(requests, num_padding_tokens=num_padding, raised=int(has_more))
    slices = slices_between(batch, list(points)) if batch.num_tokens else []
    metadata = _metadata(requests, num_padding, has_more)
    arguments = {"ubatch_slices": slices, "common_attn_metadata": metadata}
    return Call("split_attn_metadata", arguments)


def split_batches(scale: int) -> Scope:
    """Return the scope of metadata that is split at every set of tokens."""
    requests, query, few = [(2, 2, 1), (4, 3, 3), (4, 4, 3)][scale]

    def points(case: tuple[Requests, int, bool]) -> Space[Any]:
        found, num_padding, _ = case
        total = num_tokens(found)
        if total and found[-1][0] == 0:  # padding of its own can be cut off only with a request
            total += num_padding
        return Subsets(1, max(total - 1, 0))

    kinds = Values([(0, True), (1, False), (1, True), (2, False), (2, True)])
    plain = all_requests(requests, query, 1).map(lambda found: (found, 0, False))
    padded = Product(all_requests(few, query, 1), kinds).map(lambda found: (found[0], *found[1]))
    cases = Chain(plain.then(points), padded.then(points))
    return Scope(
        "split metadata",
        ("split_attn_metadata",),
        f"batch with at most {requests} requests of at most {query} new tokens and 1 computed "
        "token, split at every set of tokens (those of padding only if the last request has none); "
        f"with at most {few} requests also with up to 2 padded tokens and with encoder lengths",
        cases.map(_split),
        700,
    )


def _unpadded(case: tuple[tuple[Requests, int, bool], tuple[int, int]]) -> Call:
    batch, (tokens, requests) = case
    arguments = {
        "self": _metadata(*batch),
        "num_actual_tokens": tokens,
        "num_actual_reqs": requests,
    }
    return Call("CommonAttentionMetadata.unpadded", arguments)


def unpadded_batches(scale: int) -> Scope:
    """Return the scope of metadata that is cut to its first tokens and requests."""
    requests, query, computed = [(1, 1, 1), (3, 2, 1), (3, 3, 1)][scale]
    batches = Product(all_requests(requests, query, computed), ints(0, 2), Values((False, True)))

    def numbers(batch: tuple[Requests, int, bool]) -> Space[Any]:
        found, num_padding, _ = batch
        return Product(ints(-1, num_tokens(found) + num_padding + 1), ints(-1, len(found) + 1))

    return Scope(
        "unpadded metadata",
        ("CommonAttentionMetadata.unpadded",),
        f"number of tokens and of requests, from -1 to one too many, of every batch with at most "
        f"{requests} requests of at most {query} new and {computed} computed tokens and 2 padded "
        "tokens, with and without encoder lengths",
        batches.then(numbers).map(_unpadded),
        110,
    )


def _cut_starts(case: tuple[tuple[int, ...], int, int]) -> Call:
    starts, first, stop = case
    arguments = {"query_start_loc": _starts(starts), "request_slice": slice(first, stop)}
    return Call("slice_query_start_locs", arguments)


@functools.lru_cache(maxsize=64)
def _starts(starts: tuple[int, ...]) -> Any:  # an array
    return guarded(starts, np.int32)


def sliced_starts(scale: int) -> Scope:
    """Return the scope of all vectors of starts, good and bad, and all slices of them."""
    entries, maximum = [(2, 1), (4, 3), (5, 4)][scale]
    ends = ints(-1, entries)
    return Scope(
        "sliced starts",
        ("slice_query_start_locs",),
        f"vector of at most {entries} starts from -1 to {maximum}, and every slice of requests "
        f"from -1 to {entries}; what must be refused included",
        Product(Sequences(ints(-1, maximum), entries), ends, ends).map(_cut_starts),
        35,
    )


SCOPES = (
    created_slices,
    all_slices,
    split_batches,
    unpadded_batches,
    sliced_starts,
)
"""What makes each scope of this module, at a scale."""
