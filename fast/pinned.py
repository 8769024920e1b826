"""Upload arrays to a GPU through pinned memory, without waiting.

A copy from pinned memory returns at once and reads the memory later, so overwriting it earlier
would change what is copied. Each thread has a ring of pinned buffers for each stream. The copies of
a stream end in the order in which they were issued, so the least recently used buffer of a ring is
free first, and is the only one whose event is queried.
"""

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from fast.current_stream import current_device, current_stream

Array: TypeAlias = npt.NDArray[Any]

MIN_BYTES: Final = 2**12
"""The smallest buffer of a ring."""

MAX_BYTES: Final = 2**20
"""The largest buffer of a ring; for a larger array torch's allocator provides the memory."""

MAX_BUFFERS: Final = 32
"""The most buffers in a ring: with more copies in flight torch allocates memory for each."""

MAX_RINGS: Final = 16
"""The most streams for which a thread has a ring."""

RESERVE_BYTES: Final = 2**20
"""The bytes that are pinned at a time for copies in CUDA graphs."""

ALIGNMENT_BYTES: Final = 64
"""The alignment of a graph's array in the memory that is pinned for all graphs."""


class Buffer:
    """Pinned memory, uint8[num_bytes], and the event after its last copy (None: no copy)."""

    def __init__(self, memory: torch.Tensor) -> None:
        self.num_bytes = len(memory)
        self.event: Any = None
        self._memory = memory
        self._views: dict[np.dtype[Any], tuple[Array, torch.Tensor]] = {}

    def hold(self, array: Array) -> torch.Tensor:
        """Write an array to the buffer, and return it as a tensor of one dimension."""
        on_host, pinned = self._views.get(array.dtype) or self._view(array.dtype)
        size = array.size
        on_host[:size] = array if array.ndim == 1 else array.ravel()
        return pinned[:size]

    def _view(self, dtype: np.dtype[Any]) -> tuple[Array, torch.Tensor]:
        """View the memory as items of a dtype; caching the view saves 3 µs a copy."""
        num_bytes = self.num_bytes // dtype.itemsize * dtype.itemsize
        on_host = self._memory.numpy()[:num_bytes].view(dtype)
        torch_dtype = torch.from_numpy(np.empty(0, dtype)).dtype
        self._views[dtype] = on_host, self._memory[:num_bytes].view(torch_dtype)
        return self._views[dtype]


class Ring:
    """Pinned buffers of one stream; each is reused after the copy from it has ended.

    A buffer is out of the ring during a call: so a nested call, from a signal handler or a
    finaliser, cannot overwrite it, and a buffer whose call was interrupted is not reused.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._buffers: deque[Buffer] = deque()  # least recently used first

    def send(self, array: Array) -> torch.Tensor:
        """Copy an array to the device, and return the tensor there.

        With too many copies in flight, or an array too large for a ring, torch's allocator provides
        the memory; it tracks the copy too.
        """
        buffer = self._take(array.nbytes)
        sent: torch.Tensor = self._stream.copy(buffer.hold(array))
        if buffer.num_bytes <= MAX_BYTES and len(self._buffers) < MAX_BUFFERS:
            buffer.event = self._stream.mark(buffer.event)
            self._buffers.append(buffer)
        return sent if array.ndim == 1 else sent.view(array.shape)

    def _take(self, num_bytes: int) -> Buffer:
        """Take the buffer whose copy ended first out of the ring, or make a new one."""
        if self._buffers and num_bytes <= MAX_BYTES:
            buffer = self._buffers.popleft()
            if buffer.event is None or not buffer.event.query():
                self._buffers.appendleft(buffer)  # all others are further behind
            elif buffer.num_bytes >= num_bytes:
                return buffer
        size = max(MIN_BYTES, 1 << (num_bytes - 1).bit_length())
        return Buffer(self._stream.pin(size if size <= MAX_BYTES else num_bytes))


class Reserve:
    """Pinned memory for copies in CUDA graphs, which is never reused.

    A graph reads the memory again at each replay. It is pinned beforehand, since CUDA may refuse to
    pin more while a graph is captured. `pin` returns that many bytes of pinned memory.
    """

    def __init__(self, pin: Callable[[int], torch.Tensor]) -> None:
        self._pin = pin
        self._lock = threading.Lock()
        self._left: torch.Tensor | None = None
        self._kept: list[torch.Tensor] = []

    def prepare(self) -> None:
        """Pin the memory for the next graphs, if none is left."""
        with self._lock:
            if self._left is None:
                self._left = self._pin(RESERVE_BYTES)

    def take(self, num_bytes: int) -> Buffer:
        """Return a buffer permanently."""
        size = -(-num_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        with self._lock:
            if self._left is None or len(self._left) < size:
                self._left = self._pin(max(size, RESERVE_BYTES))
            memory, self._left = self._left[:size], self._left[size:]
            self._kept.append(memory)
        return Buffer(memory)


class _GpuStream(NamedTuple):
    """The operations of a stream that a ring needs.

    `pin` returns memory that torch does not reuse before the copies from it have ended, `copy`
    issues a copy on the stream, and `mark` records an event at its end.
    """

    stream: torch.cuda.Stream
    device: torch.device

    def pin(self, num_bytes: int) -> torch.Tensor:
        return _pin(num_bytes)

    def copy(self, pinned: torch.Tensor) -> torch.Tensor:
        return pinned.to(self.device, non_blocking=True, copy=True)

    def mark(self, event: torch.cuda.Event | None) -> torch.cuda.Event:
        if event is None:
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch types it so
        event.record(self.stream)
        return event


class _Thread(threading.local):
    def __init__(self) -> None:
        self.rings: dict[tuple[int, int], Ring] = {}


def _pin(num_bytes: int) -> torch.Tensor:
    """Return memory that torch pins, usable outside the inference mode in which it is made."""
    with torch.inference_mode(mode=False):
        return torch.empty(num_bytes, dtype=torch.uint8, device="cpu", pin_memory=True)


_THREAD: Final = _Thread()
_RESERVE: Final = Reserve(_pin)


def prepare_graphs() -> None:
    """Pin the memory for uploads in the next graphs; during a capture CUDA may refuse to pin."""
    _RESERVE.prepare()


def upload(array: Array, device: torch.device, *, pin_memory: bool) -> torch.Tensor:
    """Copy an array to a device, on torch's current stream there, without waiting.

    Captured into a CUDA graph, the copy uploads at each replay the values of the array at the time
    of the capture; the memory for them is never freed.

    While another thread captures a graph in torch's default mode, `capture_error_mode="global"`,
    CUDA forbids two things that an upload does: querying an event, and allocating device or pinned
    memory if torch has none left. Either one breaks that capture, as any allocation of torch's
    would. Capture with `capture_error_mode="thread_local"` if other threads continue to call
    `fast`.

    Args:
        array: The array; on the CPU the result shares its memory.
        device: The target.
        pin_memory: Whether to copy through pinned memory. Otherwise the copy waits for everything
            on the stream, the call may wait for the copy, and no graph can capture it.

    Returns:
        The tensor on the device, of the same shape and dtype.
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
    """Make a ring for the current stream; with many rings, it replaces the thread's oldest one."""
    prepare_graphs()
    rings = _THREAD.rings
    if len(rings) >= MAX_RINGS:
        del rings[next(iter(rings))]
    rings[key] = Ring(_GpuStream(torch.cuda.current_stream(device), device))
    return rings[key]
