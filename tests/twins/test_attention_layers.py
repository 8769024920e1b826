"""Layers: finding them by type and name, what they keep in the cache, backends and builders."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import reference

FULL = reference.FullAttentionSpec(16, 8, 64, np.float16)
NEAR = reference.SlidingWindowSpec(16, 8, 64, np.float16, 128)


def make_config(twin: Any, layers: dict[str, Any], block_size: int = 16) -> Any:
    """Make a configuration with these layers."""
    return twin.VllmConfig(
        cache_config=twin.CacheConfig(block_size=block_size),
        compilation_config=twin.CompilationConfig(static_forward_context=layers),
    )


def make_layer(**changes: object) -> SimpleNamespace:
    """Make a layer that attends to all of its own sequence."""
    fields = {"attn_type": "decoder", "num_kv_heads": 8, "head_size": 64, "sliding_window": None}
    return SimpleNamespace(**{**fields, **changes})


def test_attention_types(twin: Any) -> None:
    """The types are these strings."""
    expected = {
        "DECODER": "decoder",
        "ENCODER": "encoder",
        "ENCODER_ONLY": "encoder_only",
        "ENCODER_DECODER": "encoder_decoder",
    }
    assert expected == {k: v for k, v in vars(twin.AttentionType).items() if k.isupper()}


def test_layers_of_a_type(twin: Any) -> None:
    """All layers of the type and of what extends it, in the context's order: the same objects."""
    mixer = type("Mixer", (SimpleNamespace,), {})()
    layers = {"b": make_layer(), "a": 7, "m": mixer}
    found = twin.get_layers_from_vllm_config(make_config(twin, layers), SimpleNamespace)
    assert ["b", "m"] == list(found)
    assert all(layer is layers[name] for name, layer in found.items())
    assert ["m"] == list(twin.get_layers_from_vllm_config(make_config(twin, layers), type(mixer)))
    assert {} == twin.get_layers_from_vllm_config(make_config(twin, layers), str)


def test_named_layers(twin: Any) -> None:
    """The order is that of the names; one of another type is left out, one named twice is once."""
    config = make_config(twin, {"a": 1, "b": 2, "c": "mixer", "d": 4})
    names = ["d", "c", "a", "d"]
    assert [("d", 4), ("a", 1)] == list(
        twin.get_layers_from_vllm_config(config, int, names).items()
    )
    assert {} == twin.get_layers_from_vllm_config(config, int, [])
    assert ["d", "c", "a", "d"] == names


@pytest.mark.parametrize(
    ("layer_type", "layer_names", "message"),
    [
        (int, ["a", "z"], "KeyError: layer_names[1] is 'z', which static_forward_context lacks"),
        (str, ["z"], "KeyError: layer_names[0] is 'z', which static_forward_context lacks"),
    ],
)
def test_refusals_of_layers(twin: Any, layer_type: Any, layer_names: Any, message: str) -> None:
    """What is not a class, no list of names, or no layer is refused, in these words."""
    with twin.refuses(message):
        twin.get_layers_from_vllm_config(make_config(twin, {"a": 1}), layer_type, layer_names)


def test_a_configuration_without_layers(twin: Any) -> None:
    """A configuration that does not say which layers there are is refused."""
    with pytest.raises(AttributeError, match="static_forward_context"):
        twin.get_layers_from_vllm_config(twin.VllmConfig(), int)
    with pytest.raises(AttributeError, match="compilation_config"):
        twin.get_layers_from_vllm_config(None, int)
    for layers in (twin.int32(1, 2), None):
        config = SimpleNamespace(compilation_config=SimpleNamespace(static_forward_context=layers))
        got = "array" if layers is not None else "NoneType"
        with twin.refuses(f"TypeError: static_forward_context must be a mapping, got {got}"):
            twin.get_layers_from_vllm_config(config, object)


