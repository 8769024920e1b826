"""Block tables: the blocks of each request slot, gathered in batch order, step after step."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from conformance.checks.contract_checks import along_axes
from conformance.contracts.contract import Contract
from conformance.contracts.sessions import construct, perform_or_raise, session_check
from conformance.coverage.presets import MINIMAL, Preset
from conformance.coverage.size_axes import Axis
from conformance.generation.profiles import Kind
from conformance.invalid_inputs.block_table import (
    CONSTRUCTOR_INVALID_INPUTS,
    INVALID_OPERATIONS,
    REFUSALS,
)
from conformance.laws.access import Access
from conformance.laws.changes import Change
from conformance.laws.interpretation import Interpretation, Reader
from conformance.strategies import cached as st
from conformance.strategies.attn_metadata import regrouped
from conformance.strategies.batch import Batch
from conformance.strategies.batches import batches
from conformance.strategies.block_table import (
    GROUPS,
    LAST_BLOCK_ID,
    LENGTH,
    SLOTS,
    TABLE_EVENTS,
    TOKENS,
    Operation,
    Session,
    block_tables_sessions,
    long_sessions,
)
from conformance.strategies.large_batches import BLOCK_IDS, BLOCK_SIZE
from conformance.values.call import Call


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
    """Draw block tables for a batch of one, two or three groups; the source is the step."""
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


def _gathered_groups(reader: Reader, call: Call) -> Iterator[Access]:
    """Yield the access relation of each group's gathered table and slots, after earlier steps.

    All rows were full once. Every other request got half of its blocks in an earlier step, and
    gets the rest now; the others are new.
    """
    step, target = call.source, reader.target
    batch, slots = step.batches[0], step.request_slots
    all_rows = list(range(call["max_num_reqs"]))
    full = [(9,) * -(-call["max_model_len"] // g.layout.block_size) for g in step.batches]
    halves = [[row[: len(row) // 2] for row in group.rows[::2]] for group in step.batches]
    rests = [
        [row if j % 2 else row[len(row) // 2 :] for j, row in enumerate(group.rows)]
        for group in step.batches
    ]
    operations = [
        Operation.appending(
            all_rows, [[row] * len(all_rows) for row in full], [True] * len(all_rows)
        ),
        Operation.gathering(all_rows),
        Operation.appending(slots[::2], halves, [True] * len(slots[::2])),
        Operation.appending(slots, rests, [j % 2 == 1 for j in range(len(slots))]),
    ]
    with target.running(checked=True, seed=step.seed):
        tables = construct(target, Session(call, ()))
        for operation in operations:
            perform_or_raise(target, tables, operation)
        # A padded request has no row.
        lens = zip(slots, batch.query_lens, strict=True)
        found = perform_or_raise(
            target, tables, Operation.gathering([slot if q else -1 for slot, q in lens])
        )
        located = {"query_start_loc": batch.query_start_loc(), "positions": batch.positions()}
        mappings = perform_or_raise(target, tables, Operation("compute_slot_mappings", located))
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
    changed = tuple(map(change, call.source.batches))
    return _tables_of(dataclasses.replace(call.source, batches=changed))


GATHERED_GROUPS = Interpretation(
    _gathered_groups, _with_change, calls=_steps, groups=lambda call: call.source.batches
)
"""Interprets `BlockTables`: one part for each KV cache group."""


def _happens(event: str) -> Callable[[Session], bool]:
    return lambda session: event in session.events


def _mapping_has(session: Session, holds: Any) -> bool:
    return any(
        holds(operation.arguments["idx_mapping"].tolist())
        for operation in session.operations
        if operation.method == "gather_block_tables" and not operation.refused
    )


def _everything(tables: Any, session: Session) -> dict[str, Any]:
    """Return all buffers that block tables write to."""
    arguments = session.constructor.arguments
    return {
        "gathered block tables": tables.get_dummy_block_tables(arguments["max_num_reqs"]),
        "slot mappings": tables.get_dummy_slot_mappings(arguments["max_num_batched_tokens"]),
    }


def _ids(session: Session) -> list[int]:
    """Return the block ids that a session appends."""
    lists = [
        ids
        for operation in session.operations
        for ids in operation.arguments.get("new_block_ids", ())
    ]
    return [block for ids in lists for block in ids]


def _all_rows(session: Session) -> Operation:
    """Return the operation that gathers every row."""
    return Operation.gathering([*range(session.constructor.arguments["max_num_reqs"])])


SLOW_SESSION = "all tables are compared after every operation, which takes seconds"


test_block_tables = session_check(
    "BlockTables",
    block_tables_sessions,
    _everything,
    goals={
        "no groups": lambda s: not s.constructor.arguments["block_sizes"],
        "memory is to be pinned": lambda s: s.constructor.arguments["pin_memory"],
        "several groups": lambda s: len(s.constructor.arguments["block_sizes"]) > 1,
        "groups of different block sizes": lambda s: (
            len(set(s.constructor.arguments["block_sizes"])) > 1
        ),
        "the last block is not full": lambda s: any(
            s.constructor.arguments["max_model_len"] % size
            for size in s.constructor.arguments["block_sizes"]
        ),
        "a padded request is gathered": lambda s: _mapping_has(s, lambda m: -1 in m),
        "a row is gathered twice": lambda s: _mapping_has(s, lambda m: len(set(m)) < len(m)),
        **{event: _happens(event) for event in TABLE_EVENTS},
        "the last block id that int32 holds": lambda s: LAST_BLOCK_ID in _ids(s),
        "ids near 2**31": lambda s: any(
            i > 2**30
            for op in s.operations
            if op.method == "append_block_ids" and not op.refused
            for ids in op.arguments["new_block_ids"]
            for i in ids
        ),
    },
    has_kernel=True,
    reader=_all_rows,
)


def _constructed(name: str) -> Any:
    return lambda session: session.constructor[name]


test_block_tables_of_all_sizes = along_axes(
    test_block_tables,
    {
        GROUPS: Axis(lambda s: len(s.constructor["block_sizes"]), 65, SLOW_SESSION),
        SLOTS: Axis(_constructed("max_num_reqs"), 4097, SLOW_SESSION, first=1),
        TOKENS: Axis(_constructed("max_num_batched_tokens"), 4097, SLOW_SESSION, first=1),
        LENGTH: Axis(_constructed("max_model_len"), 65_537, first=1),
        BLOCK_SIZE: Axis(lambda s: max(s.constructor["block_sizes"], default=1), 2**26, first=1),
        BLOCK_IDS: Axis(lambda s: max(_ids(s), default=0), LAST_BLOCK_ID, first=64),
    },
    lambda example: example.session,
)


test_block_tables_refuse = session_check(
    "BlockTables",
    lambda preset: block_tables_sessions(preset, invalid_operations=INVALID_OPERATIONS),
    _everything,
    refusals=REFUSALS,
    has_kernel=True,
    reader=_all_rows,
)


test_block_tables_in_long_sessions = session_check(
    "BlockTables",
    long_sessions,
    _everything,
    presets=[MINIMAL],
    kind=Kind.CONDITIONS,
    reader=_all_rows,
)


test_block_tables_constructor = Contract(
    "BlockTables",
    lambda preset: block_tables_sessions(preset).map(lambda session: session.constructor),
    {},
    invalid_inputs=CONSTRUCTOR_INVALID_INPUTS,
    shows=lambda _: None,  # sessions compare the behaviour of tables
    laws=(
        "slots_are_distinct",
        "writes_are_read_back",
        "each_group_sees_its_own_batch",
        "padding_adds_nothing",
        "any_order_means_the_same",
    ),
    interpretation=GATHERED_GROUPS,
)
