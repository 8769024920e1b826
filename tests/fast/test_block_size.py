from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import fast
from fast import MultipleOf

HEADS = (32, 2, 8, torch.float16)
FULL = fast.FullAttentionSpec(*HEADS)
ENCODER = fast.EncoderOnlyAttentionSpec(*HEADS)
MAMBA = fast.MambaSpec(528, ((8,),), (torch.float32,))


def group(sizes: object) -> SimpleNamespace:
    """Make an attention group whose backend supports some block sizes."""
    backend = SimpleNamespace(get_supported_kernel_block_sizes=lambda: sizes)
    return SimpleNamespace(backend=backend)


def config(*specs: object) -> fast.KVCacheConfig:
    """Make a KV cache of groups of one layer each."""
    groups = [fast.KVCacheGroupSpec([f"layers.{i}"], spec) for i, spec in enumerate(specs)]
    return fast.KVCacheConfig(1, [], groups)


def test_multiple_of_is_a_value() -> None:
    """Equal bases are equal, hash alike, and are stored as Python ints."""
    assert {MultipleOf(16)} == {MultipleOf(np.int32(16)), MultipleOf(base=16)}
    assert type(MultipleOf(np.int32(16)).base) is int
    assert MultipleOf(16) != MultipleOf(8)
    for base in (True, 16.0, "16", None):
        with pytest.raises(TypeError, match="base must be an int"):
            MultipleOf(base)
    with pytest.raises(ValueError, match="base is 0, expected at least 1"):
        MultipleOf(0)


@pytest.mark.parametrize(
    ("manager", "backends", "expected"),
    [
        (32, [[MultipleOf(16)], [16, 32]], 32),
        (256, [[16, 32, 64], [MultipleOf(32)]], 64),
        (256, [[16, 32, 64], [MultipleOf(32)], [32]], 32),
        (256, [[64, 16], [16, 128]], 16),
        (256, (), 256),
        (48, [[MultipleOf(8)], (48,)], 48),
        (48, [[16, MultipleOf(48)], [16]], 16),
        (48, [[16, 32, 96]], 16),
        (np.int64(48), [[np.int32(16)]], 16),
        (7, [[MultipleOf(1)]], 7),
    ],
)
def test_selects(manager: int, backends: list[Any], expected: int) -> None:
    """The manager's size where all support it, else the greatest stated divisor that all do."""
    result = fast.select_common_block_size(manager, [group(sizes) for sizes in backends])
    assert expected == result
    assert type(result) is int


@pytest.mark.parametrize(
    ("manager", "backends"), [(48, [[32], [MultipleOf(16)]]), (16, [[]]), (16, [[32]])]
)
def test_selects_none(manager: int, backends: list[Any]) -> None:
    """Where no size suits all, the message names the sizes."""
    with pytest.raises(ValueError, match=f"kv_manager_block_size is {manager}, but attn_groups"):
        fast.select_common_block_size(manager, [group(sizes) for sizes in backends])


@pytest.mark.parametrize("entry", [0, -16, True, "16", 16.0, None, (16,), torch.tensor(16)])
def test_refuses_entries(entry: object) -> None:
    """Every entry of every list is checked, also where the manager's size is supported."""
    message = r"attn_groups\[1\].backend.get_supported_kernel_block_sizes\(\)\[1\] is .*"
    with pytest.raises(ValueError, match=message):
        fast.select_common_block_size(16, [group([16]), group([16, entry])])


@pytest.mark.parametrize("base", [0, True, "16", None])
def test_refuses_an_engines_own_bases(base: object) -> None:
    """An engine's own `MultipleOf` passes by name, and its base is checked."""
    own = type("MultipleOf", (SimpleNamespace,), {})
    assert 32 == fast.select_common_block_size(32, [group([own(base=np.int64(16))])])
    with pytest.raises(ValueError, match=r"\[0\] is MultipleOf"):
        fast.select_common_block_size(32, [group([own(base=base)])])


def test_select_refuses_types() -> None:
    """Sizes are ints, groups a list, a backend's sizes a list or tuple."""
    with pytest.raises(TypeError, match="kv_manager_block_size must be an int, got True"):
        fast.select_common_block_size(True, [])
    with pytest.raises(ValueError, match="kv_manager_block_size is 0, expected at least 1"):
        fast.select_common_block_size(0, [])
    with pytest.raises(TypeError, match="attn_groups must be a list, got tuple"):
        fast.select_common_block_size(16, ())
    with pytest.raises(TypeError, match=r"^attn_groups\[0\]\.backend\.get_supported_kernel_block"):
        fast.select_common_block_size(16, [group({16})])
    with pytest.raises(AttributeError, match="backend"):
        fast.select_common_block_size(16, [SimpleNamespace()])


def test_prepares_by_group() -> None:
    """Attention asks the backends, Mamba itself, encoder-only groups nobody."""
    uniform = fast.UniformTypeKVCacheSpecs(32, {"a": FULL, "b": FULL})
    lists = [[group([16])], [], [group([])], [group([32])], [group([MultipleOf(8), 1])], [], []]
    sizes = fast.prepare_kernel_block_sizes(
        config(FULL, MAMBA, ENCODER, uniform, fast.CrossAttentionSpec(*HEADS)), lists
    )
    assert [16, 528, 32, 32] == sizes


def test_prepares_uniform_kinds() -> None:
    """A uniform spec counts as the kind of its first spec."""
    encoder = fast.UniformTypeKVCacheSpecs(32, {"a": ENCODER, "b": FULL})
    mamba = fast.UniformTypeKVCacheSpecs(528, {"a": MAMBA})
    assert [528] == fast.prepare_kernel_block_sizes(config(encoder, mamba), [])
    unknown = fast.UniformTypeKVCacheSpecs(16, {"a": fast.KVCacheSpec(16)})
    for spec in (unknown, fast.KVCacheSpec(16)):
        with pytest.raises(NotImplementedError, match=r"^kv_cache_groups\[1\] has a spec of clas"):
            fast.prepare_kernel_block_sizes(config(MAMBA, spec), [[], [group([16])]])


def test_prepare_refuses() -> None:
    """Groups that need lists must have them."""
    with pytest.raises(
        ValueError, match=r"^attn_groups has 1 lists, none for kv_cache_groups\[1\]"
    ):
        fast.prepare_kernel_block_sizes(config(ENCODER, FULL), [[]])
    with pytest.raises(TypeError, match="attn_groups must be a list"):
        fast.prepare_kernel_block_sizes(config(FULL), ([],))
    with pytest.raises(TypeError, match=r"attn_groups\[0\] must be a list"):
        fast.prepare_kernel_block_sizes(config(FULL), [()])
    assert [32] == fast.prepare_kernel_block_sizes(config(FULL), [[], [], []])
