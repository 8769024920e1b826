"""Rows of embeddings put where a mask is True."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fast._native.compiler import compiled
from fast._native.memory import as_written_array


def put_rows(
    embeds: npt.NDArray[np.uint8],
    is_embed: npt.NDArray[np.bool_],
    nan: npt.NDArray[np.uint8],
    out: torch.Tensor | None,
) -> torch.Tensor:
    """Copy the next row wherever a mask is True, and a row of NaN elsewhere, byte by byte.

    Args:
        embeds: uint8[num_embeds, row_bytes], with any strides.
        is_embed: bool[num_placeholders].
        nan: uint8[row_bytes].
        out: uint8[num_placeholders, row_bytes], contiguous, written. None: a new tensor.

    Returns:
        `out`, or the new tensor.

    Raises:
        TypeError: an argument of another type or dtype.
        ValueError: an argument of another shape, or not on the CPU.
    """
    if embeds.dtype != np.uint8 or is_embed.dtype != np.bool_ or nan.dtype != np.uint8:
        raise TypeError(f"embeds and is_embed are of {embeds.dtype} and {is_embed.dtype}")
    shape = (len(is_embed), embeds.shape[1])
    if out is None:
        placeholders = np.empty(shape, dtype=np.uint8)
    else:
        placeholders = as_written_array("out", out, np.uint8, 2)
    if placeholders.shape != shape or nan.shape != shape[1:] or nan.strides != (1,):
        raise ValueError(f"out has shape {placeholders.shape} in bytes, expected {shape}")
    copy_rows(embeds, is_embed, placeholders, nan)
    return torch.from_numpy(placeholders) if out is None else out


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
