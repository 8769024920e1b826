"""Each example runs with `reference` and with `fast`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import fast
import reference
from tests.examples.twins import Twin


@pytest.fixture(params=["reference", "fast"])
def twin(request: pytest.FixtureRequest) -> Iterator[Twin]:
    """Yield each twin."""
    if request.param == "reference":
        yield Twin(reference)
        return
    torch.set_num_threads(1)
    with fast.checks(enabled=False):
        yield Twin(fast)
