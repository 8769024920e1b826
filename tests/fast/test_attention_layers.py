from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import fast


class Builder:
    """An engine's own builder, which records what it is made of."""

    made: list["Builder"] = []  # noqa: RUF012  (each test's own backend has a fresh list)

    def __init__(self, *given: object) -> None:
        self.given = given
        self.buffers: list[object] = []
        self.made.append(self)


class Sharing(Builder):
    """A builder that has a workspace."""

    def _get_workspace_buffer(self) -> object:
        self.buffers.append("asked")
        return ("workspace of", self)

    def set_workspace_buffer(self, buffer: object) -> None:
        """Take another builder's workspace."""
        self.buffers.append(buffer)


class HalfSharing(Builder):
    """A builder that has a workspace and cannot take another's."""

    def _get_workspace_buffer(self) -> object:
        self.buffers.append("asked")
        return None


class Taking(Builder):
    """A builder that could take a workspace and has none."""

    def set_workspace_buffer(self, buffer: object) -> None:
        """Take another builder's workspace."""
        self.buffers.append(buffer)


def make_backend(name: str = "PAGED", builder: type[Builder] = Builder) -> type[Any]:
    """Return a class of an engine's own backend."""
    own = type("Own", (builder,), {"made": []})
    methods = {"get_name": lambda: name, "get_builder_cls": lambda: own}
    return type("Backend", (), {key: staticmethod(method) for key, method in methods.items()})


def make_layer(backend: object = None, **changes: object) -> SimpleNamespace:
    """Return a layer."""
    layer = {
        "attn_type": "decoder",
        "num_kv_heads": 2,
        "head_size": 8,
        "sliding_window": None,
        "get_attn_backend": lambda: backend,
    }
    return SimpleNamespace(**(layer | changes))


def config_of(layers: dict[str, Any], block_size: object = 4) -> SimpleNamespace:
    """Return an engine's own configuration with these layers."""
    return SimpleNamespace(
        cache_config=SimpleNamespace(block_size=block_size),
        compilation_config=SimpleNamespace(static_forward_context=layers),
    )


def groups_of(*groups: tuple[Any, Any]) -> SimpleNamespace:
    """Return a KV cache configuration of pairs of layer names and a spec."""
    made = [SimpleNamespace(layer_names=names, kv_cache_spec=spec) for names, spec in groups]
    return SimpleNamespace(kv_cache_groups=made)


FULL = fast.FullAttentionSpec(4, 2, 8, torch.float16)
WIDE = fast.FullAttentionSpec(4, 4, 8, torch.float16)


def test_layers_of_a_type() -> None:
    """Layers come in the context's order, or in that of the names; others are left out."""
    config = config_of({"b": 1, "a": "x", "c": 3, "d": True})
    assert ["b", "c", "d"] == list(fast.get_layers_from_vllm_config(config, int))
    named = fast.get_layers_from_vllm_config(config, int, ["c", "a", "b", "c"])
    assert [("c", 3), ("b", 1)] == list(named.items())
    assert {} == fast.get_layers_from_vllm_config(config, int, [])
    assert 4 == len(fast.get_layers_from_vllm_config(config, object))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((config_of({}), "Attention"), TypeError, "layer_type must be a class, got 'Attention'"),
        ((config_of({}), (int, str)), TypeError, "layer_type must be a class"),
        ((config_of({"a": 1}), int, "a"), TypeError, "layer_names must be a list, got str"),
        ((config_of({"a": 1}), int, [1]), TypeError, r"^layer_names\[0\] must be a str, got 1 of"),
        ((config_of({"a": 1}), int, ["a", "b"]), KeyError, r"layer_names\[1\] is 'b', which st"),
        ((SimpleNamespace(compilation_config=None), int), AttributeError, "static_forward_context"),
    ],
)
def test_layers_of_a_type_refuses(
    arguments: tuple[Any, ...], error: type[Exception], message: str
) -> None:
    """A name that the context lacks is no layer of another type."""
    with pytest.raises(error, match=message):
        fast.get_layers_from_vllm_config(*arguments)


