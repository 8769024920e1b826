"""Invalid inputs: which ones each kind of parameter has, and how they change a call."""

from __future__ import annotations

from collections import Counter

import pytest

from conformance.checks.registry import contracts
from conformance.contracts.contract import Contract
from conformance.coverage.presets import MINIMAL
from conformance.generation.drawing import drawn
from conformance.messages.call_table import render
from conformance.reports.picture import pictures_of
from conformance.values.call import Call


@pytest.mark.parametrize("contract", contracts().values(), ids=contracts())
def test_names_are_unique(contract: Contract) -> None:
    """The names of a function's invalid inputs are unique, so that a report is unambiguous."""
    counts = Counter(invalid.name for invalid in contract.invalid_inputs)
    assert [] == [name for name, count in counts.items() if count > 1]


@pytest.mark.parametrize("contract", contracts().values(), ids=contracts())
def test_reports_show_every_one(contract: Contract) -> None:
    """A report of a mismatch, and its pictures, can be made of every invalid input."""

    def look(call: Call) -> None:
        for invalid in contract.invalid_inputs:
            bad = invalid.change(call)
            if bad is not None:
                assert isinstance(render(bad), str), invalid.name
                assert isinstance(pictures_of(bad), list), invalid.name

    assert drawn(contract.calls(MINIMAL), 5, contract.function, look)
