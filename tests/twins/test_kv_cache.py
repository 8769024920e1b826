"""The KV cache of a model: allocation, and `init_kv_cache` as a whole."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

import reference

FULL = reference.FullAttentionSpec(4, 5, 6, np.float16)
ENCODER_ONLY = reference.EncoderOnlyAttentionSpec(4, 5, 6, np.float16)
PAGE = FULL.page_size_bytes


def config(twin: Any, tensors: list[tuple[int, list[str]]], *groups: tuple[list[str], Any]) -> Any:
    """Return a configuration of tensors and groups, written as tuples."""
    return twin.KVCacheConfig(
        num_blocks=-1,  # it is not read
        kv_cache_tensors=[twin.KVCacheTensor(size, layers) for size, layers in tensors],
        kv_cache_groups=[
            twin.KVCacheGroupSpec(layers, twin.convert(spec)) for layers, spec in groups
        ],
    )


class Backend:
    """A backend whose cache has the keys of all blocks before the values."""

    @staticmethod
    def get_kv_cache_shape(num_blocks: int, block_size: int, heads: int, size: int) -> Any:
        return 2, num_blocks, block_size, heads, size


def test_allocation(twin: Any) -> None:
    tensors = [(6, ["c", "a"]), (0, ["b"]), (8, []), (np.int64(3), ["d"])]
    groups = ((["a", "b"], FULL), ([], FULL), (["c", "d"], FULL))
    raw_tensors = twin._allocate_kv_cache(config(twin, tensors, *groups), device="cpu")
    assert ["c", "a", "b", "d"] == list(raw_tensors)
    assert raw_tensors["a"] is raw_tensors["c"]
    assert not twin.shares_memory(raw_tensors["a"], raw_tensors["d"])
    assert {twin.dtype("int8")} == {raw.dtype for raw in raw_tensors.values()}
    assert [[0] * 6, [0] * 6, [], [0] * 3] == [raw.tolist() for raw in raw_tensors.values()]
    assert twin._allocate_kv_cache(config(twin, []), "cpu") == {}


def test_encoder_only_groups_keep_no_cache(twin: Any) -> None:
    uniform = twin.UniformTypeKVCacheSpecs(4, twin.convert({"x": ENCODER_ONLY, "y": ENCODER_ONLY}))
    groups = ((["x", "y"], ENCODER_ONLY), (["a"], FULL), (["x", "a"], uniform))
    assert ["a"] == list(twin._allocate_kv_cache(config(twin, [(6, ["a"])], *groups), "cpu"))
    with twin.refuses(
        "ValueError: kv_cache_tensors must name the layers of kv_cache_groups, missing [], extra "
        "['x']"
    ):
        twin._allocate_kv_cache(config(twin, [(6, ["a", "x"])], *groups), "cpu")


def make_model(twin: Any) -> Any:
    """Return a model of three groups over two tensors, and its layers; one has no group yet."""
    tensors = [
        (3 * PAGE, ["layers.0.attn", "layers.1.attn", "layers.4.attn"]),
        (3 * PAGE, ["layers.2.mixer", "layers.3.attn"]),
    ]
    made = config(
        twin,
        tensors,
        (["layers.0.attn", "layers.3.attn"], FULL),
        (["layers.1.attn"], reference.SlidingWindowSpec(4, 5, 6, np.float16, 8)),
        (["layers.2.mixer"], reference.MambaSpec(4, ((7,),), (np.float32,), page_size_padded=PAGE)),
        (["encoder.0"], ENCODER_ONLY),
    )
    names = [*(name for _, layers in tensors for name in layers), "encoder.0", "mlp"]
    return made, {name: SimpleNamespace(kv_cache="untouched") for name in names}


def test_init_binds_all(twin: Any) -> None:
    made, layers = make_model(twin)
    sharing = {"layers.4.attn": "layers.0.attn"}
    twin.add_kv_sharing_layers_to_kv_cache_groups(sharing, made.kv_cache_groups)
    runner_kv_caches: list[Any] = []
    backends = {name: Backend for name in layers if name.endswith("attn")}
    twin.init_kv_cache(
        runner_kv_caches, layers, made, backends, "cpu", kernel_block_sizes=[2, 4, 99]
    )

    assert layers["mlp"].kv_cache == layers["encoder.0"].kv_cache == "untouched"
    names = [f"layers.{i}.{'mixer' if i == 2 else 'attn'}" for i in range(5)]
    for name, kv_cache in zip(names, runner_kv_caches, strict=True):
        assert len(layers[name].kv_cache) == 1
        assert layers[name].kv_cache[0] is kv_cache
    assert (2, 6, 2, 5, 6) == runner_kv_caches[0].shape == runner_kv_caches[4].shape
    assert (2, 3, 4, 5, 6) == runner_kv_caches[1].shape
    assert [(3, 7)] == [state.shape for state in runner_kv_caches[2]]
    runner_kv_caches[0][1, 5, 0, 4, 5] = 7
    assert runner_kv_caches[4][1, 5, 0, 4, 5] == 7
    assert (runner_kv_caches[1] != 0).sum() == 1
    assert not runner_kv_caches[2][0].any()
    assert not runner_kv_caches[3].any()


def test_init_checks_before_it_allocates(twin: Any) -> None:
    made = config(twin, [(2**62, ["attn"])], (["attn"], FULL))
    with twin.refuses(
        "ValueError: layer_name is 'attn' and has 0 integers between dots, expected 1, or 2 for "
        "an attention layer where num_attn_module is above 1"
    ):
        twin.init_kv_cache([], {"attn": SimpleNamespace()}, made, {"attn": Backend}, "cpu")
