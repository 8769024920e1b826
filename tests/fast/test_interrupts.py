"""Exceptions out of signal handlers: a method of block tables takes effect fully or not at all.

A handler runs between two instructions, so KeyboardInterrupt is raised before each instruction of
`fast` in turn, until the call completes.
"""

import contextlib
import functools
import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import fast
import reference
from fast.launch import simulated_by
from tests.fast.interrupts import Interrupter

Act = Callable[[Any], object]
OnPath = Callable[[], AbstractContextManager[None]]
Observed = list[list[list[int]] | str]

BLOCK_SIZES, WIDTHS = [2, 4], [6, 3]
NUM_REQS, NUM_TOKENS = 3, 4


def array(tables: object, values: list[int], dtype: str) -> Any:
    """Return an array of the kind that the tables take."""
    values_array = np.array(values, dtype)
    return torch.from_numpy(values_array) if isinstance(tables, fast.BlockTables) else values_array


def gather(*slots: int) -> Act:
    return lambda tables: tables.gather_block_tables(
        array(tables, list(slots), "int32"), len(slots)
    )


def compute_slots(starts: list[int], positions: list[int]) -> Act:
    slots = list(range(len(starts) - 1))
    return lambda tables: tables.compute_slot_mappings(
        array(tables, slots, "int32"),
        array(tables, starts, "int32"),
        array(tables, positions, "int64"),
        len(positions),
    )


def append(row: int, block_id: int, *, overwrite: bool) -> Act:
    """Return the operation that gives a row a block, in both groups."""
    return lambda tables: tables.append_block_ids(row, [[block_id], [block_id + 10]], overwrite)


def apply(tables: Any) -> None:
    tables.apply_staged_writes()


SETUP: list[Act] = [
    *(append(row, 31 + row, overwrite=False) for row in (0, 2, 0)),
    apply,
    gather(2, 0, 1),
    compute_slots([0, 2, 3, 3], [0, 1, 2, 9]),
    append(1, 34, overwrite=False),
]
"""Operations after which every row has another length, one with a staged write."""

INTERRUPTED: dict[str, Act] = {
    "append": append(0, 41, overwrite=False),
    "overwrite": append(2, 42, overwrite=True),
    "apply": apply,
    "gather": gather(0, -1),
    "compute_slots": compute_slots([0, 1, 2], [3, 0]),
    "dummy_tables": lambda tables: tables.get_dummy_block_tables(1),
    "dummy_slots": lambda tables: tables.get_dummy_slot_mappings(1),
}

AFTERWARDS: list[Act] = [
    gather(2, 0, 1),  # as before the interrupted call: what has not changed need not be written
    apply,
    gather(2, 0, 1),
    *(append(row, 50 + row, overwrite=False) for row in [0, 1, 2] * 3),  # until a row is full
    apply,
    gather(2, 0, 1),
    compute_slots([0, 2, 3], [0, 2, 1]),
    append(0, 60, overwrite=True),
    apply,
    gather(2, 0),
]
"""Operations after the interrupted call, whether it took effect or not."""


class ObservedTables:
    """Block tables of one of the twins, with views of all their results."""

    def __init__(self, twin: ModuleType) -> None:
        self.tables = twin.BlockTables(BLOCK_SIZES, NUM_REQS, NUM_TOKENS, WIDTHS, "cpu")
        self.views = [
            *self.tables.get_dummy_block_tables(NUM_REQS),
            self.tables.get_dummy_slot_mappings(NUM_TOKENS),
        ]
        for act in SETUP:
            act(self.tables)

    def observe(self) -> Observed:
        """Return what the views show now and after each later operation, unless it is refused."""
        shown: Observed = [self._show()]
        for act in AFTERWARDS:
            try:
                act(self.tables)
            except (IndexError, ValueError) as error:
                shown.append(type(error).__name__)
            else:
                shown.append(self._show())
        return shown

    def _show(self) -> list[list[int]]:
        return [view.reshape(-1).tolist() for view in self.views]


def state_of(value: Any) -> Any:
    """Return all state of an object of `fast`, for comparison."""
    if isinstance(value, torch.Tensor):
        return value._version, value.tolist()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [state_of(each) for each in value]
    if isinstance(value, dict):
        return {key: state_of(each) for key, each in value.items()}
    if type(value).__module__.partition(".")[0] == "fast":
        slots = [name for cls in type(value).__mro__ for name in getattr(cls, "__slots__", ())]
        held = {name: getattr(value, name, None) for name in slots} | getattr(value, "__dict__", {})
        return {name: state_of(each) for name, each in held.items()}
    return value


@pytest.fixture(params=["host", "device"])
def on_path(request: pytest.FixtureRequest) -> OnPath:
    """Return a maker of contexts in which calls take the host path, or the device path."""
    if request.param == "host":
        return contextlib.nullcontext
    simulate = request.getfixturevalue("simulate")
    return lambda: simulated_by(functools.partial(simulate, seed=3), threads=2)


@pytest.mark.parametrize("name", INTERRUPTED)
def test_an_interrupted_call_happens_or_not(name: str, on_path: OnPath) -> None:
    act = INTERRUPTED[name]
    act(ObservedTables(fast).tables)  # loops are compiled when first called
    unbegun, done = ObservedTables(reference), ObservedTables(reference)
    act(done.tables)
    expected = [unbegun.observe(), done.observe()]
    assert expected[0] != expected[1], "the call changes nothing"
    known: list[tuple[Any, bool]] = []  # what became of each state; most calls leave the same one
    for at in itertools.count(1):
        interrupter = Interrupter(fast, at)
        with on_path():
            observed = ObservedTables(fast)
            if not interrupter.run(functools.partial(act, observed.tables)):
                break
            state = state_of(observed.tables)
            is_right = next((right for each, right in known if each == state), None)
            if is_right is None:
                is_right = observed.observe() in expected
                known.append((state, is_right))
        assert is_right, f"interrupted at {interrupter.place}, it left neither state"
    assert at > 1, "no instruction of fast was seen"
