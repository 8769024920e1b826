"""Views: the place of each element of a layer's cache in its bytes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import reference
from tests.twins.layer_views import FULL, PAGE, STATES, config, make_backend, make_raw, make_view

BYTES = reference.AttentionSpec(4, 5, 6, np.int8)


def strides_of(view: Any) -> tuple[int, ...]:
    """Return the strides of a view, in elements."""
    strides = view.stride() if hasattr(view, "stride") else view.strides
    itemsize = 1 if hasattr(view, "stride") else view.itemsize
    return tuple(stride // itemsize for stride in strides)


def places(raw: Any) -> list[int]:
    """Return the indices of the bytes that are not 0."""
    found: list[int] = np.flatnonzero(np.asarray(raw)).tolist()
    return found


def test_the_example(twin: Any) -> None:
    view = make_view(twin, BYTES, make_raw(twin, 720), make_backend(1, 3, 0, 2, 4))
    assert (2, 3, 4, 5, 6) == view.shape
    assert (24, 240, 6, 48, 1) == strides_of(view)


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_every_order(twin: Any, order: tuple[int, ...]) -> None:
    spec, shape = reference.MLAAttentionSpec(4, 5, 6, np.int16), (3, 4, 5, 6)
    raw = make_raw(twin, 3 * spec.page_size_bytes)
    backend = make_backend(*order, make_shape=lambda *arguments: arguments)
    view = make_view(twin, spec, raw, backend)
    raw.view(twin.dtype("int16"))[:] = twin.array(range(360), "int16")
    in_memory = np.arange(360).reshape([shape[dimension] for dimension in order])
    assert in_memory.transpose(np.argsort(order)).tolist() == view.tolist()


def raise_not_implemented() -> None:
    """Raise, as a backend without a stride order does."""
    raise NotImplementedError


@pytest.mark.parametrize("get_order", [None, raise_not_implemented, lambda: [0, 1, 2, 3, 4]])
def test_identity(twin: Any, get_order: Callable[[], Any] | None) -> None:
    backend = make_backend()
    expected = (360, 120, 30, 6, 1)
    assert expected == strides_of(make_view(twin, BYTES, make_raw(twin, 720), backend))
    backend.get_kv_cache_stride_order = get_order
    assert expected == strides_of(make_view(twin, BYTES, make_raw(twin, 720), backend))


def test_calls_of_backends(twin: Any) -> None:
    backend = make_backend(make_shape=lambda n, tokens, heads, size: (n, tokens * heads, size))
    mla = reference.MLAAttentionSpec(4, 2, 6, np.float16)
    make_view(twin, mla, make_raw(twin, 3 * mla.page_size_bytes), backend)
    named = reference.MLAAttentionSpec(4, 2, 6, np.float16, cache_dtype_str="fp8")
    make_view(twin, named, make_raw(twin, 3 * named.page_size_bytes), backend)
    assert [(3, 4, 2, 6, {}), (3, 4, 2, 6, {"cache_dtype_str": "fp8"})] == backend.calls
    packed = reference.MLAAttentionSpec(4, 1, 576, np.uint8, cache_dtype_str="fp8_ds_mla")
    backend = make_backend(make_shape=lambda n, tokens, *_: [n, np.int64(tokens), 656])
    assert (2, 4, 656) == make_view(twin, packed, make_raw(twin, 2 * 4 * 656), backend).shape


def test_no_blocks(twin: Any) -> None:
    view = make_view(twin, BYTES, make_raw(twin, 0), make_backend(1, 0, 2, 3, 4))
    assert (2, 0, 4, 5, 6) == view.shape
    assert (120, 240, 30, 6, 1) == strides_of(view)
    assert [(0, 3, 4), (0, 2), (0,)] == [
        state.shape for state in make_view(twin, STATES, make_raw(twin, 0))
    ]


def test_kernel_blocks(twin: Any) -> None:
    raw = make_raw(twin, 3 * PAGE)
    backend = make_backend(1, 0, 2, 3, 4)
    whole = make_view(twin, FULL, raw, backend, 4)
    halves = make_view(twin, FULL, raw, backend, np.int64(2))
    assert [(3, 4, 5, 6, {}), (6, 2, 5, 6, {})] == backend.calls
    assert (2, 6, 2, 5, 6) == halves.shape
    halves[:, 2:4] = 1
    assert whole[:, 1].all()
    assert (whole != 0).sum() == 2 * 4 * 5 * 6


def test_mamba_states(twin: Any) -> None:
    raw = make_raw(twin, 2 * PAGE)
    first, second, third = make_view(twin, STATES, raw)
    assert [(2, 3, 4), (2, 2), (2,)] == [view.shape for view in (first, second, third)]
    assert [(240, 4, 1), (120, 1), (PAGE,)] == [strides_of(v) for v in (first, second, third)]
    assert [*twin.convert(STATES).dtypes] == [v.dtype for v in (first, second, third)]
    for view, start, length in ((first, 0, 24), (second, 24, 8), (third, 32, 1)):
        raw[:] = 0
        view.view(twin.dtype(f"int{8 * view.itemsize}"))[1] = -1
        assert [PAGE + start + i for i in range(length)] == places(raw)


def test_mamba_beside_attention(twin: Any) -> None:
    raw = make_raw(twin, 3 * PAGE)
    groups = config(twin, (["a"], FULL), (["m"], STATES), (["b"], FULL))
    backends = {"a": make_backend(), "b": make_backend(0, 3, 1, 2, 4)}
    views = twin._reshape_kv_cache(groups, dict.fromkeys("abm", raw), backends)
    assert (120, 240, 30, 6, 1) == strides_of(views["a"])
    assert (120, 240, 6, 24, 1) == strides_of(views["b"])
    assert [(3, 4, 5, 6, {}), (4, 4, 5, 6, {})] == backends["a"].calls
    for view in (views["a"], views["b"]):
        raw[:] = 0
        view.view(twin.dtype("int16"))[:, 1] = -1
        assert list(range(PAGE, 2 * PAGE)) == places(raw)
        assert all(state[1].any() for state in views["m"])
        assert not any(state[[0, 2]].any() for state in views["m"])


def test_mamba_with_kernel_blocks(twin: Any) -> None:
    raw = make_raw(twin, 3 * PAGE)
    groups = config(twin, (["m"], STATES), (["a"], FULL))
    backends = {"a": make_backend()}
    views = twin._reshape_kv_cache(groups, {"m": raw, "a": raw}, backends, [1000, 2])
    assert (2, 6, 2, 5, 6) == views["a"].shape
    assert [(6, 2, 5, 6, {}), (7, 2, 5, 6, {})] == backends["a"].calls
    views["a"].view(twin.dtype("int16"))[:, 2:4] = -1
    assert list(range(PAGE, 2 * PAGE)) == places(raw)


def test_mamba_of_another_group_moves_blocks(twin: Any) -> None:
    uniform = reference.UniformTypeKVCacheSpecs(4, {"x": FULL, "m": STATES})
    raws = {"x": make_raw(twin, PAGE), "m": make_raw(twin, PAGE), "a": make_raw(twin, 2 * PAGE)}
    for mamba in (
        config(twin, (["a"], FULL), (["x"], uniform)),
        config(twin, (["a"], FULL), ([], STATES)),
    ):
        views = twin._reshape_kv_cache(mamba, raws, {"a": make_backend(), "x": make_backend()})
        assert (120, 240, 30, 6, 1) == strides_of(views["a"])


@pytest.mark.parametrize(
    "make_shape",
    [
        pytest.param(lambda n, *_: (n, 2, n), id="two grow"),
        pytest.param(lambda *_: (240,), id="none grows"),
        pytest.param(lambda n, *_: (n,) * n, id="more dimensions"),
    ],
)
def test_no_block_dimension(twin: Any, make_shape: Callable[..., Any]) -> None:
    groups = config(twin, (["a"], FULL), (["m"], STATES))
    raws = {"a": make_raw(twin, 3 * PAGE), "m": make_raw(twin, PAGE)}
    one, more = tuple(make_shape(3)), tuple(make_shape(4))
    with twin.refuses(
        f"ValueError: attn_backends['a'].get_kv_cache_shape() is {one}, and {more} for one more "
        "block, expected one dimension to grow"
    ):
        twin._reshape_kv_cache(groups, raws, {"a": make_backend(make_shape=make_shape)})


def test_order_of_layers(twin: Any) -> None:
    groups = config(
        twin,
        (["d", "b"], FULL),
        (["x"], reference.EncoderOnlyAttentionSpec(4, 5, 6, np.float16)),
        (["c", "a"], reference.CrossAttentionSpec(4, 5, 6, np.float16)),
    )
    raws = {name: make_raw(twin, PAGE) for name in "abcdz"}
    views = twin._reshape_kv_cache(groups, raws, dict.fromkeys("abcd", make_backend()), [4, 2])
    assert ["d", "b", "c", "a"] == list(views)
    assert [(2, 1, 4, 5, 6)] * 2 + [(2, 2, 2, 5, 6)] * 2 == [view.shape for view in views.values()]
    raws["c"][:] = 1
    assert [False, False, True, False] == [bool(view.any()) for view in views.values()]


SMALL = reference.FullAttentionSpec(4, 1, 6, np.float16)


def test_uniform_groups(twin: Any) -> None:
    uniform = reference.UniformTypeKVCacheSpecs(4, {"a": FULL, "b": SMALL, "gone": FULL})
    raws = {"a": make_raw(twin, 2 * PAGE), "b": make_raw(twin, PAGE)}
    raws["c"], raws["d"] = raws["b"], raws["a"]
    groups = config(twin, (["c", "a", "b", "d"], uniform))
    views = twin._reshape_kv_cache(groups, raws, dict.fromkeys("abcd", make_backend()), [2])
    assert ["c", "a", "b", "d"] == list(views)
    assert (2, 4, 2, 5, 6) == views["a"].shape == views["d"].shape
    assert (2, 10, 2, 1, 6) == views["b"].shape == views["c"].shape
    views["c"][1, 9, 1, 0, 5] = 3
    assert views["b"][1, 9, 1, 0, 5] == 3


def test_first_layer_over_the_bytes_decides(twin: Any) -> None:
    other = reference.FullAttentionSpec(4, 6, 5, np.float16)
    uniform = reference.UniformTypeKVCacheSpecs(4, {"a": FULL, "b": other})
    raw = make_raw(twin, PAGE)
    for layers, expected in ((["c", "b", "a"], (6, 5)), (["a", "b", "c"], (5, 6))):
        groups = config(twin, (layers, uniform))
        views = twin._reshape_kv_cache(
            groups, dict.fromkeys("abc", raw), dict.fromkeys("abc", make_backend())
        )
        assert expected == views["c"].shape[3:]


def test_an_engines_own_specs(twin: Any) -> None:
    base = type("KVCacheSpec", (), {})
    own = type("Own", (type("AttentionSpec", (base,), {}),), {"page_size_bytes": 240})()
    own.block_size, own.num_kv_heads, own.head_size, own.dtype = 4, 5, 6, twin.dtype("int8")
    assert (2, 3, 4, 5, 6) == make_view(twin, own, make_raw(twin, 720), make_backend()).shape
    states = type("MambaSpec", (base,), {"page_size_bytes": 16, "block_size": 4})()
    states.shapes, states.dtypes = ((3,), (4,)), (twin.dtype("int32"), twin.dtype("int8"))
    assert [(2, 3), (2, 4)] == [view.shape for view in make_view(twin, states, make_raw(twin, 32))]
    states.page_size_bytes = 12
    with twin.refuses(
        "ValueError: state 1 of layer 'a' ends at byte 16, past its page_size_bytes 12"
    ):
        make_view(twin, states, make_raw(twin, 24))


def test_one_page_size_over_one_array(twin: Any) -> None:
    raw, backends = make_raw(twin, 5 * PAGE), dict.fromkeys("ab", make_backend())
    for groups in (
        config(twin, (["a"], FULL), (["b"], SMALL)),
        config(twin, (["a", "b"], reference.UniformTypeKVCacheSpecs(4, {"a": FULL, "b": SMALL}))),
    ):
        assert SMALL.page_size_bytes * 5 == PAGE
        with twin.refuses(
            "ValueError: page_size_bytes of layer 'b' is 96, but that of 'a' with the same raw "
            "tensor is 480"
        ):
            twin._reshape_kv_cache(groups, {"a": raw, "b": raw}, backends)
        twin._reshape_kv_cache(groups, {"a": raw, "b": make_raw(twin, 5 * PAGE)}, backends)
