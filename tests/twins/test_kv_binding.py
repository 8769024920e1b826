"""Binding: the layer index in a name, and the caches of layers and runner."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest


@pytest.mark.parametrize(
    ("layer_name", "num_attn_module", "expected"),
    [
        ("model.layers.20.attn.0", 2, 40),
        ("model.layers.20.attn.1", 2, 41),
        ("model.layers.7.self_attn", 2, 7),
        ("2.mixer", 2, 2),
        ("model.layers.20.attn.5", 3, 65),
        ("model.layers.7.self_attn", 1, 7),
        ("model.layers.7.self_attn", None, 7),
        ("model.layers.007.self_attn", np.int64(1), 7),
        ("decoder.layers.3.encoder_attn", 1, 3),
        ("0", 1, 0),
        ("layers.3b.4", 1, 4),
        ("layers.-3.4", 1, 4),
        ("layers.\u0663.\u00b2.4", 1, 4),
        ("layers..4.", 1, 4),
        ("model.layers.007.attn2.x3", np.int64(4), 7),
    ],
)
def test_indices(twin: Any, layer_name: str, num_attn_module: int | None, expected: int) -> None:
    index = twin.extract_layer_index(layer_name, num_attn_module)
    assert expected == index
    assert type(index) is int


def make_layers(*names: str) -> dict[str, Any]:
    return {name: SimpleNamespace(kv_cache="untouched") for name in names}


def test_binding_order(twin: Any) -> None:
    names = ["10.attn", "2.self_attn", "2.cross_attn", "1.mixer"]
    kv_caches: dict[str, Any] = {
        name: twin.convert(np.zeros(i)) for i, name in enumerate(names[:3])
    }
    kv_caches["1.mixer"] = [twin.convert(np.zeros(7)), twin.convert(np.zeros(8))]
    layers = make_layers("other", *sorted(names))
    runner_kv_caches: list[Any] = []
    twin.bind_kv_cache(kv_caches, layers, runner_kv_caches, None)
    expected = ["1.mixer", "2.self_attn", "2.cross_attn", "10.attn"]
    for name, kv_cache in zip(expected, runner_kv_caches, strict=True):
        assert kv_cache is kv_caches[name]
        assert type(layers[name].kv_cache) is list
        assert len(layers[name].kv_cache) == 1
        assert layers[name].kv_cache[0] is kv_cache
    assert layers["other"].kv_cache == "untouched"
    assert names == list(kv_caches)


def test_binding_modules(twin: Any) -> None:
    names = ["1.attn.0", "0.attn.1", "0.attn.0", "1.attn.1"]
    runner_kv_caches: list[Any] = []
    twin.bind_kv_cache({name: name for name in names}, make_layers(*names), runner_kv_caches, 2)
    assert sorted(names) == runner_kv_caches


def test_binding_refused_by_a_layer(twin: Any) -> None:
    layers: dict[str, Any] = {
        "0.attn": SimpleNamespace(kv_cache="old"),
        "1.attn": SimpleNamespace(),
        "2.attn": None,
    }
    runner_kv_caches: list[Any] = []
    with pytest.raises(AttributeError, match="'NoneType' object has no attribute 'kv_cache'"):
        twin.bind_kv_cache(dict.fromkeys(layers, "cache"), layers, runner_kv_caches)
    assert vars(layers["0.attn"]) == {"kv_cache": "old"}
    assert vars(layers["1.attn"]) == {}
    assert runner_kv_caches == []
