"""A CUDA driver that does nothing, to time the host's share of a launch without a GPU.

It is a few lines of C, compiled on first use, and replaces the driver in this process. CPU tensors
take the place of CUDA tensors.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch

import fast.launch
from fast import direct_launch, numba_cuda

SOURCE: Final = Path(__file__).with_suffix(".c")
MAX_WORDS: Final = 64
STREAM: Final = 0x6000
"""The handle that stands for torch's current stream."""

TYPES: Final = {torch.uint8: "|u1", torch.int32: "<i4", torch.int64: "<i8"}


class Launched(NamedTuple):
    """The last launch, as the driver received it.

    Attributes:
        grid: Blocks along x, y and z.
        block: Threads along x, y and z.
        stream: The stream's handle.
        words: The kernel's arguments, as words.
    """

    grid: tuple[int, ...]
    block: tuple[int, ...]
    stream: int
    words: tuple[int, ...]


class NoDriver:
    """The driver of this process, which must not have another one.

    Raises:
        RuntimeError: There is a GPU, or no C compiler.
    """

    def __init__(self) -> None:
        compiler = shutil.which("cc")
        if torch.cuda.is_available():
            raise RuntimeError("there is a GPU here, which has its own driver")
        if compiler is None:
            raise RuntimeError("a driver that does nothing must be compiled, but there is no cc")
        with tempfile.TemporaryDirectory() as folder:
            library = Path(folder, "libcuda.so.1")
            name = f"-Wl,-soname,{library.name}"
            flags = ["-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", name]
            subprocess.run([compiler, *flags, "-o", library, SOURCE], check=True)  # noqa: S603  # our own
            # Loading a library of this name returns the one that is loaded.
            self._library = ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
        _fake_cuda_tensors()

    def last(self, num_words: int) -> Launched:
        """Return the last launch, with `num_words` recorded words."""
        return Launched(
            tuple((ctypes.c_uint * 3).in_dll(self._library, "launched_grid")),
            tuple((ctypes.c_uint * 3).in_dll(self._library, "launched_block")),
            ctypes.c_int64.in_dll(self._library, "launched_stream").value,
            tuple((ctypes.c_int64 * MAX_WORDS).in_dll(self._library, "words"))[:num_words],
        )

    def note(self, num_words: int) -> None:
        """Record `num_words` words of each launch from now on, and clear the last one's."""
        ctypes.c_int.in_dll(self._library, "num_words").value = num_words
        noted = (ctypes.c_int64 * MAX_WORDS).in_dll(self._library, "words")
        noted[:] = [0] * MAX_WORDS

    def num_launches(self) -> int:
        """Return how many launches there were."""
        return ctypes.c_long.in_dll(self._library, "num_launches").value


def _fake_cuda_tensors() -> None:
    """Make torch report that its tensors are on a GPU, in Python, which takes as long as in C."""

    def describe(tensor: torch.Tensor) -> dict[str, Any]:
        return {
            "shape": tuple(tensor.shape),
            "typestr": TYPES[tensor.dtype],
            "strides": None,
            "data": (tensor.data_ptr(), False),
            "version": 2,
        }

    torch.Tensor.get_device = lambda _: 0  # type: ignore[method-assign, assignment]
    torch.Tensor.__cuda_array_interface__ = property(describe)  # type: ignore[assignment]
    fast.launch.current_device = lambda: 0  # type: ignore[attr-defined]
    direct_launch.current_stream = lambda _: STREAM  # type: ignore[attr-defined]
    numba_cuda.current_stream = lambda _: STREAM  # type: ignore[attr-defined]
