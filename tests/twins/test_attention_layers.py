"""Layers: finding them by type and name, their KV cache specs, backends and builders."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import reference
from conformance.functions.attention_layers import WorkspaceBuilderClass
from conformance.functions.backend import Proxy
from conformance.laws.backends import Backend
from conformance.laws.builders import BuilderClass, OwnBuilderClass

FULL = reference.FullAttentionSpec(16, 8, 64, np.float16)
NEAR = reference.SlidingWindowSpec(16, 8, 64, np.float16, 128)


def make_config(twin: Any, layers: Any, block_size: int = 16) -> Any:
    return twin.VllmConfig(
        cache_config=twin.CacheConfig(block_size=block_size),
        compilation_config=twin.CompilationConfig(static_forward_context=layers),
    )


def make_layer(**changes: object) -> SimpleNamespace:
    """Make a layer that attends to all of its own sequence."""
    fields = {"attn_type": "decoder", "num_kv_heads": 8, "head_size": 64, "sliding_window": None}
    return SimpleNamespace(**{**fields, **changes})


def test_attention_types(twin: Any) -> None:
    expected = {
        "DECODER": "decoder",
        "ENCODER": "encoder",
        "ENCODER_ONLY": "encoder_only",
        "ENCODER_DECODER": "encoder_decoder",
    }
    assert expected == {k: v for k, v in vars(twin.AttentionType).items() if k.isupper()}


def test_layers_of_a_type(twin: Any) -> None:
    mixer = type("Mixer", (SimpleNamespace,), {})()
    config = make_config(twin, {"b": make_layer(), "a": 7, "m": mixer})
    assert ["b", "m"] == list(twin.get_layers_from_vllm_config(config, SimpleNamespace))
    assert {"m": mixer} == twin.get_layers_from_vllm_config(config, type(mixer))


def test_named_layers(twin: Any) -> None:
    config = make_config(twin, {"a": 1, "b": 2, "c": "mixer", "d": 4})
    found = twin.get_layers_from_vllm_config(config, int, ["d", "c", "a", "d"])
    assert [("d", 4), ("a", 1)] == list(found.items())
    assert {} == twin.get_layers_from_vllm_config(config, int, [])
    with twin.refuses("KeyError: layer_names[1] is 'z', which static_forward_context lacks"):
        twin.get_layers_from_vllm_config(config, int, ["a", "z"])


def test_specs_of_layers(twin: Any) -> None:
    layers = {
        "1.attn": make_layer(sliding_window=np.int64(128)),
        "0.attn": make_layer(num_kv_heads=2, kv_sharing_target_layer_name=None),
        "0.moe": SimpleNamespace(),
        "2.attn": make_layer(kv_sharing_target_layer_name="1.attn"),
        "3.encoder": SimpleNamespace(kv_sharing_target_layer_name="x", attn_type="encoder"),
        "4.empty": SimpleNamespace(kv_sharing_target_layer_name="1.attn"),
        "5.mixer": 7,
    }
    dtype = twin.convert(ml_dtypes.float8_e4m3fn)
    specs = twin.get_kv_cache_spec(make_config(twin, layers, 32), dtype)
    near = twin.SlidingWindowSpec(32, 8, 64, dtype, 128)
    assert [("1.attn", near), ("0.attn", twin.FullAttentionSpec(32, 2, 64, dtype))] == list(
        specs.items()
    )
    assert int is type(specs["1.attn"].sliding_window)


METHODS = ["_get_workspace_buffer", "set_workspace_buffer"]
BACKEND, OTHER = (Backend(name, builder=OwnBuilderClass()) for name in ("ONE", "OTHER"))


def layers_of(twin: Any, backends: dict[str, Any]) -> dict[str, SimpleNamespace]:
    made = twin.convert(backends)
    return {name: SimpleNamespace(get_attn_backend=partial(made.get, name)) for name in made}


def groups_of(twin: Any, *groups: tuple[list[str], Any]) -> Any:
    made = [twin.KVCacheGroupSpec(names, twin.convert(spec)) for names, spec in groups]
    return twin.KVCacheConfig(1, [], made)


def test_backends_and_builders(twin: Any) -> None:
    encoder_only = type("EncoderOnlyAttentionSpec", (), {})()
    backends = {"b": BACKEND, "a": BACKEND, "c": OTHER, "e": BACKEND}
    config = make_config(twin, layers_of(twin, backends))
    caches = groups_of(twin, (["b", "a"], FULL), (["c"], NEAR), (["e"], encoder_only))
    device = object()
    found, builders = twin.init_attn_backend(caches, config, device)
    assert list(twin.convert(backends).items()) == list(found.items())
    for group, builder in zip(caches.kv_cache_groups, builders, strict=True):
        assert (config, device) == (builder.vllm_config, builder.device)
        assert group.kv_cache_spec == builder.kv_cache_spec
        assert group.layer_names is builder.layer_names
    assert ({}, []) == twin.init_attn_backend(groups_of(twin), make_config(twin, {"a": 0}), None)


def test_specs_of_builders_of_uniform_types(twin: Any) -> None:
    ours = twin.UniformTypeKVCacheSpecs(16, {"a": FULL, "b": FULL, "elsewhere": NEAR})
    foreign = type("UniformTypeKVCacheSpecs", (), {"kv_cache_specs": {"c": "spec"}})
    extended = type("Extended", (foreign,), {})()
    layers = layers_of(twin, dict.fromkeys("abcds", BACKEND))
    caches = groups_of(twin, (["s", "a", "b"], ours), (["d", "c"], extended))
    _, builders = twin.init_attn_backend(caches, make_config(twin, layers), None)
    assert [FULL, "spec"] == [builder.kv_cache_spec for builder in builders]


def builders_of(twin: Any, *backends: tuple[str, list[str]]) -> list[Any]:
    """Make a group for each backend, given by name and methods, and return their builders."""
    made = [
        Backend(name, builder=WorkspaceBuilderClass(BuilderClass(), methods))
        for name, methods in backends
    ]
    layers = layers_of(twin, {str(i): backend for i, backend in enumerate(made)})
    caches = groups_of(twin, *(([name], FULL) for name in layers))
    builders: list[Any] = twin.init_attn_backend(caches, make_config(twin, layers), None)[1]
    return builders


def test_flashinfer_builders_share_one_workspace(twin: Any) -> None:
    builders = builders_of(
        twin,
        ("PLAIN", METHODS),
        ("FLASHINFER", METHODS[:1]),
        ("flashinfer", METHODS),
        ("FLASHINFER_MLA", METHODS),
        ("FLASHINFER", METHODS[1:]),
        ("NEW_FLASHINFER", METHODS),
        ("FLASHINFER", METHODS),
    )
    (workspace,) = builders[5].events
    assert "3" == workspace.owner
    expected = [[], [], [], ["made"], [], [workspace], [workspace]]
    assert expected == [builder.events for builder in builders]
    (alone,) = builders_of(twin, ("FLASHINFER", METHODS))
    assert ["made"] == alone.events


def test_backends_that_are_equal_are_not_the_same(twin: Any) -> None:
    ours, theirs = (Proxy("ONE", builder=BuilderClass()) for _ in range(2))
    assert twin.convert(ours) == twin.convert(theirs)
    layers = layers_of(twin, {"a": ours, "b": theirs})
    with pytest.raises(ValueError, match="different backends"):
        twin.init_attn_backend(groups_of(twin, (["a", "b"], FULL)), make_config(twin, layers), None)
