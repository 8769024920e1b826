"""Size axes: how large inputs are, in bands that a run must reach.

An implementation may be right up to the size of a buffer, a warp or an int. So each contract
declares its axes, and each band of an axis is a coverage goal. The strategy of a contract draws
each size as `preset.sizes(AXIS, ...)`; see `conformance.coverage.presets`.
"""

from __future__ import annotations

import bisect
import dataclasses
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from conformance.coverage.presets import Preset, large_along

BANDS: Final = {0: "0", 1: "1", 2: "2 to 16", 17: "17 to 255", 256: "256 to 65,535", 65_536: "more"}
"""The names of the bands of sizes, by the first size of each."""

EDGES: Final = (32, 64, 128, 256, 512, 1024, 4096, 2**16, 2**24, 2**31, 2**32, 2**53)
"""Where bugs plausibly begin: unrolled loops, warps, blocks of threads, buffers, and numbers
that an int or a float cannot hold."""

FEW: Final = (2, 9, 16)
"""Sizes of the band "2 to 16"."""


@dataclasses.dataclass(frozen=True)
class Axis:
    """A dimension along which calls are made large, one axis at a time.

    Attributes:
        size: Returns the size of a call.
        last: The largest size that is tried.
        why: Why no larger size is tried; an axis that reaches the last band needs no reason.
        first: The smallest valid size.
    """

    size: Callable[[Any], int]
    last: int = 65_537
    why: str = ""
    first: int = 0

    def __post_init__(self) -> None:
        if self.last < max(BANDS) and not self.why:
            raise ValueError(f"an axis that ends at {self.last} needs a reason, `why`")

    def sizes(self, turn: int) -> list[int]:
        """Return the sizes of its examples, in order.

        Each edge gives one: one less, the edge, or one more, depending on its place and `turn`.

        >>> Axis(lambda call: len(call["lens"]), 129, why="it takes a second").sizes(0)
        [0, 1, 2, 31, 64, 129]
        """
        near = [edge + (place + turn) % 3 - 1 for place, edge in enumerate(EDGES)]
        found = [0, 1, FEW[turn % 3], *(size for size in near if size < self.last - 2), self.last]
        return sorted({size for size in found if self.first <= size <= self.last})

    def bands(self) -> list[str]:
        """Return the bands that a run must reach."""
        return list(dict.fromkeys(map(band_of, self.sizes(0))))


def of_ints(size: Callable[[Any], int], first: int = 0) -> Axis:
    """Return the axis of an int without an upper bound, up to one that exceeds 64 bits."""
    return Axis(size, 2**64 + 1, first=first)


def of_objects(size: Callable[[Any], int], first: int = 0, last: int = 1025) -> Axis:
    """Return the axis of a number of objects, which are made anew for each call of a target."""
    return Axis(size, last, "to make and compare more objects takes seconds", first)


Axes: TypeAlias = Mapping[str, Axis]
"""Axes by name."""


_HOLDS: Final = "it stores its arguments, whatever their size"
_BASE: Final = "a base class, which has no sizes"
_CONSTANT: Final = "a constant"

NO_AXES: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        (
            *("CacheConfig", "CompilationConfig", "ModelConfig", "ParallelConfig", "PassConfig"),
            *("SchedulerConfig", "SpeculativeConfig", "VllmConfig"),
            *("AttentionGroup", "CommonAttentionMetadata"),
        ),
        _HOLDS,
    ),
    **dict.fromkeys(
        (
            *("AttentionBackend", "AttentionMetadata", "AttentionMetadataBuilder"),
            "KVSharingFastPrefillMetadata",
        ),
        _BASE,
    ),
    **dict.fromkeys(
        (
            *("AttentionCGSupport", "AttentionType", "KV_SHARING_FAST_PREFILL_METADATA_FIELDS"),
            "AttentionMetadataBuilder.get_cudagraph_support",
        ),
        _CONSTANT,
    ),
    "MultiModalBudget.reset_cache": "it clears the only cache",
    "UBatchSlice": "its slices are as large as those of `split_attn_metadata`",
    "checks": "a law enters a thousand blocks, in sequence and nested",
    "get_kv_cache_layout": "there are few names; laws are about histories of them",
    "set_kv_cache_layout": "there are few names; laws are about histories of them",
    "stateful test": "its sessions are long instead: see `conformance.stateful`",
}
"""Names without a size axis, and why. The models of the zoo have the sizes that they were published
with, so `conformance.test_zoo` has no axes either."""


def band_of(size: int) -> str:
    """Return the band that a size lies in.

    >>> band_of(1), band_of(255), band_of(2**40)
    ('1', '17 to 255', 'more')
    """
    starts = list(BANDS)
    return BANDS[starts[bisect.bisect_right(starts, size) - 1]]


def presets_of_axes(axes: Axes, function: str) -> Iterator[Preset]:
    """Yield the presets that are large along one axis each, at two sizes of it.

    Args:
        axes: The axes.
        function: The function, whose hash selects the sizes next to the edges.
    """
    turn = zlib.crc32(function.encode())
    for place, (name, axis) in enumerate(axes.items()):
        sizes = axis.sizes(turn + place)
        pairs = sizes[:1] * (len(sizes) % 2) + sizes
        for first, second in zip(pairs[::2], pairs[1::2], strict=True):
            yield large_along(name, first, second)


def presets_of_bands(axes: Axes) -> Iterator[Preset]:
    """Yield a preset for each band of each axis, which draws any size in it."""
    ends = [*list(BANDS)[1:], None]
    for name, axis in axes.items():
        for start, end in zip(BANDS, ends, strict=True):
            first = max(start, axis.first)
            last = axis.last if end is None else min(end - 1, axis.last)
            if first <= last:
                yield large_along(name, first, last, is_range=True)


def goals_of_axes(axes: Axes) -> Iterator[str]:
    """Yield the coverage goals of axes: one for each band of each axis."""
    for name, axis in axes.items():
        yield from (goal_of_band(name, band) for band in axis.bands())


def reached_bands(axes: Axes, call: object) -> Iterator[str]:
    """Yield the goals that a call reaches."""
    for name, axis in axes.items():
        yield goal_of_band(name, band_of(axis.size(call)))


def goal_of_band(axis: str, band: str) -> str:
    """Return the coverage goal that some example lies in a band of an axis.

    >>> goal_of_band("requests", "17 to 255")
    'requests: 17 to 255'
    """
    return f"{axis}: {band}"
