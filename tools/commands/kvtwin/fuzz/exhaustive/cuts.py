"""Scopes of batches that are split or shortened: micro-batches, and metadata without padding."""

from __future__ import annotations

import functools
from typing import Any, TypeAlias

import numpy as np

import reference
from conformance.strategies.ubatch import slices_between
from conformance.values.call import Call
from kvtwin.fuzz.exhaustive import spaces as sp
from kvtwin.fuzz.exhaustive.batches import (
    Requests,
    all_requests,
    array_of,
    batch_of,
    metadata_of,
    num_tokens,
)

Lengths: TypeAlias = tuple[Any, tuple[int, ...]]
"""The dtype and the numbers of tokens of a batch's requests."""

Padded: TypeAlias = tuple[Requests, int, bool]
"""Requests, the number of padded tokens, and whether the metadata has lengths of encoders."""


def created_slices(scale: int) -> sp.Scope:
    """Return the scope of batches that are cut into micro-batches."""
    requests, tokens = [(2, 2), (5, 3), (6, 3)][scale]
    few = min(requests, 2)
    dtypes = sp.values((np.int32, np.int64))

    def points(batch: Lengths) -> sp.Space[Any]:
        return sp.subsets(1, max(sum(batch[1]) - 1, 0)).map(list)

    def any_points(batch: Lengths) -> sp.Space[Any]:
        numbers = sp.ints(-1, sum(batch[1]) + 1)
        return sp.chain(numbers, sp.sequences(numbers, 3).map(list))

    def call_of(lengths: Lengths, split_points: int | list[int]) -> Call:
        dtype, lens = lengths
        arguments = {"num_scheduled_tokens": array_of(lens, dtype), "split_points": split_points}
        return Call("create_ubatch_slices", arguments)

    cases = sp.chain(
        sp.product(dtypes, sp.sequences(sp.ints(0, tokens), requests)).then(points),
        sp.product(dtypes, sp.sequences(sp.ints(-1, tokens), few)).then(any_points),
    )
    return sp.Scope(
        "created micro-batches",
        ("create_ubatch_slices",),
        f"batch with at most {requests} requests of at most {tokens} tokens, as int32 and int64, "
        "cut at every set of tokens; and at every int and every list of at most 3 ints from -1 to "
        f"one past the end, with at most {few} requests of -1 to {tokens} tokens",
        cases.starmap(call_of),
    )


@functools.lru_cache(maxsize=64)
def _with_encoder(requests: Requests, num_padding: int) -> reference.CommonAttentionMetadata:
    """Return a metadata that has lengths of encoders and of a context-parallel rank."""
    found = batch_of(requests, num_padding_tokens=num_padding, raised=1).metadata()
    found.encoder_seq_lens = np.arange(7, 7 + len(requests), dtype=np.int32)
    found.dcp_local_seq_lens = np.arange(len(requests), dtype=np.int32)
    return found


def _metadata(requests: Requests, num_padding: int, has_more: bool) -> Any:
    if has_more:
        return _with_encoder(requests, num_padding)
    return metadata_of(requests, num_padding_tokens=num_padding, raised=0)


def all_slices(scale: int) -> sp.Scope:
    """Return the scope of every slice of every batch, valid and invalid."""
    requests, query, computed = [(1, 1, 1), (3, 2, 1), (3, 3, 1)][scale]

    def slices(batch: Padded) -> sp.Space[Any]:
        found, num_padding, _ = batch
        rows = sp.ints(0, len(found) + 1)
        tokens = sp.ints(0, num_tokens(found) + num_padding + 1)
        return sp.product(rows, rows, tokens, tokens)

    def call_of(batch: Padded, bounds: tuple[int, int, int, int]) -> Call:
        ubatch = reference.UBatchSlice(slice(*bounds[:2]), slice(*bounds[2:]))
        arguments = {"ubatch_slice": ubatch, "attn_metadata": _metadata(*batch)}
        return Call("_make_metadata_with_slice", arguments)

    batches = sp.product(all_requests(requests, query, computed), sp.ints(0, 1), sp.BOOLS)
    return sp.Scope(
        "every micro-batch",
        ("_make_metadata_with_slice",),
        f"slice of the requests and tokens, up to one past the end, of every batch with at most "
        f"{requests} requests of at most {query} new and {computed} computed tokens and 1 padded "
        "token, with and without encoder lengths; slices that must be refused included",
        batches.then(slices).starmap(call_of),
    )


