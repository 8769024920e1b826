"""Parameters of layers: as each `impl` has them, and whether all layers agree."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from reference import (
    CompilationConfig,
    PerLayerParameters,
    VllmConfig,
    get_per_layer_parameters,
    infer_global_hyperparameters,
)


class Impl(SimpleNamespace):
    """An engine's own implementation of a layer."""


def make_config(**impls: object) -> VllmConfig:
    """Make a configuration of layers with these implementations."""
    layers = {name: SimpleNamespace(impl=impl) for name, impl in impls.items()}
    return VllmConfig(compilation_config=CompilationConfig(static_forward_context=layers))


def parameters_of(**impl: object) -> PerLayerParameters:
    """Return the parameters of one layer."""
    return get_per_layer_parameters(make_config(a=Impl(**impl)), ["a"], Impl)["a"]


def test_comparison() -> None:
    """What is known of other layers takes no part in comparison, every parameter does."""
    one = PerLayerParameters(127, 0.0, 0.125, True)
    assert one == PerLayerParameters(127, 0.0, 0.125, True, False, True)
    for name, value in {
        "window_left": -1,
        "logits_soft_cap": None,
        "sm_scale": 1.0,
        "has_sinks": False,
    }.items():
        assert one != dataclasses.replace(one, **{name: value}), name


def test_defaults() -> None:
    """Without more there are no sinks, and nothing is known of other layers."""
    expected = {
        "window_left": -1,
        "logits_soft_cap": None,
        "sm_scale": 0.125,
        "has_sinks": False,
        "has_same_window_lefts": None,
        "has_same_all_params": None,
    }
    assert expected == vars(PerLayerParameters(-1, None, 0.125)) == vars(parameters_of(scale=0.125))


@pytest.mark.parametrize(
    ("impl", "expected"),
    [
        ({}, -1),
        ({"sliding_window": None}, -1),
        ({"sliding_window": (-1, -1)}, -1),
        ({"sliding_window": (127, 0)}, 127),
        ({"sliding_window": [0]}, 0),
        ({"sliding_window": (np.int32(5), "whatever")}, 5),
    ],
)
def test_windows(impl: dict[str, Any], expected: int) -> None:
    """A window's first entry counts, as a Python int; without a window it is -1."""
    window_left = parameters_of(scale=1.0, **impl).window_left
    assert (expected, int) == (window_left, type(window_left))


def test_other_parameters() -> None:
    """A cap of 0.0 stays 0.0; sinks are there when they are not None; scales are as they are."""
    assert 0.0 == parameters_of(scale=1.0, logits_soft_cap=0.0).logits_soft_cap
    assert 30.0 == parameters_of(scale=1.0, logits_soft_cap=30.0).logits_soft_cap
    assert parameters_of(scale=1.0, logits_soft_cap=None).logits_soft_cap is None
    assert parameters_of(scale=1.0, sinks=np.zeros(2)).has_sinks is True
    assert parameters_of(scale=1.0, sinks=None).has_sinks is False
    scale = np.float32(0.5)
    assert parameters_of(scale=scale).sm_scale is scale


def test_layers_are_in_the_order_asked_for() -> None:
    """The layers are those asked for, in that order; an impl may be of a class that extends."""
    more = type("More", (Impl,), {})(scale=3.0)
    config = make_config(a=Impl(scale=1.0), b=Impl(scale=2.0), c=more)
    found = get_per_layer_parameters(config, ["c", "a"], Impl)
    assert [("c", 3.0), ("a", 1.0)] == [(name, layer.sm_scale) for name, layer in found.items()]
    assert {} == get_per_layer_parameters(config, [], Impl)


