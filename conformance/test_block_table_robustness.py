"""Block tables: out-of-range entries, writes to views, other devices, reused rows."""

from __future__ import annotations

import copy
import functools
from typing import Any

import numpy as np
import torch

import reference
from conformance.checks.device_checks import OTHER_DEVICE, check_refuses_wrong_device
from conformance.checks.tensor_kind_checks import check_refused_or_returned, condition_of
from conformance.contracts.check import property_check
from conformance.contracts.evaluation import check_equal
from conformance.contracts.sessions import construct, perform, perform_or_raise
from conformance.coverage.presets import MINIMAL, Preset
from conformance.generation.profiles import Kind
from conformance.strategies import cached as st
from conformance.strategies.block_table import Operation, Session, block_tables_sessions
from conformance.targets.target import REFERENCE, Target
from conformance.targets.tensor_kinds import ORDINARY, TENSORS, NoSuchKindError, OfKind
from conformance.values.call import Call
from conformance.values.comparison import first_difference


@property_check("BlockTables", block_tables_sessions, has_kernel=True)
def test_bad_entries_are_skipped(target: Target, session: Session) -> None:
    """Without checked mode, a missing row gives null blocks, and an invalid position slot -1."""
    num_rows = session.constructor.arguments["max_num_reqs"]
    num_tokens = session.constructor.arguments["max_num_batched_tokens"]
    bad = [num_rows, -2, 2**31 - 1, *range(num_rows)][:num_rows]
    good = [row if row in range(num_rows) else -1 for row in bad]
    ours, theirs = construct(REFERENCE, session), construct(target, session)
    with target.running(checked=False):
        for operation in session.operations:
            perform(REFERENCE, ours, operation)
            perform(target, theirs, operation)
        expected = perform(REFERENCE, ours, Operation.gathering(good))
        found = perform(target, theirs, Operation.gathering(bad))
        assert first_difference(expected, found, "gathered", target.device or "cpu") is None
        if len(session.operations) % 2:  # a caller may write into what it gets
            for table in (*expected, *found):
                table[:, :1] = -1
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
            int(row[p // size]) * size + p % size
            if 0 <= p < end and row[p // size] >= 0
            else reference.PAD_SLOT_ID
            for p in positions
        ]


@property_check("BlockTables", block_tables_sessions, has_kernel=True)
def test_more_tokens_than_positions_stay_inside(target: Target, session: Session) -> None:
    """Without checked mode, starts past the positions are refused or give slot -1."""
    num_tokens = session.constructor.arguments["max_num_batched_tokens"]
    tables = construct(target, session)
    slots = tables.get_dummy_slot_mappings(num_tokens)
    slots[:] = 2**40  # from an earlier step
    arguments = {
        "query_start_loc": np.array([0, num_tokens + 1], np.int32),
        "positions": np.zeros(num_tokens - 1, np.int64),
    }
    with target.running(checked=False):
        perform(target, tables, Operation.gathering([0]))
        outcome = perform(target, tables, Operation("compute_slot_mappings", arguments))
    assert type(outcome) is ValueError or not isinstance(outcome, Exception)
    if type(outcome) is not ValueError:  # a refusal leaves the slots as they were
        assert bool((slots[:, num_tokens - 1 :] == reference.PAD_SLOT_ID).all())
        assert not bool((slots[:, : num_tokens - 1] == 2**40).any())


EMPTY_STEP = {"query_start_loc": np.array([0], np.int32), "positions": np.array([], np.int64)}
"""A step without requests."""


@property_check("BlockTables", block_tables_sessions)
def test_a_view_may_be_the_out_of_another_call(target: Target, session: Session) -> None:
    """Values that another call writes to a view, as its `out`, are gone after the next step."""
    if not session.constructor.arguments["block_sizes"]:
        return
    tables = construct(target, session)
    slots = tables.get_dummy_slot_mappings(session.constructor.arguments["max_num_batched_tokens"])
    ones: tuple[Any, ...] = (
        np.ones((1, 1), np.int32),
        np.array([0, 1], np.int32),
        np.zeros(1, np.int64),
    )
    fill = target.lookup("compute_slot_mapping")
    with target.running(checked=True):
        perform(target, tables, Operation("compute_slot_mappings", EMPTY_STEP))
        fill(*map(target.array, ones), 1, out=slots[-1])
        assert slots[-1][0] == 1
        perform(target, tables, Operation("compute_slot_mappings", EMPTY_STEP))
    assert bool((slots == reference.PAD_SLOT_ID).all())


@property_check("BlockTables", block_tables_sessions, has_kernel=True)
def test_a_gathered_table_may_be_the_out_of_another_call(target: Target, session: Session) -> None:
    """Values that another call writes to a gathered table are gone after the next step."""
    tables = construct(target, session)
    gather = target.lookup("gather_mm_placeholders")
    with target.running(checked=False):
        for table in perform_or_raise(target, tables, Operation.gathering([0])):
            ones = target.array(np.ones(table.shape, np.int32))
            gather(ones, target.array(np.ones(len(ones), np.bool_)), out=table)
            assert bool((table == 1).all())
        found = perform_or_raise(target, tables, Operation.gathering([0]))
    for table in found:
        assert bool((table == reference.NULL_BLOCK_ID).all())


@property_check("BlockTables", lambda _: st.sampled_from((1, 2)), presets=[MINIMAL])
def test_large_tables_fit_into_an_address_space(target: Target, example: int) -> None:
    """Tables of 2**55 bytes can be made on `meta`: allocation adds little overhead."""
    if target.device is None:
        return  # only implementations with tensors
    num_reqs, length = 2**22 // example, 2**31 - 1
    made = target.call("BlockTables", [1] * example, num_reqs, 1, length, OTHER_DEVICE, False)
    shapes = [tuple(table.shape) for table in made.get_dummy_block_tables(num_reqs)]
    assert [(num_reqs, length)] * example == shapes


EMPTY_BATCH_CALLS: dict[str, dict[str, Any]] = {
    "gather_block_tables": {"idx_mapping": np.array([-1], np.int32)},
    "compute_slot_mappings": {
        "query_start_loc": np.array([0, 0], np.int32),
        "positions": np.array([], np.int64),
    },
}
"""The calls on the tables for a batch of one request without tokens."""


@property_check("BlockTables", block_tables_sessions, has_kernel=True)
def test_wrong_devices_are_refused(target: Target, session: Session) -> None:
    """A tensor on another device than the tables is refused by name."""
    __tracebackhide__ = True
    tables = construct(target, session)
    for method, arrays in EMPTY_BATCH_CALLS.items():
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


ONE_TOKEN_CALLS: dict[str, dict[str, Any]] = {
    "gather_block_tables": {"idx_mapping": np.array([0], np.int32)},
    "compute_slot_mappings": {
        "query_start_loc": np.array([0, 1], np.int32),
        "positions": np.array([0], np.int64),
    },
}
"""The calls on the tables for a batch of one request with one token."""


def sessions_with_arguments(
    preset: Preset,
) -> st.SearchStrategy[tuple[Session, tuple[str, str], bool]]:
    """Draw a session, an argument of `ONE_TOKEN_CALLS`, and whether it is in checked mode."""
    arguments = [(method, name) for method, given in ONE_TOKEN_CALLS.items() for name in given]
    return st.tuples(block_tables_sessions(preset), st.sampled_from(arguments), st.booleans())


@property_check(
    "BlockTables",
    sessions_with_arguments,
    kind=Kind.OTHER_TENSORS,
    tests_invalid_inputs=True,
)
def test_other_tensors_are_refused(
    target: Target, example: tuple[Session, tuple[str, str], bool]
) -> None:
    """Another kind of tensor is refused by name, or makes no difference."""
    __tracebackhide__ = True
    session, (method, name), checked = example
    ours, theirs = construct(REFERENCE, session), construct(target, session)
    operations = {one: Operation(one, given) for one, given in ONE_TOKEN_CALLS.items()}
    call = Call(f"BlockTables.{method}", ONE_TOKEN_CALLS[method])
    with target.running(checked=checked):
        for operation in session.operations:
            perform(REFERENCE, ours, operation)
            perform(target, theirs, operation)
        expected = {
            one: copy.deepcopy(perform(REFERENCE, ours, operation))
            for one, operation in operations.items()
        }
        for kind in TENSORS:
            for one, operation in operations.items():
                check_equal(target, call, expected[one], perform(target, theirs, operation), one)
            other = OfKind(kind, call[name], name)
            try:
                given = target.converter().convert({**call.arguments, name: other}, "")
            except NoSuchKindError:
                continue
            run = functools.partial(getattr(theirs, method), **given)
            condition = condition_of(name, kind)
            has_returned, found = check_refused_or_returned(target, call, run, condition)
            if has_returned and kind in ORDINARY:
                check_equal(target, call, expected[method], found)


@property_check("BlockTables", block_tables_sessions)
def test_tables_are_on_their_device(target: Target, session: Session) -> None:
    """Tables are made on the requested device, with the usual dtypes."""
    if target.device is None:
        return  # only implementations with tensors
    arguments = session.constructor.arguments | {"device": OTHER_DEVICE}
    tables = target.call("BlockTables", **arguments)
    found = [*tables.get_dummy_block_tables(1), tables.get_dummy_slot_mappings(1)]
    kinds = [torch.int32] * len(arguments["block_sizes"]) + [torch.int64]
    assert [(OTHER_DEVICE, kind) for kind in kinds] == [(t.device.type, t.dtype) for t in found]


@property_check("BlockTables", block_tables_sessions)
def test_an_emptied_row_is_gathered_anew(target: Target, session: Session) -> None:
    """A row that is emptied and refilled between two steps has only its new blocks."""
    num_groups = len(session.constructor.arguments["block_sizes"])
    last = session.constructor.arguments["max_num_reqs"] - 1
    emptied = [Operation("clear_row", {"r": 0}), Operation("move_row", {"src": 0, "dst": last})]
    tables = construct(target, session)
    with target.running(checked=False):
        for block, emptying in enumerate(emptied[: last + 1], start=1):
            for blocks in ([block], [block + 7]):
                append = Operation.appending([0], [[blocks]] * num_groups, [False])
                perform_or_raise(target, tables, append)
                found = perform_or_raise(target, tables, Operation.gathering([0]))
                nulls = [[reference.NULL_BLOCK_ID] * (table.shape[1] - 1) for table in found]
                assert [table.tolist() for table in found] == [[blocks + row] for row in nulls]
                perform_or_raise(target, tables, emptying)