def test_specs_of_layers() -> None:
    """Windows make the kind of spec; what shares a cache or is no attention layer has none."""
    layers = {
        "1": make_layer(sliding_window=np.int64(7)),
        "moe": SimpleNamespace(experts=8),
        "0": make_layer(kv_sharing_target_layer_name=None, num_kv_heads=np.int32(2)),
        "shares": SimpleNamespace(kv_sharing_target_layer_name="0"),
        "cross": make_layer(attn_type="encoder", kv_sharing_target_layer_name="0"),
    }
    specs = fast.get_kv_cache_spec(config_of(layers), torch.float16)
    expected = {"1": fast.SlidingWindowSpec(4, 2, 8, torch.float16, 7), "0": FULL}
    assert list(expected.items()) == list(specs.items())
    assert {} == fast.get_kv_cache_spec(config_of({}), torch.float16)


@pytest.mark.parametrize(
    ("layer", "dtype", "error", "message"),
    [
        (None, "float16", TypeError, "^kv_cache_dtype must be a supported dtype, got 'float16' "),
        (None, np.float16, TypeError, "^kv_cache_dtype must be a supported dtype, got NumPy dty"),
        (
            make_layer(attn_type="encoder_only"),
            torch.int8,
            ValueError,
            "layer '0' has attn_type 'encoder_only', expected 'decoder'",
        ),
        (make_layer(attn_type=None), torch.int8, ValueError, "layer '0' has attn_type None"),
        (make_layer(head_size=0), torch.int8, ValueError, "head_size of layer '0' is 0"),
        (make_layer(num_kv_heads=2.0), torch.int8, TypeError, "num_kv_heads of layer '0'"),
        (make_layer(sliding_window=0), torch.int8, ValueError, "sliding_window of layer '0'"),
        (SimpleNamespace(attn_type="decoder"), torch.int8, AttributeError, "num_kv_heads"),
    ],
)
def test_specs_of_layers_refuses(
    layer: object,
    dtype: Any,  # noqa: ANN401  (wrong on purpose)
    error: type[Exception],
    message: str,
) -> None:
    """The layer at fault is named; the dtype is checked also where there are no layers."""
    layers = {} if layer is None else {"moe": 8, "0": layer}
    with pytest.raises(error, match=message):
        fast.get_kv_cache_spec(config_of(layers), dtype)


def test_specs_of_layers_read_the_block_size() -> None:
    """The block size is the cache configuration's, which must be there."""
    with pytest.raises(ValueError, match="block_size is 0"):
        fast.get_kv_cache_spec(config_of({"0": make_layer()}, block_size=0), torch.int8)
    with pytest.raises(AttributeError, match="block_size"):
        fast.get_kv_cache_spec(fast.VllmConfig(), torch.int8)


def test_init_attn_backend() -> None:
    """Each group has one builder, made by position of the group's own list of names."""
    paged, other = make_backend(), make_backend()
    layers = {"0": make_layer(paged), "1": make_layer(other), "2": make_layer(paged)}
    config, device = config_of(layers), torch.device("cpu")
    groups = groups_of((["2", "0"], FULL), (["1"], WIDE))
    backends, builders = fast.init_attn_backend(groups, config, device)
    assert [("2", paged), ("0", paged), ("1", other)] == list(backends.items())
    assert builders == [paged.get_builder_cls().made[0], other.get_builder_cls().made[0]]
    for builder, group in zip(builders, groups.kv_cache_groups, strict=True):
        spec, names, given_config, given_device = builder.given
        assert spec is group.kv_cache_spec
        assert names is group.layer_names
        assert given_config is config
        assert given_device is device
    assert ({}, []) == fast.init_attn_backend(groups_of(), config, device)


def test_init_attn_backend_of_encoder_only_layers() -> None:
    """A group that keeps no cache has a backend and a builder as well."""
    spec = fast.EncoderOnlyAttentionSpec(4, 2, 8, torch.float16)
    config = config_of({"0": make_layer(make_backend(), attn_type="encoder_only")})
    backends, builders = fast.init_attn_backend(groups_of((["0"], spec)), config, "cpu")
    assert (["0"], 1) == (list(backends), len(builders))


def test_init_attn_backend_with_specs_of_layers() -> None:
    """A builder of uniform specs is made with the spec of the group's layers in them."""
    same = fast.FullAttentionSpec(4, 2, 8, torch.float16)
    uniform = fast.UniformTypeKVCacheSpecs(4, {"0": FULL, "2": same, "of no group": WIDE})
    config = config_of(dict.fromkeys("012", make_layer(make_backend())))
    _, builders = fast.init_attn_backend(groups_of((["1", "0", "2"], uniform)), config, "cpu")
    assert FULL is builders[0].given[0]