def test_specs_of_layers(twin: Any) -> None:
    """A window makes a sliding window spec; other layers, and layers that share, are left out."""
    layers = {
        "1.attn": make_layer(sliding_window=np.int64(128)),
        "0.attn": make_layer(num_kv_heads=2, kv_sharing_target_layer_name=None),
        "0.moe": SimpleNamespace(),
        "2.attn": make_layer(kv_sharing_target_layer_name="1.attn"),
        "3.encoder": SimpleNamespace(kv_sharing_target_layer_name="x", attn_type="encoder"),
        "4.empty": SimpleNamespace(kv_sharing_target_layer_name="1.attn"),
        "5.mixer": 7,
    }
    few = reference.FullAttentionSpec(16, 2, 64, np.float16)
    expected = [("1.attn", twin.convert(NEAR)), ("0.attn", twin.convert(few))]
    assert expected == list(
        twin.get_kv_cache_spec(make_config(twin, layers), twin.convert(np.float16)).items()
    )
    near = twin.get_kv_cache_spec(make_config(twin, layers), twin.convert(np.float16))["1.attn"]
    assert (twin.SlidingWindowSpec, int) == (type(near), type(near.sliding_window))


def test_specs_take_block_size_and_dtype(twin: Any) -> None:
    """Blocks are as the configuration has them, the dtype as it is requested."""
    dtype = twin.convert(ml_dtypes.float8_e4m3fn)
    specs = twin.get_kv_cache_spec(make_config(twin, {"0": make_layer()}, 32), dtype)
    assert {"0": twin.FullAttentionSpec(32, 8, 64, dtype)} == specs
    assert {} == twin.get_kv_cache_spec(make_config(twin, {}), dtype)


@pytest.mark.parametrize(
    "attn_type",
    [
        reference.AttentionType.ENCODER,
        reference.AttentionType.ENCODER_ONLY,
        reference.AttentionType.ENCODER_DECODER,
        None,
    ],
)
def test_only_decoders_have_specs(twin: Any, attn_type: str | None) -> None:
    """A layer of another type is refused, by name."""
    layers = {"0": make_layer(), "1.attn": make_layer(attn_type=attn_type)}
    with twin.refuses(
        f"ValueError: layer '1.attn' has attn_type {attn_type!r}, expected 'decoder'"
    ):
        twin.get_kv_cache_spec(make_config(twin, layers), twin.dtype("float16"))


@pytest.mark.parametrize(
    ("dtype", "got"),
    [("float16", "'float16' of str"), (float, "class float"), (None, "None of NoneType")],
)
def test_refusals_of_dtypes(twin: Any, dtype: Any, got: str) -> None:
    """What is not a dtype is refused, also where there are no layers."""
    for layers in ({}, {"0": make_layer(attn_type="encoder")}):
        with twin.refuses(f"TypeError: kv_cache_dtype must be a supported dtype, got {got}"):
            twin.get_kv_cache_spec(make_config(twin, layers), dtype)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_kv_heads": 0}, "ValueError: num_kv_heads of layer '0' is 0, expected at least 1"),
        ({"head_size": -64}, "ValueError: head_size of layer '0' is -64, expected at least 1"),
        (
            {"sliding_window": 0},
            "ValueError: sliding_window of layer '0' is 0, expected at least 1",
        ),
    ],
)
def test_refusals_of_sizes(twin: Any, changes: dict[str, Any], message: str) -> None:
    """A size of a layer that is no positive int is refused, by name."""
    with twin.refuses(message):
        twin.get_kv_cache_spec(
            make_config(twin, {"0": make_layer(**changes)}), twin.convert(np.float16)
        )


def test_block_sizes_of_specs(twin: Any) -> None:
    """The block size must be there, with or without layers, and be a size where it is used."""
    with twin.refuses("ValueError: block_size is 0, expected at least 1"):
        twin.get_kv_cache_spec(make_config(twin, {"0": make_layer()}, 0), twin.convert(np.float16))
    config = twin.VllmConfig(compilation_config=twin.CompilationConfig())
    with pytest.raises(AttributeError, match="block_size"):
        twin.get_kv_cache_spec(config, twin.convert(np.float16))


class Builder:
    """An engine's own builder: remembers what it was given, by position."""

    def __init__(self, *args: object) -> None:
        self.args = args


class Backend:
    """An engine's own backend."""

    name = "PLAIN"
    builder_cls: Any = Builder

    @classmethod
    def get_name(cls) -> str:
        """Return the name."""
        return cls.name

    @classmethod
    def get_builder_cls(cls) -> Any:
        """Return the class of the builders."""
        return cls.builder_cls


Other = type("Other", (Backend,), {})


def layer_of(backend: type[Any]) -> SimpleNamespace:
    """Make a layer of a backend."""
    return SimpleNamespace(get_attn_backend=lambda: backend)


