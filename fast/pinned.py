"""Arrays of the host on their way to a GPU: copied through pinned memory, and never waited for.

A copy from pinned memory returns at once and reads the memory later, so what is written there in
the meantime would travel in its place. Each thread has a ring of pinned buffers for each stream.
The copies of a stream end in the order in which they were put there, so of a ring the buffer that
was used longest ago is free first, and is the only one that is asked.
"""

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from fast.current import current_device, current_stream

Array: TypeAlias = npt.NDArray[Any]

LEAST_BYTES: Final = 2**12
"""The smallest buffer of a ring."""

MOST_BYTES: Final = 2**20
"""The largest buffer of a ring; what needs a larger one has its own, which torch has back then."""

MOST_BUFFERS: Final = 32
"""Buffers in a ring: as many copies may be on their way before torch allocates for each."""

MOST_RINGS: Final = 16
"""Streams of which a thread has a ring."""

RESERVE_BYTES: Final = 2**20
"""Pinned at a time for the copies of CUDA graphs."""

ALIGNMENT_BYTES: Final = 64
"""Where a graph's array may start in what is pinned for all of them."""


class Event(Protocol):
    """A mark in a stream of copies."""

    def query(self) -> bool:
        """Say whether all before the mark has ended."""


class Stream(Protocol):
    """What a ring asks of a stream, and of what pins memory."""

    def pin(self, num_bytes: int) -> torch.Tensor:
        """Return pinned memory. It is nobody else's before the copies from it have ended."""

    def copy(self, pinned: torch.Tensor) -> torch.Tensor:
        """Put a copy to the device into the stream."""

    def mark(self, event: Any) -> Event:  # noqa: ANN401  (an event that it made)
        """Move the event to the end of the stream; without one, make it."""


class Buffer:
    """Pinned memory, and the end of the last copy from it.

    Attributes:
        num_bytes: of memory.
        event: marks the end of the last copy; None: there was none.

    Args:
        memory: uint8[num_bytes], pinned.
    """

    def __init__(self, memory: torch.Tensor) -> None:
        self.num_bytes = len(memory)
        self.event: Event | None = None
        self._memory = memory
        self._views: dict[np.dtype[Any], tuple[Array, torch.Tensor]] = {}

    def hold(self, array: Array) -> torch.Tensor:
        """Write an array there, and return it as a tensor of one dimension."""
        on_host, pinned = self._views.get(array.dtype) or self._view(array.dtype)
        size = array.size
        on_host[:size] = array if array.ndim == 1 else array.ravel()
        return pinned[:size]

    def _view(self, dtype: np.dtype[Any]) -> tuple[Array, torch.Tensor]:
        """View the memory as items of a dtype: made once, it saves 3 µs a copy."""
        num_bytes = self.num_bytes // dtype.itemsize * dtype.itemsize
        on_host = self._memory.numpy()[:num_bytes].view(dtype)
        torch_dtype = torch.from_numpy(np.empty(0, dtype)).dtype
        self._views[dtype] = on_host, self._memory[:num_bytes].view(torch_dtype)
        return self._views[dtype]


