import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import fast
from fast import PerLayerParameters


class Impl(SimpleNamespace):
    """What a layer computes with."""


def config_of(**impls: object) -> SimpleNamespace:
    """Return an engine's own configuration of layers with these `impl`s."""
    layers = {name: SimpleNamespace(impl=impl) for name, impl in impls.items()}
    layers["norm"] = SimpleNamespace()
    return SimpleNamespace(compilation_config=SimpleNamespace(static_forward_context=layers))


def test_fields() -> None:
    """The fields, their defaults, and which of them are compared."""
    fields = dataclasses.fields(PerLayerParameters)
    assert {
        "window_left": True,
        "logits_soft_cap": True,
        "sm_scale": True,
        "has_sinks": True,
        "has_same_window_lefts": False,
        "has_same_all_params": False,
    } == {field.name: field.compare for field in fields}
    params = PerLayerParameters(7, None, 0.5)
    assert (False, None) == (params.has_sinks, params.has_same_window_lefts)
    assert params == PerLayerParameters(7, None, 0.5, False, True, False)
    assert params != PerLayerParameters(7, 0.0, 0.5)
    params.window_left = 8


@pytest.mark.parametrize(
    ("impl", "expected"),
    [
        ({}, (-1, None, False)),
        ({"sliding_window": None, "logits_soft_cap": None, "sinks": None}, (-1, None, False)),
        ({"sliding_window": (np.int64(127), 0)}, (127, None, False)),
        ({"sliding_window": [-1, -1]}, (-1, None, False)),
        ({"sliding_window": (0,), "logits_soft_cap": 0.0}, (0, 0.0, False)),
        ({"logits_soft_cap": 30.0, "sinks": torch.zeros(2)}, (-1, 30.0, True)),
    ],
)
def test_parameters_of_a_layer(impl: dict[str, Any], expected: tuple[Any, ...]) -> None:
    """What an `impl` does not have means none."""
    config = config_of(a=Impl(scale=0.25, **impl))
    params = fast.get_per_layer_parameters(config, ["a"], Impl)["a"]
    assert expected == (params.window_left, params.logits_soft_cap, params.has_sinks)
    assert 0.25 == params.sm_scale
    assert type(params.window_left) is int
    assert (None, None) == (params.has_same_window_lefts, params.has_same_all_params)


def test_parameters_of_named_layers() -> None:
    """Only the named layers are read, in the order of the names."""
    config = config_of(a=Impl(scale=1.0), b=object(), c=Impl(scale=2.0))
    params = fast.get_per_layer_parameters(config, ["c", "a"], Impl)
    assert [("c", 2.0), ("a", 1.0)] == [(name, p.sm_scale) for name, p in params.items()]
    assert {} == fast.get_per_layer_parameters(config, [], Impl)


GOOD = Impl(scale=1.0)


@pytest.mark.parametrize(
    ("impl", "arguments", "error", "message"),
    [
        (GOOD, ("a", Impl), TypeError, "layer_names must be a list, got str"),
        (GOOD, ([1], Impl), TypeError, r"^layer_names\[0\] must be a str, got 1 of int"),
        (GOOD, (["a"], None), TypeError, "cls_ must be a class, got None"),
        (GOOD, (["z"], Impl), KeyError, r"layer_names\[0\] is 'z', which static_forward_contex"),
        (GOOD, (["norm"], Impl), TypeError, "^impl of layer 'norm' must be of class Impl, got N"),
        (GOOD, (["norm"], object), TypeError, "^impl of layer 'norm' must be of class object, g"),
        (None, (["a"], Impl), TypeError, "^impl of layer 'a' must be of class Impl, got NoneType"),
        (3, (["a"], Impl), TypeError, "^impl of layer 'a' must be of class Impl, got int"),
        (Impl(), (["a"], Impl), AttributeError, "scale"),
        (
            Impl(scale=1.0, sliding_window=8),
            (["a"], Impl),
            TypeError,
            r"^impl\.sliding_window of layer 'a' must be a list or tuple, got 8 of int",
        ),
        (
            Impl(scale=1.0, sliding_window=()),
            (["a"], Impl),
            ValueError,
            "impl.sliding_window of layer 'a' is empty",
        ),
        (
            Impl(scale=1.0, sliding_window=(None, 0)),
            (["a"], Impl),
            TypeError,
            r"^impl\.sliding_window\[0\] of layer 'a' must be an int, got None of NoneType",
        ),
        (
            Impl(scale=1.0, sliding_window=(-2, 0)),
            (["a"], Impl),
            ValueError,
            r"^impl\.sliding_window\[0\] of layer 'a' is -2, expected at least -1",
        ),
    ],
)
def test_parameters_refuses(
    impl: object, arguments: tuple[Any, ...], error: type[Exception], message: str
) -> None:
    """The layer at fault is named."""
    with pytest.raises(error, match=message):
        fast.get_per_layer_parameters(config_of(a=impl), *arguments)


A = PerLayerParameters(7, None, 0.5)


@pytest.mark.parametrize(
    ("others", "same_windows", "same_all"),
    [
        ([], True, True),
        ([PerLayerParameters(7, None, 0.5, has_same_all_params=False)], True, True),
        ([A, PerLayerParameters(8, None, 0.5)], False, False),
        ([PerLayerParameters(7, 0.0, 0.5)], True, False),
        ([PerLayerParameters(7, None, 0.25)], True, False),
        ([PerLayerParameters(7, None, 0.5, has_sinks=True)], True, False),
        ([SimpleNamespace(**vars(A))], True, True),
    ],
)
def test_global_hyperparameters(
    others: list[PerLayerParameters], *, same_windows: bool, same_all: bool
) -> None:
    """The result is the first layer's, says what all share, and is a new object."""
    layers = dict(enumerate([dataclasses.replace(A), *others]))
    before = [vars(params).copy() for params in layers.values()]
    found = fast.infer_global_hyperparameters(layers)  # type: ignore[arg-type]  # names are numbers
    assert found == A
    assert found is not layers[0]
    assert (same_windows, same_all) == (found.has_same_window_lefts, found.has_same_all_params)
    assert before == [vars(params) for params in layers.values()]


@pytest.mark.parametrize(
    ("params", "error", "message"),
    [
        ({}, ValueError, "per_layer_params is empty, expected at least 1 layer"),
        ([A], TypeError, "per_layer_params must be a dict"),
        (None, TypeError, "per_layer_params must be a dict, got None"),
        ({"a": A, "b": None}, AttributeError, "window_left"),
    ],
)
def test_global_hyperparameters_refuses(
    params: Any,  # noqa: ANN401  (wrong on purpose)
    error: type[Exception],
    message: str,
) -> None:
    """Without layers nothing can be inferred."""
    with pytest.raises(error, match=message):
        fast.infer_global_hyperparameters(params)
