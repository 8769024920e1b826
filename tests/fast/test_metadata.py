from types import SimpleNamespace
from typing import Any

import pytest
import torch

import fast
from tests.fast.conftest import int32


def halves(values: list[int]) -> SimpleNamespace:
    """Return an object with the two halves of a buffer."""
    return SimpleNamespace(cpu=int32(values), gpu=int32(values))


def test_build_attn_metadata_reads_strided_halves(step: dict[str, Any]) -> None:
    starts = torch.arange(8, dtype=torch.int32)[::2]
    step["query_start_loc"] = SimpleNamespace(cpu=starts, gpu=starts)
    step |= {
        "seq_lens": halves([2, 2, 7]),
        "num_tokens": 6,
        "num_computed_tokens_cpu": int32([0, 0, 5]),
    }
    step["slot_mappings"] = torch.zeros(2, 6).long()
    with fast.checks(enabled=True):
        fast.build_attn_metadata(**step)
    batch = step["attn_metadata_builders"][0].given[0][1]
    assert (2, 7) == (batch.max_query_len, batch.max_seq_len)
    assert [0, 2, 4, 6] == batch.query_start_loc.tolist()


def test_build_attn_metadata_reads_no_values_if_both_bounds_are_given(
    step: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fast.metadata.find_maxima", None)
    fast.build_attn_metadata(**step, max_query_len=1, max_seq_len=0)
    batch = step["attn_metadata_builders"][0].given[0][1]
    assert (1, 0) == (batch.max_query_len, batch.max_seq_len)