class Ring:
    """Pinned buffers of one stream, each used again once the copy from it has ended.

    A buffer is in the ring only from the end of a call to the start of one: a call inside another,
    from a signal's handler or a finaliser, never meets one that is being filled, and one whose call
    is broken off is not used again.

    Args:
        stream: where copies go.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._buffers: deque[Buffer] = deque()  # used longest ago first

    def send(self, array: Array) -> torch.Tensor:
        """Copy an array to the device, and return the tensor there.

        Where too many copies are on their way, or the array is too large for a ring, the memory is
        torch's before and after: its allocator knows the copy too.
        """
        buffer = self._take(array.nbytes)
        sent = self._stream.copy(buffer.hold(array))
        if buffer.num_bytes <= MOST_BYTES and len(self._buffers) < MOST_BUFFERS:
            buffer.event = self._stream.mark(buffer.event)
            self._buffers.append(buffer)
        return sent if array.ndim == 1 else sent.view(array.shape)

    def _take(self, num_bytes: int) -> Buffer:
        """Take the buffer whose copy ended first out of the ring, or a new one."""
        if self._buffers and num_bytes <= MOST_BYTES:
            buffer = self._buffers.popleft()
            if buffer.event is None or not buffer.event.query():
                self._buffers.appendleft(buffer)  # all others are further behind
            elif buffer.num_bytes >= num_bytes:
                return buffer
        size = max(LEAST_BYTES, 1 << (num_bytes - 1).bit_length())
        return Buffer(self._stream.pin(size if size <= MOST_BYTES else num_bytes))


class Reserve:
    """Pinned memory for the copies of CUDA graphs, which is never used again.

    A graph reads the memory anew at each replay. It is pinned before it is needed: while a graph is
    captured CUDA may refuse to pin more.

    Args:
        pin: returns pinned memory of so many bytes.
    """

    def __init__(self, pin: Callable[[int], torch.Tensor]) -> None:
        self._pin = pin
        self._lock = threading.Lock()
        self._left: torch.Tensor | None = None
        self._kept: list[torch.Tensor] = []

    def prepare(self) -> None:
        """Pin what the next graphs need, if nothing is left."""
        with self._lock:
            if self._left is None:
                self._left = self._pin(RESERVE_BYTES)

    def take(self, num_bytes: int) -> Buffer:
        """Return a buffer for good."""
        size = -(-num_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        with self._lock:
            if self._left is None or len(self._left) < size:
                self._left = self._pin(max(size, RESERVE_BYTES))
            memory, self._left = self._left[:size], self._left[size:]
            self._kept.append(memory)
        return Buffer(memory)


class _GpuStream(NamedTuple):
    """A stream of torch's on a GPU."""

    stream: torch.cuda.Stream
    device: torch.device

    def pin(self, num_bytes: int) -> torch.Tensor:
        """Return memory that torch pins."""
        return _pin(num_bytes)

    def copy(self, pinned: torch.Tensor) -> torch.Tensor:
        """Put a copy to the GPU into the current stream, which is this one."""
        return pinned.to(self.device, non_blocking=True, copy=True)

    def mark(self, event: torch.cuda.Event | None) -> torch.cuda.Event:
        """Record an event, a new one if there is none."""
        if event is None:
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch types it so
        event.record(self.stream)
        return event


class _Thread(threading.local):
    """The rings of the running thread, for GPUs and streams of torch's."""

    def __init__(self) -> None:
        self.rings: dict[tuple[int, int], Ring] = {}


def _pin(num_bytes: int) -> torch.Tensor:
    """Return memory that torch pins, and that outlives the mode in which it is made."""
    with torch.inference_mode(mode=False):
        return torch.empty(num_bytes, dtype=torch.uint8, device="cpu", pin_memory=True)


_THREAD: Final = _Thread()
_RESERVE: Final = Reserve(_pin)


def prepare_graphs() -> None:
    """Pin what is uploaded while the next graphs are captured, when CUDA may refuse to pin."""
    _RESERVE.prepare()


def upload(array: Array, device: torch.device, *, pin_memory: bool) -> torch.Tensor:
    """Copy an array to a device, on torch's current stream there, without waiting for it.

    Captured into a CUDA graph, the copy brings at each replay what the array held at the capture;
    the memory for that is kept as long as the process lives.

    While another thread captures a graph in torch's default mode, `capture_error_mode="global"`,
    CUDA forbids two things that an upload does: to query an event, and to allocate memory, on the
    device or pinned, where torch has none left. Either one ends that capture with an error, as any
    allocation of torch's would. Capture with `capture_error_mode="thread_local"` if other threads
    go on calling.

    Args:
        array: what travels; on the CPU the result is its memory.
        device: where to.
        pin_memory: whether by way of pinned memory; if not, the copy begins after all that is on
            the stream already, the call may wait for it, and no graph can capture it.

    Returns:
        The tensor there, of the same shape and dtype.
    """
    if device.type == "cpu":
        return torch.from_numpy(array)
    if not pin_memory:
        return torch.from_numpy(array).to(device, non_blocking=True)
    index = device.index
    if index is None or index != current_device():
        with torch.cuda.device(device):
            index = current_device()
            return upload(array, torch.device(device.type, index), pin_memory=True)
    if torch.cuda.is_current_stream_capturing():
        stream = _GpuStream(torch.cuda.current_stream(device), device)
        return stream.copy(_RESERVE.take(array.nbytes).hold(array)).view(array.shape)
    key = index, current_stream(index)
    ring = _THREAD.rings.get(key) or _make_ring(key, device)
    return ring.send(array)


def _make_ring(key: tuple[int, int], device: torch.device) -> Ring:
    """Make a ring for the current stream, in the place of the thread's oldest if there are many."""
    prepare_graphs()
    rings = _THREAD.rings
    if len(rings) >= MOST_RINGS:
        del rings[next(iter(rings))]
    rings[key] = Ring(_GpuStream(torch.cuda.current_stream(device), device))
    return rings[key]
