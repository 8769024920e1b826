"""Uploads through rings of pinned memory, with a fake stream whose copies end early or late."""

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from fast import pinned
from fast.pinned import Buffer, Reserve, Ring, upload

GARBAGE = 0xA5


class Mark:
    """A fake event: its last position in the stream."""

    def __init__(self, stream: "FakeStream") -> None:
        self.stream = stream
        self.number = 0

    def query(self) -> bool:
        return self.number <= self.stream.num_ended


class FakeStream:
    """A fake stream that copies on demand, and reads pinned memory at that time."""

    def __init__(self, *_: object) -> None:
        self.num_pinned: list[int] = []
        self.num_put = self.num_ended = 0
        self.waiting: deque[tuple[torch.Tensor, torch.Tensor]] = deque()

    def pin(self, num_bytes: int) -> torch.Tensor:
        self.num_pinned.append(num_bytes)
        return torch.full((num_bytes,), GARBAGE, dtype=torch.uint8)

    def copy(self, source: torch.Tensor) -> torch.Tensor:
        assert all(not overlap(source, other) for other, _ in self.waiting)
        there = torch.full((source.nbytes,), GARBAGE, dtype=torch.uint8).view(source.dtype)
        self.waiting.append((source, there))
        self.num_put += 1
        return there

    def mark(self, event: Mark | None) -> Mark:
        event = event or Mark(self)
        event.number = self.num_put
        return event

    def run(self, num_copies: int) -> None:
        for _ in range(min(num_copies, len(self.waiting))):
            source, there = self.waiting.popleft()
            there.copy_(source)
            self.num_ended += 1


def overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    begins, ends = zip(
        *((x.data_ptr(), x.data_ptr() + x.nbytes) for x in (one, other)), strict=True
    )
    return max(begins) < min(ends)


def make(size: int, dtype: str = "int32", start: int = 0) -> np.ndarray:
    return np.arange(start, start + size).astype(dtype)


