"""Embeddings of multimodal items, and the placeholders that stand for them."""

from __future__ import annotations

import torch


def scatter_mm_placeholders(embeds: torch.Tensor, is_embed: torch.Tensor | None) -> torch.Tensor:
    """Put embeddings where placeholders stand for them; arguments are those of `reference`."""
    if is_embed is None:
        return embeds
    placeholders = embeds.new_full((len(is_embed), embeds.shape[1]), float("nan"))
    placeholders[is_embed] = embeds
    return placeholders


def gather_mm_placeholders(
    placeholders: torch.Tensor, is_embed: torch.Tensor | None
) -> torch.Tensor:
    """Take the embeddings from their placeholders; arguments are those of `reference`."""
    if is_embed is None:
        return placeholders
    return placeholders[is_embed]
