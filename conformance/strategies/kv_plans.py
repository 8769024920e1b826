"""Plans of KV caches: groups of unnamed layers, whose pages fit the tensors that they share."""

from __future__ import annotations

import dataclasses
from typing import Any, Final

import numpy as np

import reference
from conformance.coverage.presets import FEW_PAIRS, MINIMAL, Preset
from conformance.strategies import cached as st
from conformance.strategies.backends import FP8_DS_MLA_BYTES
from conformance.strategies.block_size import divisors
from conformance.strategies.kv_binding import shuffled
from conformance.strategies.kv_cache_spec import DTYPES, states
from conformance.strategies.repeated import MAX_DRAWN, repeated

GROUPS: Final = "groups"
TENSORS: Final = "tensors"
BLOCKS: Final = "blocks"
LAYERS_OF_A_UNIFORM_GROUP: Final = "layers of a uniform group"

SMALL = (MINIMAL, FEW_PAIRS)
"""The presets of caches of a few bytes."""


def is_small(preset: Preset) -> bool:
    """Return whether pages have a few bytes."""
    return preset in SMALL or bool(preset.axis)


CACHED = (
    *("AttentionSpec", "FullAttentionSpec", "FullAttentionSpec", "SlidingWindowSpec"),
    *("ChunkedLocalAttentionSpec", "CrossAttentionSpec", "MLAAttentionSpec", "MLAAttentionSpec"),
)
"""Kinds of attention with a cache; common ones are listed more than once."""


def page_sizes(draw: st.DrawFn, preset: Preset) -> int:
    """Draw an even page size in bytes, sometimes one of the format `fp8_ds_mla`."""
    few = is_small(preset)
    if not preset.axis and draw(st.RARELY):
        return FP8_DS_MLA_BYTES * (2 if few else 16)
    blocks = draw(st.sampled_from((2, 3, 4) if few else (16, 32)))
    heads = draw(st.sampled_from((1, 2)))
    size = draw(st.sampled_from((1, 2, 3, 4) if few else (8, 20, 32)))
    itemsize = draw(st.sampled_from((1, 2, 4) if few else (1, 2)))
    return int(2 * blocks * heads * size * itemsize)


