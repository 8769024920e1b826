"""What the tests of `reference` share: a batch, written as lists."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest

from reference import PAD_SLOT_ID, CommonAttentionMetadata


def _make_batch(
    query_lens: list[int],
    computed: list[int],
    *,
    block_size: int = 2,
    padding_tokens: int = 0,
    **changes: object,
) -> CommonAttentionMetadata:
    """Make a batch whose requests own distinct blocks, in an order that is not the slots'."""
    starts = [sum(query_lens[:i]) for i in range(len(query_lens) + 1)]
    seq_lens = [c + q for c, q in zip(computed, query_lens, strict=True)]
    width = -(-max(seq_lens, default=0) // block_size) + 1
    num_reqs = len(query_lens)
    table = [[1 + i + (width - 1 - k) * num_reqs for k in range(width)] for i in range(num_reqs)]
    slots: list[int] = []
    for i in range(num_reqs):
        slots += [
            table[i][position // block_size] * block_size + position % block_size
            for position in range(computed[i], seq_lens[i])
        ]
    metadata = CommonAttentionMetadata(
        query_start_loc=np.array(starts, np.int32),
        query_start_loc_cpu=np.array(starts, np.int32),
        seq_lens=np.array(seq_lens, np.int32),
        seq_lens_cpu=np.array(seq_lens, np.int32),
        num_computed_tokens_cpu=np.array(computed, np.int32),
        num_reqs=num_reqs,
        num_actual_tokens=starts[-1] + padding_tokens,
        max_query_len=max(query_lens, default=0),
        max_seq_len=max(seq_lens, default=0),
        block_table_tensor=np.array(table, np.int32).reshape(num_reqs, width),
        slot_mapping=np.array(slots + [PAD_SLOT_ID] * padding_tokens, np.int64),
    )
    return dataclasses.replace(metadata, **changes)


@pytest.fixture(scope="session")
def make_batch() -> Callable[..., CommonAttentionMetadata]:
    """Return the function that makes a batch of query lengths and computed tokens."""
    return _make_batch
