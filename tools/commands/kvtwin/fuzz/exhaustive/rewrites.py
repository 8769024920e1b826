"""Scopes of rewritten batches: chunks, fast prefill, convolution programs, draft tokens.

Context parallelism is here too: it rewrites the lengths of sequences.
"""

from __future__ import annotations

import dataclasses
import functools
from itertools import accumulate
from typing import Any

import numpy as np

import reference
from conformance.values.call import Call
from kvtwin.fuzz.exhaustive import spaces as sp
from kvtwin.fuzz.exhaustive.batches import (
    Requests,
    all_requests,
    array_of,
    metadata_of,
    num_tokens,
)


def _virtual_batches(
    requests: sp.Space[Requests],
    num_padding: sp.Space[int],
    block_sizes: sp.Space[int],
    columns: sp.Space[int],
    chunks: sp.Space[int],
) -> sp.Space[Call]:
    def call_of(found: Requests, padding: int, block_size: int, extra: int, chunk: int) -> Call:
        arguments = {
            "attn_chunk_size": chunk,
            "common_attn_metadata": _with_columns(found, padding, block_size, extra),
            "block_size": block_size,
        }
        return Call("make_local_attention_virtual_batches", arguments)

    return sp.product(requests, num_padding, block_sizes, columns, chunks).starmap(call_of)


@functools.lru_cache(maxsize=64)
def _with_columns(
    requests: Requests, num_padding: int, block_size: int, extra: int
) -> reference.CommonAttentionMetadata:
    """Return a metadata whose block table has `extra` more columns than needed; negative: fewer."""
    size = max(block_size, 1)
    found = metadata_of(
        requests, size, num_padding_tokens=num_padding, extra_columns=max(extra, 0), extra_rows=1
    )
    if extra >= 0:
        return found
    return dataclasses.replace(found, block_table_tensor=found.block_table_tensor[:, :extra])


def virtual_batches(scale: int) -> sp.Scope:
    """Return the scope of batches cut into chunks of local attention."""
    few, query, computed, chunk, many = [
        (1, 2, 2, 2, 1),
        (2, 5, 6, 6, 3),
        (2, 8, 8, 8, 4),
    ][scale]
    small, no_padding = sp.ints(1, 4), sp.values((0,))
    sizes = sp.ints(0, chunk)
    cases = sp.chain(
        _virtual_batches(
            all_requests(few, query, computed), sp.ints(0, 1), sizes, sp.ints(-1, 2), sizes
        ),
        *(
            _virtual_batches(requests, no_padding, small, sp.ints(-1, 1), small)
            for requests in (
                all_requests(many, 3, 3, few + 1),
                all_requests(many + 1, 2, 2, many + 1),
            )
        ),
    )
    return sp.Scope(
        "virtual batches",
        ("make_local_attention_virtual_batches",),
        f"batch with at most {few} requests of at most {query} new and {computed} computed tokens "
        f"and 1 padded token, in chunks and blocks of 0 to {chunk} tokens, with tables from 1 "
        f"column too narrow to 2 wider than needed; with at most {many} requests of at most 3 new "
        f"and 3 computed tokens, and with {many + 1} of at most 2 and 2, in chunks and blocks of 1 "
        "to 4 tokens, with tables up to 1 column wider than needed",
        cases,
    )


def _fast_prefill(metadata: Any, indices: Any, number: int | None) -> Call:
    armed = dataclasses.replace(metadata, logits_indices_padded=indices, num_logits_indices=number)
    name = "make_kv_sharing_fast_prefill_common_attn_metadata"
    return Call(name, {"common_attn_metadata": armed})


def fast_prefill(scale: int) -> sp.Scope:
    """Return the scope of batches with every set of tokens that have logits."""
    requests, query, computed = [(2, 2, 0), (4, 3, 0), (4, 3, 1)][scale]
    batches = sp.product(
        all_requests(requests, query, computed),
        sp.ints(0, 1),
        sp.values((True, False)),
        sp.values((np.int32, np.int64)),
        sp.ints(0, 1),
    )

    def call_of(batch: tuple[Requests, int, bool, Any, int], indices: tuple[int, ...]) -> Call:
        found, num_padding, is_causal, dtype, num_unread = batch
        metadata = metadata_of(found, num_padding_tokens=num_padding, causal=is_causal)
        padded = array_of((*indices, *[-5] * num_unread), dtype)
        return _fast_prefill(metadata, padded, len(indices))

    return sp.Scope(
        "tokens with logits",
        ("make_kv_sharing_fast_prefill_common_attn_metadata",),
        f"batch with at most {requests} requests of at most {query} new and {computed} computed "
        "tokens and 1 padded token, and every set of tokens with logits, as int32 and int64, with "
        "and without an index that is not read, causal and not",
        batches.then(lambda batch: sp.subsets(0, num_tokens(batch[0]))).starmap(call_of),
    )


def any_indices(scale: int) -> sp.Scope:
    """Return the scope of batches with every vector of logits indices, valid and invalid."""
    requests, query, entries = [(1, 1, 1), (2, 2, 3), (2, 3, 3)][scale]
    maximum = requests * query
    vectors = sp.sequences(sp.ints(-1, maximum), entries)
    cases = sp.product(
        all_requests(requests, query, 0).map(metadata_of),
        sp.chain(sp.values((None,)), vectors.map(lambda indices: array_of(indices, np.int64))),
        sp.values((None, *range(-1, entries + 2))),
    )
    return sp.Scope(
        "indices of tokens with logits",
        ("make_kv_sharing_fast_prefill_common_attn_metadata",),
        f"vector of at most {entries} indices from -1 to {maximum}, and none, of which None or -1 "
        f"to {entries + 1} count, in every batch with at most {requests} requests of at most "
        f"{query} new tokens; what must be refused included",
        cases.starmap(_fast_prefill),
    )


