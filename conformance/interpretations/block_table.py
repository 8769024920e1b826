"""Interpretation of the block tables of a runner in a step that follows another."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

import numpy as np

from conformance.calls import Call
from conformance.laws.access import Access
from conformance.laws.changes import Change
from conformance.laws.interpretation import Interpretation, Reader
from conformance.sessions import construct, perform
from conformance.strategies import cached as st
from conformance.strategies.attn_metadata import regrouped
from conformance.strategies.batches import Batch, batches
from conformance.strategies.block_table import (
    Operation,
    Session,
)
from conformance.strategies.presets import Preset
from conformance.targets import Target


@dataclasses.dataclass(frozen=True)
class _Step:
    """A step of a runner with block tables.

    Attributes:
        batches: The batch of each KV cache group.
        seed: Determines the row of each request.
    """

    batches: tuple[Batch, ...]
    seed: int

    @property
    def request_slots(self) -> list[int]:
        """Return the row of each request; one row is not used."""
        slots = list(range(self.batches[0].num_reqs + 1))
        random.Random(self.seed).shuffle(slots)  # noqa: S311  # no secret
        return slots[:-1]


@st.composite
def _steps(draw: st.DrawFn, preset: Preset) -> Call:
    """Draw block tables for a batch of one, two or three groups; the facts are the step."""
    batch = draw(batches(preset))
    count = draw(st.sampled_from((2, 1, 3)))
    groups = tuple(regrouped(batch, g) if g else batch for g in range(count))
    return _tables_of(_Step(groups, draw(st.integers(0, 2**16))))


def _tables_of(step: _Step) -> Call:
    """Return the constructor call of block tables that are just large enough for a step."""
    batch = step.batches[0]
    arguments = {
        "block_sizes": [group.layout.block_size for group in step.batches],
        "max_num_reqs": batch.num_reqs + 1,
        "max_num_batched_tokens": max(batch.num_actual_tokens, 1),
        "max_model_len": max(*batch.seq_lens, 1, 1),
        "device": "cpu",
        "pin_memory": False,
    }
    return Call("BlockTables", arguments, step)


def _appending(
    slots: list[int], rows: list[list[tuple[int, ...]]], overwrite: list[bool]
) -> Operation:
    """Return the operation that writes or appends the blocks of some rows, for each group."""
    arguments = {
        "req_indices": slots,
        "cu_num_new_blocks": [[0, *accumulate(map(len, group))] for group in rows],
        "new_block_ids": [[block for row in group for block in row] for group in rows],
        "overwrite": overwrite,
    }
    return Operation("append_block_ids", arguments)


def _perform(target: Target, tables: Any, operation: Operation) -> Any:
    """Return the result of an operation; raise its exception if it raises one."""
    result = perform(target, tables, operation)
    if isinstance(result, Exception):
        raise result
    return result


def _gathered_groups(reader: Reader, call: Call) -> Iterator[Access]:
    """Yield the access relation of each group's gathered table and slots, after earlier steps.

    All rows were full once. Every other request got half of its blocks in an earlier step, and
    gets the rest now; the others are new.
    """
    step, target = call.facts, reader.target
    batch, slots = step.batches[0], step.request_slots
    all_rows = list(range(call["max_num_reqs"]))
    full = [(9,) * -(-call["max_model_len"] // g.layout.block_size) for g in step.batches]
    halves = [[row[: len(row) // 2] for row in group.rows[::2]] for group in step.batches]
    rests = [
        [row if j % 2 else row[len(row) // 2 :] for j, row in enumerate(group.rows)]
        for group in step.batches
    ]
    operations = [
        _appending(all_rows, [[row] * len(all_rows) for row in full], [True] * len(all_rows)),
        gathering(all_rows),
        _appending(slots[::2], halves, [True] * len(slots[::2])),
        _appending(slots, rests, [j % 2 == 1 for j in range(len(slots))]),
    ]
    with target.running(checked=True, seed=step.seed):
        tables = construct(target, Session(call, ()))
        for operation in operations:
            _perform(target, tables, operation)
        # A padded request has no row.
        lens = zip(slots, batch.query_lens, strict=True)
        found = _perform(target, tables, gathering([slot if q else -1 for slot, q in lens]))
        located = {"query_start_loc": batch.query_start_loc(), "positions": batch.positions()}
        mappings = _perform(target, tables, Operation("compute_slot_mappings", located))
    for group, table, mapping in zip(step.batches, found, mappings, strict=True):
        metadata = group.metadata()
        made = dataclasses.replace(
            metadata,
            block_table_tensor=np.array(table.tolist(), np.int32).reshape(table.shape),
            slot_mapping=np.array(mapping.tolist(), np.int64),
        )
        yield reader.access(made, group.layout)


def _with_change(call: Call, change: Change) -> Call:
    """Return the tables for a step with changed batches."""
    changed = tuple(map(change, call.facts.batches))
    return _tables_of(dataclasses.replace(call.facts, batches=changed))


def gathering(slots: list[int]) -> Operation:
    """Return the operation that gathers some rows."""
    return Operation("gather_block_tables", {"idx_mapping": np.array(slots, np.int32)})


GATHERED_GROUPS = Interpretation(
    _gathered_groups, _with_change, calls=_steps, groups=lambda call: call.facts.batches
)
"""Of `BlockTables`: a part for each KV cache group."""
