"""Views: where each element of a layer's cache stands in its bytes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from reference import (
    AttentionSpec,
    CrossAttentionSpec,
    EncoderOnlyAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    MambaSpec,
    MLAAttentionSpec,
    UniformTypeKVCacheSpecs,
    _reshape_kv_cache,
)

FULL = FullAttentionSpec(4, 5, 6, np.float16)
PAGE = FULL.page_size_bytes
STATES = MambaSpec(4, ((3, 4), (2,), ()), (np.float16, np.int32, np.int8), PAGE)


def make_backend(*order: int, make_shape: Callable[..., Any] | None = None) -> SimpleNamespace:
    """Return a backend with a stride order, if one is given, that says what it is asked."""

    def get_kv_cache_shape(
        num_blocks: int, block_size: int, heads: int, size: int, **keywords: str
    ) -> object:
        backend.asked.append((num_blocks, block_size, heads, size, keywords))
        if make_shape is not None:
            return make_shape(num_blocks, block_size, heads, size)
        return 2, num_blocks, block_size, heads, size

    backend = SimpleNamespace(get_kv_cache_shape=get_kv_cache_shape, asked=[])
    if order:
        backend.get_kv_cache_stride_order = lambda: order
    return backend


def config(*groups: tuple[list[str], KVCacheSpec]) -> KVCacheConfig:
    """Return a configuration of groups; no more is read."""
    return KVCacheConfig(0, [], [KVCacheGroupSpec(layers, spec) for layers, spec in groups])


def make_raw(num_bytes: int) -> Any:  # noqa: ANN401  # an array
    """Return bytes."""
    return np.zeros(num_bytes, np.int8)


def make_view(
    spec: KVCacheSpec, raw: object, backend: object = None, kernel_block_size: int | None = None
) -> Any:  # noqa: ANN401  # an array or a list of them
    """Return the view of one layer."""
    sizes = None if kernel_block_size is None else [kernel_block_size]
    return _reshape_kv_cache(config((["a"], spec)), {"a": raw}, {"a": backend}, sizes)["a"]


def test_the_example() -> None:
    """Memory holds blocks, heads, K/V, tokens, head size."""
    view = make_view(AttentionSpec(4, 5, 6, np.int8), make_raw(720), make_backend(1, 3, 0, 2, 4))
    assert (2, 3, 4, 5, 6) == view.shape
    assert (24, 240, 6, 48, 1) == view.strides


@pytest.mark.parametrize(
    "dtype",
    [
        *(np.float16, np.float32, np.int8, np.uint8),
        *(ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2),
    ],
)
def test_dtypes(dtype: type[np.generic]) -> None:
    """The view is of the spec's dtype, over the very bytes, and can be written."""
    spec = AttentionSpec(4, 5, 6, dtype)
    raw = make_raw(3 * spec.page_size_bytes)
    view = make_view(spec, raw, make_backend(1, 3, 0, 2, 4))
    itemsize = np.dtype(dtype).itemsize
    assert np.dtype(dtype) == view.dtype
    assert tuple(stride * itemsize for stride in (24, 240, 6, 48, 1)) == view.strides
    view[1, 2, 3, 4, 5] = 1
    assert np.count_nonzero(raw[-itemsize:]) == np.count_nonzero(raw) > 0


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_every_order(order: tuple[int, ...]) -> None:
    """In the order that a backend says, 3-cycles too, the dimensions lie in memory as in C."""
    spec, shape = MLAAttentionSpec(4, 5, 6, np.int16), (3, 4, 5, 6)
    raw = make_raw(3 * spec.page_size_bytes)
    backend = make_backend(*order, make_shape=lambda *arguments: arguments)
    view = make_view(spec, raw, backend)
    assert shape == view.shape
    elements = raw.view(np.int16)
    for index in [
        (0, 0, 0, 0),
        (2, 0, 0, 0),
        (0, 3, 0, 0),
        (0, 0, 4, 0),
        (0, 0, 0, 5),
        (1, 2, 3, 4),
    ]:
        position = 0
        for dimension in order:
            position = position * shape[dimension] + index[dimension]
        elements[position] = 77
        assert view[index] == 77
        elements[position] = 0


def test_a_cycle_is_not_its_inverse() -> None:
    """A 3-cycle and its inverse give unlike strides."""
    spec = AttentionSpec(4, 5, 6, np.int8)
    cycle = make_view(spec, make_raw(720), make_backend(1, 2, 0, 3, 4))
    assert (30, 240, 60, 6, 1) == cycle.strides
    inverse = make_view(spec, make_raw(720), make_backend(2, 0, 1, 3, 4))
    assert (90, 30, 180, 6, 1) == inverse.strides