def groups_of(twin: Any, *groups: tuple[list[str], Any]) -> Any:
    """Make a cache of groups of layers."""
    made = [twin.KVCacheGroupSpec(names, twin.convert(spec)) for names, spec in groups]
    return twin.KVCacheConfig(1, [], made)


def test_backends_and_builders(twin: Any) -> None:
    """Each layer has its backend, each group a builder, made by position with its own names."""
    layers = {"c": layer_of(Other), "a": layer_of(Backend), "b": layer_of(Backend)}
    caches, device = groups_of(twin, (["b", "a"], FULL), (["c"], NEAR)), object()
    config = make_config(twin, layers)
    backends, builders = twin.init_attn_backend(caches, config, device)
    assert [("b", Backend), ("a", Backend), ("c", Other)] == list(backends.items())
    assert isinstance(builders, list)
    full, near = twin.convert(FULL), twin.convert(NEAR)
    expected = [(full, ["b", "a"], config, device), (near, ["c"], config, device)]
    assert expected == [builder.args for builder in builders]
    for builder, group in zip(builders, caches.kv_cache_groups, strict=True):
        assert builder.args[1] is group.layer_names
        assert builder.args[2] is config
        assert builder.args[3] is device


def test_no_groups(twin: Any) -> None:
    """A cache without groups has no backends; no layer is called."""
    assert ({}, []) == twin.init_attn_backend(groups_of(twin), make_config(twin, {"a": None}), None)


def test_a_backend_may_be_in_several_groups(twin: Any) -> None:
    """Groups of one backend have a builder each; encoder-only groups have one as well."""
    encoder_only = type("EncoderOnlyAttentionSpec", (), {})()
    layers = {name: layer_of(Backend) for name in "ab"}
    caches = groups_of(twin, (["a"], FULL), (["b"], encoder_only))
    backends, builders = twin.init_attn_backend(caches, make_config(twin, layers), None)
    assert {"a": Backend, "b": Backend} == backends
    assert [twin.convert(FULL), encoder_only] == [builder.args[0] for builder in builders]


def test_specs_of_builders_of_uniform_types(twin: Any) -> None:
    """A builder gets the spec of those of its layers that have one, ours or an engine's own."""
    ours = twin.UniformTypeKVCacheSpecs(16, {"a": FULL, "b": FULL, "elsewhere": NEAR})
    foreign = type("UniformTypeKVCacheSpecs", (), {"kv_cache_specs": {"c": "spec"}})
    extended = type("Extended", (foreign,), {})()
    layers = {name: layer_of(Backend) for name in "abcds"}
    caches = groups_of(twin, (["s", "a", "b"], ours), (["d", "c"], extended))
    _, builders = twin.init_attn_backend(caches, make_config(twin, layers), None)
    assert [FULL, "spec"] == [builder.args[0] for builder in builders]
    assert ["s", "a", "b"] == builders[0].args[1]


class Sharing(Builder):
    """A builder that has a workspace, and takes another's."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self.num_calls = 0
        self.taken: list[object] = []

    def _get_workspace_buffer(self) -> object:
        """Return this builder's workspace."""
        self.num_calls += 1
        return self, "workspace"

    def set_workspace_buffer(self, buffer: object) -> None:
        """Take a workspace."""
        self.taken.append(buffer)


def backend_of(name: str, builder_cls: Any) -> type[Any]:
    """Make a backend of a name, with builders of a class."""
    return type("Made", (Backend,), {"name": name, "builder_cls": builder_cls})


def test_flashinfer_builders_share_one_workspace(twin: Any) -> None:
    """The first one's is given to the later ones; those without both methods take no part."""
    only_gets = type("OnlyGets", (Builder,), {"_get_workspace_buffer": None})
    only_takes = type("OnlyTakes", (Builder,), {"set_workspace_buffer": None})
    kinds = [
        ("PLAIN", Sharing),
        ("FLASHINFER", only_gets),
        ("flashinfer", Sharing),
        ("FLASHINFER_MLA", Sharing),
        ("FLASHINFER", only_takes),
        ("NEW_FLASHINFER", Sharing),
        ("FLASHINFER", Sharing),
    ]
    layers = {str(i): layer_of(backend_of(*kind)) for i, kind in enumerate(kinds)}
    caches = groups_of(twin, *(([name], FULL) for name in layers))
    _, builders = twin.init_attn_backend(caches, make_config(twin, layers), None)
    workspace = (builders[3], "workspace")
    assert [0, 0, 1, 0, 0] == [builders[i].num_calls for i in (0, 2, 3, 5, 6)]
    expected: list[list[object]] = [[], [], [], [workspace], [workspace]]
    assert expected == [builders[i].taken for i in (0, 2, 3, 5, 6)]
    assert builders[5].taken[0] is builders[6].taken[0]


