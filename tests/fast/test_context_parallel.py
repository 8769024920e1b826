import pytest
import torch

import fast
from fast import get_dcp_local_seq_lens


def int32(values: list[int]) -> torch.Tensor:
    """Return an int32 tensor."""
    return torch.tensor(values, dtype=torch.int32)


def test_lengths_are_checked_in_checked_mode() -> None:
    """A negative length is found only where values are read."""
    with fast.checks(enabled=False):
        get_dcp_local_seq_lens(int32([3, -1]), 2)
    with fast.checks(enabled=True), pytest.raises(ValueError, match=r"seq_lens\[1\] is -1"):
        get_dcp_local_seq_lens(int32([3, -1]), 2)
