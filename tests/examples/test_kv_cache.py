"""The KV cache of a model: allocation, binding, sharing, its layout, and all of it at once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import reference
from tests.examples.twins import Twin, shares_memory

FULL = reference.FullAttentionSpec(4, 5, 6, np.float16)
ENCODER_ONLY = reference.EncoderOnlyAttentionSpec(4, 5, 6, np.float16)
UNIFORM_ENCODER_ONLY = reference.UniformTypeKVCacheSpecs(4, {"x": ENCODER_ONLY, "y": ENCODER_ONLY})
PAGE = 480


def make_config(twin: Twin, tensors: list[tuple[int, list[str]]], groups: list[Any]) -> Any:
    """Return a configuration of tensors and groups, written as tuples."""
    return twin.KVCacheConfig(
        num_blocks=-1,  # it is not read
        kv_cache_tensors=[twin.KVCacheTensor(size, layers) for size, layers in tensors],
        kv_cache_groups=[twin.KVCacheGroupSpec(names, twin.of(spec)) for names, spec in groups],
    )


@pytest.mark.parametrize(
    ("tensors", "groups", "expected"),
    [
        ([], [], {}),
        (
            [(6, ["c", "a"]), (0, ["b"]), (8, []), (np.int64(3), ["d"])],
            [(["a", "b"], FULL), ([], FULL), (["c", "d"], FULL)],
            {"c": 6, "a": 6, "b": 0, "d": 3},
        ),
        # layers of encoder-only groups have no cache
        ([(6, ["a"])], [(["x", "y"], ENCODER_ONLY), (["a"], FULL)], {"a": 6}),
        ([(6, ["a"])], [(["a"], FULL), (["x", "a"], UNIFORM_ENCODER_ONLY)], {"a": 6}),
    ],
)
def test_allocation(twin: Twin, tensors, groups, expected) -> None:
    raws = twin._allocate_kv_cache(make_config(twin, tensors, groups), device="cpu")
    assert [*expected.items()] == [(name, len(raw)) for name, raw in raws.items()]
    assert {twin.dtype("int8")} >= {raw.dtype for raw in raws.values()}
    assert not any(raw.any() for raw in raws.values())
    if "c" in raws:  # layers of a tensor share it, and no others
        assert raws["a"] is raws["c"]
        assert not shares_memory(raws["a"], raws["d"])


@pytest.mark.parametrize(
    ("layer_name", "num_attn_module", "expected"),
    [
        ("model.layers.20.attn.0", 2, 40),  # of 2 attention modules in a layer
        ("model.layers.20.attn.1", 2, 41),
        ("model.layers.20.attn.5", 3, 65),
        ("model.layers.7.self_attn", 2, 7),
        ("model.layers.7.self_attn", 1, 7),
        ("model.layers.7.self_attn", None, 7),
        ("2.mixer", 2, 2),  # no attention layer
        ("decoder.layers.3.encoder_attn", 1, 3),
        ("model.layers.007.self_attn", np.int64(1), 7),
        ("model.layers.007.attn2.x3", np.int64(4), 7),
        ("0", 1, 0),
        # what is no integer between dots
        ("layers.3b.4", 1, 4),
        ("layers.-3.4", 1, 4),
        ("layers.\u0663.\u00b2.4", 1, 4),
        ("layers..4.", 1, 4),
    ],
)
def test_layer_indices(twin: Twin, layer_name, num_attn_module, expected) -> None:
    index = twin.extract_layer_index(layer_name, num_attn_module)
    assert (expected, int) == (index, type(index))


def make_layers(*names: str) -> dict[str, Any]:
    return {name: SimpleNamespace(kv_cache="untouched") for name in names}


@pytest.mark.parametrize(
    ("names", "num_attn_module", "expected"),
    [
        # in the order of the layers' indices; those of one index stay in the order of their caches
        (
            ["10.attn", "2.self_attn", "2.cross_attn", "1.mixer"],
            None,
            ["1.mixer", "2.self_attn", "2.cross_attn", "10.attn"],
        ),
        (
            ["1.attn.0", "0.attn.1", "0.attn.0", "1.attn.1"],
            2,
            ["0.attn.0", "0.attn.1", "1.attn.0", "1.attn.1"],
        ),
    ],
)
def test_binding(twin: Twin, names, num_attn_module, expected) -> None:
    layers, bound = make_layers("other", *names), list[Any]()
    twin.bind_kv_cache({name: f"of {name}" for name in names}, layers, bound, num_attn_module)
    assert [f"of {name}" for name in expected] == bound
    assert {name: [f"of {name}"] for name in names} | {"other": "untouched"} == {
        name: layer.kv_cache for name, layer in layers.items()
    }


SHARING = {"d": "b", "c": "a", "e": "b"}  # the layer d reads the cache of b


@pytest.mark.parametrize(
    ("groups", "runner_only", "expected"),
    [
        # layers join the groups of their targets, unless they are there
        ([["a"], ["x", "b"]], None, [["a", "c"], ["x", "b", "d", "e"]]),
        ([["a"], ["x", "b"]], {"other"}, [["a", "c"], ["x", "b", "d", "e"]]),
        ([["a", "c"], ["b", "e"]], set(), [["a", "c"], ["b", "e", "d"]]),
    ],
)
def test_sharing(twin: Twin, groups, runner_only, expected) -> None:
    made = [twin.KVCacheGroupSpec(list(names), twin.KVCacheSpec(16)) for names in groups]
    layers = None if runner_only is None else set(runner_only)
    caches: dict[str, Any] = {"a": "of a", "b": "of b", "c": "its own before"}
    for _ in range(2):  # twice is once
        twin.add_kv_sharing_layers_to_kv_cache_groups(SHARING, made, layers)
        twin.initialize_kv_cache_for_kv_sharing(SHARING, made, caches)
        assert expected == [group.layer_names for group in made]
        assert layers == (None if runner_only is None else runner_only | {"c", "d", "e"})
        assert {name: f"of {SHARING.get(name, name)}" for name in "abcde"} == caches


class Backend:
    """A backend whose cache has the keys of all blocks before the values."""

    @staticmethod
    def get_kv_cache_shape(num_blocks: int, block_size: int, heads: int, size: int) -> Any:
        """Return the shape."""
        return 2, num_blocks, block_size, heads, size


def test_a_model_of_three_groups(twin: Twin) -> None:
    """Two tensors are the memory of five layers; layer 4 shares the cache of layer 0."""
    tensors = [
        (3 * PAGE, ["layers.0.attn", "layers.1.attn", "layers.4.attn"]),
        (3 * PAGE, ["layers.2.mixer", "layers.3.attn"]),
    ]
    mamba = reference.MambaSpec(4, ((7,),), (np.float32,), page_size_padded=PAGE)
    groups = [
        (["layers.0.attn", "layers.3.attn"], FULL),
        (["layers.1.attn"], reference.SlidingWindowSpec(4, 5, 6, np.float16, 8)),
        (["layers.2.mixer"], mamba),
        (["encoder.0"], ENCODER_ONLY),
    ]
    config = make_config(twin, tensors, groups)
    names = [f"layers.{i}.{'mixer' if i == 2 else 'attn'}" for i in range(5)]
    layers = make_layers(*reversed(names), "encoder.0", "mlp")
    sharing = {"layers.4.attn": "layers.0.attn"}
    twin.add_kv_sharing_layers_to_kv_cache_groups(sharing, config.kv_cache_groups)
    bound: list[Any] = []
    backends = {name: Backend for name in names if name.endswith("attn")}
    twin.init_kv_cache(bound, layers, config, backends, "cpu", kernel_block_sizes=[2, 4, 99])

    assert "untouched" == layers["mlp"].kv_cache == layers["encoder.0"].kv_cache
    for name, kv_cache in zip(names, bound, strict=True):
        assert 1 == len(layers[name].kv_cache)
        assert layers[name].kv_cache[0] is kv_cache
    assert (2, 6, 2, 5, 6) == bound[0].shape == bound[4].shape
    assert (2, 3, 4, 5, 6) == bound[1].shape
    assert [(3, 7)] == [tuple(state.shape) for state in bound[2]]
    bound[0][1, 5, 0, 4, 5] = 7
    assert 7 == bound[4][1, 5, 0, 4, 5]
    assert 1 == (bound[1] != 0).sum()  # over the same bytes
    assert not bound[2][0].any()
    assert not bound[3].any()


@pytest.mark.parametrize(
    ("value", "expected"),
    [("NHD", True), ("HND", True), ("nhd", False), (" NHD", False), (b"NHD", False), ([], False)],
)
def test_layouts(twin: Twin, value, expected) -> None:
    assert expected is twin.is_valid_kv_cache_layout(value)


@pytest.mark.parametrize(
    ("is_set", "variable", "expected"),
    [
        # what is set comes before VLLM_KV_CACHE_LAYOUT, and that before the default
        (None, None, "NHD"),
        (None, "HND", "HND"),
        ("NHD", "HND", "NHD"),
        ("HND", "NHD", "HND"),
        ("HND", None, "HND"),
    ],
)
def test_the_layout(
    twin: Twin, monkeypatch: pytest.MonkeyPatch, is_set, variable, expected
) -> None:
    monkeypatch.setattr(twin.kv_layout, "_KV_CACHE_LAYOUT_OVERRIDE", "HND")
    monkeypatch.delenv("VLLM_KV_CACHE_LAYOUT", raising=False)
    if variable is not None:
        monkeypatch.setenv("VLLM_KV_CACHE_LAYOUT", variable)
    assert "HND" == twin.get_kv_cache_layout()
    twin.set_kv_cache_layout(is_set)
    assert expected == twin.get_kv_cache_layout()