def raise_not_implemented() -> None:
    """Say nothing of an order."""
    raise NotImplementedError


@pytest.mark.parametrize("ask", [None, raise_not_implemented, lambda: [0, 1, 2, 3, 4]])
def test_identity(ask: Callable[[], Any] | None) -> None:
    """A backend that has no order, or says so, means the identity; a list does for a tuple."""
    backend = make_backend()
    expected = (360, 120, 30, 6, 1)
    assert expected == make_view(AttentionSpec(4, 5, 6, np.int8), make_raw(720), backend).strides
    backend.get_kv_cache_stride_order = ask
    assert expected == make_view(AttentionSpec(4, 5, 6, np.int8), make_raw(720), backend).strides


def test_what_backends_are_asked() -> None:
    """A backend is asked by position, and for the cache's format where the spec has one."""
    backend = make_backend(make_shape=lambda n, tokens, heads, size: (n, tokens * heads, size))
    mla = MLAAttentionSpec(4, 2, 6, np.float16)
    make_view(mla, make_raw(3 * mla.page_size_bytes), backend)
    named = MLAAttentionSpec(4, 2, 6, np.float16, cache_dtype_str="fp8")
    make_view(named, make_raw(3 * named.page_size_bytes), backend)
    assert [(3, 4, 2, 6, {}), (3, 4, 2, 6, {"cache_dtype_str": "fp8"})] == backend.asked
    packed = MLAAttentionSpec(4, 1, 576, np.uint8, cache_dtype_str="fp8_ds_mla")
    backend = make_backend(make_shape=lambda n, tokens, *_: [n, np.int64(tokens), 656])
    assert (2, 4, 656) == make_view(packed, make_raw(2 * 4 * 656), backend).shape


def test_errors_of_backends_come_through() -> None:
    """Only that there is no order is taken for an answer; other errors are the backend's."""
    backend = make_backend()
    backend.get_kv_cache_stride_order = lambda: SimpleNamespace().order
    with pytest.raises(AttributeError, match="order"):
        make_view(FULL, make_raw(PAGE), backend)
    with pytest.raises(AttributeError, match="get_kv_cache_shape"):
        make_view(FULL, make_raw(PAGE), SimpleNamespace())
    with pytest.raises(NotImplementedError):
        make_view(FULL, make_raw(PAGE), make_backend(make_shape=lambda *_: raise_not_implemented()))


def test_no_blocks() -> None:
    """No bytes are no blocks; a length of 0 counts as 1 in the strides."""
    view = make_view(AttentionSpec(4, 5, 6, np.int8), make_raw(0), make_backend(1, 0, 2, 3, 4))
    assert (2, 0, 4, 5, 6) == view.shape
    assert (120, 240, 30, 6, 1) == view.strides
    assert [(0, 3, 4), (0, 2), (0,)] == [state.shape for state in make_view(STATES, make_raw(0))]


def test_kernel_blocks() -> None:
    """Several of the kernel's blocks make one of the spec's: the bytes are the same."""
    raw = make_raw(3 * PAGE)
    backend = make_backend(1, 0, 2, 3, 4)
    whole = make_view(FULL, raw, backend, 4)
    halves = make_view(FULL, raw, backend, np.int64(2))
    assert [(3, 4, 5, 6, {}), (6, 2, 5, 6, {})] == backend.asked
    assert (2, 6, 2, 5, 6) == halves.shape
    halves[:, 2:4] = 1
    assert whole[:, 1].all()
    assert np.count_nonzero(whole) == whole[:, 1].size


def test_mamba_states() -> None:
    """States lie one behind the other in each page, before its padding."""
    raw = make_raw(2 * PAGE)
    first, second, third = make_view(STATES, raw)
    assert [(2, 3, 4), (2, 2), (2,)] == [view.shape for view in (first, second, third)]
    assert [(PAGE, 8, 2), (PAGE, 4), (PAGE,)] == [v.strides for v in (first, second, third)]
    assert [np.float16, np.int32, np.int8] == [v.dtype.type for v in (first, second, third)]
    for view, start, length in ((first, 0, 24), (second, 24, 8), (third, 32, 1)):
        raw[:] = 0
        view.view(np.dtype(f"i{view.itemsize}"))[1] = -1
        assert [PAGE + start + i for i in range(length)] == np.flatnonzero(raw).tolist()


