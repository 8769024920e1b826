"""Block tables: the blocks of each request slot, gathered in batch order, step after step."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any

import numpy as np
from hypothesis import strategies as st

import reference
from conformance.checks import law, same_refusal
from conformance.comparison import first_difference
from conformance.contracts import Call, Contract, Draw
from conformance.faults.block_table import BAD_OPERATIONS, CONSTRUCTOR_FAULTS, REFUSALS
from conformance.laws import Access, Change, Meaning, Reader, obeys
from conformance.sessions import construct, perform, session_check
from conformance.strategies.attn_metadata import regrouped
from conformance.strategies.batches import Batch, batches
from conformance.strategies.block_table import (
    TABLE_EVENTS,
    Operation,
    Session,
    block_tables_sessions,
)
from conformance.strategies.presets import Preset
from conformance.targets import REFERENCE, Target


def _happens(event: str) -> Callable[[Session], bool]:
    return lambda session: event in session.events


def _mapping_has(session: Session, holds: Any) -> bool:
    return any(
        holds(operation.arguments["idx_mapping"].tolist())
        for operation in session.operations
        if operation.method == "gather_block_tables" and not operation.refused
    )


def _everything(tables: Any, session: Session) -> Any:
    """Hand out all that block tables write."""
    arguments = session.constructor.arguments
    return (
        tables.get_dummy_block_tables(arguments["max_num_reqs"]),
        tables.get_dummy_slot_mappings(arguments["max_num_batched_tokens"]),
    )


test_block_tables = session_check(
    "BlockTables",
    block_tables_sessions,
    _everything,
    situations={
        "no groups": lambda s: not s.constructor.arguments["block_sizes"],
        "several groups": lambda s: len(s.constructor.arguments["block_sizes"]) > 1,
        "groups of unlike block sizes": lambda s: (
            len(set(s.constructor.arguments["block_sizes"])) > 1
        ),
        "the last block is not full": lambda s: any(
            s.constructor.arguments["max_model_len"] % size
            for size in s.constructor.arguments["block_sizes"]
        ),
        "a padded request is gathered": lambda s: _mapping_has(s, lambda m: -1 in m),
        "a row is gathered twice": lambda s: _mapping_has(s, lambda m: len(set(m)) < len(m)),
        **{event: _happens(event) for event in TABLE_EVENTS},
        "ids near 2**31": lambda s: any(
            i > 2**30
            for op in s.operations
            if op.method == "append_block_ids" and not op.refused
            for ids in op.arguments["new_block_ids"]
            for i in ids
        ),
    },
    has_kernel=True,
)

test_block_tables_refuse = session_check(
    "BlockTables",
    lambda preset: block_tables_sessions(preset, tried=BAD_OPERATIONS),
    _everything,
    refusals=REFUSALS,
    has_kernel=True,
)


@dataclasses.dataclass(frozen=True)
class _Step:
    """A step of a runner that keeps its requests' blocks in block tables.

    Attributes:
        batches: The batch as each KV cache group sees it.
        seed: Which request slot each request has.
    """

    batches: tuple[Batch, ...]
    seed: int

    @property
    def request_slots(self) -> list[int]:
        """Return the request slot of each request; there is one more than it takes."""
        slots = list(range(self.batches[0].num_reqs + 1))
        random.Random(self.seed).shuffle(slots)  # noqa: S311  # no secret
        return slots[:-1]


@st.composite
def _steps(draw: Draw, preset: Preset) -> Call:
    """Draw block tables for a batch of one, two or three groups; the facts are the step."""
    batch = draw(batches(preset))
    count = draw(st.sampled_from((2, 1, 3)))
    groups = tuple(regrouped(batch, g) if g else batch for g in range(count))
    return _tables_of(_Step(groups, draw(st.integers(0, 2**16))))


def _tables_of(step: _Step) -> Call:
    """Return how block tables are made that have room for a step, and for no more."""
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


def _appending(slots: list[int], rows: list[list[tuple[int, ...]]]) -> Operation:
    """Return the operation that makes each group's rows those of the request slots."""
    arguments = {
        "req_indices": slots,
        "cu_num_new_blocks": [[0, *accumulate(map(len, group))] for group in rows],
        "new_block_ids": [[block for row in group for block in row] for group in rows],
        "overwrite": [True] * len(slots),
    }
    return Operation("append_block_ids", arguments)


