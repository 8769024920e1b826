"""What a process may no longer do after it has used a GPU.

After an illegal memory access its context is lost: every later call fails. And it cannot be forked.
"""

from __future__ import annotations

import torch


class ContextLostError(BaseException):  # no check may catch it, and Hypothesis must not shrink
    """The GPU context is lost, so that what runs in this process from now on shows nothing.

    Args:
        error: What CUDA said, in a line.
    """

    def __init__(self, error: str) -> None:
        super().__init__(f"the GPU context was lost by this call or the one before it: {error}")


class UsedGpuError(BaseException):
    """The process has used a GPU, so a forked child of it cannot."""

    def __init__(self) -> None:
        super().__init__("this process has used a GPU, so it cannot be forked")


def lost_context(device: str | None) -> ContextLostError | None:
    """Return an error if the GPU context is lost; None otherwise.

    It waits for the device, so it is called after a failure only: waiting after every call would
    hide calls that return before their result is there.

    Args:
        device: The type of device that the failed check used.

    >>> lost_context("cpu")
    """
    if device != "cuda":
        return None
    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        return ContextLostError(str(error).partition("\n")[0])
    return None


def check_can_fork() -> None:
    """Check that a forked child of this process can use a GPU.

    Raises:
        UsedGpuError: This process has used one.

    >>> check_can_fork()
    """
    if torch.cuda.is_initialized():
        raise UsedGpuError