def test_mamba_beside_attention() -> None:
    """Over one tensor every block fills its own page, whatever the backend's order."""
    raw = make_raw(3 * PAGE)
    groups = config((["a"], FULL), (["m"], STATES), (["b"], FULL))
    backends = {"a": make_backend(), "b": make_backend(0, 3, 1, 2, 4)}
    views = _reshape_kv_cache(groups, dict.fromkeys("abm", raw), backends)
    itemsize = 2
    assert [itemsize * s for s in (120, 240, 30, 6, 1)] == list(views["a"].strides)
    assert [itemsize * s for s in (120, 240, 6, 24, 1)] == list(views["b"].strides)
    assert [(3, 4, 5, 6, {}), (4, 4, 5, 6, {})] == backends["a"].asked
    for view in (views["a"], views["b"]):
        raw[:] = 0
        view.view(np.int16)[:, 1] = -1
        assert list(range(PAGE, 2 * PAGE)) == np.flatnonzero(raw).tolist()
        assert all(state[1].any() for state in views["m"])
        assert not any(state[[0, 2]].any() for state in views["m"])


def test_mamba_with_kernel_blocks() -> None:
    """With kernel blocks a run of them fills the page; a Mamba group's own entry is not used."""
    raw = make_raw(3 * PAGE)
    groups = config((["m"], STATES), (["a"], FULL))
    backends = {"a": make_backend()}
    views = _reshape_kv_cache(groups, {"m": raw, "a": raw}, backends, [1000, 2])
    assert (2, 6, 2, 5, 6) == views["a"].shape
    assert [(6, 2, 5, 6, {}), (7, 2, 5, 6, {})] == backends["a"].asked
    views["a"].view(np.int16)[:, 2:4] = -1
    assert list(range(PAGE, 2 * PAGE)) == np.flatnonzero(raw).tolist()


def test_mamba_of_another_group_moves_blocks() -> None:
    """A Mamba layer anywhere, in a uniform group too, moves the blocks of all others."""
    uniform = UniformTypeKVCacheSpecs(4, {"x": FULL, "m": STATES})
    raws = {"x": make_raw(PAGE), "m": make_raw(PAGE), "a": make_raw(2 * PAGE)}
    for mamba in (config((["a"], FULL), (["x"], uniform)), config((["a"], FULL), ([], STATES))):
        views = _reshape_kv_cache(mamba, raws, {"a": make_backend(), "x": make_backend()})
        assert (240, 480, 60, 12, 2) == views["a"].strides


@pytest.mark.parametrize(
    "make_shape",
    [
        pytest.param(lambda n, *_: (n, 2, n), id="two grow"),
        pytest.param(lambda *_: (240,), id="none grows"),
        pytest.param(lambda n, *_: (6 - n, 240), id="one shrinks"),
        pytest.param(lambda n, *_: (n,) * n, id="more dimensions"),
    ],
)
def test_no_block_dimension(make_shape: Callable[..., Any]) -> None:
    """In a model with Mamba layers one dimension, and only one, must grow by the block."""
    groups = config((["a"], FULL), (["m"], STATES))
    raws = {"a": make_raw(3 * PAGE), "m": make_raw(PAGE)}
    with pytest.raises(ValueError, match=r"^attn_backends\['a'\]\.get_kv_cache_shape\(\) is \("):
        _reshape_kv_cache(groups, raws, {"a": make_backend(make_shape=make_shape)})


def test_order_of_layers() -> None:
    """Views come in the order of groups and their layers; encoder-only groups have none."""
    groups = config(
        (["d", "b"], FULL),
        (["x"], EncoderOnlyAttentionSpec(4, 5, 6, np.float16)),
        (["c", "a"], CrossAttentionSpec(4, 5, 6, np.float16)),
    )
    raws = {name: make_raw(PAGE) for name in "abcdz"}
    views = _reshape_kv_cache(groups, raws, dict.fromkeys("abcd", make_backend()), [4, 2])
    assert ["d", "b", "c", "a"] == list(views)
    assert [(2, 1, 4, 5, 6)] * 2 + [(2, 2, 2, 5, 6)] * 2 == [view.shape for view in views.values()]
    raws["c"][:] = 1
    assert [False, False, True, False] == [bool(view.any()) for view in views.values()]


