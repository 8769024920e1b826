"""Get torch's current device and stream in the cheapest way.

`torch.cuda.current_stream` makes an object for a number that torch's own compiler gets from a
private function. A torch without the private names (built without CUDA, or another version) has the
public ones.
"""

from collections.abc import Callable
from typing import Final

import torch

current_device: Final[Callable[[], int]] = getattr(
    torch._C,  # noqa: SLF001  (that is the point)
    "_cuda_getDevice",
    torch.cuda.current_device,
)
"""Returns the index of the current GPU."""

current_stream: Final[Callable[[int], int]] = getattr(
    torch._C,  # noqa: SLF001  (likewise)
    "_cuda_getCurrentRawStream",
    lambda index: torch.cuda.current_stream(index).cuda_stream,
)
"""Returns the handle of the current stream on the GPU of an index; 0 is the default stream."""
