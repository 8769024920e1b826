"""What the tests on a GPU share: no waiting, graphs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from kvtwin.bench.device import SLEEP_CYCLES


@contextmanager
def no_waiting() -> Iterator[None]:
    """Make torch raise where a call would wait for the device."""
    torch.cuda.synchronize()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says once that it does not find all waiting
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def call_behind_a_wait(stream: torch.cuda.Stream, call: Callable[[], Any]) -> tuple[Any, bool]:
    """Return what a call on a stream returns, and whether the stream was still busy then.

    The same is done once before: to allocate, on the device or pinned, may be to wait for it. A
    call whose memory is there already returns while the stream is in the wait.
    """
    for _ in range(2):
        result = None  # its memory is free for the second call
        with torch.cuda.stream(stream):
            torch.cuda._sleep(SLEEP_CYCLES)
            result = call()
            is_queued = not stream.query()
        stream.synchronize()
    return result, is_queued


def captured(call: Callable[[], Any]) -> tuple[torch.cuda.CUDAGraph, Any]:
    """Return a graph of a call, and what a replay writes."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call()
    return graph, result
