"""Block sizes: what all backends of a group support, and what each group works with."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    EncoderOnlyAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    MambaSpec,
    MLAAttentionSpec,
    MultipleOf,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
    prepare_kernel_block_sizes,
    select_common_block_size,
)

EXAMPLES = settings(max_examples=200, deadline=None, derandomize=True, database=None)

ForeignMultiple = type(
    "MultipleOf", (), {"__init__": lambda self, base: setattr(self, "base", base)}
)


def group(*sizes: object) -> SimpleNamespace:
    """Return an attention group whose backend supports some sizes."""
    backend = SimpleNamespace(get_supported_kernel_block_sizes=lambda: list(sizes))
    return SimpleNamespace(backend=backend)


def test_multiple_of() -> None:
    """It compares and hashes by value, holds a Python int and stays as it is."""
    assert MultipleOf(16) == MultipleOf(np.int64(16))
    assert hash(MultipleOf(16)) == hash(MultipleOf(base=16))
    assert MultipleOf(16) != MultipleOf(32)
    assert MultipleOf(16) != 16
    assert type(MultipleOf(np.int64(16)).base) is int
    with pytest.raises(AttributeError):
        MultipleOf(16).base = 8


@pytest.mark.parametrize(
    ("base", "error", "message"),
    [
        (0, ValueError, "base is 0, expected at least 1"),
        (True, TypeError, "base must be an int, got True of bool"),
        ("16", TypeError, "base must be an int, got '16' of str"),
    ],
)
def test_refusals_of_multiple_of(base: object, error: type[Exception], message: str) -> None:
    """A base that is no positive int is refused, in these words."""
    with pytest.raises(error) as caught:
        MultipleOf(base)
    assert message == str(caught.value)


@pytest.mark.parametrize(
    ("manager", "supported", "expected"),
    [
        (32, [[MultipleOf(16)], [16, 32]], 32),
        (256, [[16, 32, 64], [MultipleOf(32)]], 64),
        (7, [], 7),
        (48, [[MultipleOf(16)], [MultipleOf(24)]], 48),
        (48, [[16], [MultipleOf(8), 12]], 16),
        (48, [[16, 24], [24, 16]], 24),
        (48, [[96, 16], [MultipleOf(16)]], 16),
        (np.int32(64), [[np.int64(32)]], 32),
        (64, [[ForeignMultiple(np.int64(32))]], 64),
        (1, [[MultipleOf(1)]], 1),
        (64, [[MultipleOf(1), 16]], 64),
    ],
)
def test_select(manager: int, supported: list[list[Any]], expected: int) -> None:
    """The manager's size if all support it, otherwise the greatest listed one that fits."""
    selected = select_common_block_size(manager, [group(*sizes) for sizes in supported])
    assert expected == selected
    assert type(selected) is int


@pytest.mark.parametrize(
    ("manager", "supported"),
    [
        (48, [[32], [MultipleOf(16)]]),
        (16, [[32, 64]]),
        (16, [[]]),
        (16, [[], [MultipleOf(1)]]),
        (48, [[16], [24]]),
        (24, [[MultipleOf(16)]]),
    ],
)
def test_nothing_in_common(manager: int, supported: list[list[Any]]) -> None:
    """Where no size is supported by all, that is said."""
    with pytest.raises(ValueError, match=rf"^kv_manager_block_size is {manager}, but attn_groups"):
        select_common_block_size(manager, [group(*sizes) for sizes in supported])


@pytest.mark.parametrize(
    "entry",
    [0, -16, True, 16.0, "16", None, (16,), ForeignMultiple(0), ForeignMultiple("16")],
    ids=lambda entry: type(entry).__name__,
)
def test_refusals_of_entries(entry: object) -> None:
    """An entry that is neither a size nor a multiple is refused, even where nothing else asks."""
    where = r"attn_groups\[1\]\.backend\.get_supported_kernel_block_sizes\(\)\[1\] is "
    with pytest.raises(ValueError, match=rf"^{where}.*, expected an int or a MultipleOf"):
        select_common_block_size(32, [group(MultipleOf(1)), group(MultipleOf(1), entry)])


def test_other_refusals_of_select() -> None:
    """Sizes, groups and lists of other types are refused."""
    for size, error in ((0, ValueError), (True, TypeError), (16.0, TypeError), (None, TypeError)):
        with pytest.raises(error, match=r"^kv_manager_block_size (is|must be)"):
            select_common_block_size(size, [])
    with pytest.raises(TypeError, match=r"^attn_groups must be a list, got tuple$"):
        select_common_block_size(16, (group(16),))
    backend = SimpleNamespace(get_supported_kernel_block_sizes=lambda: {16})
    with pytest.raises(TypeError, match=r"\(\) must be a list or tuple, got set$"):
        select_common_block_size(16, [SimpleNamespace(backend=backend)])
    with pytest.raises(AttributeError, match="backend"):
        select_common_block_size(16, [SimpleNamespace()])
    with pytest.raises(AttributeError, match="get_supported_kernel_block_sizes"):
        select_common_block_size(16, [SimpleNamespace(backend=SimpleNamespace())])
    tuples = SimpleNamespace(get_supported_kernel_block_sizes=lambda: (16,))
    assert select_common_block_size(16, [SimpleNamespace(backend=tuples)]) == 16


