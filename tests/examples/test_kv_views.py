"""Views: the place of each element of a layer's cache in its bytes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import reference
from tests.examples.twins import Twin

BYTES = reference.AttentionSpec(4, 5, 6, np.int8)  # a page of 240 bytes: 2 * 4 * 5 * 6
FULL = reference.FullAttentionSpec(4, 5, 6, np.float16)
SMALL = reference.FullAttentionSpec(4, 1, 6, np.float16)  # a fifth of that
PAGE = 480
STATES = reference.MambaSpec(4, ((3, 4), (2,), ()), (np.float16, np.int32, np.int8), PAGE)


class Backend:
    """A backend with a stride order, if one is given, that records its calls."""

    def __init__(self, order: Any = None, shape: Callable[..., Any] | None = None) -> None:
        self.calls: list[Any] = []
        self.shape = shape or (lambda *sizes: (2, *sizes))
        if order is not None:
            self.get_kv_cache_stride_order = lambda: order

    def get_kv_cache_shape(self, *sizes: int, **keywords: str) -> Any:
        """Return the shape, by default (2, blocks, tokens, heads, size)."""
        self.calls.append((*sizes, *keywords.items()))
        return self.shape(*sizes)


def make_views(
    twin: Twin, groups: list[Any], raws: Any, backends: Any, sizes: Any = None
) -> dict[str, Any]:
    made = [twin.KVCacheGroupSpec(layers, twin.of(spec)) for layers, spec in groups]
    found: dict[str, Any]
    found = twin._reshape_kv_cache(twin.KVCacheConfig(0, [], made), raws, backends, sizes)
    return found


def make_raw(twin: Twin, num_bytes: int) -> Any:
    return twin.of(np.zeros(num_bytes, np.int8))


def strides_of(view: Any) -> tuple[int, ...]:
    """Return strides in elements."""
    if hasattr(view, "stride"):
        return tuple(view.stride())
    return tuple(stride // view.itemsize for stride in view.strides)


IN_ORDER = (360, 120, 30, 6, 1)


@pytest.mark.parametrize(
    ("order", "strides"),
    [
        (None, IN_ORDER),
        ([0, 1, 2, 3, 4], IN_ORDER),
        # in memory: blocks, keys and values, tokens, heads, size
        ((1, 0, 2, 3, 4), (120, 240, 30, 6, 1)),
        # blocks, heads, keys and values, tokens, size
        ((1, 3, 0, 2, 4), (24, 240, 6, 48, 1)),
    ],
)
def test_strides(twin: Twin, order, strides) -> None:
    raws, backends = {"a": make_raw(twin, 720)}, {"a": Backend(order)}
    view = make_views(twin, [(["a"], BYTES)], raws, backends)["a"]
    assert ((2, 3, 4, 5, 6), strides) == (tuple(view.shape), strides_of(view))


@pytest.mark.parametrize("order", list(itertools.permutations(range(4)))[::3])
def test_orders_of_four_dimensions(twin: Twin, order) -> None:
    spec, shape = reference.MLAAttentionSpec(4, 5, 6, np.int16), (3, 4, 5, 6)
    raw, backend = make_raw(twin, 3 * spec.page_size_bytes), Backend(order, lambda *sizes: sizes)
    view = make_views(twin, [(["a"], spec)], {"a": raw}, {"a": backend})["a"]
    raw.view(twin.dtype("int16"))[:] = twin.array(range(360), "int16")
    # the dimension `order[i]` of the shape is the `i`-th in memory
    in_memory = np.arange(360).reshape([shape[dimension] for dimension in order])
    assert in_memory.transpose(np.argsort(order)).tolist() == view.tolist()


@pytest.mark.parametrize(
    ("size", "dtype", "cache_dtype_str", "calls"),
    [
        (6, np.float16, None, [(3, 4, 1, 6)]),
        (6, np.float16, "fp8", [(3, 4, 1, 6, ("cache_dtype_str", "fp8"))]),
        # the backend's shape has the format's 656 bytes of a token
        (576, np.uint8, "fp8_ds_mla", [(3, 4, 1, 576, ("cache_dtype_str", "fp8_ds_mla"))]),
    ],
)
def test_calls_of_a_backend(twin: Twin, size, dtype, cache_dtype_str, calls) -> None:
    spec = reference.MLAAttentionSpec(4, 1, size, dtype, cache_dtype_str=cache_dtype_str)
    last = 656 if cache_dtype_str == "fp8_ds_mla" else size
    backend = Backend(shape=lambda number, tokens, *_: [number, np.int64(tokens), last])
    raw = make_raw(twin, 3 * spec.page_size_bytes)
    view = make_views(twin, [(["a"], spec)], {"a": raw}, {"a": backend})["a"]
    assert ((3, 4, last), calls) == (tuple(view.shape), backend.calls)


def test_no_blocks(twin: Twin) -> None:
    raws = {"a": make_raw(twin, 0), "m": make_raw(twin, 0)}
    views = make_views(twin, [(["a"], BYTES), (["m"], STATES)], raws, {"a": Backend()})
    assert (2, 0, 4, 5, 6) == views["a"].shape
    assert [(0, 3, 4), (0, 2), (0,)] == [tuple(state.shape) for state in views["m"]]


def test_kernel_blocks(twin: Twin) -> None:
    # 3 blocks of 4 tokens are 6 kernel blocks of 2, and both views are over the same bytes
    raw, backends = make_raw(twin, 3 * PAGE), {"a": Backend((1, 0, 2, 3, 4))}
    groups = [(["a"], FULL)]
    whole = make_views(twin, groups, {"a": raw}, backends, [4])["a"]
    halves = make_views(twin, groups, {"a": raw}, backends, [2])["a"]
    assert [(3, 4, 5, 6), (6, 2, 5, 6)] == backends["a"].calls
    assert (2, 6, 2, 5, 6) == halves.shape
    halves[:, 2:4] = 1
    assert whole[:, 1].all()
    assert 2 * 4 * 5 * 6 == (whole != 0).sum()


def test_mamba_states(twin: Twin) -> None:
    # states lie one after another in each page: 24 bytes of float16, 8 of int32, 1 of int8
    raw = make_raw(twin, 2 * PAGE)
    states = make_views(twin, [(["m"], STATES)], {"m": raw}, {})["m"]
    assert [(2, 3, 4), (2, 2), (2,)] == [tuple(state.shape) for state in states]
    assert [(240, 4, 1), (120, 1), (PAGE,)] == [strides_of(state) for state in states]
    for state, start, length in zip(states, (0, 24, 32), (24, 8, 1), strict=True):
        raw[:] = 0
        state.view(twin.dtype(f"int{8 * state.itemsize}"))[1] = -1
        found = np.flatnonzero(np.asarray(raw)).tolist()
        assert list(range(PAGE + start, PAGE + start + length)) == found


def test_mamba_beside_attention(twin: Twin) -> None:
    # where both are over the same bytes, a block is a page in both, whatever the backend's order
    raw = make_raw(twin, 3 * PAGE)
    backends = {"a": Backend(), "b": Backend((0, 3, 1, 2, 4))}
    groups = [(["a"], FULL), (["m"], STATES), (["b"], FULL)]
    views = make_views(twin, groups, dict.fromkeys("abm", raw), backends, [2, 1000, 4])
    assert (2, 6, 2, 5, 6) == views["a"].shape
    assert (120, 240, 6, 24, 1) == strides_of(views["b"])
    for name, block in (("a", slice(2, 4)), ("b", 1)):
        raw[:] = 0
        views[name].view(twin.dtype("int16"))[:, block] = -1
        assert list(range(PAGE, 2 * PAGE)) == np.flatnonzero(np.asarray(raw)).tolist()
        assert [True] * 3 == [bool(state[1].any()) for state in views["m"]]
        assert [False] * 3 == [bool(state[[0, 2]].any()) for state in views["m"]]


@pytest.mark.parametrize(
    "mamba",
    [(["x"], reference.UniformTypeKVCacheSpecs(4, {"x": FULL, "m": STATES})), ([], STATES)],
)
def test_a_mamba_group_elsewhere_moves_blocks_too(twin: Twin, mamba) -> None:
    raws = {"x": make_raw(twin, PAGE), "a": make_raw(twin, 2 * PAGE)}
    views = make_views(twin, [(["a"], FULL), mamba], raws, {"a": Backend(), "x": Backend()})
    assert (120, 240, 30, 6, 1) == strides_of(views["a"])


def test_layers_of_several_groups(twin: Twin) -> None:
    # encoder-only groups have no cache, and no kernel block size
    groups = [
        (["d", "b"], FULL),
        (["x"], reference.EncoderOnlyAttentionSpec(4, 5, 6, np.float16)),
        (["c", "a"], reference.CrossAttentionSpec(4, 5, 6, np.float16)),
    ]
    raws = {name: make_raw(twin, PAGE) for name in "abcdz"}
    views = make_views(twin, groups, raws, dict.fromkeys("abcd", Backend()), [4, 2])
    shapes = [(name, tuple(view.shape)) for name, view in views.items()]
    assert [(n, (2, 1, 4, 5, 6)) for n in "db"] + [(n, (2, 2, 2, 5, 6)) for n in "ca"] == shapes
    raws["c"][:] = 1
    assert ["c"] == [name for name, view in views.items() if view.any()]


def test_layers_of_a_uniform_group(twin: Twin) -> None:
    # a layer that has no spec of its own has that of the layer over its bytes
    uniform = reference.UniformTypeKVCacheSpecs(4, {"a": FULL, "b": SMALL, "gone": FULL})
    raws = {"a": make_raw(twin, 2 * PAGE), "b": make_raw(twin, PAGE)}
    raws["c"], raws["d"] = raws["b"], raws["a"]
    groups = [(["c", "a", "b", "d"], uniform)]
    views = make_views(twin, groups, raws, dict.fromkeys("abcd", Backend()), [2])
    assert ["c", "a", "b", "d"] == list(views)
    assert (2, 4, 2, 5, 6) == views["a"].shape == views["d"].shape
    assert (2, 10, 2, 1, 6) == views["b"].shape == views["c"].shape
    views["c"][1, 9, 1, 0, 5] = 3
    assert 3 == views["b"][1, 9, 1, 0, 5]


def test_an_engines_own_specs(twin: Twin) -> None:
    base = type("KVCacheSpec", (), {})
    own = type("Own", (type("AttentionSpec", (base,), {}),), {"page_size_bytes": 240})()
    own.block_size, own.num_kv_heads, own.head_size, own.dtype = 4, 5, 6, twin.dtype("int8")
    states = type("MambaSpec", (base,), {"page_size_bytes": 16, "block_size": 4})()
    states.shapes, states.dtypes = ((3,), (4,)), (twin.dtype("int32"), twin.dtype("int8"))
    raws = {"a": make_raw(twin, 720), "m": make_raw(twin, 32)}
    views = make_views(twin, [(["a"], own), (["m"], states)], raws, {"a": Backend()})
    assert (2, 3, 4, 5, 6) == views["a"].shape
    assert [(2, 3), (2, 4)] == [tuple(state.shape) for state in views["m"]]
