"""Presets: how large the drawn input is.

`MINIMAL` and `REAL` are the usual two; others are for the simulator, for real traffic, for
attention, and for inputs that are large along one axis. A strategy draws the sizes of an axis as
`preset.sizes(AXIS, USUAL)`, where `USUAL` is the strategy of sizes that are not large.
"""

from __future__ import annotations

import dataclasses
from typing import TypeVar

from hypothesis import strategies as st

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Preset:
    """The sizes of drawn inputs.

    Attributes:
        name: Its name.
        block_sizes: Block sizes, in tokens.
        chunk_blocks: Chunk sizes of chunked local attention, in blocks.
        max_num_reqs: The maximum number of requests in a batch, without padding.
        max_query_len: The maximum number of new tokens of a request.
        max_context_len: The maximum number of computed tokens of a request.
        max_num_tokens: The maximum number of tokens in a batch, without padding.
        is_traffic: Whether batches are cut from a trace of real requests.
        axis: The size axis along which examples are large; empty if there is none.
        axis_sizes: The size along it of the simplest example and that of all others; or, for a
            range, the smallest and the largest.
        is_range: Whether all sizes between the two are drawn.
    """

    name: str
    block_sizes: tuple[int, ...]
    chunk_blocks: tuple[int, ...]
    max_num_reqs: int
    max_query_len: int
    max_context_len: int
    max_num_tokens: int
    is_traffic: bool = False
    axis: str = ""
    axis_sizes: tuple[int, int] = (0, 0)
    is_range: bool = False

    def sizes(self, axis: str, usual: st.SearchStrategy[T]) -> st.SearchStrategy[int | T]:
        """Return the strategy of sizes along an axis.

        Args:
            axis: The name of the axis.
            usual: The sizes, unless this preset is large along the axis.
        """
        if axis != self.axis:
            return usual
        least, greatest = self.axis_sizes
        if self.is_range:
            return log_uniform(least, greatest)
        # Hypothesis tries the simplest example first, in which both numbers are 0.
        two = st.tuples(st.integers(0, 2**32), st.integers(0, 2**32))
        return two.map(lambda numbers: greatest if any(numbers) else least)


MINIMAL = Preset("minimal", (2,), (2,), 4, 9, 12, 24)
"""Every edge is near: block size 2, up to four requests, chunks of 4."""

REAL = Preset("real", (16, 32, 64, 128), (1, 4, 32, 512), 16, 512, 8192, 768)
"""The sizes of engines."""

REAL_IN_SIMULATOR = Preset("real, few tokens", (16, 32), (1, 4), 5, 24, 8192, 40)
"""Engines' block sizes and contexts, for the simulator, where a thread costs 50 us."""

REAL_IN_NATIVE = dataclasses.replace(
    REAL_IN_SIMULATOR, name="real, more tokens", max_num_reqs=8, max_num_tokens=100
)
"""Likewise, for kernels that run as machine code: as many tokens as a batch of real traffic."""

FEW_PAIRS = Preset("few pairs", (4, 16), (1, 2, 4), 6, 24, 96, 60)
"""For properties of every pair of a query and a key; other presets have millions of pairs."""

ONE_REQUEST = dataclasses.replace(MINIMAL, name="one request", max_num_reqs=1)
"""For what is rare in larger batches: vectors by request that have one element."""

TRAFFIC = dataclasses.replace(REAL, name="traffic", is_traffic=True)
"""Batches cut from a trace of real requests by a continuous-batching scheduler."""


def log_uniform(least: int, greatest: int) -> st.SearchStrategy[int]:
    """Return the strategy of ints between two inclusive bounds, drawn by bit length first."""
    return st.integers(least.bit_length(), greatest.bit_length()).flatmap(
        lambda bits: st.integers(max(least, 1 << bits >> 1), min(greatest, (1 << bits) - 1))
    )


def large_along(axis: str, first: int, second: int, *, is_range: bool = False) -> Preset:
    """Return the preset of examples that are large along one axis, and small along all others.

    Args:
        axis: The name of the axis.
        first: The size of the simplest example, or the least size.
        second: The size of the others, or the greatest size.
        is_range: Whether all sizes between the two are drawn.
    """
    name = f"{axis} {first} {'to' if is_range else 'and'} {second}"
    block_size = 16 << max(second.bit_length() - 17, 0)  # at most 8,192 blocks
    return Preset(name, (block_size,), (2,), 4, 9, 40, 24, False, axis, (first, second), is_range)


SIZES = {
    "minimal": lambda preset: preset is MINIMAL,
    "real": lambda preset: preset is not MINIMAL,
}
"""Each check is two tests, so that a bug that small inputs can show fails with a small input."""
