"""Shared by the tests on a GPU: detecting synchronisation, and capturing graphs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from kvtwin.bench.measure import SLEEP_CYCLES


@contextmanager
def no_waiting() -> Iterator[None]:
    """Make torch raise if a call synchronises with the device."""
    torch.cuda.synchronize()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that it does not detect all waiting
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def call_behind_a_wait(stream: torch.cuda.Stream, call: Callable[[], Any]) -> tuple[Any, bool]:
    """Return the result of a call on a stream, and whether the stream was still busy then.

    The call is made twice, since allocating memory, on the device or pinned, may synchronise. Once
    its memory is allocated, a call returns while the stream is still waiting.
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
    """Capture a call, and return the graph and the result that a replay writes."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call()
    return graph, result
