"""Uploads through pinned rings: nothing is overwritten in flight, and nothing synchronises."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from on_gpu import captured, no_waiting

from fast import pinned
from fast.pinned import MAX_BUFFERS, MAX_BYTES, upload
from kvtwin.bench.measure import SLEEP_CYCLES, host_cost_us

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")


def send(array: np.ndarray) -> torch.Tensor:
    """Upload an array to the current GPU, and overwrite it, as its caller may."""
    device = torch.device("cuda", torch.cuda.current_device())
    there = upload(array, device, pin_memory=True)
    array.fill(-7)
    return there


def make(number: int, size: int = 1000) -> np.ndarray:
    """Make an array that differs from that of any other number."""
    return np.arange(size, dtype=np.int64) + 10_000 * number


@pytest.mark.parametrize("num_uploads", [3, 4 * MAX_BUFFERS])
def test_many_uploads_behind_a_long_wait(num_uploads: int) -> None:
    for round_number in range(3):
        torch.cuda._sleep(SLEEP_CYCLES)
        numbers = range(round_number, round_number + num_uploads)
        there = [send(make(number)) for number in numbers]
        if num_uploads == 3 and round_number > 0:  # to pin memory may be to wait
            assert not torch.cuda.current_stream().query()
        for number, tensor in zip(numbers, there, strict=True):
            assert torch.equal(torch.from_numpy(make(number)), tensor.cpu())


def test_uploads_of_all_sizes() -> None:
    sizes = [0, 1, 511, 513, 100_000, MAX_BYTES // 8, MAX_BYTES // 8 + 1, 3, 0, 2000]
    there = [send(make(number, size)) for number, size in enumerate(sizes)]
    for number, (size, tensor) in enumerate(zip(sizes, there, strict=True)):
        assert torch.equal(torch.from_numpy(make(number, size)), tensor.cpu())


def test_uploads_of_streams_do_not_meet() -> None:
    streams = [torch.cuda.Stream() for _ in range(3)]
    with torch.cuda.stream(streams[0]):
        torch.cuda._sleep(SLEEP_CYCLES)
    there = []
    for number in range(60):
        with torch.cuda.stream(streams[number % 3]):
            there.append(send(make(number)))
    torch.cuda.synchronize()
    for number, tensor in enumerate(there):
        assert torch.equal(torch.from_numpy(make(number)), tensor.cpu())


def test_uploads_of_threads_do_not_meet() -> None:
    def send_some(first: int) -> list[torch.Tensor]:
        with torch.cuda.stream(torch.cuda.Stream()):
            sent = [send(make(first + number)) for number in range(50)]
            torch.cuda.current_stream().synchronize()
        return sent

    with ThreadPoolExecutor(4) as pool:
        for first, there in enumerate(pool.map(send_some, range(0, 400, 100))):
            for number, tensor in enumerate(there):
                assert torch.equal(torch.from_numpy(make(100 * first + number)), tensor.cpu())


def test_an_upload_waits_for_nothing() -> None:
    send(make(0))
    with no_waiting():
        send(make(1))
    torch.cuda.synchronize()
    torch.cuda._sleep(SLEEP_CYCLES)
    send(make(2))
    assert not torch.cuda.current_stream().query()


def test_a_replay_brings_what_was_captured() -> None:
    graph, there = captured(lambda: send(make(5)))
    for number in range(3 * MAX_BUFFERS):
        send(make(number + 100))
    for _ in range(2):
        there.fill_(77)
        graph.replay()
        assert torch.equal(torch.from_numpy(make(5)), there.cpu())


def test_buffers_outlive_inference_mode() -> None:
    with torch.cuda.stream(torch.cuda.Stream()):
        with torch.inference_mode():
            send(make(0))
        torch.cuda.current_stream().synchronize()
        there = send(make(1))
        torch.cuda.current_stream().synchronize()
    assert not there.is_inference()
    assert torch.equal(torch.from_numpy(make(1)), there.cpu())


def test_what_an_upload_costs_the_host() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    array = make(0, 300)
    by_ring = host_cost_us(lambda: upload(array, device, pin_memory=True), num_calls=20)
    by_torch = host_cost_us(
        lambda: torch.from_numpy(array).pin_memory().to(device, non_blocking=True), num_calls=20
    )
    print(f"host cost of upload: {by_ring:.1f} us")  # noqa: T201  # gpu_check.sh shows it
    print(f"host cost of upload, pinned by torch: {by_torch:.1f} us")  # noqa: T201  # likewise
    assert pinned._THREAD.rings


def test_uploads_while_another_thread_captures() -> None:
    with ThreadPoolExecutor(1) as pool:
        stream = torch.cuda.Stream()

        def send_some() -> list[torch.Tensor]:
            with torch.cuda.stream(stream):
                return [send(make(number)) for number in range(MAX_BUFFERS)]

        for _ in range(2):  # the ring is full, the memory on the GPU is torch's by now
            pool.submit(send_some).result()
            torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        total = torch.zeros(4, device="cuda")
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            total += 1
            there = pool.submit(send_some).result()
        graph.replay()
        torch.cuda.synchronize()
    assert [1.0] * 4 == total.tolist()
    for number, tensor in enumerate(there):
        assert torch.equal(torch.from_numpy(make(number)), tensor.cpu())
