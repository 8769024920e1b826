"""Layers: found by type and name, their specs, backends and builders, and their parameters."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import reference
from reference import FullAttentionSpec, PerLayerParameters, SlidingWindowSpec
from tests.examples.twins import Twin

FULL = FullAttentionSpec(16, 8, 64, np.float16)
NEAR = SlidingWindowSpec(16, 8, 64, np.float16, 128)


def make_config(twin: Twin, layers: Any, block_size: int = 16) -> Any:
    return twin.VllmConfig(
        cache_config=twin.CacheConfig(block_size=block_size),
        compilation_config=twin.CompilationConfig(static_forward_context=layers),
    )


def test_attention_types(twin: Twin) -> None:
    assert {
        "DECODER": "decoder",
        "ENCODER": "encoder",
        "ENCODER_ONLY": "encoder_only",
        "ENCODER_DECODER": "encoder_decoder",
    } == {key: value for key, value in vars(twin.AttentionType).items() if key.isupper()}


@pytest.mark.parametrize(
    ("layer_type", "names", "expected"),
    [
        (int, None, ["a", "b", "d"]),
        (str, None, ["c"]),
        (object, None, ["a", "b", "c", "d"]),  # subclasses too
        (int, ["d", "c", "a", "d"], ["d", "a"]),  # in the order of the names
        (int, [], []),
    ],
)
def test_layers_of_a_type(twin: Twin, layer_type, names, expected) -> None:
    layers = {"a": 1, "b": 2, "c": "mixer", "d": 4}
    found = twin.get_layers_from_vllm_config(make_config(twin, layers), layer_type, names)
    assert [(name, layers[name]) for name in expected] == list(found.items())


def make_layer(**changes: Any) -> SimpleNamespace:
    """Make a layer that attends to all of its own sequence."""
    fields = {"attn_type": "decoder", "num_kv_heads": 8, "head_size": 64, "sliding_window": None}
    return SimpleNamespace(**{**fields, **changes})


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (make_layer(), FullAttentionSpec(32, 8, 64, ml_dtypes.float8_e4m3fn)),
        (
            make_layer(num_kv_heads=2, kv_sharing_target_layer_name=None),
            FullAttentionSpec(32, 2, 64, ml_dtypes.float8_e4m3fn),
        ),
        (
            make_layer(sliding_window=np.int64(128)),
            SlidingWindowSpec(32, 8, 64, ml_dtypes.float8_e4m3fn, 128),
        ),
        # no attention layers, and layers that share the cache of another one
        (SimpleNamespace(), None),
        (7, None),
        (make_layer(kv_sharing_target_layer_name="1.attn"), None),
        (SimpleNamespace(kv_sharing_target_layer_name="x", attn_type="encoder"), None),
    ],
)
def test_spec_of_a_layer(twin: Twin, layer, expected) -> None:
    config = make_config(twin, {"x": layer, "y": make_layer()}, 32)
    specs = twin.get_kv_cache_spec(config, twin.dtype("float8_e4m3fn"))
    assert twin.of(expected) == specs.pop("x", None)
    assert ["y"] == list(specs)


class Builder:
    """An engine's own builder."""

    def __init__(self, *given: Any) -> None:
        self.given, self.events = given, list[str]()


class Workspace(Builder):
    """A builder with a workspace, which is named after the layer of its first user."""

    def _get_workspace_buffer(self) -> str:
        self.events.append("made")
        return f"of {self.given[1][0]}"

    def set_workspace_buffer(self, buffer: str) -> None:
        """Use the buffer of another builder."""
        self.events.append(buffer)


def layers_of(backends: dict[str, Any]) -> dict[str, Any]:
    return {
        name: SimpleNamespace(get_attn_backend=lambda one=backend: one)
        for name, backend in backends.items()
    }


def make_backend(name: str = "PLAIN", builder: type = Builder) -> Any:
    return SimpleNamespace(get_name=lambda: name, get_builder_cls=lambda: builder)


def make_groups(twin: Twin, *groups: tuple[list[str], Any]) -> Any:
    made = [twin.KVCacheGroupSpec(names, twin.of(spec)) for names, spec in groups]
    return twin.KVCacheConfig(1, [], made)


UNIFORM = reference.UniformTypeKVCacheSpecs(16, {"a": FULL, "b": FULL, "elsewhere": NEAR})
FOREIGN = type("UniformTypeKVCacheSpecs", (), {"kv_cache_specs": {"c": "its spec"}})()