def test_a_flashinfer_builder_alone(twin: Any) -> None:
    """Its workspace is requested once, and not given back to it."""
    layers = {"a": layer_of(backend_of("FLASHINFER", Sharing))}
    _, (builder,) = twin.init_attn_backend(
        groups_of(twin, (["a"], FULL)), make_config(twin, layers), None
    )
    assert (1, []) == (builder.num_calls, builder.taken)


def never_made(*args: object) -> object:
    """Fail: no builder may be made where a group is wrong."""
    raise AssertionError(args)


FINE = layer_of(backend_of("FLASHINFER", never_made))


@pytest.mark.parametrize(
    ("group", "message"),
    [
        (
            ([], FULL),
            "ValueError: kv_cache_groups[1].layer_names is empty, expected at least 1 layer",
        ),
        (
            (["b", "z"], FULL),
            (
                "KeyError: kv_cache_groups[1].layer_names[1] is 'z', which "
                "static_forward_context lacks"
            ),
        ),
        (
            (["b", "e", "c"], FULL),
            (
                f"ValueError: kv_cache_groups[1].layer_names has layers of different backends: 'b' "
                f"has {Backend!r}, 'c' has {Other!r}"
            ),
        ),
        (
            (["b", "e"], reference.UniformTypeKVCacheSpecs(16, {"b": FULL, "e": NEAR})),
            (
                "ValueError: kv_cache_groups[1].kv_cache_spec has several specs, but its layers "
                "have one builder: 'b' has FULL, 'e' has NEAR"
            ),
        ),
        (
            (["b", "e"], reference.UniformTypeKVCacheSpecs(16, {"c": FULL})),
            (
                "KeyError: kv_cache_groups[1].kv_cache_spec has no spec of any of the group's "
                "layers ['b', 'e']"
            ),
        ),
    ],
)
def test_refusals_of_groups(twin: Any, group: tuple[Any, Any], message: str) -> None:
    """A wrong group is refused, in these words, before the first builder is made."""
    layers = {
        "a": FINE,
        "b": layer_of(Backend),
        "c": layer_of(Other),
        "e": layer_of(Backend),
    }
    for name, spec in (("FULL", FULL), ("NEAR", NEAR)):
        message = re.sub(rf"\b{name}\b", twin.lib._checks.show(twin.convert(spec)), message)
    with twin.refuses(message):
        twin.init_attn_backend(
            groups_of(twin, (["a"], FULL), group), make_config(twin, layers), None
        )


def test_backends_that_are_equal_are_not_the_same(twin: Any) -> None:
    """Backends are distinguished by identity."""
    always_equal = type("Equal", (type,), {"__eq__": lambda *_: True, "__hash__": lambda _: 0})
    ours, theirs = (always_equal("Ours", (Backend,), {}) for _ in range(2))
    assert ours == theirs
    layers = {"a": layer_of(ours), "b": layer_of(theirs)}
    with pytest.raises(ValueError, match="different backends"):
        twin.init_attn_backend(groups_of(twin, (["a", "b"], FULL)), make_config(twin, layers), None)


def test_refusals_of_caches(twin: Any) -> None:
    """Groups that are not a list, or absent, are refused, and so is an absent context."""
    with twin.refuses("TypeError: kv_cache_config.kv_cache_groups must be a list, got tuple"):
        twin.init_attn_backend(SimpleNamespace(kv_cache_groups=()), make_config(twin, {}), None)
    with pytest.raises(AttributeError, match="kv_cache_groups"):
        twin.init_attn_backend(None, make_config(twin, {}), None)
    with pytest.raises(AttributeError, match="static_forward_context"):
        twin.init_attn_backend(groups_of(twin, (["a"], FULL)), twin.VllmConfig(), None)
