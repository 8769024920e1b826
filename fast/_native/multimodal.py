"""Rows of embeddings put where a mask is True."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fast._checks import check_tensor
from fast._native.compiler import compiled
from fast._native.memory import as_array, as_written_array, check_written


def put_rows(
    embeds: torch.Tensor,
    is_embed: torch.Tensor,
    placeholders: npt.NDArray[np.uint8] | torch.Tensor,
    nan: npt.NDArray[np.uint8],
) -> None:
    """Copy the next row wherever a mask is True, and a row of NaN elsewhere, byte by byte.

    Args:
        embeds: uint8[num_embeds, row_bytes] on the CPU.
        is_embed: bool[num_placeholders] on the CPU.
        placeholders: uint8[num_placeholders, row_bytes], contiguous, written.
        nan: uint8[row_bytes].

    Raises:
        TypeError: an argument of another type or dtype.
        ValueError: an argument of another shape, or not on the CPU.
    """
    check_tensor("embeds", embeds, torch.uint8, 2)
    check_tensor("is_embed", is_embed, torch.bool, 1)
    if isinstance(placeholders, torch.Tensor):
        target = as_written_array("out", placeholders, np.uint8, 2)
    else:
        check_written("out", placeholders, np.uint8, 2)
        target = placeholders
    check_written("nan", nan, np.uint8, 1)
    shape = (is_embed.shape[0], embeds.shape[1])
    if target.shape != shape or nan.shape != shape[1:]:
        raise ValueError(f"out has shape {target.shape} in bytes, expected {shape}")
    copy_rows(as_array("embeds", embeds), as_array("is_embed", is_embed), target, nan)


@compiled("void(uint8[:, :], boolean[:], uint8[:, ::1], uint8[::1])")
def copy_rows(embeds: Any, is_embed: Any, placeholders: Any, nan: Any) -> None:  # noqa: ANN401  (arrays)
    """Copy the next row wherever the mask is True, and the row of NaN elsewhere."""
    row = 0
    for i in range(len(is_embed)):
        if is_embed[i] and row < len(embeds):
            for k in range(placeholders.shape[1]):
                placeholders[i, k] = embeds[row, k]
            row += 1
        else:
            for k in range(placeholders.shape[1]):
                placeholders[i, k] = nan[k]