def convolution_programs(scale: int) -> sp.Scope:
    """Return the scope of batches of convolutions."""
    sequences, tokens, long = [(1, 9, 20), (4, 17, 100), (4, 25, 200)][scale]
    entries, maximum = [(2, 1), (4, 3), (5, 4)][scale]
    lengths = sp.chain(
        sp.sequences(sp.ints(0, tokens), sequences),
        sp.sequences(sp.ints(0, long), 2, 1),
        sp.sequences(sp.ints(0, 9), sequences + 1, sequences + 1),
    )
    starts = sp.chain(
        lengths.map(lambda found: tuple(accumulate(found, initial=0))),
        sp.sequences(sp.ints(-1, maximum), entries),
    )
    return sp.Scope(
        "convolution programs",
        ("compute_causal_conv1d_metadata",),
        f"batch with at most {sequences} sequences of at most {tokens} tokens, or 2 of at most "
        f"{long}, or {sequences + 1} of at most 9; and every vector of at most {entries} starts "
        f"from -1 to {maximum}, what must be refused included",
        sp.calls(
            "compute_causal_conv1d_metadata",
            query_start_loc_p=starts.map(lambda found: array_of(found, np.int32)),
        ),
    )


def _local_lengths(
    lengths: tuple[int, ...], interleave: int, group: tuple[int, int | None], longer: int | None
) -> Call:
    ranks, rank = group
    arguments: dict[str, Any] = {
        "seq_lens": array_of(lengths, np.int32),
        "dcp_size": ranks,
        "dcp_rank": rank,
        "cp_kv_cache_interleave_size": interleave,
    }
    if longer is not None:
        columns = (max(ranks, 0),) if rank is None else ()
        arguments["out"] = np.full((len(lengths) + longer, *columns), 99, np.int32)
    return Call("get_dcp_local_seq_lens", arguments)


def _all_ranks(maximum: int) -> sp.Space[tuple[int, int | None]]:
    """Return all world sizes, each with rank None and ranks from -1 to one too many."""
    return sp.values(
        [(size, rank) for size in range(maximum + 1) for rank in (None, *range(-1, size + 1))]
    )


def local_lengths(scale: int) -> sp.Scope:
    """Return the scope of sequences that context-parallel ranks share."""
    requests, length, ranks, interleave, long = [
        (1, 3, 2, 2, 8),
        (3, 9, 4, 4, 64),
        (3, 16, 5, 5, 128),
    ][scale]
    cases = sp.chain(
        sp.product(
            sp.sequences(sp.ints(-1, length), requests),
            sp.ints(0, interleave),
            _all_ranks(ranks),
            sp.values((None, 0, 1)),
        ),
        sp.product(
            sp.sequences(sp.ints(0, long), 1, 1),
            sp.ints(1, 2 * interleave),
            _all_ranks(2 * ranks),
            sp.values((None,)),
        ),
    )
    return sp.Scope(
        "local lengths",
        ("get_dcp_local_seq_lens",),
        f"batch with at most {requests} sequences of -1 to {length} tokens on 0 to {ranks} ranks, "
        f"all and each, with an interleave of 0 to {interleave}, without `out`, with one and with "
        f"a longer one; one sequence of at most {long} tokens on at most {2 * ranks} ranks with an "
        f"interleave of at most {2 * interleave}; what must be refused included",
        cases.starmap(_local_lengths),
    )


def _query(tokens: int, heads: int, dim: int, is_strided: bool) -> Any:
    shape = (tokens * (2 if is_strided else 1), heads, dim)
    query = np.arange(int(np.prod(shape)), dtype=np.int32).reshape(shape)
    return query[::2] if is_strided else query


def _output(shape: tuple[int, ...], longer_axis: int | None) -> Any:
    memory = [n + (axis == longer_axis) for axis, n in enumerate(shape)]
    output = np.arange(int(np.prod(memory)), dtype=np.int32).reshape(memory)
    return output[tuple(slice(n) for n in shape)]


def draft_tokens(scale: int) -> sp.Scope:
    """Return the scope of queries and outputs that are viewed request by request, and back."""
    tokens, maximum = [(3, 1), (12, 3), (24, 4)][scale]
    small = sp.ints(0, 2)
    queries = sp.product(sp.ints(0, tokens), small, small, sp.BOOLS)
    outputs = sp.chain(
        *(
            sp.product(
                sp.sequences(sp.ints(0, maximum), axes, axes), sp.values((None, *range(axes)))
            )
            for axes in range(1, 6)
        )
    )
    cases = sp.chain(
        sp.calls(
            "reshape_query_for_spec_decode",
            query=queries.starmap(_query),
            batch_size=sp.ints(-1, tokens + 1),
        ),
        sp.calls("reshape_attn_output_for_spec_decode", attn_output=outputs.starmap(_output)),
    )
    return sp.Scope(
        "draft tokens",
        ("reshape_query_for_spec_decode", "reshape_attn_output_for_spec_decode"),
        f"query of at most {tokens} tokens, 2 heads and 2 dimensions, contiguous and strided, for "
        f"-1 to {tokens + 1} requests; every output of 1 to 5 axes of at most {maximum}, "
        "contiguous and cut from one that is longer along each axis; what must be refused included",
        cases,
    )


SCOPES = (
    virtual_batches,
    fast_prefill,
    any_indices,
    convolution_programs,
    local_lengths,
    draft_tokens,
)
"""The functions that build the scopes of this module, at a scale."""