def test_init_attn_backend_knows_uniform_specs_by_name() -> None:
    """An engine's own uniform specs serve as well, those of a subclass too."""
    own = type("Derived", (type("UniformTypeKVCacheSpecs", (), {}),), {"kv_cache_specs": {"0": 9}})
    config = config_of({"0": make_layer(make_backend())})
    _, builders = fast.init_attn_backend(groups_of((["0"], own())), config, "cpu")
    assert 9 == builders[0].given[0]


def test_flashinfer_builders_share_a_workspace() -> None:
    """The first builder that can is asked once, and the later ones are given its workspace."""
    kinds = [
        make_backend("FLASHINFER", HalfSharing),
        make_backend("FLASHINFER", Taking),
        make_backend("flashinfer", Sharing),
        make_backend("FLASHINFER", Sharing),
        make_backend("PAGED", Sharing),
        make_backend("FLASHINFER_MLA", Sharing),
        make_backend("MY_FLASHINFER", Sharing),
    ]
    layers = {str(i): make_layer(kind) for i, kind in enumerate(kinds)}
    groups = groups_of(*(([name], FULL) for name in layers))
    _, builders = fast.init_attn_backend(groups, config_of(layers), "cpu")
    workspace = ("workspace of", builders[3])
    expected = [[], [], [], ["asked"], [], [workspace], [workspace]]
    assert expected == [builder.buffers for builder in builders]


def test_a_flashinfer_builder_alone() -> None:
    """One builder alone makes its workspace too."""
    config = config_of({"0": make_layer(make_backend("FLASHINFER", Sharing))})
    _, builders = fast.init_attn_backend(groups_of((["0"], FULL)), config, "cpu")
    assert ["asked"] == builders[0].buffers


@pytest.mark.parametrize(
    ("group", "error", "message"),
    [
        (
            ([], FULL),
            ValueError,
            r"kv_cache_groups\[1\]\.layer_names is empty, expected",
        ),
        ((("0",), FULL), TypeError, r"kv_cache_groups\[1\]\.layer_names must be a list, got tuple"),
        (([0], FULL), TypeError, r"^kv_cache_groups\[1\]\.layer_names\[0\] must be a str, got 0 "),
        ((["0", "9"], FULL), KeyError, r"kv_cache_groups\[1\]\.layer_names\[1\] is '9', which "),
        (
            (["0", "1", "other"], FULL),
            ValueError,
            "layers of unlike backends: '0' has .*Backend'>, 'other' has .*Backend'>",
        ),
        (
            (["0", "1"], fast.UniformTypeKVCacheSpecs(4, {"0": FULL, "1": WIDE})),
            ValueError,
            "unlike specs, but its layers have one builder: '0' has Full.*, '1' has Full",
        ),
        (
            (["0", "1"], fast.UniformTypeKVCacheSpecs(4, {"other": FULL})),
            KeyError,
            r"kv_cache_groups\[1\]\.kv_cache_spec has no spec of any .*\['0', '1'\]",
        ),
        ((["moe"], FULL), AttributeError, "get_attn_backend"),
        ((["nameless"], FULL), AttributeError, "get_builder_cls|get_name"),
    ],
)
def test_init_attn_backend_refuses(group: Any, error: type[Exception], message: str) -> None:  # noqa: ANN401  (wrong on purpose)
    """All groups are checked before the first builder is made."""
    paged = make_backend()
    layers = dict.fromkeys("01", make_layer(paged)) | {"other": make_layer(make_backend())}
    layers |= {"moe": SimpleNamespace(), "nameless": make_layer(object())}
    with pytest.raises(error, match=message):
        fast.init_attn_backend(groups_of((["1"], FULL), group), config_of(layers), "cpu")
    assert [] == paged.get_builder_cls().made


def test_init_attn_backend_needs_configurations() -> None:
    """The groups are a list of the KV cache configuration; the layers are the engine's."""
    with pytest.raises(TypeError, match="kv_cache_groups must be a list, got tuple"):
        fast.init_attn_backend(SimpleNamespace(kv_cache_groups=()), config_of({}), "cpu")
    with pytest.raises(AttributeError, match="kv_cache_groups"):
        fast.init_attn_backend(None, config_of({}), "cpu")
    with pytest.raises(AttributeError, match="static_forward_context"):
        fast.init_attn_backend(groups_of(), fast.VllmConfig(), "cpu")
