import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import fast
from fast import kv_cache

HEADS = {"block_size": 4, "num_kv_heads": 5, "head_size": 6, "dtype": torch.float16}
FULL = fast.FullAttentionSpec(**HEADS)
ENCODER = fast.EncoderOnlyAttentionSpec(**HEADS)
MAMBA = fast.MambaSpec(16, ((3, 5), (), (2,)), (torch.bfloat16, torch.float16, torch.float32), 480)


class Backend:
    """A backend whose shape is (K/V, blocks, tokens, heads, head size)."""

    @staticmethod
    def get_kv_cache_shape(num_blocks: int, *sizes: int) -> tuple[int, ...]:
        """Return the logical shape."""
        return (2, num_blocks, *sizes)


def make_config(
    *groups: tuple[list[str], object], tensors: list[tuple[int, list[str]]] | None = None
) -> fast.KVCacheConfig:
    """Make a KV cache of groups and tensors."""
    return fast.KVCacheConfig(
        num_blocks=99,
        kv_cache_tensors=[fast.KVCacheTensor(*tensor) for tensor in tensors or []],
        kv_cache_groups=[fast.KVCacheGroupSpec(*group) for group in groups],
    )


def place_of(tensor: torch.Tensor) -> tuple[int, int, int]:
    """Return what tells where a tensor lies: its storage, its first byte there and its device."""
    first = tensor.storage_offset() * tensor.dtype.itemsize
    return tensor.untyped_storage().data_ptr(), first, tensor.get_device()


def test_allocates_one_tensor_for_all_that_share_it() -> None:
    """Each tensor is zeroed bytes; its layers map to the same object, in the tensors' order."""
    config = make_config(
        (["a", "b"], FULL), (["c"], MAMBA), tensors=[(7, ["c", "a"]), (0, ["b"]), (3, [])]
    )
    raws = fast._allocate_kv_cache(config, "cpu")
    assert ["c", "a", "b"] == list(raws)
    assert raws["c"] is raws["a"]
    assert [(7,), (0,)] == [tuple(raws[name].shape) for name in "ab"]
    assert all(raw.dtype is torch.int8 and not raw.any() for raw in raws.values())
    assert place_of(raws["a"])[0] != place_of(raws["b"])[0]


def test_allocates_on_a_device() -> None:
    """The tensors are on the device asked for."""
    raws = fast._allocate_kv_cache(make_config((["a"], FULL), tensors=[(7, ["a"])]), "meta")
    assert torch.device("meta") == raws["a"].device


def test_allocation_outlives_inference_mode() -> None:
    """What is made in inference mode can be written outside, through its views too."""
    config = make_config((["a"], FULL), tensors=[(480, ["a"])])
    with torch.inference_mode():
        raws = fast._allocate_kv_cache(config, "cpu")
        views = fast._reshape_kv_cache(config, raws, {"a": Backend})
    views["a"][:] = 1
    assert raws["a"].any()


def test_allocates_nothing_for_encoder_only_groups() -> None:
    """Layers of encoder-only groups count as none, so that naming one is one too many."""
    uniform = fast.UniformTypeKVCacheSpecs(4, {"e": ENCODER, "f": FULL})
    groups = ((["e", "f"], uniform), (["g"], ENCODER), (["a"], FULL))
    assert ["a"] == list(
        fast._allocate_kv_cache(make_config(*groups, tensors=[(480, ["a"])]), "cpu")
    )
    with pytest.raises(ValueError, match=r"missing \[\], extra \['g'\]"):
        fast._allocate_kv_cache(make_config(*groups, tensors=[(480, ["a", "g"])]), "cpu")


