"""Move rows with kernels, whatever the dtype of their elements."""

from typing import Final

import torch

from fast._checks import MAX_SIZE
from fast._native.memory import plain
from fast._native.multimodal import as_bytes
from fast.kernels import multimodal as kernels
from fast.kernels.cuda import Kernel
from fast.kernels.moves import WIDEST
from fast.launch import launch_threads, threads_at_once, threads_in_block
from fast.slots import flat

MAX_UNITS: Final = 16
"""The most units that one thread moves."""

MAX_GRID_Y: Final = 65535
"""The most blocks along y in a grid."""


def scatter_on_device(
    embeds: torch.Tensor, is_embed: torch.Tensor, nan: int, placeholders: torch.Tensor
) -> None:
    """Put rows where a mask is True and the bits `nan` elsewhere; does not synchronise."""
    if placeholders.numel() == 0:
        return
    source, ranks = as_bytes("embeds", embeds), _rank_embeds(is_embed)
    pattern = _repeat(nan, embeds.element_size())
    _launch_rows(kernels.scatter_rows, source, len(embeds), ranks, placeholders, pattern)


def gather_on_device(
    placeholders: torch.Tensor, is_embed: torch.Tensor, embeds: torch.Tensor
) -> None:
    """Take rows where a mask is True, as many as `embeds` can hold; does not synchronise."""
    if embeds.numel() == 0:
        return
    source, ranks = as_bytes("placeholders", placeholders), _rank_embeds(is_embed)
    _launch_rows(kernels.gather_rows, source, len(embeds), ranks, embeds)


def find_unit(source: torch.Tensor, target: torch.Tensor, step_bytes: int) -> int:
    """Return how many bytes can be moved at once, if rows are multiples of `step_bytes` apart."""
    addresses = source.data_ptr() | target.data_ptr() | step_bytes | WIDEST
    return addresses & -addresses


def _repeat(bits: int, size: int) -> int:
    """Return an int of 8 bytes in which an element of `size` bytes is repeated."""
    return sum(bits << 8 * at for at in range(0, 8, size))


def _rank_embeds(is_embed: torch.Tensor) -> torch.Tensor:
    """Return int32[num_placeholders + 1]: the rank of each embedding, then how many there are."""
    is_embed = plain("is_embed", is_embed)
    num_placeholders = len(is_embed)
    if num_placeholders > MAX_SIZE:  # ranks are int32
        raise ValueError(f"is_embed has {num_placeholders} entries, expected at most {MAX_SIZE}")
    mask = flat(is_embed).view(torch.uint8), is_embed.stride(0), num_placeholders
    num_threads = -(-num_placeholders // kernels.PER_THREAD)
    # A tile has at least one thread, so this is large enough for the counts of all tiles.
    counts = is_embed.new_empty(num_threads, dtype=torch.int32)
    ranks = is_embed.new_empty(num_placeholders + 1, dtype=torch.int32)
    launch_threads(kernels.count_embeds, num_threads, 1, *mask, counts)
    launch_threads(kernels.rank_embeds, num_threads, 1, *mask, counts, ranks)
    return ranks


def _launch_rows(
    kernel: Kernel,
    source: torch.Tensor,
    num_embeds: int,
    ranks: torch.Tensor,
    target: torch.Tensor,
    *pattern: int,
) -> None:
    """Launch a kernel that moves rows, in the largest units that all addresses allow."""
    num_placeholders, row_bytes = len(ranks) - 1, source.shape[1]
    torch.autograd.graph.increment_version(target)  # torch does not see a kernel's writes
    size = find_unit(source, target, source.stride(0) | row_bytes)
    units = row_bytes // size
    num_y = min(-(-units // (threads_in_block(kernel) * MAX_UNITS)), MAX_GRID_Y)
    per_thread = max(1, min(MAX_UNITS, num_placeholders * units // threads_at_once()))
    num_x = -(-num_placeholders * -(-units // num_y) // per_thread)
    launch_threads(
        kernel,
        num_x,
        num_y,
        flat(source),
        source.stride(0),
        num_embeds,
        ranks,
        num_placeholders,
        flat(as_bytes("out", target)),
        units,
        -(-units // num_y),
        size,
        *pattern,
    )