@given(
    manager=st.integers(1, 64),
    supported=st.lists(
        st.lists(st.integers(1, 64) | st.builds(MultipleOf, st.integers(1, 64)), max_size=4),
        max_size=3,
    ),
)
@EXAMPLES
def test_select_is_the_greatest(manager: int, supported: list[list[Any]]) -> None:
    """No divisor that all support is greater than the answer, whether it is listed or not."""

    def is_supported(size: int) -> bool:
        return all(
            size in sizes or any(isinstance(m, MultipleOf) and size % m.base == 0 for m in sizes)
            for sizes in supported
        )

    fitting = [size for size in range(1, manager + 1) if manager % size == 0 and is_supported(size)]
    groups = [group(*sizes) for sizes in supported]
    if fitting:
        assert max(fitting) == select_common_block_size(manager, groups)
    else:
        with pytest.raises(ValueError, match=r"^kv_manager_block_size is "):
            select_common_block_size(manager, groups)


def config(*specs: KVCacheSpec) -> KVCacheConfig:
    """Return a configuration with a group for each spec."""
    groups = [KVCacheGroupSpec([f"layers.{g}"], spec) for g, spec in enumerate(specs)]
    return KVCacheConfig(num_blocks=1, kv_cache_tensors=[], kv_cache_groups=groups)


FIELDS = (64, 2, 8, np.float16)
FULL = FullAttentionSpec(*FIELDS)
ENCODER_ONLY = EncoderOnlyAttentionSpec(*FIELDS)
MAMBA = MambaSpec(48, ((4,),), (np.float32,))


@pytest.mark.parametrize(
    "spec",
    [
        FULL,
        MLAAttentionSpec(*FIELDS),
        SlidingWindowSpec(*FIELDS, 8),
        ChunkedLocalAttentionSpec(*FIELDS, 8),
        CrossAttentionSpec(*FIELDS),
        UniformTypeKVCacheSpecs(
            64, {"layers.0": FULL, "layers.1": FullAttentionSpec(64, 1, 8, np.int8)}
        ),
    ],
    ids=lambda spec: type(spec).__name__,
)
def test_prepare_for_attention(spec: KVCacheSpec) -> None:
    """An attention group gets what its backends have in common."""
    assert [32] == prepare_kernel_block_sizes(
        config(spec), [[group(16, 32), group(MultipleOf(16))]]
    )
    assert [64] == prepare_kernel_block_sizes(config(spec), [[]])


def test_prepare_for_many_groups() -> None:
    """Encoder-only groups contribute nothing, Mamba groups their block size; lists keep indices."""
    uniform_encoder_only = UniformTypeKVCacheSpecs(64, {"a": ENCODER_ONLY, "b": FULL})
    uniform_mamba = UniformTypeKVCacheSpecs(48, {"a": MAMBA})
    specs = (
        ENCODER_ONLY,
        FULL,
        MAMBA,
        uniform_encoder_only,
        uniform_mamba,
        FULL,
        ENCODER_ONLY,
        MAMBA,
    )
    attn_groups = [[], [group(16)], "ignored", [group(1)], None, [group(32)]]
    sizes = prepare_kernel_block_sizes(config(*specs), attn_groups)
    assert [16, 48, 48, 32, 48] == sizes
    assert {int} == {type(size) for size in sizes}
    assert sizes == prepare_kernel_block_sizes(config(*specs), [*attn_groups, [], [], [], []])
    assert prepare_kernel_block_sizes(config(), []) == []


def test_prepare_with_an_engines_own_specs() -> None:
    """Kinds are told by names, so specs of other classes with these names do."""
    mamba = type("MyMamba", (type("MambaSpec", (), {}),), {"block_size": np.int64(16)})()
    attention = type("MyAttention", (type("AttentionSpec", (), {}),), {"block_size": 32})()
    sizes = prepare_kernel_block_sizes(config(mamba, attention), [[], [group(16)]])
    assert [16, 16] == sizes
    assert type(sizes[0]) is int


def test_refusals_of_prepare() -> None:
    """Lists that are missing or none, unknown kinds, and sizes without a common one are refused."""
    with pytest.raises(
        ValueError, match=r"^attn_groups has 1 lists, none for kv_cache_groups\[2\]"
    ):
        prepare_kernel_block_sizes(config(FULL, MAMBA, FULL), [[]])
    with pytest.raises(TypeError, match=r"^attn_groups must be a list, got dict$"):
        prepare_kernel_block_sizes(config(FULL), {0: []})
    with pytest.raises(TypeError, match=r"^attn_groups\[0\] must be a list, got tuple$"):
        prepare_kernel_block_sizes(config(FULL), [()])
    with pytest.raises(NotImplementedError, match=r"^kv_cache_groups\[0\] has a spec of class KVC"):
        prepare_kernel_block_sizes(config(KVCacheSpec(16)), [[]])
    with pytest.raises(ValueError, match=r"^kv_manager_block_size is 64, but attn_groups"):
        prepare_kernel_block_sizes(config(FULL), [[group(48)]])
    with pytest.raises(AttributeError, match="kv_cache_groups"):
        prepare_kernel_block_sizes(SimpleNamespace(), [])
