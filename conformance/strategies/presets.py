"""Presets: how large the drawn input is.

`MINIMAL` and `REAL` are the usual two; others are for the simulator, for real traffic, for
attention, and for batches that are large along one axis.
"""

from __future__ import annotations

import dataclasses
from typing import Final


@dataclasses.dataclass(frozen=True)
class Shape:
    """The exact sizes of a batch.

    Attributes:
        num_reqs: Requests, padded ones apart.
        num_tokens: New tokens of all requests.
        num_computed_tokens: The most computed tokens of a request.
        num_padded_reqs: Padded requests.
        num_padding_tokens: Padded tokens.
        extra_columns: Columns of the table that no request needs.
        extra_rows: Rows of the table past the last request's.
    """

    num_reqs: int = 3
    num_tokens: int = 7
    num_computed_tokens: int = 20
    num_padded_reqs: int = 1
    num_padding_tokens: int = 2
    extra_columns: int = 1
    extra_rows: int = 1


@dataclasses.dataclass(frozen=True)
class Preset:
    """The sizes of what is drawn.

    Attributes:
        name: What it is called.
        block_sizes: Block sizes, in tokens.
        chunk_blocks: Chunk sizes of chunked local attention, in blocks.
        max_num_reqs: The most requests in a batch, padding apart.
        max_query_len: The most new tokens of a request.
        max_context_len: The most computed tokens of a request.
        max_num_tokens: The most tokens in a batch, padding apart.
        is_traffic: Whether batches are cut from a trace of real requests.
        shape: The exact sizes of a batch, one of them large; None where they are drawn.
    """

    name: str
    block_sizes: tuple[int, ...]
    chunk_blocks: tuple[int, ...]
    max_num_reqs: int
    max_query_len: int
    max_context_len: int
    max_num_tokens: int
    is_traffic: bool = False
    shape: Shape | None = None


MINIMAL = Preset("minimal", (2,), (2,), 4, 9, 12, 24)
"""Every edge is near: block size 2, up to four requests, chunks of 4."""

REAL = Preset("real", (16, 32, 64, 128), (1, 4, 32, 512), 16, 512, 8192, 768)
"""The sizes of engines."""

REAL_IN_SIMULATOR = Preset("real, few tokens", (16, 32), (1, 4), 5, 24, 8192, 40)
"""Engines' block sizes and contexts, for the simulator, where a thread costs 50 us."""

FEW_PAIRS = Preset("few pairs", (4, 16), (1, 2, 4), 6, 24, 96, 60)
"""For properties of every pair of a query and a key; other presets have millions of pairs."""

TRAFFIC = dataclasses.replace(REAL, name="traffic", is_traffic=True)
"""Batches cut from a trace of real requests by a continuous-batching scheduler."""


LARGE_COUNTS: Final = (33, 129, 257, 1025)
"""Just past a warp, a block of threads, a byte and a typical buffer."""


def _large(**sizes: int) -> Preset:
    """Return the preset of a batch that is large along one axis, named after it."""
    name = ", ".join(f"{size} {axis}" for axis, size in sizes.items())
    block_size = 16 if sizes.get("num_computed_tokens", 0) < 65_536 else 1024
    return dataclasses.replace(REAL, name=name, block_sizes=(block_size,), shape=Shape(**sizes))


LARGE: Final = (
    *(_large(num_reqs=size, num_tokens=size + 9) for size in (*LARGE_COUNTS, 4097)),
    *(_large(num_tokens=size) for size in (*LARGE_COUNTS, 4097)),
    *(_large(num_computed_tokens=size) for size in (*LARGE_COUNTS, 4097, 65_537, 1_048_577)),
    *(_large(num_padded_reqs=size) for size in LARGE_COUNTS),
    *(_large(num_padding_tokens=size) for size in LARGE_COUNTS),
    *(_large(extra_columns=size) for size in LARGE_COUNTS),
    *(_large(extra_rows=size) for size in (9, *LARGE_COUNTS)),
)
"""Batches that are large along one axis; of 65,537 requests `reference` takes seconds."""


SIZES = {
    "minimal": lambda preset: preset is MINIMAL,
    "real": lambda preset: preset is not MINIMAL,
}
"""Every check is two tests, small and large: what small input shows fails with small input."""
