import numpy as np
import torch

from fast import CpuGpuBuffer


def make(*size: int, dtype: torch.dtype = torch.int32) -> CpuGpuBuffer:
    """Make a buffer on the CPU."""
    return CpuGpuBuffer(*size, dtype=dtype, device="cpu", pin_memory=False)


def test_two_halves() -> None:
    """On the CPU too the halves are two tensors, and nothing passes between them by itself."""
    buffer = make(2, 3)
    buffer.np[:] = 7
    assert buffer.gpu.tolist() == [[0, 0, 0], [0, 0, 0]]
    assert buffer.cpu.tolist() == [[7, 7, 7], [7, 7, 7]]
    assert np.shares_memory(buffer.np, buffer.cpu.numpy())


def test_outlives_inference_mode() -> None:
    """A buffer that is made in inference mode can be written outside."""
    with torch.inference_mode():
        buffer = make(2)
    buffer.np[:] = 7
    assert buffer.copy_to_gpu().tolist() == [7, 7]
    assert buffer.copy_to_cpu().tolist() == [7, 7]


def test_pins_where_it_can() -> None:
    """Without a GPU nothing can be pinned, and that is not an error."""
    buffer = CpuGpuBuffer(2, dtype=torch.int64, device=torch.device("cpu"), pin_memory=True)
    assert buffer.cpu.is_pinned() == torch.cuda.is_available()
