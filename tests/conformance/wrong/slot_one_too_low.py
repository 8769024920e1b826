"""`fast`, but the step's third token is written one slot before its own: a slot mapping's value."""

# ruff: noqa: F403  # it is what the file is for

import torch

import fast
from fast import *


def compute_slot_mapping(*args: object, **keywords: object) -> torch.Tensor:
    """Return slots of which the third is one too low."""
    slots = fast.compute_slot_mapping(*args, **keywords)  # type: ignore[arg-type]
    slots[2:3] -= (slots[2:3] > 0).long()
    return slots
