"""Calls of the functions that choose the block sizes of kernels."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final

import numpy as np

import reference
from conformance.coverage.presets import MINIMAL, Preset
from conformance.strategies import cached as st
from conformance.strategies.backends import Backend
from conformance.strategies.kv_binding import shuffled
from conformance.strategies.kv_cache_spec import ATTENTION, kind_of, spec_of
from conformance.strategies.repeated import lists, repeated
from conformance.values.call import Arguments, Call, drawn_scalar

BLOCK_SIZE: Final = "block size"
ATTENTION_GROUPS: Final = "attention groups"
SUPPORTED_SIZES: Final = "supported sizes of a backend"
GROUPS: Final = "groups"


@st.composite
def multiple_of_calls(draw: st.DrawFn, preset: Preset) -> Call:
    """Draw calls of `MultipleOf`."""
    usual = st.one_of(st.integers(1, 64), st.just(2**40))
    return Call("MultipleOf", {"base": draw(preset.sizes(BLOCK_SIZE, usual))})


def manager_sizes(preset: Preset) -> st.SearchStrategy[int]:
    """Return block sizes of a KV cache manager, which have many divisors."""
    if preset is MINIMAL:
        return st.sampled_from((1, 2, 4, 6, 8, 12))
    return preset.sizes(BLOCK_SIZE, st.sampled_from((16, 32, 48, 64, 96, 128, 256, 544, 2**33)))


def divisors(size: int) -> list[int]:
    """Return the divisors of a size up to 600, as sizes of kernel blocks.

    >>> divisors(12)
    [1, 2, 3, 4, 6, 12]
    """
    return [d for d in range(1, min(size, 600) + 1) if size % d == 0]


def _supported_sizes(
    draw: st.DrawFn,
    preset: Preset,
    manager_size: int,
    common: int,
    *,
    is_answer: bool,
    is_reluctant: bool,
) -> list[object]:
    """Draw the block sizes that a backend supports.

    Args:
        draw: Hypothesis' `draw`.
        preset: The sizes.
        manager_size: The manager's block size.
        common: A divisor of it that the backend supports.
        is_answer: Whether all backends support the manager's size.
        is_reluctant: Whether the backend does not support the manager's size.
    """
    known = divisors(manager_size)
    if is_reluctant:
        # `MultipleOf` a divisor of the manager's size would support that size.
        odd = [d + 1 for d in known if manager_size % (d + 1)]
        entries: list[object] = [d for d in known if d < manager_size]
        entries += [*odd, *map(reference.MultipleOf, odd), 2 * manager_size]
        needed: object = common
    else:
        entries = [*known, *map(reference.MultipleOf, known)]
        size = manager_size if is_answer else common
        needed = draw(st.sampled_from((size, *map(reference.MultipleOf, divisors(common)))))
    more = lists(draw, preset, SUPPORTED_SIZES, st.sampled_from(entries), max_size=4)
    found = shuffled(draw, [needed, *more])
    return found * draw(st.sampled_from((1, 1, 2)))


def attention_groups(draw: st.DrawFn, preset: Preset, manager_size: int) -> list[SimpleNamespace]:
    """Draw attention groups whose backends share a block size that divides the manager's."""
    is_large = preset.axis in {ATTENTION_GROUPS, SUPPORTED_SIZES}
    number = draw(st.integers(int(is_large), 3))
    common = draw(st.sampled_from(divisors(manager_size)))
    # The manager's size is the result if all backends support it, so one that does not is enough.
    reluctant = draw(st.sampled_from((None, 0, number - 1))) if number else None
    is_answer = reluctant is None or common == manager_size
    found = []
    for i in range(number):
        drawn = _supported_sizes(
            draw,
            preset,
            manager_size,
            common,
            is_answer=is_answer,
            is_reluctant=i == reluctant and not is_answer,
        )
        backend = Backend(
            supported=drawn,
            is_instance=draw(st.booleans()),
            methods=_tupled(drawn) if draw(st.booleans()) else {},
        )
        found.append(SimpleNamespace(backend=backend, layer_names=[]))
    return repeated(draw, preset, ATTENTION_GROUPS, found)


def _tupled(drawn: list[Any]) -> dict[str, Any]:
    """Return a method that returns a tuple of NumPy ints; none if there are `MultipleOf`s."""
    if not all(isinstance(entry, int) and entry < 2**63 for entry in drawn):
        return {}
    return {
        "get_supported_kernel_block_sizes": lambda: tuple(
            drawn_scalar(np.int64(entry)) for entry in drawn
        )
    }


@st.composite
def select_calls(draw: st.DrawFn, preset: Preset) -> Call:
    """Draw calls of `select_common_block_size`."""
    size = draw(manager_sizes(preset))
    arguments: Arguments = {
        "kv_manager_block_size": size,
        "attn_groups": attention_groups(draw, preset, size),
    }
    return Call("select_common_block_size", arguments)


@st.composite
def prepare_calls(draw: st.DrawFn, preset: Preset) -> Call:
    """Draw calls of `prepare_kernel_block_sizes`: groups of every kind, in any order."""
    drawn = []
    kinds = (*ATTENTION, "MambaSpec")
    for i in range(draw(st.integers(int(bool(preset.axis)), 3))):
        kind = draw(st.sampled_from((*kinds, "EncoderOnlyAttentionSpec", "MambaSpec")))
        size = draw(manager_sizes(preset))
        spec = spec_of(draw, preset, kind, block_size=size)
        if draw(st.SOMETIMES):
            inner = {f"layers.{i}.attn": spec}
            if draw(st.booleans()):
                inner[f"layers.{i}.mixer"] = spec_of(draw, preset, *kinds, block_size=size)
            spec = reference.UniformTypeKVCacheSpecs(size, inner)
        group = reference.KVCacheGroupSpec([f"layers.{i}.attn"], spec)
        drawn.append((group, attention_groups(draw, preset, size)))
    drawn = repeated(draw, preset, GROUPS, drawn)
    groups, of_each = [group for group, _ in drawn], [own for _, own in drawn]
    attn_groups = of_each
    if draw(st.booleans()):
        # Groups at the end that need no list may have none; or there is one list too many.
        needs = [is_of_attention(group.kv_cache_spec) for group in groups]
        last = max((i for i, is_needed in enumerate(needs) if is_needed), default=-1)
        attn_groups = draw(st.sampled_from((of_each[: last + 1], [*of_each, []])))
    tensors: list[reference.KVCacheTensor] = []
    config = reference.KVCacheConfig(0, tensors, groups)
    arguments: Arguments = {"kv_cache_config": config, "attn_groups": attn_groups}
    return Call("prepare_kernel_block_sizes", arguments)


def is_of_attention(spec: Any) -> bool:
    """Return whether a group's layers keep keys and values."""
    return kind_of(spec) not in {"MambaSpec", "EncoderOnlyAttentionSpec"}
