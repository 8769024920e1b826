"""Shared by the tests of `reference`: a batch, written as lists."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from reference import CommonAttentionMetadata
from tests.twins.arrays import batch_fields


def _make_batch(
    query_lens: list[int],
    computed: list[int],
    *,
    block_size: int = 2,
    padding_tokens: int = 0,
    **changes: object,
) -> CommonAttentionMetadata:
    fields = batch_fields(query_lens, computed, block_size, padding_tokens)
    return CommonAttentionMetadata(**fields | changes)


@pytest.fixture(scope="session")
def make_batch() -> Callable[..., CommonAttentionMetadata]:
    """Return the function that makes a batch of query lengths and computed tokens."""
    return _make_batch
