"""Size axes: how large inputs are, in bands that a run must reach.

An implementation may be right up to the size of a buffer, a warp or an int. So each contract names
its axes, and the bands in which some example must lie are coverage goals.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from conformance.strategies.batches import Batch

BANDS: Final = {0: "0", 1: "1", 2: "2 to 16", 17: "17 to 255", 256: "256 to 65,535", 65_536: "more"}
"""The names of the bands of sizes, by where each begins."""

ALL: Final = tuple(BANDS)
"""Where all bands begin."""

BUT_THE_LAST: Final = ALL[:-1]
"""All but the last band: `reference` takes about a second for 65,536 requests or tokens."""


@dataclasses.dataclass(frozen=True)
class Axis:
    """A dimension along which calls are large.

    Attributes:
        size: Returns the size of a call.
        bands: The bands that a run must reach, by where they begin.
    """

    size: Callable[[Any], int]
    bands: tuple[int, ...] = BUT_THE_LAST


Axes: TypeAlias = Mapping[str, Axis]
"""Axes by name."""


def band_of(size: int) -> str:
    """Return the band that a size lies in.

    >>> band_of(1), band_of(255), band_of(2**40)
    ('1', '17 to 255', 'more')
    """
    return BANDS[ALL[bisect.bisect_right(ALL, size) - 1]]


def of_batches(*, may_be_empty: bool = True) -> dict[str, Axis]:
    """Return the axes of calls whose facts are a `Batch`.

    Args:
        may_be_empty: Whether there may be no requests.
    """
    return {
        "requests": _of(lambda b: b.num_reqs, BUT_THE_LAST if may_be_empty else BUT_THE_LAST[1:]),
        "tokens": _of(lambda b: b.num_tokens),
        "query length": _of(lambda b: max(b.query_lens, default=0)),
        "computed tokens": _of(lambda b: max(b.num_computed_tokens, default=0), ALL),
        "columns of the table": _of(lambda b: max(map(len, b.rows), default=0) + b.extra_columns),
        "padded tokens": _of(lambda b: b.num_padding_tokens),
        "spare rows of the table": _of(lambda b: b.extra_rows),
    }


def _of(size: Callable[[Batch], int], bands: tuple[int, ...] = BUT_THE_LAST) -> Axis:
    return Axis(lambda call: size(call.facts), bands)


def goals_of_axes(axes: Axes) -> Iterator[str]:
    """Yield the coverage goals of axes: each band of each."""
    for name, axis in axes.items():
        yield from (_goal(name, BANDS[start]) for start in axis.bands)


def reached_bands(axes: Axes, call: object) -> Iterator[str]:
    """Yield the goals that a call reaches."""
    for name, axis in axes.items():
        yield _goal(name, band_of(axis.size(call)))


def _goal(axis: str, band: str) -> str:
    return f"{axis}: {band}"