class RingMachine(RuleBasedStateMachine):
    """Arrays are sent while copies end early or late; what arrives is what was sent."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(pinned, "MIN_BYTES", 32)
        self.patch.setattr(pinned, "MAX_BYTES", 512)
        self.patch.setattr(pinned, "MAX_BUFFERS", 3)
        self.stream = FakeStream()
        self.ring = Ring(self.stream)
        self.sent: list[tuple[np.ndarray, torch.Tensor]] = []

    @rule(
        size=st.integers(0, 40) | st.integers(0, 200),
        dtype=st.sampled_from(["int32", "int64", "uint8", "float64"]),
        columns=st.none() | st.integers(1, 3),
    )
    def send(self, size: int, dtype: str, columns: int | None) -> None:
        """Send an array, and overwrite it at once, as its caller may."""
        array = make(size, dtype, start=len(self.sent))
        if columns is not None:
            array = np.stack([array] * columns, axis=1)
        expected = array.copy()
        there = self.ring.send(array)
        assert expected.shape == tuple(there.shape)
        array[:] = 77
        self.sent.append((expected, there))

    @rule(num_copies=st.integers(1, 5))
    def end(self, num_copies: int) -> None:
        self.stream.run(num_copies)

    @invariant()
    def stays_small(self) -> None:
        """The ring has no more buffers than it may, of sizes that are powers of two."""
        buffers = self.ring._buffers
        assert len(buffers) <= 3
        assert all(buffer.num_bytes in {32, 64, 128, 256, 512} for buffer in buffers)

    def teardown(self) -> None:
        """Let all copies end, and compare."""
        self.patch.undo()
        self.stream.run(len(self.stream.waiting))
        for expected, there in self.sent:
            assert torch.equal(torch.from_numpy(expected), there)


TestRing = RingMachine.TestCase
TestRing.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


SMALL, HUGE = 36, pinned.MAX_BYTES + 1


@pytest.mark.parametrize(
    ("sends", "expected", "num_buffers"),
    [
        # A buffer whose copy has ended is used again.
        ([(0, SMALL), (1, 2 * SMALL), (1, SMALL)], [pinned.MIN_BYTES], 1),
        # While copies are pending new buffers are made; afterwards these are reused in turn.
        ([(0, SMALL)] * 3 + [(1, SMALL)] * 5, [pinned.MIN_BYTES] * 3, 3),
        # A buffer that is too small is replaced by one of the next power of two.
        ([(1, 1), (1, 5000), (1, 4097), (1, 8192)], [4096, 8192], 1),
        # An array larger than a ring's buffers has memory of its own, of its own size, each time.
        ([(1, SMALL), (1, HUGE), (1, HUGE)], [pinned.MIN_BYTES, HUGE, HUGE], 1),
        # A full ring keeps no more; each further copy has memory of its own.
        (
            [(0, SMALL)] * (pinned.MAX_BUFFERS + 2),
            [pinned.MIN_BYTES] * (pinned.MAX_BUFFERS + 2),
            pinned.MAX_BUFFERS,
        ),
    ],
)
def test_which_memory_is_pinned(
    sends: list[tuple[int, int]], expected: list[int], num_buffers: int
) -> None:
    stream = FakeStream()
    ring = Ring(stream)
    for num_ended, num_bytes in sends:
        stream.run(num_ended)
        ring.send(make(num_bytes, "uint8"))
    assert expected == stream.num_pinned
    assert num_buffers == len(ring._buffers)


def test_a_call_that_is_broken_off_loses_its_buffer() -> None:
    stream = FakeStream()
    ring = Ring(stream)
    ring.send(make(9))
    stream.run(1)
    mark = stream.mark

    def interrupt(_: object) -> Mark:
        raise KeyboardInterrupt

    stream.mark = interrupt  # type: ignore[method-assign]  # that is the interruption
    with pytest.raises(KeyboardInterrupt):
        ring.send(make(9))
    assert 0 == len(ring._buffers)
    stream.mark = mark  # type: ignore[method-assign]  # and it is over
    ring.send(make(9))
    assert 2 == len(stream.num_pinned)


def test_a_call_inside_another() -> None:
    stream = FakeStream()
    ring = Ring(stream)
    ring.send(make(9))
    stream.run(1)
    copy, inner = stream.copy, []

    def copy_and_call(source: torch.Tensor) -> torch.Tensor:
        stream.copy = copy  # type: ignore[method-assign]  # once
        inner.append(ring.send(make(9, start=50)))
        return copy(source)

    stream.copy = copy_and_call  # type: ignore[method-assign]  # the handler
    outer = ring.send(make(9))
    stream.run(2)
    assert [*range(50, 59)] == inner[0].tolist()
    assert [*range(9)] == outer.tolist()


@pytest.mark.parametrize("is_prepared", [False, True])
def test_buffers_of_graphs_stay_alive(is_prepared: bool) -> None:
    stream = FakeStream()
    reserve = Reserve(stream.pin)
    for _ in range(2 * is_prepared):
        reserve.prepare()
    held = [reserve.take(array.nbytes).hold(array) for array in map(make, (3, 0, 1000, 5))]
    assert [pinned.RESERVE_BYTES] == stream.num_pinned
    reserve.take(2 * pinned.RESERVE_BYTES)
    assert [pinned.RESERVE_BYTES, 2 * pinned.RESERVE_BYTES] == stream.num_pinned
    assert [[*range(n)] for n in (3, 0, 1000, 5)] == [one.tolist() for one in held]


class Gpus:
    """Two fake GPUs: their streams, which one is current, whether a graph is captured."""

    def __init__(self) -> None:
        self.current = 0
        self.handles = [70, 80]
        self.is_capturing = False
        self.copied: list[tuple[int, int, int]] = []

    @contextmanager
    def device(self, device: torch.device) -> Iterator[None]:
        before, self.current = self.current, 0 if device.index is None else device.index
        yield
        self.current = before


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Gpus:
    gpus = Gpus()

    class Stream(FakeStream):
        def __init__(self, stream: int, device: torch.device) -> None:
            super().__init__()
            self.place = stream, device.index

        def copy(self, source: torch.Tensor) -> torch.Tensor:
            gpus.copied.append((*self.place, source.data_ptr()))
            there = super().copy(source)
            self.run(1)
            return there

    monkeypatch.setattr(pinned, "current_device", lambda: gpus.current)
    monkeypatch.setattr(pinned, "current_stream", lambda index: gpus.handles[index])
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: gpus.handles[device.index])
    monkeypatch.setattr(torch.cuda, "device", gpus.device)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: gpus.is_capturing)
    monkeypatch.setattr(pinned, "_GpuStream", Stream)
    monkeypatch.setattr(pinned, "_THREAD", type(pinned._THREAD)())
    monkeypatch.setattr(pinned, "_RESERVE", Reserve(FakeStream().pin))
    return gpus


def send(index: int | None, array: Any = None) -> list[Any]:
    """Upload an array to a GPU, and return what arrived."""
    array = make(9) if array is None else array
    there: list[Any] = upload(array, torch.device("cuda", index), pin_memory=True).tolist()
    return there


def test_each_stream_has_a_ring(gpus: Gpus) -> None:
    assert [*range(9)] == send(0) == send(1)
    gpus.handles[0] = 71
    assert [*range(9)] == send(0) == send(None)
    places = [place[:2] for place in gpus.copied]
    assert [(70, 0), (80, 1), (71, 0), (71, 0)] == places
    assert [(0, 70), (1, 80), (0, 71)] == list(pinned._THREAD.rings)
    first, second, third, fourth = (place[2] for place in gpus.copied)
    assert third == fourth
    assert 3 == len({first, second, third})
    assert 0 == gpus.current


def test_threads_and_streams_that_come_and_go(gpus: Gpus) -> None:
    send(0)
    other = threading.Thread(target=send, args=(0,))
    other.start()
    other.join()
    first, second = (place[2] for place in gpus.copied)
    assert first != second
    assert 1 == len(pinned._THREAD.rings)
    for handle in range(pinned.MAX_RINGS + 3):
        gpus.handles[0] = handle
        send(0)
    assert [(0, handle) for handle in range(3, pinned.MAX_RINGS + 3)] == list(pinned._THREAD.rings)


def test_a_captured_upload_has_memory_for_good(gpus: Gpus) -> None:
    send(0)
    gpus.is_capturing = True
    assert [[3, 4], [5, 6]] == send(0, np.array([[3, 4], [5, 6]]))
    assert [*range(9)] == send(0)
    gpus.is_capturing = False
    send(0)
    ring, graph, other_graph, ring_again = (place[2] for place in gpus.copied)
    assert ring == ring_again
    assert 3 == len({ring, graph, other_graph})
    reserved = pinned._RESERVE._kept
    assert [graph, other_graph] == [memory.data_ptr() for memory in reserved]
    assert [3, 4, 5, 6] == reserved[0][:32].view(torch.int64).tolist()


def test_arrays_in_any_order(gpus: Gpus) -> None:
    table = make(24).reshape(4, 6)
    for array in (table, table.T, table[::2, 1::3], table[:0], np.array(5), make(0)):
        assert array.tolist() == send(0, array)
    assert len(gpus.copied) == 6
    assert [] == Buffer(torch.empty(0, dtype=torch.uint8)).hold(make(0, "int64")).tolist()


def test_without_pinned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    array = torch.arange(3).numpy()
    on_cpu = upload(array, torch.device("cpu"), pin_memory=True)
    assert on_cpu.data_ptr() == array.ctypes.data  # nothing is copied
    uploads: list[tuple[Any, ...]] = []

    def note(tensor: torch.Tensor, device: torch.device, *, non_blocking: bool) -> str:
        uploads.append((tensor.tolist(), device, non_blocking))
        return "there"

    monkeypatch.setattr(torch.Tensor, "to", note)
    device = torch.device("cuda", 1)
    assert "there" == upload(make(2), device, pin_memory=False)
    assert [([0, 1], device, True)] == uploads


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_what_is_uploaded_in_a_mode(mode: Any, gpus: Gpus) -> None:
    for context in (mode, nullcontext, mode):
        with context():
            assert [*range(9)] == send(0)
    assert 1 == len({place[2] for place in gpus.copied})
