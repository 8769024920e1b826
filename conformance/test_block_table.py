"""Block tables: the blocks of each request slot, gathered in batch order, step after step."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import reference
from conformance.calls import Call
from conformance.comparison import first_difference
from conformance.contracts import Contract
from conformance.devices import OTHER_DEVICE, check_refuses_wrong_device
from conformance.interpretations.block_table import GATHERED_GROUPS, gathering
from conformance.invalid_inputs.block_table import (
    CONSTRUCTOR_INVALID_INPUTS,
    INVALID_OPERATIONS,
    REFUSALS,
)
from conformance.properties import law
from conformance.sessions import construct, perform, session_check
from conformance.strategies.block_table import (
    TABLE_EVENTS,
    Operation,
    Session,
    block_tables_sessions,
)
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
    lambda preset: block_tables_sessions(preset, tried=INVALID_OPERATIONS),
    _everything,
    refusals=REFUSALS,
    has_kernel=True,
)


test_block_tables_constructor = Contract(
    "BlockTables",
    lambda preset: block_tables_sessions(preset).map(lambda session: session.constructor),
    {},
    invalid_inputs=CONSTRUCTOR_INVALID_INPUTS,
    shows=lambda _: None,  # what tables do is compared by sessions
    laws=(
        "slots_are_distinct",
        "writes_are_read_back",
        "each_group_sees_its_own_batch",
        "padding_adds_nothing",
        "any_order_means_the_same",
    ),
    interpretation=GATHERED_GROUPS,
)


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
        expected = perform(REFERENCE, ours, gathering(good))
        found = perform(target, theirs, gathering(bad))
        assert first_difference(expected, found, "gathered", target.device or "cpu") is None
        sizes = session.constructor.arguments["block_sizes"]
        widths = [table.shape[1] for table in expected]
        ends = [size * width for size, width in zip(sizes, widths, strict=True)]
        positions = [0, -1, *ends, 2**40, -(2**40)][:num_tokens]
        arguments = {
            "query_start_loc": np.array([0, len(positions)], np.int32),
            "positions": np.array(positions, np.int64),
        }
        slots = perform(target, theirs, Operation("compute_slot_mappings", arguments)).tolist()
    for group, (size, end) in enumerate(zip(sizes, ends, strict=True)):
        row = expected[group][0]
        assert slots[group] == [
            int(row[p // size]) * size + p % size if 0 <= p < end else reference.PAD_SLOT_ID
            for p in positions
        ]


@law("BlockTables", block_tables_sessions, has_kernel=True)
def test_more_tokens_than_positions_stay_inside(target: Target, session: Session) -> None:
    """Without checked mode, starts past the positions are refused or give no slot."""
    num_tokens = session.constructor.arguments["max_num_batched_tokens"]
    tables = construct(target, session)
    slots = tables.get_dummy_slot_mappings(num_tokens)
    arguments = {
        "query_start_loc": np.array([0, num_tokens + 1], np.int32),
        "positions": np.zeros(num_tokens - 1, np.int64),
    }
    with target.running(checked=False):
        perform(target, tables, gathering([0]))
        outcome = perform(target, tables, Operation("compute_slot_mappings", arguments))
    assert type(outcome) is ValueError or not isinstance(outcome, Exception)
    assert bool((slots[:, num_tokens - 1 :] == reference.PAD_SLOT_ID).all())


BATCH: dict[str, dict[str, Any]] = {
    "gather_block_tables": {"idx_mapping": np.array([-1], np.int32)},
    "compute_slot_mappings": {
        "query_start_loc": np.array([0, 0], np.int32),
        "positions": np.array([], np.int64),
    },
}
"""The calls on the tables for a batch of one request without tokens."""


@law("BlockTables", block_tables_sessions, has_kernel=True)
def test_wrong_devices_are_refused(target: Target, session: Session) -> None:
    """A tensor that is not where the tables are is refused, by its name."""
    __tracebackhide__ = True
    tables = construct(target, session)
    for method, arrays in BATCH.items():
        here = {
            name: torch.from_numpy(array).to(target.device or "cpu")
            for name, array in arrays.items()
        }
        for name in arrays:
            given = here | {name: here[name].to(OTHER_DEVICE)}
            call = Call(f"BlockTables.{method}", dict(arrays))
            run = functools.partial(getattr(tables, method), **given)
            for checked in (True, False):
                check_refuses_wrong_device(target, call, name, run, checked=checked)
