"""Scopes of slot mappings, and of block ids mapped to kernel blocks."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

import numpy as np

from conformance.arrays.guard_bands import Array, guarded, guarded_table
from conformance.values.call import Call
from kvtwin.fuzz.exhaustive import spaces as sp
from kvtwin.fuzz.exhaustive.batches import GARBAGE, Requests, all_requests, array_of, block_id

Layout = tuple[int, int, int, int, int]
"""Block size, kernel block size, ranks, rank, interleave."""


def layouts(max_block_size: int, max_ranks: int) -> sp.Space[Layout]:
    """Return all layouts with at most this block size and this many ranks."""
    return sp.values(list(_layouts(max_block_size, max_ranks)))


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
    query_lens: tuple[int, ...],
    positions: tuple[int, ...],
    layout: Layout,
    **more: Any,
) -> Call:
    size, kernel, ranks, rank, interleave = layout
    arguments = {
        "block_table": table,
        "query_start_loc": array_of((0, *accumulate(query_lens)), np.int32),
        "positions": array_of(positions, np.int64),
        "block_size": size,
        "kernel_block_size": kernel,
        "cp_world_size": ranks,
        "cp_rank": rank,
        "cp_kv_cache_interleave_size": interleave,
    }
    return Call("compute_slot_mapping", arguments | more)


def _call_of_batch(
    requests: Requests, num_padding: int, table: Array, layout: Layout, **more: Any
) -> Call:
    positions = [computed + j for query, computed in requests for j in range(query)]
    query_lens = tuple(query for query, _ in requests)
    return _call(table, query_lens, (*positions, *[-7] * num_padding), layout, **more)


@functools.lru_cache(maxsize=64)
def _distinct_table(num_rows: int, width: int) -> Array:
    """Return a table whose entries are distinct blocks."""
    rows = [[block_id(row * width + k + 1) for k in range(width)] for row in range(num_rows)]
    return guarded_table(rows, num_rows, width, GARBAGE)


def slots_of_batches(scale: int) -> sp.Scope:
    """Return the scope of all small batches in all small layouts."""
    requests, query, computed, size, ranks = [(3, 1, 1, 2, 2), (3, 3, 3, 4, 3), (3, 5, 5, 6, 4)][
        scale
    ]

    def call_of(batch: Requests, num_padding: int, layout: Layout) -> Call:
        table = _distinct_table(len(batch), query + computed)
        return _call_of_batch(batch, num_padding, table, layout)

    cases = sp.product(all_requests(requests, query, computed), sp.ints(0, 1), layouts(size, ranks))
    return sp.Scope(
        "slots of batches",
        ("compute_slot_mapping",),
        f"batch with at most {requests} requests, {query} new and {computed} computed tokens each, "
        f"1 padded token, distinct blocks of at most {size} tokens, with all kernel block sizes "
        f"and interleaves that divide them, on every rank of at most {ranks}",
        cases.starmap(call_of),
    )


@functools.lru_cache(maxsize=64)
def _table(labels: tuple[int, ...]) -> Array:
    """Return a table of two rows; its labels 1 and 2 are a negative id and the null block."""
    ids = [-1 if label == 1 else 0 if label == 2 else block_id(label) for label in labels]
    width = len(ids) // 2
    return guarded_table([ids[:width], ids[width:]], 2, width, GARBAGE)


def renamed_once(length: int, blocks: int) -> list[tuple[int, ...]]:
    """Return all sequences of blocks of a length, each once up to renaming of the blocks.

    Blocks are numbered from 1 in the order in which they first occur.

    Args:
        length: The length of a sequence.
        blocks: The maximum number of different blocks.

    >>> renamed_once(3, 3)
    [(1, 1, 1), (1, 1, 2), (1, 2, 1), (1, 2, 2), (1, 2, 3)]
    """
    found: list[tuple[int, ...]] = [()]
    for _ in range(length):
        found = [
            (*labels, label)
            for labels in found
            for label in range(1, min(max(labels, default=0) + 1, blocks) + 1)
        ]
    return found


def slots_of_positions(scale: int) -> sp.Scope:
    """Return the scope of tokens at all positions of all tables, valid and invalid."""
    tokens, position, size, ranks = [(1, 4, 1, 2), (2, 8, 2, 2), (3, 8, 2, 2)][scale]
    width = 1 if scale == 0 else 2
    # The first two labels mean a negative id and the null block.
    tables = [labels[2:] for labels in renamed_once(2 + 2 * width, 99) if labels[1] == 2]
    lens = [lens for lens in sp.sequences(sp.ints(0, tokens), 2).items() if sum(lens) <= tokens]
    batches = sp.values(lens).then(lambda found: sp.product(*[sp.ints(-1, position)] * sum(found)))

    def call_of(
        labels: tuple[int, ...], batch: tuple[tuple[int, ...], tuple[int, ...]], layout: Layout
    ) -> Call:
        return _call(_table(labels), *batch, layout)

    return sp.Scope(
        "slots of positions",
        ("compute_slot_mapping",),
        f"table of 2 rows and {width} columns, up to renaming of blocks, with null blocks and "
        f"negative ids, for every batch with at most 2 requests and {tokens} tokens at positions "
        f"from -1 to {position}, in blocks of at most {size} tokens, with all kernel block sizes "
        f"and interleaves, on every rank of at most {ranks}; calls that must be refused included",
        sp.product(sp.values(tables), batches, layouts(size, ranks)).starmap(call_of),
    )


def slots_in_place(scale: int) -> sp.Scope:
    """Return the scope of slots that are written to a given array."""
    requests, query, computed = [(1, 1, 1), (2, 2, 2), (3, 2, 2)][scale]

    def call_of(
        batch: Requests,
        num_padding: int,
        extra_rows: int,
        out: tuple[int | None, int],
        layout: Layout,
    ) -> Call:
        table, (longer, stride) = _distinct_table(len(batch) + extra_rows, query + computed), out
        if longer is None:
            return _call_of_batch(batch, num_padding, table, layout)
        length = max(sum(query for query, _ in batch) + num_padding + longer, 0)
        written = guarded([99] * length, np.int64, stride)
        return _call_of_batch(batch, num_padding, table, layout, out=written)

    cases = sp.product(
        all_requests(requests, query, computed),
        sp.ints(0, 2),
        sp.ints(0, 1),
        sp.values([(None, 1), *((longer, stride) for longer in range(-1, 3) for stride in (1, 2))]),
        layouts(2, 2),
    )
    return sp.Scope(
        "slots in place",
        ("compute_slot_mapping",),
        f"batch with at most {requests} requests, {query} new and {computed} computed tokens each, "
        "2 padded tokens, 1 spare row of the table, without `out` and with one that is 1 too "
        "short to 2 longer, contiguous and strided, in blocks of at most 2 tokens, with all "
        "kernel block sizes and interleaves, on every rank of at most 2",
        cases.starmap(call_of),
    )


def kernel_blocks(scale: int) -> sp.Scope:
    """Return the scope of block ids cut into kernel blocks."""
    shapes = [(0,), (1,), (2,), (0, 2), (1, 2), (2, 1), (3,), (2, 2)][: 6 if scale == 0 else None]
    ids = sp.values((-1, 0, 1, 2, 31, 63, 127))

    def block_ids_of(dtype: Any, shape: tuple[int, ...], found: tuple[int, ...]) -> Any:
        return np.array(found, np.int64).astype(dtype).reshape(shape)

    dtypes = sp.values((np.int8, np.int16, np.int32, np.int64, np.uint8))
    cases = [
        sp.calls(
            "map_to_kernel_blocks",
            block_ids=sp.product(
                dtypes, sp.values([shape]), sp.product(*[ids] * int(np.prod(shape)))
            ).starmap(block_ids_of),
            blocks_per_kv_block=sp.values((0, 1, 2, 3, 4, 64, 128, 256, 257)),
        )
        for shape in shapes
    ]
    return sp.Scope(
        "kernel blocks",
        ("map_to_kernel_blocks",),
        f"array of one of the shapes {', '.join(map(str, shapes))}, of each integer dtype, of "
        "block ids -1 (the greatest one of uint8), 0, 1, 2, 31, 63 and 127, cut into 0 to 4, 64, "
        "128, 256 and 257 kernel blocks",
        sp.chain(*cases),
    )


SCOPES = (slots_of_batches, slots_of_positions, slots_in_place, kernel_blocks)
"""The functions that build the scopes of this module, at a scale."""
