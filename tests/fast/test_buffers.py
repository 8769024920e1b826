import numpy as np
import pytest
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


@pytest.mark.parametrize(
    ("size", "changes", "error", "message"),
    [
        ((2,), {"dtype": np.int32}, TypeError, "^dtype must be a supported dtype, got NumPy dty"),
        ((2,), {"device": 0}, TypeError, "device must be a device"),
        ((2,), {"device": "nowhere"}, ValueError, "device is 'nowhere'"),
    ],
)
def test_refuses(
    size: tuple[int, ...], changes: dict[str, object], error: type[Exception], message: str
) -> None:
    """An invalid argument is refused by its name."""
    arguments = {"dtype": torch.int32, "device": "cpu", "pin_memory": False, **changes}
    with pytest.raises(error, match=message):
        CpuGpuBuffer(*size, **arguments)
