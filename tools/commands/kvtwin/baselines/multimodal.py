"""Embeddings of multimodal items, scattered to and gathered from their placeholders."""

from __future__ import annotations

import torch


def scatter_mm_placeholders(
    embeds: torch.Tensor, is_embed: torch.Tensor | None, *, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Put embeddings at their placeholders; arguments are those of `reference`."""
    if is_embed is None:
        return embeds if out is None else out.copy_(embeds)
    nan = float("nan")
    if out is None:
        out = embeds.new_full((len(is_embed), embeds.shape[1]), nan)
    else:
        out.fill_(nan)
    out[is_embed] = embeds
    return out


def gather_mm_placeholders(
    placeholders: torch.Tensor, is_embed: torch.Tensor | None, *, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Take the embeddings from their placeholders; arguments are those of `reference`."""
    if is_embed is None:
        return placeholders if out is None else out.copy_(placeholders)
    if out is None:
        return placeholders[is_embed]
    return torch.index_select(placeholders, 0, is_embed.nonzero().squeeze(1), out=out)
