from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import fast


@pytest.mark.parametrize(
    ("name", "modules", "expected"),
    [
        ("model.layers.20.attn.0", 2, 40),
        ("model.layers.20.attn.1", 2, 41),
        ("model.layers.7.self_attn", 2, 7),
        ("2.mixer", 2, 2),
        ("model.layers.7.self_attn", 1, 7),
        ("model.layers.7.self_attn", None, 7),
        ("model.layers.007.attn2.x3", np.int64(4), 7),
        ("layers.3.attn.9", 2, 15),
    ],
)
def test_layer_indices(name: str, modules: int | None, expected: int) -> None:
    """The integers of a name give its index."""
    index = fast.extract_layer_index(name, modules)
    assert expected == index
    assert type(index) is int


@pytest.mark.parametrize(
    ("name", "modules"),
    [
        ("encoder.layers.0.sub.1", 1),
        ("encoder.layers.0.sub.1", 2),
        ("layers.0.attn.1", None),
        ("layers.attn", 1),
        ("layers.attn", 2),
        ("layers.1.attn.2.3", 2),
        ("", 1),
        ("layers.\u0663", 1),
        ("layers.\u00b2", 1),
        ("layers.-1", 1),
        ("layers.1_0", 1),
    ],
)
def test_names_without_an_index(name: str, modules: int | None) -> None:
    """Too many integers, or none, are refused, naming the layer; only ASCII digits count."""
    with pytest.raises(ValueError, match=f"layer_name is '{name}' and has . integers"):
        fast.extract_layer_index(name, modules)


def test_layer_indices_refuse_types() -> None:
    """A name is a text, a number of modules a positive int or None."""
    with pytest.raises(TypeError, match="layer_name must be a str, got 3 of int"):
        fast.extract_layer_index(3)
    with pytest.raises(TypeError, match="num_attn_module must be an int, got True"):
        fast.extract_layer_index("layers.0", True)
    with pytest.raises(ValueError, match="num_attn_module is 0, expected at least 1"):
        fast.extract_layer_index("layers.0", 0)


def test_binds_by_index() -> None:
    """The runner's list is in ascending index, and in the caches' order where these are equal."""
    names = ["d.2.cross_attn", "d.10.attn", "d.2.self_attn", "d.0.attn"]
    caches = {name: object() for name in names}
    context = {name: SimpleNamespace(kv_cache="old") for name in [*names, "moe"]}
    runner: list[object] = []
    fast.bind_kv_cache(caches, context, runner)
    assert runner == [caches[names[i]] for i in (3, 0, 2, 1)]
    for name in names:
        assert type(context[name].kv_cache) is list
        assert [caches[name]] == context[name].kv_cache
    assert "old" == context["moe"].kv_cache


def test_binds_several_modules() -> None:
    """With several attention modules in a layer their order is that of both integers."""
    names = ["1.attn.0", "0.attn.1", "1.attn.1", "0.attn.0"]
    caches = {name: object() for name in names}
    runner: list[object] = []
    fast.bind_kv_cache(caches, {name: SimpleNamespace() for name in names}, runner, 2)
    assert runner == [caches[names[i]] for i in (3, 1, 0, 2)]


@pytest.mark.parametrize(
    ("names", "runner", "modules", "error", "message"),
    [
        (["0.a", "1.b", "2.c"], [], 1, KeyError, "forward_context lacks layer '2.c'"),
        (["0.a", "1.b"], [1], 1, ValueError, "runner_kv_caches has 1 entries, expected none"),
        (["0.a", "1.b"], (), 1, TypeError, "runner_kv_caches must be a list"),
        (["0.a", "x"], [], 1, ValueError, "layer_name is 'x'"),
        ([], [], 0, ValueError, "num_attn_module is 0"),
        (["0.a"], [], 1.0, TypeError, "num_attn_module must be an int"),
    ],
)
def test_binding_is_all_or_nothing(
    names: list[str],
    runner: Any,  # noqa: ANN401  (wrong ones too)
    modules: Any,  # noqa: ANN401  (likewise)
    error: type[Exception],
    message: str,
) -> None:
    """After an error no layer and no list has changed."""
    context = {name: SimpleNamespace(kv_cache="old") for name in ("0.a", "1.b", "x")}
    before = list(runner)
    with pytest.raises(error, match=message):
        fast.bind_kv_cache(dict.fromkeys(names, "new"), context, runner, modules)
    assert before == list(runner)
    assert {"old"} == {layer.kv_cache for layer in context.values()}


def test_binding_is_taken_back_where_a_layer_refuses() -> None:
    """A layer that takes no attributes leaves the others with what they had before, if anything."""
    layers: dict[str, Any] = {
        "l.0": SimpleNamespace(kv_cache=["old"]),
        "l.1": SimpleNamespace(),
        "l.2": object(),
    }
    runner: list[Any] = []
    with pytest.raises(AttributeError, match="kv_cache"):
        fast.bind_kv_cache(dict.fromkeys(layers, "new"), layers, runner)
    assert {"kv_cache": ["old"]} == vars(layers["l.0"])
    assert {} == vars(layers["l.1"])
    assert [] == runner
