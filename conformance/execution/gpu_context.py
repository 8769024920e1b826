"""Detects a lost GPU context, and processes that cannot be forked since they used a GPU.

After an illegal memory access the context is lost: every later call fails.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


class ContextLostError(BaseException):  # no check may catch it, and Hypothesis must not shrink
    """The GPU context is lost, so that later results in this process mean nothing.

    Args:
        error: CUDA's message, on one line.
    """

    def __init__(self, error: str) -> None:
        super().__init__(f"the GPU context was lost by this call or the one before it: {error}")


class UsedGpuError(BaseException):
    """The process has used a GPU, so a forked child cannot use one."""

    def __init__(self) -> None:
        super().__init__("this process has used a GPU, so it cannot be forked")


@contextlib.contextmanager
def noticing_lost_context(device: str | None) -> Iterator[None]:
    """Turn any exception inside into a `ContextLostError` if the GPU context is lost.

    It synchronises only after a failure. To do so after every call would hide functions that return
    before their result is ready.

    Args:
        device: The device type used inside.

    Raises:
        ContextLostError: Something was raised, and the context is lost.

    >>> with noticing_lost_context("cpu"):
    ...     1 / 0
    Traceback (most recent call last):
    ZeroDivisionError: division by zero
    """
    try:
        yield
    except (Exception, SystemExit) as error:
        if device == "cuda" and _has_used_gpu():
            try:
                torch.cuda.synchronize()
            except RuntimeError as lost:
                raise ContextLostError(str(lost).partition("\n")[0]) from error
        raise


def check_can_fork() -> None:
    """Check that a forked child of this process can use a GPU.

    Raises:
        UsedGpuError: This process has used one.

    >>> check_can_fork()
    """
    if _has_used_gpu():
        raise UsedGpuError


def _has_used_gpu() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]  # torch's own
