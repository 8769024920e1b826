from types import SimpleNamespace

import pytest
import torch

from fast.current_stream import choose, current_device, current_stream


def test_torchs_private_names_where_it_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 3, raising=False)
    assert 3 == choose("_cuda_getDevice", lambda: 7)()


def test_public_names_where_torch_has_no_private_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 7 == choose("_no_such_name", lambda: 7)()
    if hasattr(torch._C, "_cuda_getCurrentRawStream"):
        pytest.skip("this torch has the private names")
    monkeypatch.setattr(
        torch.cuda, "current_stream", lambda index: SimpleNamespace(cuda_stream=index + 70)
    )
    assert 72 == current_stream(2)
    assert current_device is torch.cuda.current_device
