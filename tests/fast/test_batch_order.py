from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import fast
from fast import (
    split_decodes_and_prefills,
    split_decodes_prefills_and_extends,
)

Make = Callable[..., fast.CommonAttentionMetadata]


@pytest.mark.parametrize("split", [split_decodes_and_prefills, split_decodes_prefills_and_extends])
def test_fewer_than_no_requests(split: Callable[..., Any]) -> None:
    nothing = torch.empty(0, dtype=torch.int32)
    own = SimpleNamespace(
        query_start_loc_cpu=nothing,
        num_computed_tokens_cpu=nothing,
        num_reqs=-1,
        num_actual_tokens=0,
    )
    with fast.checks(enabled=False), pytest.raises(ValueError, match="-1"):
        split(own)
