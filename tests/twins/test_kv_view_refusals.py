"""Views that cannot be: every precondition, violated in turn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import reference
from tests.twins.layer_views import FULL, PAGE, config, make_backend, make_raw, make_view


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
        *(
            pytest.param(
                lambda twin, order=order: make_view(
                    twin, FULL, make_raw(twin, PAGE), make_backend(*order)
                ),
                (f"ValueError: attn_backends['a'].get_kv_cache_stride_order(){wrong}"),
                id=f"order {order}",
            )
            for order, wrong in [
                ((0, 1, 2, 3, 3), " is [0, 1, 2, 3, 3], expected a permutation of [0, 1, 2, 3, 4]"),
                ((1, 2, 3, 4, 5), "[4] is 5, expected 0 to 4"),
            ]
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
    """Each violated precondition is refused with its message."""
    with twin.refuses(message):
        make(twin)


TWO_GROUPS = (
    (["a"], FULL),
    (["x"], reference.EncoderOnlyAttentionSpec(4, 5, 6, np.int8)),
    (["b"], FULL),
)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kernel_block_sizes": [4]}, "ValueError: kernel_block_sizes has 1 entries, expected 2"),
        ({"attn_backends": {"a": make_backend()}}, "KeyError: attn_backends lacks layer 'b'"),
        (
            {"kv_cache_raw_tensors": {"a": np.zeros(PAGE, np.int8)}},
            "KeyError: kv_cache_raw_tensors lacks layer 'b'",
        ),
        (
            {"groups": ((["a"], FULL), (["b", "a"], FULL))},
            "ValueError: kv_cache_groups[1].layer_names[1] is 'a', a layer that is named before",
        ),
    ],
)
def test_refusals_of_calls(twin: Any, change: dict[str, Any], message: str) -> None:
    """Each argument that does not fit the others is refused, in these words."""
    arguments: dict[str, Any] = {
        "groups": TWO_GROUPS,
        "kv_cache_raw_tensors": {name: make_raw(twin, PAGE) for name in "ab"},
        "attn_backends": {name: make_backend() for name in "ab"},
        **change,
    }
    groups = config(twin, *arguments.pop("groups"))
    with twin.refuses(message):
        twin._reshape_kv_cache(groups, **twin.convert_all(arguments))
