"""Invalid views: each precondition is violated in turn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import reference
from tests.twins.layer_views import FULL, PAGE, config, make_backend, make_view


def make_misaligned() -> Any:
    """Return bytes that begin at an odd address."""
    raw = np.zeros(PAGE + 2, np.int8)
    start = 1 - raw.ctypes.data % 2
    return raw[start : start + PAGE]


@pytest.mark.parametrize(
    ("message", "changes"),
    {
        (
            f"ValueError: kv_cache_raw_tensors['a'] has {PAGE + 2} bytes, expected a multiple "
            f"of its page_size_bytes {PAGE}"
        ): {"raw": np.zeros(PAGE + 2, np.int8)},
        (
            f"ValueError: attn_backends['a'].get_kv_cache_shape() is (1, 4, 5, 6) of float16, "
            f"{PAGE // 2} bytes, but kv_cache_raw_tensors['a'] has {PAGE}"
        ): {"backend": make_backend(make_shape=lambda *sizes: sizes)},
        "ValueError: kv_cache_raw_tensors['a'] must be contiguous, got stride 2": {
            "raw": np.zeros(2 * PAGE, np.int8)[::2]
        },
        (
            "ValueError: kv_cache_raw_tensors['a'] is not aligned for float16, expected an "
            "address that is a multiple of 2"
        ): {"raw": make_misaligned()},
        (
            "ValueError: state 1 of layer 'a' is at byte 3 of pages of 8 bytes, expected "
            "multiples of 2, the itemsize of int16"
        ): {
            "spec": reference.MambaSpec(4, ((3,), (2,)), (np.int8, np.int16), 8),
            "raw": np.zeros(8, np.int8),
        },
        (
            "ValueError: attn_backends['a'].get_kv_cache_stride_order() is [0, 1, 2, 3, 3], "
            "expected a permutation of [0, 1, 2, 3, 4]"
        ): {"backend": make_backend(0, 1, 2, 3, 3)},
        "ValueError: attn_backends['a'].get_kv_cache_stride_order()[4] is 5, expected 0 to 4": {
            "backend": make_backend(1, 2, 3, 4, 5)
        },
        (
            "ValueError: kernel_block_sizes has 3 for layer 'a', expected a divisor of its "
            "block_size 4"
        ): {"kernel_block_size": 3},
        (
            "NotImplementedError: layer 'a' has a spec of class KVCacheSpec, expected "
            "AttentionSpec or MambaSpec"
        ): {"spec": reference.UniformTypeKVCacheSpecs(4, {"a": reference.KVCacheSpec(4)})},
    }.items(),
)
def test_refusals_of_one_layer(twin: Any, changes: dict[str, Any], message: str) -> None:
    """Each violated precondition is refused with its message."""
    arguments = {"spec": FULL, "raw": np.zeros(PAGE, np.int8), "backend": make_backend()} | changes
    arguments["raw"] = twin.convert(arguments["raw"])
    with twin.refuses(message):
        make_view(twin, **arguments)


@pytest.mark.parametrize(
    ("message", "changes"),
    {
        "ValueError: kernel_block_sizes has 1 entries, expected 2": {"kernel_block_sizes": [4]},
        "KeyError: attn_backends lacks layer 'b'": {"attn_backends": {"a": make_backend()}},
        "KeyError: kv_cache_raw_tensors lacks layer 'b'": {
            "kv_cache_raw_tensors": {"a": np.zeros(PAGE, np.int8)}
        },
        "ValueError: kv_cache_groups[1].layer_names[1] is 'a', a layer that is named before": {
            "groups": ((["a"], FULL), (["b", "a"], FULL))
        },
    }.items(),
)
def test_refusals_of_calls(twin: Any, changes: dict[str, Any], message: str) -> None:
    """Each argument that does not fit the others is refused, in these words."""
    encoder_only = reference.EncoderOnlyAttentionSpec(4, 5, 6, np.int8)
    arguments: dict[str, Any] = {
        "groups": ((["a"], FULL), (["x"], encoder_only), (["b"], FULL)),
        "kv_cache_raw_tensors": {name: np.zeros(PAGE, np.int8) for name in "ab"},
        "attn_backends": {name: make_backend() for name in "ab"},
        **changes,
    }
    groups = config(twin, *arguments.pop("groups"))
    with twin.refuses(message):
        twin._reshape_kv_cache(groups, **twin.convert_all(arguments))
