import numpy as np
import torch

from fast import CpuGpuBuffer


def make(*size: int, dtype: torch.dtype = torch.int32) -> CpuGpuBuffer:
    return CpuGpuBuffer(*size, dtype=dtype, device="cpu", pin_memory=False)


def test_two_halves() -> None:
    buffer = make(2, 3)
    buffer.np[:] = 7
    assert buffer.gpu.tolist() == [[0, 0, 0], [0, 0, 0]]
    assert buffer.cpu.tolist() == [[7, 7, 7], [7, 7, 7]]
    assert np.shares_memory(buffer.np, buffer.cpu.numpy())


def test_outlives_inference_mode() -> None:
    with torch.inference_mode():
        buffer = make(2)
    buffer.np[:] = 7
    assert buffer.copy_to_gpu().tolist() == [7, 7]
    assert buffer.copy_to_cpu().tolist() == [7, 7]


def test_pins_where_it_can() -> None:
    buffer = CpuGpuBuffer(2, dtype=torch.int64, device=torch.device("cpu"), pin_memory=True)
    assert buffer.cpu.is_pinned() == torch.cuda.is_available()
