"""Causal convolutions over a ragged batch: which program of the kernel computes which tokens."""

from __future__ import annotations

from typing import Any

import numpy as np

from reference._checks import Int32Array, check_query_start_loc
from reference.block_table import PAD_SLOT_ID

BLOCK_M = 8
"""The most tokens of one program."""

MIN_PROGRAMS = 1024
"""`batch_ptr` and `token_chunk_offset_ptr` have at least twice this length."""


def compute_causal_conv1d_metadata(
    query_start_loc_p: Int32Array,
) -> tuple[dict[int, dict[str, Any]], Int32Array, Int32Array]:
    """List the programs of a causal convolution kernel: one for each run of 8 tokens.

    A sequence of `q_i` tokens has `ceil(q_i / 8)` programs. They are listed sequence by sequence,
    in the order of the tokens: the program with the offset `k` computes the sequence's tokens
    `8 * k .. min(8 * k + 8, q_i) - 1`.

    Args:
        query_start_loc_p: int32[num_sequences + 1], where the tokens of each prefill start; begins
            at 0 and does not decrease.

    Returns:
        `nums_dict`, `batch_ptr` and `token_chunk_offset_ptr`, all new. The dict has one key, 8,
        whose value is a dict of

        - `nums`: int32[num_sequences], the number of programs of each sequence;
        - `tot`: their sum, an int;
        - `mlist`: int64[tot], the sequence of each program;
        - `mlist_len`: its length, an int;
        - `offsetlist`: int32[tot], the offset of each program in its sequence;
        - `batch_ptr` and `token_chunk_offset_ptr`: the same two arrays that are returned. They are
          int32[2 * max(1024, mlist_len)] and hold `mlist` and `offsetlist`, then `PAD_SLOT_ID`.

    Raises:
        TypeError: An argument that is not an array, or of the wrong dtype.
        ValueError: Not one dimension, no entries, a first entry that is not 0, an entry that is
            less than the one before it.

    Example:
        >>> import numpy as np
        >>> starts = np.array([0, 9, 9, 25], np.int32)
        >>> nums_dict, batch_ptr, token_chunk_offset_ptr = compute_causal_conv1d_metadata(starts)
        >>> programs = nums_dict[8]
        >>> programs["nums"].tolist(), programs["tot"]
        ([2, 0, 2], 4)
        >>> programs["mlist"].tolist(), programs["offsetlist"].tolist()
        ([0, 0, 2, 2], [0, 1, 0, 1])
        >>> batch_ptr[:6].tolist(), token_chunk_offset_ptr[:6].tolist(), len(batch_ptr)
        ([0, 0, 2, 2, -1, -1], [0, 1, 0, 1, -1, -1], 2048)

    Source: the definition is kvtwin's own; the names are vLLM's.
    """
    starts = check_query_start_loc("query_start_loc_p", query_start_loc_p)
    nums: list[int] = []
    mlist: list[int] = []
    offsetlist: list[int] = []
    for sequence in range(len(starts) - 1):
        num_tokens = starts[sequence + 1] - starts[sequence]
        num_programs = -(-num_tokens // BLOCK_M)
        nums.append(num_programs)
        for offset in range(num_programs):
            mlist.append(sequence)
            offsetlist.append(offset)

    padding = [PAD_SLOT_ID] * (2 * max(MIN_PROGRAMS, len(mlist)) - len(mlist))
    batch_ptr = np.array(mlist + padding, dtype=np.int32)
    token_chunk_offset_ptr = np.array(offsetlist + padding, dtype=np.int32)
    programs = {
        "nums": np.array(nums, dtype=np.int32),
        "tot": sum(nums),
        "mlist": np.array(mlist, dtype=np.int64),
        "mlist_len": len(mlist),
        "offsetlist": np.array(offsetlist, dtype=np.int32),
        "batch_ptr": batch_ptr,
        "token_chunk_offset_ptr": token_chunk_offset_ptr,
    }
    return {BLOCK_M: programs}, batch_ptr, token_chunk_offset_ptr