def test_backends_are_classes_or_instances() -> None:
    """A backend may be a class, whose methods are static."""

    class Backend:
        """A backend of the usual kind."""

        get_kv_cache_shape = staticmethod(lambda n, b, h, d: (n, 2, b, h, d))
        get_kv_cache_stride_order = staticmethod(lambda: (0, 2, 1, 3, 4))

    for backend in (Backend, Backend()):
        view = make_view(AttentionSpec(4, 5, 6, np.int8), make_raw(720), backend)
        assert (240, 30, 60, 6, 1) == view.strides


SMALL = FullAttentionSpec(4, 1, 6, np.float16)


def test_uniform_groups() -> None:
    """Each layer has its own spec; one without has that of the layer whose bytes it shares."""
    uniform = UniformTypeKVCacheSpecs(4, {"a": FULL, "b": SMALL, "gone": FULL})
    raws = {"a": make_raw(2 * PAGE), "b": make_raw(PAGE)}
    raws["c"], raws["d"] = raws["b"], raws["a"]
    groups = config((["c", "a", "b", "d"], uniform))
    views = _reshape_kv_cache(groups, raws, dict.fromkeys("abcd", make_backend()), [2])
    assert ["c", "a", "b", "d"] == list(views)
    assert (2, 4, 2, 5, 6) == views["a"].shape == views["d"].shape
    assert (2, 10, 2, 1, 6) == views["b"].shape == views["c"].shape
    views["c"][1, 9, 1, 0, 5] = 3
    assert views["b"][1, 9, 1, 0, 5] == 3


def test_first_layer_over_the_bytes_decides() -> None:
    """Of several layers over the same bytes the first in the group's order lends its spec."""
    other = FullAttentionSpec(4, 6, 5, np.float16)
    uniform = UniformTypeKVCacheSpecs(4, {"a": FULL, "b": other})
    raw = make_raw(PAGE)
    for layers, expected in ((["c", "b", "a"], (6, 5)), (["a", "b", "c"], (5, 6))):
        groups = config((layers, uniform))
        views = _reshape_kv_cache(
            groups, dict.fromkeys("abc", raw), dict.fromkeys("abc", make_backend())
        )
        assert expected == views["c"].shape[3:]


def test_a_layer_without_a_spec() -> None:
    """Equal bytes are not the same bytes, and another group's layer lends nothing."""
    uniform = UniformTypeKVCacheSpecs(4, {"a": FULL})
    raw = make_raw(PAGE)
    backends = dict.fromkeys("abc", make_backend())
    message = "^\"kv_cache_specs lacks layer 'c' and every layer of its group with the same raw "
    with pytest.raises(KeyError, match=message):
        _reshape_kv_cache(config((["a", "c"], uniform)), {"a": raw, "c": raw[:]}, backends)
    groups = config((["a"], uniform), (["c"], uniform))
    with pytest.raises(KeyError, match=message):
        _reshape_kv_cache(groups, {"a": raw, "c": raw}, backends)


def test_an_engines_own_specs() -> None:
    """Kinds are told by names, so specs of other classes with these names do."""
    base = type("KVCacheSpec", (), {})
    own = type("Own", (type("AttentionSpec", (base,), {}),), {"page_size_bytes": 240})()
    own.block_size, own.num_kv_heads, own.head_size, own.dtype = 4, 5, 6, np.int8
    assert (2, 3, 4, 5, 6) == make_view(own, make_raw(720), make_backend()).shape
    states = type("MambaSpec", (base,), {"page_size_bytes": 16, "block_size": 4})()
    states.shapes, states.dtypes = ((3,), (4,)), (np.int32, np.int8)
    assert [(2, 3), (2, 4)] == [view.shape for view in make_view(states, make_raw(32))]
    states.page_size_bytes = 12
    with pytest.raises(ValueError, match=r"^state 1 of layer 'a' ends at byte 16, past its"):
        make_view(states, make_raw(24))


def test_one_page_size_over_one_array() -> None:
    """All groups draw from one pool of blocks, so pages over one array are of one size."""
    raw, backends = make_raw(5 * PAGE), dict.fromkeys("ab", make_backend())
    for groups in (
        config((["a"], FULL), (["b"], SMALL)),
        config((["a", "b"], UniformTypeKVCacheSpecs(4, {"a": FULL, "b": SMALL}))),
    ):
        assert SMALL.page_size_bytes * 5 == PAGE
        with pytest.raises(
            ValueError, match=r"^page_size_bytes of layer 'b' is 96, but that of 'a' with the"
        ):
            _reshape_kv_cache(groups, {"a": raw, "b": raw}, backends)
        _reshape_kv_cache(groups, {"a": raw, "b": raw.copy()}, backends)
