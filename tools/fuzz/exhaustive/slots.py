"""Scopes of slots: where the tokens of a batch are written; kernel blocks."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

import numpy as np

from conformance.calls import Call
from conformance.strategies.arrays import Array, guarded, guarded_table
from tools.fuzz.exhaustive.batches import GARBAGE, Requests, all_requests, block_id, ints
from tools.fuzz.exhaustive.scope import Scope
from tools.fuzz.exhaustive.spaces import Chain, Product, Sequences, Values, renamed_once

Layout = tuple[int, int, int, int, int]
"""Block size, kernel block size, ranks, rank, interleave."""


def layouts(max_block_size: int, max_ranks: int) -> Values[Layout]:
    """Return all layouts with at most such a block size and so many ranks."""
    return Values(list(_layouts(max_block_size, max_ranks)))


def _layouts(max_block_size: int, max_ranks: int) -> Iterator[Layout]:
    for size in range(1, max_block_size + 1):
        divisors = [d for d in range(1, size + 1) if size % d == 0]
        for ranks in range(1, max_ranks + 1):
            for rank in range(ranks):
                for kernel in divisors:
                    for interleave in divisors:
                        yield size, kernel, ranks, rank, interleave


def _call(
    table: Array,
    starts: Array,
    positions: Array,
    layout: Layout,
    **more: Any,
) -> Call:
    size, kernel, ranks, rank, interleave = layout
    arguments = {
        "block_table": table,
        "query_start_loc": starts,
        "positions": positions,
        "block_size": size,
        "kernel_block_size": kernel,
        "cp_world_size": ranks,
        "cp_rank": rank,
        "cp_kv_cache_interleave_size": interleave,
    }
    return Call("compute_slot_mapping", arguments | more)


@functools.lru_cache(maxsize=64)
def _distinct_table(num_rows: int, width: int) -> Array:
    """Return a table in which each entry is another block."""
    rows = [[block_id(row * width + k + 1) for k in range(width)] for row in range(num_rows)]
    return guarded_table(rows, num_rows, width, GARBAGE)


@functools.lru_cache(maxsize=64)
def _starts(query_lens: tuple[int, ...]) -> Array:
    return guarded([0, *accumulate(query_lens)], np.int32)


@functools.lru_cache(maxsize=64)
def _positions(positions: tuple[int, ...], num_padding: int = 0) -> Array:
    return guarded([*positions, *[-7] * num_padding], np.int64)


@functools.lru_cache(maxsize=64)
def _positions_of(requests: Requests, num_padding: int) -> Array:
    found = [computed + j for query, computed in requests for j in range(query)]
    return _positions(tuple(found), num_padding)


def _of_batch(case: tuple[Requests, int, Layout], width: int) -> Call:
    requests, num_padding, layout = case
    starts = _starts(tuple(query for query, _ in requests))
    table = _distinct_table(len(requests), width)
    return _call(table, starts, _positions_of(requests, num_padding), layout)


def slots_of_batches(scale: int) -> Scope:
    """Return the scope of all small batches in all small layouts."""
    requests, query, computed, size, ranks = _BATCH_BOUNDS[scale]
    cases = Product(all_requests(requests, query, computed), ints(0, 1), layouts(size, ranks))
    return Scope(
        "slots of batches",
        ("compute_slot_mapping",),
        f"batch with at most {requests} requests, {query} new and {computed} computed tokens each, "
        f"1 padded token, distinct blocks of at most {size} tokens, with all kernel block sizes "
        f"and interleaves that divide them, on every rank of at most {ranks}",
        cases.map(lambda case: _of_batch(case, query + computed)),
        120,
    )


_BATCH_BOUNDS = [(3, 1, 1, 2, 2), (3, 3, 3, 4, 3), (3, 5, 5, 6, 4)]


def _of_positions(case: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], Layout]) -> Call:
    labels, query_lens, positions, layout = case
    return _call(_table(labels), _starts(query_lens), _positions(positions), layout)


@functools.lru_cache(maxsize=64)
def _table(labels: tuple[int, ...]) -> Array:
    """Return a table of two rows; its labels 1 and 2 are a negative id and the null block."""
    ids = [-1 if label == 1 else 0 if label == 2 else block_id(label) for label in labels]
    width = len(ids) // 2
    return guarded_table([ids[:width], ids[width:]], 2, width, GARBAGE)


def slots_of_positions(scale: int) -> Scope:
    """Return the scope of tokens at all positions of all tables, good and bad."""
    tokens, position, size, ranks = _POSITION_BOUNDS[scale]
    width = 1 if scale == 0 else 2
    # The two labels that be first mean a negative id and the null block.
    tables = [labels[2:] for labels in renamed_once(2 + 2 * width, 99).values if labels[1] == 2]
    lens: Chain[tuple[int, ...]] = Chain(
        Values([()]), *(_compositions(count, tokens) for count in (1, 2))
    )
    batches = lens.then(lambda found: _exactly(ints(-1, position), sum(found)))
    cases = Product(Values(tables), batches, layouts(size, ranks))
    return Scope(
        "slots of positions",
        ("compute_slot_mapping",),
        f"table of 2 rows and {width} columns, up to renaming of blocks, with null blocks and "
        f"negative ids, for every batch with at most 2 requests and {tokens} tokens at positions "
        f"from -1 to {position}, in blocks of at most {size} tokens, with all kernel block sizes "
        f"and interleaves, on every rank of at most {ranks}; calls that must be refused included",
        cases.map(lambda case: _of_positions((case[0], *case[1], case[2]))),
        100,
    )


_POSITION_BOUNDS = [(1, 4, 1, 2), (2, 8, 2, 2), (3, 8, 2, 2)]


def _exactly(space: Values[int], length: int) -> Product:
    return Product(*[space] * length)


def _compositions(count: int, maximum: int) -> Values[tuple[int, ...]]:
    """Return the query lengths of so many requests with at most so many tokens together."""
    found = Sequences(ints(0, maximum), count, count).items()
    return Values([lens for lens in found if sum(lens) <= maximum])


def _with_out(case: tuple[Requests, int, int, tuple[int | None, int], Layout], width: int) -> Call:
    requests, num_padding, extra_rows, (longer, stride), layout = case
    starts = _starts(tuple(query for query, _ in requests))
    positions = _positions_of(requests, num_padding)
    table = _distinct_table(len(requests) + extra_rows, width)
    if longer is None:
        return _call(table, starts, positions, layout)
    out = guarded([99] * max(len(positions) + longer, 0), np.int64, stride)
    return _call(table, starts, positions, layout, out=out)


def slots_in_place(scale: int) -> Scope:
    """Return the scope of slots that are written to a given array."""
    requests, query, computed = [(1, 1, 1), (2, 2, 2), (3, 2, 2)][scale]
    cases = Product(
        all_requests(requests, query, computed),
        ints(0, 2),
        ints(0, 1),
        Values([(None, 1), *((longer, stride) for longer in range(-1, 3) for stride in (1, 2))]),
        layouts(2, 2),
    )
    return Scope(
        "slots in place",
        ("compute_slot_mapping",),
        f"batch with at most {requests} requests, {query} new and {computed} computed tokens each, "
        "2 padded tokens, 1 spare row of the table, without `out` and with one that is 1 too "
        "short to 2 longer, contiguous and strided, in blocks of at most 2 tokens, with all "
        "kernel block sizes and interleaves, on every rank of at most 2",
        cases.map(lambda case: _with_out(case, query + computed)),
        350,
    )


def _kernel_block_ids(case: tuple[type[np.generic], tuple[int, ...], tuple[int, ...], int]) -> Call:
    dtype, shape, ids, pieces = case
    block_ids = np.array(ids, np.int64).astype(dtype).reshape(shape)
    return Call("map_to_kernel_blocks", {"block_ids": block_ids, "blocks_per_kv_block": pieces})


def kernel_blocks(scale: int) -> Scope:
    """Return the scope of block ids cut into kernel blocks."""
    shapes = [(0,), (1,), (2,), (0, 2), (1, 2), (2, 1), (3,), (2, 2)][: 6 if scale == 0 else None]
    values = Values((-1, 0, 1, 2, 31, 63, 127))
    cases = Chain(
        *(
            Product(
                Values((np.int8, np.int16, np.int32, np.int64, np.uint8)),
                Values([shape]),
                _exactly(values, int(np.prod(shape))),
                Values((0, 1, 2, 3, 4, 64, 128, 256, 257)),
            )
            for shape in shapes
        )
    )
    return Scope(
        "kernel blocks",
        ("map_to_kernel_blocks",),
        f"array of one of the shapes {', '.join(map(str, shapes))}, of each integer dtype, of "
        "block ids -1 (the greatest one of uint8), 0, 1, 2, 31, 63 and 127, cut into 0 to 4, 64, "
        "128, 256 and 257 kernel blocks",
        cases.map(_kernel_block_ids),
        160,
    )


SCOPES = (slots_of_batches, slots_of_positions, slots_in_place, kernel_blocks)
"""What makes each scope of this module, at a scale."""
