"""Scopes of rewritten batches: chunks, fast prefill, convolution programs, draft tokens.

Context parallelism is here too: it rewrites the lengths of sequences.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np

import reference
from conformance.calls import Call
from conformance.strategies.arrays import guarded
from tools.fuzz.exhaustive.batches import Requests, all_requests, ints, metadata_of, num_tokens
from tools.fuzz.exhaustive.scope import Scope
from tools.fuzz.exhaustive.spaces import Chain, Product, Sequences, Space, Subsets, Values


def _virtual(case: tuple[Requests, int, int, int, int]) -> Call:
    requests, num_padding, block_size, extra, chunk = case
    arguments = {
        "attn_chunk_size": chunk,
        "common_attn_metadata": _with_columns(requests, num_padding, block_size, extra),
        "block_size": block_size,
    }
    return Call("make_local_attention_virtual_batches", arguments)


@functools.lru_cache(maxsize=64)
def _with_columns(
    requests: Requests, num_padding: int, block_size: int, extra: int
) -> reference.CommonAttentionMetadata:
    """Return a metadata whose table has so many columns more than needed, or fewer."""
    size = max(block_size, 1)
    found = metadata_of(
        requests, size, num_padding_tokens=num_padding, extra_columns=max(extra, 0), extra_rows=1
    )
    if extra >= 0:
        return found
    return dataclasses.replace(found, block_table_tensor=found.block_table_tensor[:, :extra])


def virtual_batches(scale: int) -> Scope:
    """Return the scope of batches cut into chunks of local attention."""
    few, query, computed, chunk, many = [
        (1, 2, 2, 2, 1),
        (2, 5, 6, 6, 3),
        (2, 8, 8, 8, 4),
    ][scale]
    cases = Chain(
        Product(
            all_requests(few, query, computed),
            ints(0, 1),
            ints(0, chunk),
            ints(-1, 2),
            ints(0, chunk),
        ),
        Product(
            all_requests(many, 3, 3, few + 1), Values((0,)), ints(1, 4), ints(-1, 1), ints(1, 4)
        ),
        Product(
            all_requests(many + 1, 2, 2, many + 1),
            Values((0,)),
            ints(1, 4),
            ints(-1, 1),
            ints(1, 4),
        ),
    )
    return Scope(
        "virtual batches",
        ("make_local_attention_virtual_batches",),
        f"batch with at most {few} requests of at most {query} new and {computed} computed tokens "
        f"and 1 padded token, in chunks and blocks of 0 to {chunk} tokens, with tables from 1 "
        f"column too narrow to 2 wider than needed; with at most {many} requests of at most 3 new "
        f"and 3 computed tokens, and with {many + 1} of at most 2 and 2, in chunks and blocks of 1 "
        "to 4 tokens, with tables up to 1 column wider than needed",
        cases.map(_virtual),
        150,
    )


def _wanted(
    case: tuple[tuple[Requests, int, bool, type[np.generic], int], tuple[int, ...]],
) -> Call:
    (requests, num_padding, is_causal, dtype, num_unread), indices = case
    metadata = metadata_of(requests, num_padding_tokens=num_padding, causal=is_causal)
    padded = guarded([*indices, *[-5] * num_unread], dtype)
    return _fast_prefill(metadata, padded, len(indices))


def _fast_prefill(metadata: Any, indices: Any, number: int | None) -> Call:
    armed = dataclasses.replace(metadata, logits_indices_padded=indices, num_logits_indices=number)
    name = "make_kv_sharing_fast_prefill_common_attn_metadata"
    return Call(name, {"common_attn_metadata": armed})


def fast_prefill(scale: int) -> Scope:
    """Return the scope of batches with every set of tokens with logits."""
    requests, query, computed = [(2, 2, 0), (4, 3, 0), (4, 3, 1)][scale]
    batches = Product(
        all_requests(requests, query, computed),
        ints(0, 1),
        Values((True, False)),
        Values((np.int32, np.int64)),
        ints(0, 1),
    )
    return Scope(
        "tokens with logits",
        ("make_kv_sharing_fast_prefill_common_attn_metadata",),
        f"batch with at most {requests} requests of at most {query} new and {computed} computed "
        "tokens and 1 padded token, and every set of tokens with logits, as int32 and int64, with "
        "and without an index that is not read, causal and not",
        batches.then(lambda batch: Subsets(0, num_tokens(batch[0]))).map(_wanted),
        350,
    )


def _any_indices(case: tuple[Requests, tuple[int, ...] | None, int | None]) -> Call:
    requests, indices, number = case
    padded = None if indices is None else guarded(indices, np.int64)
    return _fast_prefill(metadata_of(requests), padded, number)


def any_indices(scale: int) -> Scope:
    """Return the scope of batches with every vector of indices, good and bad."""
    requests, query, entries = [(1, 1, 1), (2, 2, 3), (2, 3, 3)][scale]
    maximum = requests * query
    vectors: Space[Any] = Chain(Values((None,)), Sequences(ints(-1, maximum), entries))
    cases = Product(
        all_requests(requests, query, 0), vectors, Values((None, *range(-1, entries + 2)))
    )
    return Scope(
        "indices of tokens with logits",
        ("make_kv_sharing_fast_prefill_common_attn_metadata",),
        f"vector of at most {entries} indices from -1 to {maximum}, and none, of which None or -1 "
        f"to {entries + 1} count, in every batch with at most {requests} requests of at most "
        f"{query} new tokens; what must be refused included",
        cases.map(_any_indices),
        150,
    )


def _programs(starts: tuple[int, ...]) -> Call:
    return Call("compute_causal_conv1d_metadata", {"query_start_loc_p": guarded(starts, np.int32)})


def _added_up(lengths: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(start) for start in np.cumsum([0, *lengths]))


def convolution_programs(scale: int) -> Scope:
    """Return the scope of batches of convolutions."""
    sequences, tokens, long = [(1, 9, 20), (4, 17, 100), (4, 25, 200)][scale]
    entries, maximum = [(2, 1), (4, 3), (5, 4)][scale]
    cases: Chain[Any] = Chain(
        Sequences(ints(0, tokens), sequences).map(_added_up),
        Sequences(ints(0, long), 2, 1).map(_added_up),
        Sequences(ints(0, 9), sequences + 1, sequences + 1).map(_added_up),
        Sequences(ints(-1, maximum), entries),
    )
    return Scope(
        "convolution programs",
        ("compute_causal_conv1d_metadata",),
        f"batch with at most {sequences} sequences of at most {tokens} tokens, or 2 of at most "
        f"{long}, or {sequences + 1} of at most 9; and every vector of at most {entries} starts "
        f"from -1 to {maximum}, what must be refused included",
        cases.map(_programs),
        250,
    )


def _local(case: tuple[tuple[int, ...], int, tuple[int, int | None], int | None]) -> Call:
    lengths, interleave, (ranks, rank), longer = case
    arguments: dict[str, Any] = {
        "seq_lens": _lengths(lengths),
        "dcp_size": ranks,
        "dcp_rank": rank,
        "cp_kv_cache_interleave_size": interleave,
    }
    if longer is not None:
        columns = (max(ranks, 0),) if rank is None else ()
        arguments["out"] = np.full((len(lengths) + longer, *columns), 99, np.int32)
    return Call("get_dcp_local_seq_lens", arguments)


@functools.lru_cache(maxsize=64)
def _lengths(lengths: tuple[int, ...]) -> Any:  # an array
    return guarded(lengths, np.int32)


def _all_ranks(maximum: int) -> list[tuple[int, int | None]]:
    """Return all numbers of ranks, each with None and the ranks from -1 to one too many."""
    return [(size, rank) for size in range(maximum + 1) for rank in (None, *range(-1, size + 1))]


def local_lengths(scale: int) -> Scope:
    """Return the scope of sequences that ranks share."""
    requests, length, ranks, interleave, long = [
        (1, 3, 2, 2, 8),
        (3, 9, 4, 4, 64),
        (3, 16, 5, 5, 128),
    ][scale]
    cases = Chain(
        Product(
            Sequences(ints(-1, length), requests),
            ints(0, interleave),
            Values(_all_ranks(ranks)),
            Values((None, 0, 1)),
        ),
        Product(
            Sequences(ints(0, long), 1, 1),
            ints(1, 2 * interleave),
            Values(_all_ranks(2 * ranks)),
            Values((None,)),
        ),
    )
    return Scope(
        "local lengths",
        ("get_dcp_local_seq_lens",),
        f"batch with at most {requests} sequences of -1 to {length} tokens on 0 to {ranks} ranks, "
        f"all and each, with an interleave of 0 to {interleave}, without `out`, with one and with "
        f"a longer one; one sequence of at most {long} tokens on at most {2 * ranks} ranks with an "
        f"interleave of at most {2 * interleave}; what must be refused included",
        cases.map(_local),
        100,
    )


def _query(case: tuple[int, int, int, bool, int]) -> Call:
    tokens, heads, dim, is_strided, batch_size = case
    shape = (tokens * (2 if is_strided else 1), heads, dim)
    query = np.arange(int(np.prod(shape)), dtype=np.int32).reshape(shape)
    if is_strided:
        query = query[::2]
    arguments = {"query": query, "batch_size": batch_size}
    return Call("reshape_query_for_spec_decode", arguments)


def _output(case: tuple[tuple[int, ...], int | None]) -> Call:
    shape, dropped = case
    memory = [n + (axis == dropped) for axis, n in enumerate(shape)]
    output = np.arange(int(np.prod(memory)), dtype=np.int32).reshape(memory)
    output = output[tuple(slice(n) for n in shape)]
    return Call("reshape_attn_output_for_spec_decode", {"attn_output": output})


def draft_tokens(scale: int) -> Scope:
    """Return the scope of queries and outputs that are viewed request by request, and back."""
    tokens, maximum = [(3, 1), (12, 3), (24, 4)][scale]
    query = Product(
        ints(0, tokens), ints(0, 2), ints(0, 2), Values((False, True)), ints(-1, tokens + 1)
    )
    outputs = [
        Product(Sequences(ints(0, maximum), axes, axes), Values((None, *range(axes))))
        for axes in range(1, 6)
    ]
    return Scope(
        "draft tokens",
        ("reshape_query_for_spec_decode", "reshape_attn_output_for_spec_decode"),
        f"query of at most {tokens} tokens, 2 heads and 2 dimensions, contiguous and strided, for "
        f"-1 to {tokens + 1} requests; every output of 1 to 5 axes of at most {maximum}, "
        "contiguous and cut from one that is longer along each axis; what must be refused included",
        Chain(query.map(_query), Chain(*outputs).map(_output)),
        90,
    )


SCOPES = (
    virtual_batches,
    fast_prefill,
    any_indices,
    convolution_programs,
    local_lengths,
    draft_tokens,
)
"""What makes each scope of this module, at a scale."""
