"""NumPy arrays to convert with `twin.convert`, and the fields of a batch."""

from __future__ import annotations

from typing import Any

import numpy as np

from reference import PAD_SLOT_ID


def int32(*values: int) -> np.ndarray[Any, Any]:
    """Return an int32 vector."""
    return np.array(values, np.int32)


def int64(*values: int) -> np.ndarray[Any, Any]:
    """Return an int64 vector."""
    return np.array(values, np.int64)


def batch_fields(
    query_lens: list[int], computed: list[int], block_size: int = 2, padding_tokens: int = 0
) -> dict[str, Any]:
    """Return the fields of a batch's metadata.

    Requests own distinct blocks, in another order than their slots.
    """
    num_reqs = len(query_lens)
    starts = [sum(query_lens[:i]) for i in range(num_reqs + 1)]
    seq_lens = [c + q for c, q in zip(computed, query_lens, strict=True)]
    width = -(-max(seq_lens, default=0) // block_size) + 1
    table = np.zeros((num_reqs, width), np.int32)
    table[:, ::-1] = np.arange(1, num_reqs * width + 1).reshape(width, num_reqs).T
    slots = [
        table[i, position // block_size] * block_size + position % block_size
        for i in range(num_reqs)
        for position in range(computed[i], seq_lens[i])
    ]
    return {
        "query_start_loc": int32(*starts),
        "query_start_loc_cpu": int32(*starts),
        "seq_lens": int32(*seq_lens),
        "seq_lens_cpu": int32(*seq_lens),
        "num_computed_tokens_cpu": int32(*computed),
        "num_reqs": num_reqs,
        "num_actual_tokens": starts[-1] + padding_tokens,
        "max_query_len": max(query_lens, default=0),
        "max_seq_len": max(seq_lens, default=0),
        "block_table_tensor": table,
        "slot_mapping": int64(*slots, *[PAD_SLOT_ID] * padding_tokens),
    }


def counts_of(metadata: Any) -> tuple[int, int, int, int]:
    """Return a metadata's numbers of requests and tokens, and its two maximum lengths."""
    return (
        metadata.num_reqs,
        metadata.num_actual_tokens,
        metadata.max_query_len,
        metadata.max_seq_len,
    )
