"""How large the drawn input is: two presets, their cut for the simulator, and real traffic."""

from __future__ import annotations

import dataclasses


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
    """

    name: str
    block_sizes: tuple[int, ...]
    chunk_blocks: tuple[int, ...]
    max_num_reqs: int
    max_query_len: int
    max_context_len: int
    max_num_tokens: int
    is_traffic: bool = False


MINIMAL = Preset("minimal", (2,), (2,), 4, 9, 12, 24)
"""Every edge is near: block size 2, up to four requests, chunks of 4."""

REAL = Preset("real", (16, 32, 64, 128), (1, 4, 32, 512), 16, 512, 8192, 768)
"""The sizes of engines."""

REAL_IN_SIMULATOR = Preset("real, few tokens", (16, 32), (1, 4), 5, 24, 8192, 40)
"""Engines' block sizes and contexts, for the simulator, where a thread costs 50 us."""

FEW_PAIRS = Preset("few pairs", (4, 16), (1, 2, 4), 6, 24, 96, 60)
"""For what is said of every pair of a query and a key, of which the other presets have millions."""

TRAFFIC = dataclasses.replace(REAL, name="traffic", is_traffic=True)
"""Batches cut from a trace of real requests by a continuous-batching scheduler."""


SIZES = {
    "minimal": lambda preset: preset is MINIMAL,
    "real": lambda preset: preset is not MINIMAL,
}
"""Every check is two tests, small and large: what small input shows fails with small input."""
