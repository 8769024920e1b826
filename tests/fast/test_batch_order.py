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
def test_split_refuses(split: Callable[..., Any], make_batch: Make) -> None:
    """O(1) checks are made in any mode, the batch's own in checked mode."""
    with pytest.raises(ValueError, match="query_start_loc_cpu has 2 entries, expected 3"):
        split(make_batch([1], [3], num_reqs=2))
    batch = make_batch([1], [3], max_seq_len=3)
    with fast.checks(enabled=False):
        assert sum(split(batch)) == 2
    with fast.checks(enabled=True), pytest.raises(ValueError, match="max_seq_len is 3"):
        split(batch)


@pytest.mark.parametrize("split", [split_decodes_and_prefills, split_decodes_prefills_and_extends])
def test_fewer_than_no_requests(split: Callable[..., Any]) -> None:
    """A negative number of requests does not fit starts that are empty."""
    nothing = torch.empty(0, dtype=torch.int32)
    own = SimpleNamespace(
        query_start_loc_cpu=nothing,
        num_computed_tokens_cpu=nothing,
        num_reqs=-1,
        num_actual_tokens=0,
    )
    with fast.checks(enabled=False), pytest.raises(ValueError, match="-1"):
        split(own)