@pytest.mark.parametrize(
    ("groups", "tensors", "error", "message"),
    [
        ([["a", "b"]], [(4, ["a"])], ValueError, r"missing \['b'\], extra \[\]"),
        ([["a"]], [(4, ["a", "c", "b"])], ValueError, r"missing \[\], extra \['b', 'c'\]"),
        ([["a"]], [(4, ["a", "a"])], ValueError, r"^kv_cache_tensors\["),
        ([["a"]], [(4, ["a"]), (4, ["a"])], ValueError, r"^kv_cache_tensors\["),
        ([["a", "a"]], [(4, ["a"])], ValueError, r"^kv_cache_groups\["),
        ([["a"], ["a"]], [(4, ["a"])], ValueError, r"^kv_cache_groups\["),
        ([["a"]], [(-1, ["a"])], ValueError, r"kv_cache_tensors\[0\].size is -1"),
        ([["a"]], [(True, ["a"])], TypeError, r"kv_cache_tensors\[0\].size must be an int"),
        ([["a"]], [(4.0, ["a"])], TypeError, r"kv_cache_tensors\[0\].size must be an int"),
        ([["a"]], [(4, "a")], TypeError, r"kv_cache_tensors\[0\].shared_by must be a list"),
        ([["a"]], [(4, ["a", 0])], TypeError, r"^kv_cache_tensors\[0\]\.shared_by\[1\] must be a"),
        ([("a",)], [(4, ["a"])], TypeError, "layer_names must be a list, got tuple"),
        ([[0]], [(4, ["a"])], TypeError, r"^kv_cache_groups\[0\]\.layer_names\[0\] must be a str"),
    ],
)
def test_allocation_refuses(
    groups: list[Any], tensors: list[Any], error: type[Exception], message: str
) -> None:
    """Tensors and groups name the same layers, each once, and sizes are ints."""
    config = make_config(*((names, FULL) for names in groups), tensors=tensors)
    with pytest.raises(error, match=message):
        fast._allocate_kv_cache(config, "cpu")


def test_allocation_refuses_devices() -> None:
    """A device is named or given."""
    with pytest.raises(ValueError, match="device is 'gpu'"):
        fast._allocate_kv_cache(make_config(), "gpu")
    with pytest.raises(TypeError, match="device must be a device, got None"):
        fast._allocate_kv_cache(make_config(), None)


def test_init_allocates_views_and_binds() -> None:
    """Layers that share a tensor get views of one storage, bound by index."""
    names = ["model.layers.1.attn", "model.layers.0.attn", "model.layers.2.mixer"]
    config = make_config(
        (names[:2], FULL),
        (names[2:], MAMBA),
        tensors=[(960, [names[0], names[2]]), (960, [names[1]])],
    )
    context = {name: SimpleNamespace() for name in names}
    runner: list[Any] = []
    fast.init_kv_cache(
        runner,
        context,
        config,
        dict.fromkeys(names[:2], Backend),
        "cpu",
        kernel_block_sizes=[2, 16],
    )
    bound = [context[name].kv_cache[0] for name in names]
    assert bound[1] is runner[0]
    assert bound[0] is runner[1]
    assert bound[2] is runner[2]
    assert (2, 4, 2, 5, 6) == tuple(bound[0].shape)
    assert place_of(bound[0]) == place_of(bound[2][0])
    assert place_of(bound[0])[0] != place_of(bound[1])[0]


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"runner_kv_caches": [1]}, ValueError),
        ({"runner_kv_caches": None}, TypeError),
        ({"forward_context": {}}, KeyError),
        ({"attn_backends": {}}, KeyError),
        ({"num_attn_module": 0}, ValueError),
        ({"kernel_block_sizes": [3]}, ValueError),
        ({"device": "gpu"}, ValueError),
    ],
)
def test_init_is_all_or_nothing(
    changes: dict[str, Any], error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an error nothing is bound; what is known beforehand is refused before allocating."""
    layer, runner = SimpleNamespace(kv_cache="old"), []
    arguments = {
        "runner_kv_caches": runner,
        "forward_context": {"0.attn": layer},
        "kv_cache_config": make_config((["0.attn"], FULL), tensors=[(480, ["0.attn"])]),
        "attn_backends": {"0.attn": Backend},
        "device": "cpu",
        **changes,
    }
    allocated: list[object] = []
    allocate = kv_cache._allocate_kv_cache
    monkeypatch.setattr(
        kv_cache, "_allocate_kv_cache", lambda *args: allocated.append(args) or allocate(*args)
    )
    with pytest.raises(error):
        fast.init_kv_cache(**arguments)
    assert "old" == layer.kv_cache
    assert [] == runner
    if set(changes) <= {"runner_kv_caches", "forward_context", "num_attn_module"}:
        assert [] == allocated


def test_bytes_add_up() -> None:
    """The views of layers over unlike tensors take the tensors' bytes, and no more."""
    config = make_config((["0", "1"], FULL), tensors=[(480, ["0"]), (1440, ["1"])])
    context = {name: SimpleNamespace() for name in "01"}
    fast.init_kv_cache([], context, config, dict.fromkeys("01", Backend), "cpu")
    sizes = [math.prod(context[name].kv_cache[0].shape) * 2 for name in "01"]
    assert [480, 1440] == sizes
