"""Calls with names that look alike: which functions have them, and what the names are."""

from __future__ import annotations

import unicodedata

import pytest

from conformance.checks.registry import contracts
from conformance.conditions.known_answer import KnownAnswer
from conformance.conditions.names import ALIKE, ONE_HASH, ONE_NAME, goals_of_names, name_scenarios
from conformance.coverage.presets import MINIMAL
from conformance.generation.drawing import drawn


def test_names_look_alike() -> None:
    """The names of each kind are all equal to an implementation that compares too little."""
    same = {
        "with names that differ in case": str.casefold,
        "with names that are equal when normalized": lambda name: unicodedata.normalize(
            "NFKC", name
        ),
        "with long names that begin alike": lambda name: name[:300],
        "with names that differ in empty parts": lambda name: name.strip("."),
    }
    assert set(same) == set(ALIKE)
    for condition, key in same.items():
        assert len({key(ALIKE[condition](number)) for number in range(100)}) == 1


@pytest.mark.parametrize(
    "function",
    [name for name, contract in contracts().items() if goals_of_names(contract)],
)
def test_functions_have_such_calls(function: str) -> None:
    """Calls of the listed functions have names, classes or floats that can be replaced."""
    contract = contracts()[function]
    seen = set()
    for call in drawn(contract.calls(MINIMAL), 20, function):
        known = KnownAnswer.of(contract, call)
        seen |= {scenario.name for scenario in name_scenarios(known, known)}
    assert set(goals_of_names(contract)) <= seen <= {*ALIKE, ONE_NAME, ONE_HASH}
