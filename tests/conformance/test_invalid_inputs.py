"""Invalid inputs: which ones each kind of parameter has, and how they change a call."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

import reference
from conformance.checks.registry import contracts
from conformance.contracts.contract import Contract
from conformance.coverage.presets import MINIMAL
from conformance.generation.drawing import drawn
from conformance.invalid_inputs.arrays import Array, Output, Starts
from conformance.invalid_inputs.changes import chained, changed, removed, replaced
from conformance.invalid_inputs.kinds import (
    Dict,
    Int,
    Kind,
    List,
    Str,
    invalid_by_kind,
    invalid_hint,
    size,
)
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


def made_of(kind: Kind, value: object) -> dict[str, Any]:
    """Return the invalid values that a kind derives from a valid one, by their names."""
    call = Call("f", {"x": value})
    made = {invalid.name: invalid.change(call) for invalid in invalid_by_kind(x=kind)}
    return {name: bad.arguments["x"] for name, bad in made.items() if bad is not None}


def test_an_int() -> None:
    """Both bounds, int64, and each type that is nearly an int."""
    expected = {
        "x is None": None,
        "x is 0": 0,
        "x is far too small": -(2**40),
        "x is 2**31": 2**31,
        "x is past int64": 2**64,
        "x is a bool": True,
        "x is NumPy's bool": np.True_,
        "x is a float": 3.0,
        "x is a str": "1",
    }
    assert expected == made_of(size(), 3)
    assert 1.0 == made_of(size(), 1)["x is a float"]
    assert False is made_of(Int(0), 0)["x is a bool"]
    assert "x is None" not in made_of(size(is_optional=True), 3)


def test_an_int_beside_another() -> None:
    """It is not less than another argument, or does not divide it."""
    call = Call("f", {"rank": 0, "world": 4, "block": 4})
    kinds: dict[str, Kind] = {"rank": Int(0, below="world"), "block": Int(divides="world")}
    bad = {invalid.name: invalid.change(call) for invalid in invalid_by_kind(**kinds)}
    assert "f(rank=4, world=4, block=4)" == repr(bad["rank is not below world"])
    assert "f(rank=0, world=4, block=5)" == repr(bad["block does not divide world"])


def test_an_array() -> None:
    """Another type, dtype, number of axes, length; and an element too small, in checked mode."""
    kind = Array([np.int64], length=lambda _: 2, minimum=0)
    made = made_of(kind, np.array([1, 2, 3], np.int32))
    assert [1, 2, 3] == made["x is a list"]
    assert np.dtype(np.int64) == made["x is int64"].dtype
    assert ((1, 3), ()) == (
        made["x has one axis too many"].shape,
        made["x has one axis too few"].shape,
    )
    assert [1] == made["x is too short"].tolist()
    assert [1, -1, 3] == made["x has an element below 0"].tolist()
    values = [invalid.name for invalid in invalid_by_kind(x=kind) if invalid.is_value]
    assert ["x has an element below 0"] == values


def test_starts() -> None:
    """Starts that are empty, or do not rise from 0."""
    made = made_of(Starts(), np.array([0, 2, 3], np.int32))
    assert [] == made["x is empty"].tolist()
    assert [1, 2, 3] == made["x does not start at 0"].tolist()
    assert [0, 2, -1] == made["x decreases"].tolist()


def test_an_output() -> None:
    """An array for the result is made where the valid call gives none."""
    kind = Output(lambda call: np.zeros(call.arguments["n"]), np.float32, is_exact=True)
    call = Call("f", {"n": 2})
    made = {invalid.name: invalid.change(call) for invalid in invalid_by_kind(out=kind)}
    shapes = {name: np.shape(bad.arguments["out"]) for name, bad in made.items() if bad}
    assert ((1,), (3,)) == (shapes["out is too short"], shapes["out is too long"])
    repeated = made["out is one element repeated"]
    assert repeated is not None
    assert (0,) == repeated.arguments["out"].strides


def test_lists_and_dicts() -> None:
    """The last entry is not of its kind; without an entry there is nothing to change."""
    made = made_of(List(Str()), ["a", "b"])
    assert ("a", "b") == made["x is a tuple"]
    assert ["a", 3] == made["x has an entry that is an int"]
    assert "x has an entry that is an int" not in made_of(List(Str()), [])
    of_dict = made_of(Dict(has_str_keys=True, value=Int(0)), {"a": 1, "b": 2})
    assert {"a": 1, "b": -1} == of_dict["x has an entry that is -1"]
    assert {"a": 1, "b": 2, 3: 2} == of_dict["x has a key that is an int"]


def test_a_hint() -> None:
    """A hint is changed where a call has it, and its arguments stay."""
    [*invalid_inputs] = invalid_hint("n_cpu", Int(0))
    assert all(invalid.is_hint for invalid in invalid_inputs)
    assert [None] * len(invalid_inputs) == [i.change(Call("f", {})) for i in invalid_inputs]
    bad = invalid_inputs[1].change(Call("f", {"n": 2}, hints={"n_cpu": 2}))
    assert "f(n=2, hint n_cpu=-1)" == repr(bad)


def test_paths() -> None:
    """A change is made in copies, through attributes, lists and dicts; the valid call stays."""
    cache = reference.CacheConfig(block_size=16)
    config = reference.VllmConfig(cache_config=cache)
    call = Call("f", {"configs": [{"a.b": config}]})
    path = "configs[-1][a.b].cache_config"
    bad = replaced(f"{path}.block_size", 0)(call)
    assert bad is not None
    assert (0, 16) == (bad.arguments["configs"][0]["a.b"].cache_config.block_size, cache.block_size)
    lacking = removed(f"{path}.block_size")(call)
    assert lacking is not None
    assert "block_size" not in lacking.arguments["configs"][0]["a.b"].cache_config.attributes
    assert replaced(f"{path}.no_such_name", 0)(call) is None
    nothing = chained(changed(path, lambda _: None), replaced("configs", 3))(call)
    assert nothing is None
