"""Block sizes: the one that all backends of a group support, and that of each group."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import reference

ForeignMultiple = type(
    "MultipleOf", (), {"__init__": lambda self, base: setattr(self, "base", base)}
)


def group(*sizes: object) -> SimpleNamespace:
    backend = SimpleNamespace(get_supported_kernel_block_sizes=lambda: list(sizes))
    return SimpleNamespace(backend=backend)


def test_multiple_of(twin: Any) -> None:
    assert twin.MultipleOf(16) == twin.MultipleOf(np.int64(16))
    assert hash(twin.MultipleOf(16)) == hash(twin.MultipleOf(base=16))
    assert twin.MultipleOf(16) != twin.MultipleOf(32)
    assert twin.MultipleOf(16) != 16
    assert type(twin.MultipleOf(np.int64(16)).base) is int
    with pytest.raises(AttributeError):
        twin.MultipleOf(16).base = 8


@pytest.mark.parametrize(
    ("manager", "supported", "expected"),
    [
        (32, [[reference.MultipleOf(16)], [16, 32]], 32),
        (256, [[16, 32, 64], [reference.MultipleOf(32)]], 64),
        (256, [[16, 32, 64], [reference.MultipleOf(32)], [32]], 32),
        (48, [[16, reference.MultipleOf(48)], [16]], 16),
        (7, [], 7),
        (48, [[reference.MultipleOf(16)], [reference.MultipleOf(24)]], 48),
        (np.int32(64), [[np.int64(32)]], 32),
        (64, [[ForeignMultiple(np.int64(32))]], 64),
    ],
)
def test_select(twin: Any, manager: int, supported: list[list[Any]], expected: int) -> None:
    selected = twin.select_common_block_size(
        manager, [group(*twin.convert(sizes)) for sizes in supported]
    )
    assert expected == selected
    assert type(selected) is int


def test_select_is_the_greatest(twin: Any) -> None:
    sizes = [4, 6, 16, 24, twin.MultipleOf(1), twin.MultipleOf(8), twin.MultipleOf(6)]
    lists = [[], *([size] for size in sizes), *map(list, itertools.combinations(sizes, 2))]

    def is_supported(size: int, listed: list[Any]) -> bool:
        multiples = [other.base for other in listed if not isinstance(other, int)]
        return size in listed or any(size % base == 0 for base in multiples)

    for manager, one, other in itertools.product((1, 24, 48), lists, lists):
        divisors = [size for size in range(1, manager + 1) if manager % size == 0]
        fitting = [s for s in divisors if is_supported(s, one) and is_supported(s, other)]
        groups = [group(*one), group(*other)]
        if fitting:
            assert max(fitting) == twin.select_common_block_size(manager, groups)
        else:
            with pytest.raises(
                ValueError, match=rf"^kv_manager_block_size is {manager}, but attn_"
            ):
                twin.select_common_block_size(manager, groups)


def config(twin: Any, *specs: Any) -> Any:
    groups = [
        twin.KVCacheGroupSpec([f"layers.{g}"], spec) for g, spec in enumerate(twin.convert(specs))
    ]
    return twin.KVCacheConfig(num_blocks=1, kv_cache_tensors=[], kv_cache_groups=groups)


FIELDS = (64, 2, 8, np.float16)
FULL = reference.FullAttentionSpec(*FIELDS)
ENCODER_ONLY = reference.EncoderOnlyAttentionSpec(*FIELDS)
MAMBA = reference.MambaSpec(48, ((4,),), (np.float32,))


@pytest.mark.parametrize(
    "spec",
    [
        FULL,
        reference.MLAAttentionSpec(*FIELDS),
        reference.SlidingWindowSpec(*FIELDS, 8),
        reference.ChunkedLocalAttentionSpec(*FIELDS, 8),
        reference.CrossAttentionSpec(*FIELDS),
        reference.UniformTypeKVCacheSpecs(
            64, {"layers.0": FULL, "layers.1": reference.FullAttentionSpec(64, 1, 8, np.int8)}
        ),
    ],
    ids=lambda spec: type(spec).__name__,
)
def test_prepare_for_attention(twin: Any, spec: Any) -> None:
    assert [32] == twin.prepare_kernel_block_sizes(
        config(twin, spec), [[group(16, 32), group(twin.MultipleOf(16))]]
    )
    assert [64] == twin.prepare_kernel_block_sizes(config(twin, spec), [[]])


def test_prepare_for_many_groups(twin: Any) -> None:
    uniform_encoder_only = twin.UniformTypeKVCacheSpecs(
        64, twin.convert({"a": ENCODER_ONLY, "b": FULL})
    )
    uniform_mamba = twin.UniformTypeKVCacheSpecs(48, twin.convert({"a": MAMBA}))
    specs = (ENCODER_ONLY, FULL, MAMBA, uniform_encoder_only, uniform_mamba, FULL)
    attn_groups = [[], [group(16)], "ignored", [group(1)], None, [group(32)]]
    sizes = twin.prepare_kernel_block_sizes(config(twin, *specs), attn_groups)
    assert [16, 48, 48, 32] == sizes
    assert {int} == {type(size) for size in sizes}
    assert sizes == twin.prepare_kernel_block_sizes(config(twin, *specs), [*attn_groups, [], []])
    assert twin.prepare_kernel_block_sizes(config(twin), []) == []


def test_prepare_with_an_engines_own_specs(twin: Any) -> None:
    mamba = type("MyMamba", (type("MambaSpec", (), {}),), {"block_size": np.int64(16)})()
    attention = type("MyAttention", (type("AttentionSpec", (), {}),), {"block_size": 32})()
    sizes = twin.prepare_kernel_block_sizes(config(twin, mamba, attention), [[], [group(16)]])
    assert [16, 16] == sizes
    assert type(sizes[0]) is int
