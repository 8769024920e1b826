"""Block sizes: the one that all backends of a group support, and that of each group."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

import reference
from reference import MultipleOf
from tests.examples.twins import Twin

ForeignMultiple = type(
    "MultipleOf", (), {"__init__": lambda self, base: setattr(self, "base", base)}
)


def group(*sizes: object) -> SimpleNamespace:
    """Return a group of one backend that supports these sizes."""
    backend = SimpleNamespace(get_supported_kernel_block_sizes=lambda: list(sizes))
    return SimpleNamespace(backend=backend)


def test_multiple_of(twin: Twin) -> None:
    assert twin.MultipleOf(16) == twin.MultipleOf(base=np.int64(16))
    assert 1 == len({twin.MultipleOf(16), twin.MultipleOf(16)})
    assert twin.MultipleOf(16) not in {twin.MultipleOf(32), 16}


@pytest.mark.parametrize(
    ("manager", "supported", "expected"),
    [
        # the greatest divisor of the manager's size that each backend supports
        (32, [[MultipleOf(16)], [16, 32]], 32),
        (256, [[16, 32, 64], [MultipleOf(32)]], 64),
        (256, [[16, 32, 64], [MultipleOf(32)], [32]], 32),
        (48, [[16, MultipleOf(48)], [16]], 16),
        (48, [[MultipleOf(16)], [MultipleOf(24)]], 48),
        (48, [[4, 6, 16, 24], [MultipleOf(8)]], 24),
        (24, [[MultipleOf(8), 6], [4, 6]], 6),
        (7, [], 7),
        (np.int32(64), [[np.int64(32)]], 32),
        (64, [[ForeignMultiple(np.int64(32))]], 64),  # an engine's own class
    ],
)
def test_common_block_size(twin: Twin, manager, supported, expected) -> None:
    groups = [group(*twin.of(sizes)) for sizes in supported]
    assert expected == twin.select_common_block_size(manager, groups)


@pytest.mark.parametrize(
    ("manager", "supported"),
    [(48, [[32]]), (48, [[16], [24]]), (24, [[4], [MultipleOf(6)]]), (16, [[]]), (1, [[2]])],
)
def test_no_common_block_size(twin: Twin, manager, supported) -> None:
    groups = [group(*twin.of(sizes)) for sizes in supported]
    with pytest.raises(ValueError, match=f"^kv_manager_block_size is {manager}"):
        twin.select_common_block_size(manager, groups)


FIELDS = (64, 2, 8, np.float16)
FULL = reference.FullAttentionSpec(*FIELDS)
ENCODER_ONLY = reference.EncoderOnlyAttentionSpec(*FIELDS)
MAMBA = reference.MambaSpec(48, ((4,),), (np.float32,))
UNIFORM = reference.UniformTypeKVCacheSpecs
FOREIGN = type("MyAttention", (type("AttentionSpec", (), {}),), {"block_size": 32})()
FOREIGN_MAMBA = type("MyMamba", (type("MambaSpec", (), {}),), {"block_size": np.int64(16)})()


@pytest.mark.parametrize(
    ("specs", "supported", "expected"),
    [
        ([FULL], [[16, 32]], [32]),
        ([FULL], [None], [64]),  # a group without backends
        ([reference.MLAAttentionSpec(*FIELDS)], [[16]], [16]),
        ([reference.SlidingWindowSpec(*FIELDS, 8)], [[16]], [16]),
        ([reference.ChunkedLocalAttentionSpec(*FIELDS, 8)], [[16]], [16]),
        ([reference.CrossAttentionSpec(*FIELDS)], [[16]], [16]),
        ([UNIFORM(64, {"a": FULL, "b": FULL})], [[16]], [16]),
        # a Mamba group has the manager's size; an encoder-only group has no cache, and none
        ([MAMBA, FULL], [[1], [16]], [48, 16]),
        ([ENCODER_ONLY, FULL], [[1], [16]], [16]),
        ([UNIFORM(64, {"a": ENCODER_ONLY, "b": FULL}), FULL], [[1], [16]], [16]),
        ([UNIFORM(48, {"a": MAMBA})], [[1]], [48]),
        ([FOREIGN_MAMBA, FOREIGN], [[1], [16]], [16, 16]),
        ([], [], []),
    ],
)
def test_sizes_of_groups(twin: Twin, specs, supported, expected) -> None:
    groups = [twin.KVCacheGroupSpec([f"layers.{g}"], twin.of(s)) for g, s in enumerate(specs)]
    attn_groups = [[] if sizes is None else [group(*sizes)] for sizes in supported]
    config = twin.KVCacheConfig(1, [], groups)
    assert expected == twin.prepare_kernel_block_sizes(config, attn_groups)
