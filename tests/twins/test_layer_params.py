"""Parameters of attention layers: those of each `impl`, and whether all layers agree."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import reference


class Impl(SimpleNamespace):
    """An engine's own implementation of a layer."""


def make_config(twin: Any, **impls: object) -> Any:
    layers = {name: SimpleNamespace(impl=impl) for name, impl in impls.items()}
    return twin.VllmConfig(compilation_config=twin.CompilationConfig(static_forward_context=layers))


def parameters_of(twin: Any, **impl: object) -> Any:
    return twin.get_per_layer_parameters(make_config(twin, a=Impl(**impl)), ["a"], Impl)["a"]


def test_comparison(twin: Any) -> None:
    one = twin.PerLayerParameters(127, 0.0, 0.125, True)
    assert one == twin.PerLayerParameters(127, 0.0, 0.125, True, False, True)
    for name, value in {
        "window_left": -1,
        "logits_soft_cap": None,
        "sm_scale": 1.0,
        "has_sinks": False,
    }.items():
        assert one != dataclasses.replace(one, **{name: value}), name


def test_defaults(twin: Any) -> None:
    expected = {
        "window_left": -1,
        "logits_soft_cap": None,
        "sm_scale": 0.125,
        "has_sinks": False,
        "has_same_window_lefts": None,
        "has_same_all_params": None,
    }
    assert (
        expected
        == vars(twin.PerLayerParameters(-1, None, 0.125))
        == vars(parameters_of(twin, scale=0.125))
    )


@pytest.mark.parametrize(
    ("impl", "expected"),
    [
        ({}, -1),
        ({"sliding_window": None}, -1),
        ({"sliding_window": (0,)}, 0),
        ({"sliding_window": (-1, -1)}, -1),
        ({"sliding_window": (127, 0)}, 127),
        ({"sliding_window": [0]}, 0),
        ({"sliding_window": (np.int32(5), "whatever")}, 5),
    ],
)
def test_windows(twin: Any, impl: dict[str, Any], expected: int) -> None:
    window_left = parameters_of(twin, scale=1.0, **impl).window_left
    assert (expected, int) == (window_left, type(window_left))


def test_other_parameters(twin: Any) -> None:
    assert 0.0 == parameters_of(twin, scale=1.0, logits_soft_cap=0.0).logits_soft_cap
    assert 30.0 == parameters_of(twin, scale=1.0, logits_soft_cap=30.0).logits_soft_cap
    assert parameters_of(twin, scale=1.0, logits_soft_cap=None).logits_soft_cap is None
    assert parameters_of(twin, scale=1.0, sinks=twin.convert(np.zeros(2))).has_sinks is True
    assert parameters_of(twin, scale=1.0, sinks=None).has_sinks is False
    scale = np.float32(0.5)
    assert parameters_of(twin, scale=scale).sm_scale is scale


def test_layers_are_in_the_requested_order(twin: Any) -> None:
    more = type("More", (Impl,), {})(scale=3.0)
    config = make_config(twin, a=Impl(scale=1.0), b=Impl(scale=2.0), c=more)
    found = twin.get_per_layer_parameters(config, ["c", "a"], Impl)
    assert [("c", 3.0), ("a", 1.0)] == [(name, layer.sm_scale) for name, layer in found.items()]
    assert {} == twin.get_per_layer_parameters(config, [], Impl)


NEAR = reference.PerLayerParameters(127, 0.0, 0.125)


@pytest.mark.parametrize(
    ("others", "same_windows", "same_all"),
    [
        ([], True, True),
        ([reference.PerLayerParameters(127, 0.0, 0.125, False, False, False)], True, True),
        ([reference.PerLayerParameters(-1, 0.0, 0.125)], False, False),
        ([reference.PerLayerParameters(127, None, 0.125)], True, False),
        ([NEAR, reference.PerLayerParameters(127, 0.0, 0.5)], True, False),
        ([reference.PerLayerParameters(127, 0.0, 0.125, True), NEAR], True, False),
    ],
)
def test_global_parameters(twin: Any, others: Any, same_windows: bool, same_all: bool) -> None:
    made = map(twin.convert, [NEAR, *others])
    layers = {str(-i): layer for i, layer in enumerate(made)}  # the first name sorts last
    before = [dict(vars(layer)) for layer in layers.values()]
    inferred = twin.infer_global_hyperparameters(layers)
    assert twin.convert(NEAR) == inferred
    assert inferred.has_same_window_lefts is same_windows
    assert inferred.has_same_all_params is same_all
    assert all(inferred is not layer for layer in layers.values())
    assert before == [vars(layer) for layer in layers.values()]


def test_parameters_of_an_engine(twin: Any) -> None:
    fields = {"window_left": 3, "logits_soft_cap": None, "sm_scale": 1.0, "has_sinks": True}
    engine, other = SimpleNamespace(**fields), twin.PerLayerParameters(**fields)
    inferred = twin.infer_global_hyperparameters({"a": engine, "b": other})
    assert twin.PerLayerParameters(3, None, 1.0, True) == inferred
    assert inferred.has_same_all_params is True
    del engine.has_sinks
    with pytest.raises(AttributeError, match="has_sinks"):
        twin.infer_global_hyperparameters({"b": other, "a": engine})