@pytest.mark.parametrize(
    ("groups", "specs"),
    [
        ([], []),
        ([(["b", "a"], FULL), (["c"], NEAR)], [FULL, NEAR]),
        ([(["a"], reference.EncoderOnlyAttentionSpec(16, 8, 64, np.float16))], [...]),
        # of a uniform group, the builder gets the spec that its layers have
        ([(["s", "a", "b"], UNIFORM), (["c"], FOREIGN)], [FULL, "its spec"]),
    ],
)
def test_a_builder_of_each_group(twin: Twin, groups, specs) -> None:
    backends = {name: make_backend() for name, *_ in groups for name in name}
    backends |= {name: backends[names[0]] for names, _ in groups for name in names}
    config, caches = make_config(twin, layers_of(backends)), make_groups(twin, *groups)
    device = object()
    found, builders = twin.init_attn_backend(caches, config, device)
    assert [(name, backends[name]) for names, _ in groups for name in names] == list(found.items())
    for builder, group, spec in zip(builders, caches.kv_cache_groups, specs, strict=True):
        expected = group.kv_cache_spec if spec is ... else twin.of(spec)
        assert (expected, group.layer_names, config, device) == builder.given


HALF = type("Half", (Builder,), {"set_workspace_buffer": Workspace.set_workspace_buffer})


@pytest.mark.parametrize(
    ("backends", "expected"),
    [
        # builders of FlashInfer backends share the workspace of the first that has both methods
        ([("FLASHINFER", Workspace)], [["made"]]),
        ([("FLASHINFER", Workspace), ("FLASHINFER_MLA", Workspace)], [["made"], ["of 0"]]),
        (
            [("FLASHINFER", HALF), ("MY_FLASHINFER", Workspace), ("FLASHINFER", Workspace)],
            [[], ["made"], ["of 1"]],
        ),
        ([("PLAIN", Workspace), ("flashinfer", Workspace)], [[], []]),
    ],
)
def test_workspaces(twin: Twin, backends, expected) -> None:
    layers = layers_of({str(i): make_backend(*each) for i, each in enumerate(backends)})
    groups = make_groups(twin, *(([name], FULL) for name in layers))
    _, builders = twin.init_attn_backend(groups, make_config(twin, layers), None)
    assert expected == [builder.events for builder in builders]


class Impl(SimpleNamespace):
    """An engine's own implementation of a layer."""


@pytest.mark.parametrize(
    ("impl", "expected"),
    [
        # window_left, logits_soft_cap, sm_scale, has_sinks
        ({"scale": 0.125}, (-1, None, 0.125, False)),
        ({"scale": 1.0, "sliding_window": None}, (-1, None, 1.0, False)),
        ({"scale": 1.0, "sliding_window": (0,)}, (0, None, 1.0, False)),
        ({"scale": 1.0, "sliding_window": (-1, -1)}, (-1, None, 1.0, False)),
        ({"scale": 1.0, "sliding_window": [127, 0]}, (127, None, 1.0, False)),
        ({"scale": 1.0, "sliding_window": (np.int32(5), "whatever")}, (5, None, 1.0, False)),
        ({"scale": 1.0, "logits_soft_cap": 0.0}, (-1, 0.0, 1.0, False)),
        ({"scale": 1.0, "logits_soft_cap": 30.0}, (-1, 30.0, 1.0, False)),
        ({"scale": 1.0, "sinks": [0.0]}, (-1, None, 1.0, True)),
        ({"scale": 1.0, "sinks": None}, (-1, None, 1.0, False)),
    ],
)
def test_parameters_of_a_layer(twin: Twin, impl, expected) -> None:
    layers = {name: SimpleNamespace(impl=Impl(**impl)) for name in "abc"}
    found = twin.get_per_layer_parameters(make_config(twin, layers), ["c", "a"], Impl)
    assert ["c", "a"] == list(found)
    assert twin.PerLayerParameters(*expected) == found["c"]


ONE = PerLayerParameters(127, 0.0, 0.125)


@pytest.mark.parametrize(
    ("others", "same_windows", "same_all"),
    [
        ([], True, True),
        # whether all layers agreed in an earlier inference is not compared
        ([PerLayerParameters(127, 0.0, 0.125, False, False, False)], True, True),
        ([SimpleNamespace(**vars(ONE))], True, True),  # an engine's own
        ([PerLayerParameters(-1, 0.0, 0.125)], False, False),
        ([PerLayerParameters(127, None, 0.125)], True, False),
        ([ONE, PerLayerParameters(127, 0.0, 0.5)], True, False),
        ([PerLayerParameters(127, 0.0, 0.125, True), ONE], True, False),
    ],
)
def test_parameters_of_all_layers(twin: Twin, others, same_windows, same_all) -> None:
    layers = {str(-i): layer for i, layer in enumerate(twin.of([ONE, *others]))}
    inferred = twin.infer_global_hyperparameters(layers)
    assert twin.of(ONE) == inferred  # those of the first
    assert (same_windows, same_all) == (
        inferred.has_same_window_lefts,
        inferred.has_same_all_params,
    )
    assert layers["0"].has_same_all_params is None  # the layers are as they were
