"""Attention through block tables after appends, moves and gathers, for every group."""

from __future__ import annotations

import dataclasses
from itertools import accumulate
from typing import Any

import numpy as np

from conformance.checks.poisoned_cache import PoisonedCache, as_numpy, attention_law
from conformance.contracts.sessions import perform_or_raise
from conformance.strategies.attention_groups import OF_GROUPS, MovedLayers, moved_layers
from conformance.strategies.block_table import Operation
from conformance.strategies.dense_layer import Array, Layer
from conformance.targets.target import Target


class _Tables:
    """A twin's block tables, and the row of each request of a step."""

    def __init__(self, twin: Target, example: MovedLayers) -> None:
        self.twin, self.example = twin, example
        self.slots = list(example.slots)
        self.sizes = [layer.batch.layout.block_size for layer in example.layers]
        lens = [layer.batch.seq_lens for layer in example.layers]
        arguments: dict[str, Any] = {
            "block_sizes": self.sizes,
            "max_num_reqs": example.max_num_reqs,
            "max_num_batched_tokens": max(1, example.batch.num_actual_tokens, sum(lens[0])),
            "max_model_len": max(2, *(max(one, default=0) for one in lens)),
            "device": twin.device or "cpu",
            "pin_memory": False,
        }
        self.tables = twin.lookup("BlockTables")(**arguments)

    def do(self, method: str, **arguments: Any) -> Any:
        """Call a method and return its result."""
        return self.perform(Operation(method, arguments))

    def perform(self, operation: Operation) -> Any:
        """Perform an operation and return its result."""
        return perform_or_raise(self.twin, self.tables, operation)

    def append(self, rows: list[list[tuple[int, ...]]], *, overwrite: bool) -> None:
        """Append blocks to the requests' rows, of each group."""
        overwrites = [overwrite] * len(self.slots)
        self.perform(Operation.appending(list(self.slots), rows, overwrites))

    def move(self, first: int, second: int) -> None:
        """Swap two requests' rows, move one to an unused row, or clear an unused row."""
        if {first, second} <= set(self.slots):
            self.do("swap_rows", a=first, b=second)
            names = {first: second, second: first}
        elif first in self.slots:
            self.do("move_row", src=first, dst=second)
            names = {first: second}
        else:
            self.do("clear_row", r=first)
            names = {}
        self.slots = [names.get(slot, slot) for slot in self.slots]

    def step(self, lens: list[int], computed: list[int], num_padding: int) -> tuple[Any, Any]:
        """Return the block tables and slots of a step, including padded requests and tokens."""
        busy = max((i + 1 for i, q in enumerate(lens) if q), default=0)
        mapping = [slot if i < busy else -1 for i, slot in enumerate(self.slots)]
        tables = self.do("gather_block_tables", idx_mapping=np.array(mapping, np.int32))
        pairs = zip(computed, lens, strict=True)
        positions = [c + j for c, q in pairs for j in range(q)] + [0] * num_padding
        slots = self.do(
            "compute_slot_mappings",
            query_start_loc=np.array([0, *accumulate(lens)], np.int32),
            positions=np.array(positions, np.int64),
        )
        return [as_numpy(table).copy() for table in tables], as_numpy(slots).copy()


def _context(layer: Layer) -> list[int]:
    """Return the number of tokens of each request in the earlier step, the same for all groups."""
    pairs = zip(layer.batch.query_lens, layer.batch.num_computed_tokens, strict=True)
    return [c if q or not i else 0 for i, (q, c) in enumerate(pairs)]


def _slots_unchanged(layer: Layer, slots: Array) -> Array:
    """Return the slots of those context tokens that a group's earlier step writes."""
    starts = [0, *accumulate(_context(layer))]
    earlier = layer.earlier
    pairs = zip(starts, earlier.num_computed_tokens, earlier.query_lens, strict=False)
    return slots[[start + c + j for start, c, q in pairs for j in range(q)]]


@attention_law(
    "BlockTables",
    moved_layers,
    goals={
        **OF_GROUPS,
        "attention: rows of older requests overwritten": lambda example: (
            example.has_old_blocks and example.layers[0].reads_context
        ),
        "attention: rows moved between context and step": lambda example: (
            any(a != b and a in example.slots for a, b in example.moves)
            and example.layers[0].reads_context
        ),
    },
    has_kernel=True,
)
def test_tables_of_groups_attend(twin: Target, example: MovedLayers) -> None:
    """After appends, moves and gathers, each group's attention finds its context and step."""
    with twin.running(checked=True):
        _attend_by_tables(_Tables(twin, example))


def _attend_by_tables(tables: _Tables) -> None:
    example = tables.example
    parts = []
    for layer in example.layers:
        size = layer.batch.layout.block_size
        counts = [-(-c // size) for c in layer.batch.num_computed_tokens]
        pairs = list(zip(layer.batch.rows, counts, strict=True))
        parts.append(([row[:n] for row, n in pairs], [row[n:] for row, n in pairs]))
    if example.has_old_blocks:
        tables.append([[(7,) for _ in tables.slots] for _ in parts], overwrite=True)
    tables.append([had for had, _ in parts], overwrite=True)
    context, nothing = _context(example.layers[0]), [0] * len(tables.slots)
    caches = [PoisonedCache(layer) for layer in example.layers]
    for cache, slots in zip(caches, tables.step(context, nothing, 0)[1], strict=True):
        cache.write(cache.layer.earlier, _slots_unchanged(cache.layer, slots))
    tables.append([new for _, new in parts], overwrite=False)
    for first, second in example.moves:
        tables.move(first, second)
    batch = example.batch
    lens, computed = list(batch.query_lens), list(batch.num_computed_tokens)
    gathered, slots = tables.step(lens, computed, batch.num_padding_tokens)
    for cache, table, own in zip(caches, gathered, slots, strict=True):
        metadata = dataclasses.replace(
            cache.layer.batch.metadata(), block_table_tensor=table, slot_mapping=own
        )
        cache.write(cache.layer.batch, own)
        cache.layer.assert_close_to_dense(cache.attend(metadata))