def split_batches(scale: int) -> sp.Scope:
    """Return the scope of metadata that is split at every set of tokens."""
    requests, query, few = [(2, 2, 1), (4, 3, 3), (4, 4, 3)][scale]

    def points(batch: Padded) -> sp.Space[Any]:
        found, num_padding, _ = batch
        total = num_tokens(found)
        if total and found[-1][0] == 0:  # padding can only be split off together with a request
            total += num_padding
        return sp.subsets(1, max(total - 1, 0))

    def call_of(padded: Padded, found: tuple[int, ...]) -> Call:
        requests, num_padding, has_more = padded
        batch = batch_of(requests, num_padding_tokens=num_padding, raised=int(has_more))
        slices = slices_between(batch, list(found)) if batch.num_tokens else []
        arguments = {"ubatch_slices": slices, "common_attn_metadata": _metadata(*padded)}
        return Call("split_attn_metadata", arguments)

    kinds = sp.values([(0, True), (1, False), (1, True), (2, False), (2, True)])
    plain = all_requests(requests, query, 1).map(lambda found: (found, 0, False))
    padded = sp.product(all_requests(few, query, 1), kinds).map(lambda pair: (pair[0], *pair[1]))
    return sp.Scope(
        "split metadata",
        ("split_attn_metadata",),
        f"batch with at most {requests} requests of at most {query} new tokens and 1 computed "
        "token, split at every set of tokens (those of padding only if the last request has none); "
        f"with at most {few} requests also with up to 2 padded tokens and with encoder lengths",
        sp.chain(plain, padded).then(points).starmap(call_of),
    )


def unpadded_batches(scale: int) -> sp.Scope:
    """Return the scope of metadata that is cut to its first tokens and requests."""
    requests, query, computed = [(1, 1, 1), (3, 2, 1), (3, 3, 1)][scale]

    def numbers(batch: Padded) -> sp.Space[Any]:
        found, num_padding, _ = batch
        last = num_tokens(found) + num_padding
        return sp.product(sp.ints(-1, last + 1), sp.ints(-1, len(found) + 1))

    def call_of(batch: Padded, counts: tuple[int, int]) -> Call:
        tokens, reqs = counts
        metadata = _metadata(*batch)
        arguments = {"self": metadata, "num_actual_tokens": tokens, "num_actual_reqs": reqs}
        return Call("CommonAttentionMetadata.unpadded", arguments)

    batches = sp.product(all_requests(requests, query, computed), sp.ints(0, 2), sp.BOOLS)
    return sp.Scope(
        "unpadded metadata",
        ("CommonAttentionMetadata.unpadded",),
        f"number of tokens and of requests, from -1 to one too many, of every batch with at most "
        f"{requests} requests of at most {query} new and {computed} computed tokens and 2 padded "
        "tokens, with and without encoder lengths",
        batches.then(numbers).starmap(call_of),
    )


def sliced_starts(scale: int) -> sp.Scope:
    """Return the scope of all vectors of starts, valid and invalid, and all slices of them."""
    entries, maximum = [(2, 1), (4, 3), (5, 4)][scale]
    ends = sp.ints(-1, entries)
    starts = sp.sequences(sp.ints(-1, maximum), entries)
    return sp.Scope(
        "sliced starts",
        ("slice_query_start_locs",),
        f"vector of at most {entries} starts from -1 to {maximum}, and every slice of requests "
        f"from -1 to {entries}; what must be refused included",
        sp.calls(
            "slice_query_start_locs",
            query_start_loc=starts.map(lambda found: array_of(found, np.int32)),
            request_slice=sp.product(ends, ends).starmap(slice),
        ),
    )


SCOPES = (created_slices, all_slices, split_batches, unpadded_batches, sliced_starts)
"""The functions that build the scopes of this module, at a scale."""