def _spec_of_page(
    draw: st.DrawFn, kind: str, page_size: int, *, block_size: int | None = None
) -> Any:
    """Draw a spec of a kind with pages of that many bytes, an even number.

    The block size of attention divides half of a page.
    """
    if kind == "MambaSpec":
        return _mamba_spec(draw, page_size, block_size=block_size)
    more: dict[str, Any] = {}
    if kind == "MLAAttentionSpec":
        more["cache_dtype_str"] = draw(st.sampled_from((None, "auto", "fp8", "")))
        tokens = page_size // FP8_DS_MLA_BYTES
        if page_size % FP8_DS_MLA_BYTES == 0 and block_size in {None, tokens} and draw(st.MOSTLY):
            more["cache_dtype_str"] = "fp8_ds_mla"
            dtype = np.dtype(draw(st.sampled_from((np.uint8, np.int8))))
            return reference.MLAAttentionSpec(tokens, 1, draw(st.integers(1, 8)), dtype, **more)
    elif kind == "SlidingWindowSpec":
        more["sliding_window"] = draw(st.integers(1, 64))
    elif kind == "ChunkedLocalAttentionSpec":
        more["attention_chunk_size"] = draw(st.integers(1, 64))
    vectors = page_size if kind == "MLAAttentionSpec" else page_size // 2
    smallest = block_size or 1
    fitting = [dtype for dtype in DTYPES if vectors % (dtype.itemsize * smallest) == 0]
    dtype = draw(st.sampled_from(fitting))
    rest = vectors // dtype.itemsize
    if block_size is None:
        block_size = draw(st.sampled_from([d for d in divisors(rest) if d <= 32]))
    rest //= block_size
    heads = draw(st.sampled_from([d for d in divisors(rest) if d <= 8]))
    return getattr(reference, kind)(block_size, heads, rest // heads, dtype, **more)


def _mamba_spec(draw: st.DrawFn, page_size: int, *, block_size: int | None) -> Any:
    """Draw a spec of Mamba layers with pages of that many bytes, padded or filled."""
    fills = draw(st.booleans())
    shapes, kinds = states(draw, page_size, fills=fills)
    padded = None if fills and draw(st.booleans()) else page_size
    if block_size is None:
        block_size = draw(st.sampled_from((1, 2, 3, 512)))
    return reference.MambaSpec(block_size, shapes, kinds, padded)


@dataclasses.dataclass
class Plan:
    """Drawn groups of layers, and the tensors that they share.

    Attributes:
        sizes: The bytes of each tensor.
        groups: The layers of each group: tensor index, spec, and whether the group has that spec.
        specs: The spec of each group; an int is the block size of a uniform one.
    """

    sizes: list[int]
    groups: list[list[tuple[int, Any, bool]]]
    specs: list[Any]


def plan_of_one_page(draw: st.DrawFn, preset: Preset, kinds: tuple[str, ...]) -> Plan:
    """Draw groups of one page size, whose n-th layers lie in the n-th tensor."""
    page_size = page_sizes(draw, preset)
    num_tensors = draw(preset.sizes(TENSORS, st.integers(1, 2 if is_small(preset) else 3)))
    num_blocks = draw(preset.sizes(BLOCKS, st.sampled_from((2, 1, 2, 3, 3, 2, 0))))
    plan = Plan([], [], [])
    extra = [draw(st.sampled_from((0, 0, 0, 1))) for _ in range(min(num_tensors, MAX_DRAWN))]
    for t in range(num_tensors):
        plan.sizes.append((num_blocks + extra[t % len(extra)]) * page_size)
    if page_size % FP8_DS_MLA_BYTES == 0:
        first = next((kind for kind in kinds if kind != "MambaSpec"), None)
        kinds = tuple("MLAAttentionSpec" if kind == first else kind for kind in kinds)
    for kind in kinds:
        spec = _spec_of_page(draw, kind, page_size)
        are_there = [True, *(draw(st.booleans()) for _ in extra[1:])]
        layers = [(t, spec, True) for t in range(num_tensors) if are_there[t % len(extra)]]
        if draw(st.SOMETIMES):
            # A layer that shares another's cache, and is already in the group.
            layers.append(draw(st.sampled_from(layers)))
        plan.groups.append(shuffled(draw, layers))
        plan.specs.append(spec)
    groups = repeated(draw, preset, GROUPS, list(zip(plan.groups, plan.specs, strict=True)))
    plan.groups, plan.specs = [group for group, _ in groups], [spec for _, spec in groups]
    if draw(st.RARELY):
        plan.sizes.append(draw(st.sampled_from((0, 7))))  # no layer uses it
    return plan


def plan_of_uniform_groups(draw: st.DrawFn, preset: Preset) -> Plan:
    """Draw uniform groups, whose layers have specs of their own, unless they share a cache."""
    plan = Plan([], [], [])
    num_blocks = draw(st.sampled_from((1, 2, 3)))
    for _ in range(draw(st.sampled_from((1, 1, 2)))):
        block_size = draw(st.sampled_from((2, 3) if is_small(preset) else (16, 32)))
        first = draw(st.sampled_from(("FullAttentionSpec", "SlidingWindowSpec", "AttentionSpec")))
        rest = draw(st.lists(st.sampled_from((first, "MLAAttentionSpec")), max_size=2))
        if draw(st.SOMETIMES):
            rest = ["MambaSpec"]
        pages: list[tuple[int, list[Any]]] = []
        for kind in shuffled(draw, [first, *rest]):
            page_size = 2 * block_size * draw(st.sampled_from((4, 8, 12))) * 4
            # Two layers of one page size may share a tensor, and view it differently.
            number = 1 if preset.axis else draw(st.sampled_from((1, 1, 2)))
            specs = [
                _spec_of_page(draw, kind, page_size, block_size=block_size) for _ in range(number)
            ]
            pages.append((page_size, specs))
        layers: list[tuple[int, Any, bool]] = []
        for page_size, specs in repeated(draw, preset, LAYERS_OF_A_UNIFORM_GROUP, pages):
            layers += [(len(plan.sizes), spec, True) for spec in specs]
            plan.sizes.append(num_blocks * page_size)
        owners = shuffled(draw, layers)
        named = [*owners]
        for _ in range(0 if preset.axis else draw(st.integers(0, 2))):
            tensor = draw(st.sampled_from(named))[0]
            first = next(spec for t, spec, _ in named if t == tensor)
            position = draw(st.integers(0, len(owners)))
            owners.insert(position, (tensor, first, False))
        plan.groups.append(owners)
        plan.specs.append(block_size)
    return plan
