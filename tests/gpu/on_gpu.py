"""What the tests on a GPU share: no waiting, graphs, what calls cost the host and the device."""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

SLEEP_CYCLES = 50_000_000
"""Some 30 ms of a GPU: in these the host puts a lot into the queue. torch's own tests wait so."""


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


def host_cost_us(call: Callable[[], object]) -> float:
    """Return what a warm call costs the host, in microseconds: the median of 20 blocks of 50."""
    call()
    blocks = []
    for _ in range(20):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(50):
            call()
        blocks.append((time.perf_counter() - begin) / 50 * 1e6)
    return statistics.median(blocks)


def device_seconds(call: Callable[[], object], num_calls: int = 20) -> float:
    """Return what a warm call takes the device, which never waits for the host between calls."""
    call()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(SLEEP_CYCLES)
    begin.record()
    for _ in range(num_calls):
        call()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / num_calls / 1e3