def _done(target: Target, tables: Any, operation: Operation) -> Any:
    """Return what an operation gives; raise what it raises."""
    result = perform(target, tables, operation)
    if isinstance(result, Exception):
        raise result
    return result


def _gathered_groups(reader: Reader, call: Call) -> Iterator[Access]:
    """Yield what each group's gathered table and slots mean, in a step that follows another."""
    step, target = call.facts, reader.target
    batch, slots = step.batches[0], step.request_slots
    everyone = list(range(call.arguments["max_num_reqs"]))
    full = [(9,) * -(-call.arguments["max_model_len"] // g.layout.block_size) for g in step.batches]
    operations = [
        _appending(everyone, [[row] * len(everyone) for row in full]),
        _gathering(everyone),
        _appending(slots, [list(group.rows) for group in step.batches]),
    ]
    with target.running(checked=True, seed=step.seed):
        tables = construct(target, Session(call, ()))
        for operation in operations:
            _done(target, tables, operation)
        # A padded request has no request slot.
        lens = zip(slots, batch.query_lens, strict=True)
        found = _done(target, tables, _gathering([slot if q else -1 for slot, q in lens]))
        located = {"query_start_loc": batch.query_start_loc(), "positions": batch.positions()}
        mappings = _done(target, tables, Operation("compute_slot_mappings", located))
    for group, table, mapping in zip(step.batches, found, mappings, strict=True):
        metadata = group.metadata()
        made = dataclasses.replace(
            metadata,
            block_table_tensor=np.array(table.tolist(), np.int32).reshape(table.shape),
            slot_mapping=np.array(mapping.tolist(), np.int64),
        )
        yield reader.access(made, group.layout)


def _next_step(call: Call, change: Change) -> Call:
    changed = tuple(map(change.of, call.facts.batches))
    return _tables_of(dataclasses.replace(call.facts, batches=changed))


TABLES = Contract(
    "BlockTables",
    lambda preset: block_tables_sessions(preset).map(lambda session: session.constructor),
    {},
    faults=CONSTRUCTOR_FAULTS,
    laws=(
        *("slots_are_distinct", "writes_are_read_back", "each_group_sees_its_own_batch"),
        *("padding_adds_nothing", "any_order_means_the_same"),
    ),
    meaning=Meaning(
        _gathered_groups, _next_step, calls=_steps, groups=lambda call: call.facts.batches
    ),
)

test_block_tables_constructor_refuses = same_refusal(TABLES)
test_block_tables_laws = obeys(TABLES)


def _gathering(slots: list[int]) -> Operation:
    return Operation("gather_block_tables", {"idx_mapping": np.array(slots, np.int32)})


@law("BlockTables", block_tables_sessions, has_kernel=True)
def test_bad_entries_are_skipped(target: Target, session: Session) -> None:
    """Without checked mode a slot that is not there gives nulls, a position outside gives -1."""
    num_slots = session.constructor.arguments["max_num_reqs"]
    num_tokens = session.constructor.arguments["max_num_batched_tokens"]
    bad = [num_slots, *range(num_slots), -2, 2**31 - 1][:num_slots]
    good = [slot if slot in range(num_slots) else -1 for slot in bad]
    ours, theirs = construct(REFERENCE, session), construct(target, session)
    with target.running(checked=False):
        for operation in session.operations:
            perform(REFERENCE, ours, operation)
            perform(target, theirs, operation)
        wanted = perform(REFERENCE, ours, _gathering(good))
        found = perform(target, theirs, _gathering(bad))
        assert first_difference(wanted, found, "gathered", target.device or "cpu") is None
        sizes = session.constructor.arguments["block_sizes"]
        widths = [table.shape[1] for table in wanted]
        ends = [size * width for size, width in zip(sizes, widths, strict=True)]
        positions = [0, -1, *ends, 2**40, -(2**40)][:num_tokens]
        arguments = {
            "query_start_loc": np.array([0, len(positions)], np.int32),
            "positions": np.array(positions, np.int64),
        }
        slots = perform(target, theirs, Operation("compute_slot_mappings", arguments)).tolist()
    for group, (size, end) in enumerate(zip(sizes, ends, strict=True)):
        row = wanted[group][0]
        assert slots[group] == [
            int(row[p // size]) * size + p % size if 0 <= p < end else reference.PAD_SLOT_ID
            for p in positions
        ]