@pytest.mark.parametrize(
    ("layer_names", "cls_", "error", "message"),
    [
        (None, Impl, TypeError, "layer_names must be a list, got NoneType"),
        (("a",), Impl, TypeError, "layer_names must be a list, got tuple"),
        ([3], Impl, TypeError, "layer_names[0] must be a str, got 3 of int"),
        (
            ["a", "z"],
            Impl,
            KeyError,
            "\"layer_names[1] is 'z', which static_forward_context lacks\"",
        ),
        (["a"], (Impl,), TypeError, "cls_ must be a class, got tuple"),
        ([], None, TypeError, "cls_ must be a class, got None of NoneType"),
        (
            ["a", "other"],
            Impl,
            TypeError,
            "impl of layer 'other' must be of class Impl, got SimpleNamespace",
        ),
        (
            ["none"],
            Impl,
            TypeError,
            "impl of layer 'none' must be of class Impl, got NoneType",
        ),
        (
            ["bare"],
            Impl,
            TypeError,
            "impl of layer 'bare' must be of class Impl, got NoneType",
        ),
        (
            ["number"],
            Impl,
            TypeError,
            "impl.sliding_window of layer 'number' must be a list or tuple, got 127 of int",
        ),
        (
            ["empty"],
            Impl,
            ValueError,
            "impl.sliding_window of layer 'empty' is empty, expected at least 1 entry",
        ),
        (
            ["odd"],
            Impl,
            TypeError,
            ("impl.sliding_window[0] of layer 'odd' must be an int, got None of NoneType"),
        ),
        (
            ["low"],
            Impl,
            ValueError,
            "impl.sliding_window[0] of layer 'low' is -2, expected at least -1",
        ),
        (["no scale"], Impl, AttributeError, "'Impl' object has no attribute 'scale'"),
    ],
)
def test_refusals(
    layer_names: Any,  # noqa: ANN401  # wrong ones too
    cls_: Any,  # noqa: ANN401  # likewise
    error: type[Exception],
    message: str,
) -> None:
    """Each wrong argument and layer is refused, in these words."""
    config = make_config(
        a=Impl(scale=1.0),
        other=SimpleNamespace(scale=1.0),
        none=None,
        number=Impl(scale=1.0, sliding_window=127),
        empty=Impl(scale=1.0, sliding_window=()),
        odd=Impl(scale=1.0, sliding_window=(None, 3)),
        low=Impl(scale=1.0, sliding_window=(-2, 3)),
        **{"no scale": Impl()},
    )
    config.compilation_config.static_forward_context["bare"] = SimpleNamespace()
    with pytest.raises(error) as caught:
        get_per_layer_parameters(config, layer_names, cls_)
    assert message == str(caught.value)


def test_a_configuration_without_layers() -> None:
    """A configuration that does not say which layers there are is refused."""
    with pytest.raises(AttributeError, match="static_forward_context"):
        get_per_layer_parameters(VllmConfig(), [], Impl)


NEAR = PerLayerParameters(127, 0.0, 0.125)


@pytest.mark.parametrize(
    ("others", "same_windows", "same_all"),
    [
        ([], True, True),
        ([PerLayerParameters(127, 0.0, 0.125, False, False, False)], True, True),
        ([PerLayerParameters(-1, 0.0, 0.125)], False, False),
        ([PerLayerParameters(127, None, 0.125)], True, False),
        ([NEAR, PerLayerParameters(127, 0.0, 0.5)], True, False),
        ([PerLayerParameters(127, 0.0, 0.125, True), NEAR], True, False),
    ],
)
def test_global_parameters(
    others: list[PerLayerParameters], same_windows: bool, same_all: bool
) -> None:
    """They are the first layer's, and say whether all agree; sinks, caps and scales count too."""
    layers = {str(i): layer for i, layer in enumerate([NEAR, *others])}
    before = [dict(vars(layer)) for layer in layers.values()]
    inferred = infer_global_hyperparameters(layers)
    assert NEAR == inferred
    assert inferred.has_same_window_lefts is same_windows
    assert inferred.has_same_all_params is same_all
    assert all(inferred is not layer for layer in layers.values())
    assert before == [vars(layer) for layer in layers.values()]


def test_the_first_layer_counts() -> None:
    """The parameters are those of the first layer of the dict, not of the first name."""
    far = PerLayerParameters(-1, None, 0.5, True)
    inferred = infer_global_hyperparameters({"b": far, "a": NEAR})
    assert far == inferred
    assert inferred.has_same_window_lefts is False


def test_parameters_of_an_engine() -> None:
    """An engine's own objects with the four parameters serve too."""
    fields = {"window_left": 3, "logits_soft_cap": None, "sm_scale": 1.0, "has_sinks": True}
    engine, other = SimpleNamespace(**fields), PerLayerParameters(**fields)
    inferred = infer_global_hyperparameters({"a": engine, "b": other})
    assert PerLayerParameters(3, None, 1.0, True) == inferred
    assert inferred.has_same_all_params is True
    del engine.has_sinks
    with pytest.raises(AttributeError, match="has_sinks"):
        infer_global_hyperparameters({"b": other, "a": engine})


@pytest.mark.parametrize(
    ("layers", "error", "message"),
    [
        ({}, ValueError, "per_layer_params is empty, expected at least 1 layer"),
        (
            [NEAR],
            TypeError,
            ("per_layer_params must be a dict, got list"),
        ),
        (None, TypeError, "per_layer_params must be a dict, got None of NoneType"),
    ],
)
def test_refusals_of_global_parameters(
    layers: Any,  # noqa: ANN401  # wrong ones
    error: type[Exception],
    message: str,
) -> None:
    """No layers, and what is no dict, is refused, in these words."""
    with pytest.raises(error) as caught:
        infer_global_hyperparameters(layers)
    assert message == str(caught.value)
