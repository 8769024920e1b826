"""Views that cannot be: every precondition, broken in turn."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import reference

FULL = reference.FullAttentionSpec(4, 5, 6, np.float16)
PAGE = FULL.page_size_bytes
STATES = reference.MambaSpec(4, ((3, 4), (2,), ()), (np.float16, np.int32, np.int8), PAGE)


def make_backend(*order: object, make_shape: Callable[..., Any] | None = None) -> SimpleNamespace:
    """Return a backend with a shape and a stride order, or none."""
    backend = SimpleNamespace(
        get_kv_cache_shape=make_shape or (lambda num_blocks, *sizes: (2, num_blocks, *sizes))
    )
    if order:
        backend.get_kv_cache_stride_order = lambda: order
    return backend


def config(*groups: tuple[list[str], Any]) -> reference.KVCacheConfig:
    """Return a configuration of groups; no more is read."""
    return reference.KVCacheConfig(
        0, [], [reference.KVCacheGroupSpec(layers, spec) for layers, spec in groups]
    )


def make_raw(twin: Any, num_bytes: int) -> Any:
    """Return bytes."""
    return twin.convert(np.zeros(num_bytes, np.int8))


def make_view(
    twin: Any, spec: Any, raw: object, backend: object = None, kernel_block_size: int | None = None
) -> Any:
    """Return the view of one layer."""
    sizes = None if kernel_block_size is None else [kernel_block_size]
    return twin._reshape_kv_cache(
        twin.convert(config((["a"], spec))), {"a": raw}, {"a": backend}, sizes
    )["a"]


def misaligned(twin: Any, num_bytes: int) -> Any:
    """Return bytes that begin at an odd address."""
    raw = make_raw(twin, num_bytes + 2)
    start = 1 - np.asarray(raw).ctypes.data % 2
    return raw[start : start + num_bytes]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        pytest.param(
            lambda twin: make_view(twin, FULL, make_raw(twin, PAGE + 2), make_backend()),
            (
                f"ValueError: kv_cache_raw_tensors['a'] has {PAGE + 2} bytes, expected a multiple "
                f"of its page_size_bytes {PAGE}"
            ),
            id="no whole pages",
        ),
        pytest.param(
            lambda twin: make_view(twin, STATES, make_raw(twin, PAGE - 4)),
            (
                f"ValueError: kv_cache_raw_tensors['a'] has {PAGE - 4} bytes, expected a multiple "
                f"of its page_size_bytes {PAGE}"
            ),
            id="no whole pages of states",
        ),
        pytest.param(
            lambda twin: make_view(
                twin, FULL, make_raw(twin, PAGE), make_backend(make_shape=lambda *s: s)
            ),
            (
                f"ValueError: attn_backends['a'].get_kv_cache_shape() is (1, 4, 5, 6) of float16, "
                f"{PAGE // 2} bytes, but kv_cache_raw_tensors['a'] has {PAGE}"
            ),
            id="a shape of other bytes",
        ),
        pytest.param(
            lambda twin: make_view(twin, FULL, twin.array([0] * PAGE, "uint8"), make_backend()),
            "TypeError: kv_cache_raw_tensors['a'] must be int8, got uint8",
            id="no bytes",
        ),
        pytest.param(
            lambda twin: make_view(twin, FULL, [0] * PAGE, make_backend()),
            "TypeError: kv_cache_raw_tensors['a'] must be an array, got list",
            id="no array",
        ),
        pytest.param(
            lambda twin: make_view(twin, FULL, make_raw(twin, PAGE).reshape(2, -1), make_backend()),
            "ValueError: kv_cache_raw_tensors['a'] must have 1 dimension, got shape (2, 240)",
            id="two dimensions",
        ),
        pytest.param(
            lambda twin: make_view(twin, FULL, make_raw(twin, 2 * PAGE)[::2], make_backend()),
            "ValueError: kv_cache_raw_tensors['a'] must be contiguous, got stride 2",
            id="gaps",
        ),
        pytest.param(
            lambda twin: make_view(twin, FULL, misaligned(twin, PAGE), make_backend()),
            (
                "ValueError: kv_cache_raw_tensors['a'] is not aligned for float16, expected an "
                "address that is a multiple of 2"
            ),
            id="misaligned",
        ),
        pytest.param(
            lambda twin: make_view(twin, STATES, misaligned(twin, PAGE)),
            (
                "ValueError: kv_cache_raw_tensors['a'] is not aligned for float16, expected an "
                "address that is a multiple of 2"
            ),
            id="misaligned states",
        ),
        pytest.param(
            lambda twin: make_view(
                twin,
                reference.MambaSpec(4, ((3,), (2,)), (np.int8, np.int16), 8),
                make_raw(twin, 8),
            ),
            (
                "ValueError: state 1 of layer 'a' is at byte 3 of pages of 8 bytes, expected "
                "multiples of 2, the itemsize of int16"
            ),
            id="a state at an odd offset",
        ),
        pytest.param(
            lambda twin: make_view(
                twin,
                reference.MambaSpec(4, ((3,), (2,)), (np.int16, np.int8), 9),
                make_raw(twin, 9),
            ),
            (
                "ValueError: state 0 of layer 'a' is at byte 0 of pages of 9 bytes, expected "
                "multiples of 2, the itemsize of int16"
            ),
            id="a state in an odd page",
        ),
        *(
            pytest.param(
                lambda twin, order=order: make_view(
                    twin, FULL, make_raw(twin, PAGE), make_backend(*order)
                ),
                (f"ValueError: attn_backends['a'].get_kv_cache_stride_order(){wrong}"),
                id=f"order {order}",
            )
            for order, wrong in [
                ((0, 1, 2, 3), " is [0, 1, 2, 3], expected a permutation of [0, 1, 2, 3, 4]"),
                ((0, 1, 2, 3, 3), " is [0, 1, 2, 3, 3], expected a permutation of [0, 1, 2, 3, 4]"),
                ((1, 2, 3, 4, 5), "[4] is 5, expected 0 to 4"),
                ((-1, 0, 1, 2, 3), "[0] is -1, expected 0 to 4"),
            ]
        ),
        pytest.param(
            lambda twin: make_view(
                twin, FULL, make_raw(twin, PAGE), make_backend(0, True, 2, 3, 4)
            ),
            (
                "TypeError: attn_backends['a'].get_kv_cache_stride_order()[1] must be an int, "
                "got True of bool"
            ),
            id="an order that is no int",
        ),
        pytest.param(
            lambda twin: make_view(
                twin,
                FULL,
                make_raw(twin, PAGE),
                SimpleNamespace(
                    get_kv_cache_shape=lambda *s: (2, *s), get_kv_cache_stride_order=lambda: "01234"
                ),
            ),
            (
                "TypeError: attn_backends['a'].get_kv_cache_stride_order() must be a tuple or "
                "list, got '01234' of str"
            ),
            id="an order that is a str",
        ),
        pytest.param(
            lambda twin: make_view(
                twin, FULL, make_raw(twin, PAGE), make_backend(make_shape=lambda *_: PAGE // 2)
            ),
            (
                "TypeError: attn_backends['a'].get_kv_cache_shape() must be a tuple or list, "
                "got 240 of int"
            ),
            id="a shape that is an int",
        ),
        pytest.param(
            lambda twin: make_view(
                twin, FULL, make_raw(twin, PAGE), make_backend(make_shape=lambda *_: (240.0,))
            ),
            (
                "TypeError: attn_backends['a'].get_kv_cache_shape()[0] must be an int, got "
                "240.0 of float"
            ),
            id="a shape of floats",
        ),
        pytest.param(
            lambda twin: make_view(
                twin, FULL, make_raw(twin, PAGE), make_backend(make_shape=lambda *_: (-1, -240))
            ),
            "ValueError: attn_backends['a'].get_kv_cache_shape()[0] is -1, expected at least 0",
            id="a negative shape",
        ),
        pytest.param(
            lambda twin: make_view(twin, FULL, make_raw(twin, PAGE), make_backend(), 3),
            (
                "ValueError: kernel_block_sizes has 3 for layer 'a', expected a divisor of its "
                "block_size 4"
            ),
            id="a kernel block size that does not divide",
        ),
        pytest.param(
            lambda twin: make_view(twin, FULL, make_raw(twin, PAGE), make_backend(), 8),
            (
                "ValueError: kernel_block_sizes has 8 for layer 'a', expected a divisor of its "
                "block_size 4"
            ),
            id="a kernel block size that is greater",
        ),
        pytest.param(
            lambda twin: make_view(twin, FULL, make_raw(twin, PAGE), make_backend(), 0),
            "ValueError: kernel_block_sizes[0] is 0, expected at least 1",
            id="a kernel block size of 0",
        ),
        pytest.param(
            lambda twin: make_view(twin, FULL, make_raw(twin, PAGE), make_backend(), 2.0),
            "TypeError: kernel_block_sizes[0] must be an int, got 2.0 of float",
            id="a kernel block size that is no int",
        ),
        pytest.param(
            lambda twin: make_view(
                twin, reference.KVCacheSpec(4), make_raw(twin, PAGE), make_backend()
            ),
            (
                "NotImplementedError: layer 'a' has a spec of class KVCacheSpec, expected "
                "AttentionSpec or MambaSpec"
            ),
            id="an unknown kind",
        ),
        pytest.param(
            lambda twin: make_view(
                twin,
                reference.UniformTypeKVCacheSpecs(4, {"a": reference.KVCacheSpec(4)}),
                make_raw(twin, PAGE),
                make_backend(),
            ),
            (
                "NotImplementedError: layer 'a' has a spec of class KVCacheSpec, expected "
                "AttentionSpec or MambaSpec"
            ),
            id="an unknown kind in a uniform group",
        ),
    ],
)
def test_refusals_of_one_layer(twin: Any, make: Callable[[Any], object], message: str) -> None:
    """Each precondition broken in turn is refused, in these words."""
    with twin.refuses(message):
        make(twin)


TWO_GROUPS = config(
    (["a"], FULL), (["x"], reference.EncoderOnlyAttentionSpec(4, 5, 6, np.int8)), (["b"], FULL)
)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kernel_block_sizes": [4]}, "ValueError: kernel_block_sizes has 1 entries, expected 2"),
        (
            {"kernel_block_sizes": [4, 4, 4]},
            "ValueError: kernel_block_sizes has 3 entries, expected 2",
        ),
        ({"attn_backends": {"a": make_backend()}}, "KeyError: attn_backends lacks layer 'b'"),
        (
            {"kv_cache_raw_tensors": {"a": np.zeros(PAGE, np.int8)}},
            "KeyError: kv_cache_raw_tensors lacks layer 'b'",
        ),
        (
            {"kv_cache_config": config((["a"], FULL), (["b", "a"], FULL))},
            "ValueError: kv_cache_groups[1].layer_names[1] is 'a', a layer that is named before",
        ),
    ],
)
def test_refusals_of_calls(twin: Any, change: dict[str, Any], message: str) -> None:
    """Each argument that does not fit the others is refused, in these words."""
    arguments: dict[str, Any] = {
        "kv_cache_config": TWO_GROUPS,
        "kv_cache_raw_tensors": {name: make_raw(twin, PAGE) for name in "ab"},
        "attn_backends": {name: make_backend() for name in "ab"},
        **change,
    }
    with twin.refuses(message):
        twin._reshape_kv_cache(**twin.convert_all(arguments))
