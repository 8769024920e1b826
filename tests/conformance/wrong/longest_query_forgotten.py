"""`fast`, but the last micro-batch has the whole step's longest query: a field of metadata."""

# ruff: noqa: F403  # it is what the file is for

import fast
from fast import *


def split_attn_metadata(
    ubatch_slices: list[fast.UBatchSlice], common_attn_metadata: fast.CommonAttentionMetadata
) -> list[fast.CommonAttentionMetadata]:
    """Return micro-batches, the last of them with a wrong `max_query_len`."""
    parts = fast.split_attn_metadata(ubatch_slices, common_attn_metadata)
    for part in parts[-1:]:
        part.max_query_len = common_attn_metadata.max_query_len
    return parts
