"""Get torch's current device and stream in the cheapest way.

`torch.cuda.current_stream` makes an object for a number that torch's own compiler gets from a
private function. If torch does not have the private names (it was built without CUDA, or is another
version), the public ones are used.
"""

from collections.abc import Callable
from typing import Final

import torch


def _public_stream(device_index: int) -> int:
    """Return the handle of torch's current stream on a GPU, with public names."""
    handle: int = torch.cuda.current_stream(device_index).cuda_stream
    return handle


def choose(private: str, public: Callable[..., int]) -> Callable[..., int]:
    """Return torch's private function of this name, or the public one if there is none."""
    found: Callable[..., int] = getattr(torch._C, private, public)  # noqa: SLF001  (that is the point)
    return found


current_device: Final[Callable[[], int]] = choose("_cuda_getDevice", torch.cuda.current_device)
"""Returns the index of the current GPU."""

current_stream: Final[Callable[[int], int]] = choose("_cuda_getCurrentRawStream", _public_stream)
"""Returns the handle of the current stream on the GPU of an index; 0 is the default stream."""
