"""Detection of memory that grows with the number of cases."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
from hypothesis import strategies as st

from conformance.conditions.sequences import HELD_AMONG_OTHERS
from kvtwin.fuzz.cases.case import Input
from kvtwin.fuzz.cases.properties import Subject
from kvtwin.fuzz.findings import growth
from kvtwin.fuzz.findings.failures import Failure
from kvtwin.fuzz.findings.growth import CASES, ROUNDS, GrowthJob
from tests.tools.fuzz.contexts import SilentContext
from tests.tools.fuzz.toys import toy

LEAKED: list[bytes] = []


def keeps(_: object, example: int) -> None:
    """Leak 64 KiB."""
    LEAKED.append(bytes([example]) * (1 << 16))


def leaks_at_first(_: object, example: int) -> None:
    """Keep 1 MiB in each of the first cases, as a cache does."""
    if len(LEAKED) < CASES:
        LEAKED.append(bytes([example]) * (1 << 20))


def leaks_in_five_stages(_: object, example: int) -> None:
    """Keep 64 KiB in each of the first cases, as heap fragmentation does."""
    if len(LEAKED) < 5 * ROUNDS * CASES:
        keeps(_, example)


def frees(_: object, example: int) -> None:
    """Allocate 1 MiB and free it."""
    assert len(bytes([example]) * (1 << 20)) == 1 << 20


def keeps_and_fails(target: object, example: int) -> None:
    """Leak memory, and fail."""
    keeps(target, example)
    raise AssertionError


def measured(
    monkeypatch: pytest.MonkeyPatch, body: Callable[[object, int], None], *goals: str
) -> Failure | None:
    """Measure a property with this body and these goals."""
    LEAKED.clear()
    prop = toy(body, st.integers(0, 255))
    prop = dataclasses.replace(prop, check=dataclasses.replace(prop.check, goals=goals))
    monkeypatch.setattr(growth, "properties_of", lambda _: {prop.name: prop})
    return GrowthJob(Subject(), prop.name, 3).run(SilentContext())


def test_growth_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory growth is measured in a child; its failure has the growth for each case."""
    found = measured(monkeypatch, keeps)
    assert found is not None
    assert ("memory growth", "MemoryGrowthError") == (found.kind, found.error)
    kib = int(found.line.rpartition(" KiB")[0].rpartition(" ")[2])
    assert 60 <= kib <= 80
    assert len(LEAKED) <= 2
    # It is measured again when it is replayed.
    assert (None, Input("toys::toy@host", 3)) == (found.case, Input.from_bytes(found.input))


def test_what_fails_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failing property is not measured: the reports of its failures take memory too."""
    assert None is measured(monkeypatch, keeps_and_fails)


def test_what_calls_other_functions_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """A property that calls other functions is not measured: one of those may leak."""
    assert None is measured(monkeypatch, keeps, HELD_AMONG_OTHERS)


@pytest.mark.parametrize("body", [frees, leaks_at_first, leaks_in_five_stages])
def test_what_is_freed_or_cached_is_no_growth(
    body: Callable[[object, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory that is freed, or grows only at first, is not reported."""
    assert None is measured(monkeypatch, body)
