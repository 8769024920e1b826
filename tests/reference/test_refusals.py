"""Errors of attention and of the access relation, which `reference` alone has."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

import reference
from tests.examples.twins import Twin

Q, K, MASK = np.zeros((3, 2, 4)), np.zeros((5, 1, 4)), np.ones((3, 5), np.bool_)
CACHE, NEW, READ_ONLY = np.zeros((2, 9, 2, 1, 4)), np.ones((3, 1, 4)), np.zeros((2, 9, 2, 1, 4))
READ_ONLY.flags.writeable = False
FIELDS = {field.name for field in dataclasses.fields(reference.CommonAttentionMetadata)}
ROWS = {f"{width} columns": np.zeros((2, width), np.int32) for width in range(5)}

VALID: dict[str, dict[str, Any]] = {
    "dense_attention": {"q": Q, "k": K, "v": K, "mask": MASK},
    "paged_attention": {"q": Q[:2], "kv_cache": CACHE},
    "merge_attention_states": {"outputs": Q[None], "lses": Q[None, ..., 0]},
    "write_kv_cache": {
        "key": NEW,
        "value": NEW,
        "kv_cache": CACHE,
        "slot_mapping": np.array([1, 2, -1]),
    },
    "kv_reads": {"block_size": 2},
    "kv_writes": {},
}
"""Valid arguments, apart from `metadata`."""

REFUSALS: dict[str, list[tuple[dict[str, Any], str]]] = {
    "dense_attention": [
        ({"q": [[[0.0]]]}, "TypeError: q must be an array, got list"),
        ({"k": K.astype(np.int64)}, "TypeError: k must be float16 or "),
        ({"q": Q[0]}, "ValueError: q must have 3 dimensions, got shape (2, 4)"),
        ({"k": K[..., :3]}, "ValueError: k has shape (5, 1, 3), but must have (*, *, 4), the head"),
        ({"v": K[:4]}, "ValueError: v has shape (4, 1, 4), but must have (5, 1, *), as k has"),
        (
            {"k": K[:, :0], "v": K[:, :0]},
            "ValueError: q has 2 heads, but must have a multiple of 0",
        ),
        (
            {"k": K.repeat(3, 1), "v": K.repeat(3, 1)},
            "ValueError: q has 2 heads, but must have a multiple of 3",
        ),
        ({"mask": MASK.astype(np.int8)}, "TypeError: mask must be bool, got int8"),
        (
            {"mask": MASK.T},
            "ValueError: mask has shape (5, 3), but must have (3, 5), a row",
        ),
        ({"scale": True}, "TypeError: scale must be a number, got True of bool"),
        ({"scale": math.nan}, "ValueError: scale is nan, but must be finite"),
        (
            {"q": Q[..., :0], "k": K[..., :0]},
            "ValueError: q has heads of size 0, but they must have",
        ),
    ],
    "paged_attention": [
        (
            {"kv_cache": CACHE[0]},
            "ValueError: kv_cache must have 5 dimensions, got shape (9, 2, 1, 4)",
        ),
        (
            {"kv_cache": CACHE[:1]},
            "ValueError: kv_cache has shape (1, 9, 2, 1, 4), but must have 2",
        ),
        ({"kv_cache": CACHE[:, :, :0]}, "ValueError: kv_cache has shape (2, 9, 0, 1, 4), but must"),
        ({"kv_cache": CACHE[..., :3]}, "ValueError: kv_cache has shape (2, 9, 2, 1, 3), but must"),
        (
            {"kv_cache": CACHE.repeat(3, 3)},
            "ValueError: q has 2 heads, but must have a multiple of",
        ),
        ({"q": Q[:1]}, "ValueError: q has 1 rows, but the batch 2"),
        ({"scale": "1"}, "TypeError: scale must be a number, got '1' of str"),
        ({"sliding_window": 0}, "ValueError: sliding_window is 0, expected 1 to 2147483647"),
        (
            {"sliding_window": 2, "causal": False},
            "ValueError: sliding_window is 2, but must be None of a non-causal batch",
        ),
        ({"cp_world_size": 0}, "ValueError: cp_world_size is 0, expected 1 to 2147483647"),
        ({"cp_rank": 1}, "ValueError: cp_rank is 1, expected 0 to 0"),
        (
            {"cp_kv_cache_interleave_size": True},
            "TypeError: cp_kv_cache_interleave_size must be an",
        ),
        ({"num_reqs": 3}, "ValueError: query_start_loc has 3 entries, expected num_reqs + 1 = 4"),
        (
            {"block_table_tensor": ROWS["0 columns"], "cp_world_size": 2, "cp_rank": 1},
            "ValueError: seq_lens[0] is 3 and needs 1 blocks of 2, but row 0 of block_table_tensor",
        ),
        *(
            (
                {"block_table_tensor": [[0, block, 0], [0, 0, 0]]},
                f"ValueError: block_table_tensor[0, 1] is {block}, expected 0 to 8",
            )
            for block in (-1, 9)
        ),
    ],
    "merge_attention_states": [
        ({"outputs": Q}, "ValueError: outputs must have 4 dimensions, got shape (3, 2, 4)"),
        ({"lses": Q[..., :2]}, "ValueError: lses has shape (3, 2, 2), but must have (1, 3, 2), as"),
        ({"lses": 1.0}, "TypeError: lses must be an array, got float"),
    ],
    "write_kv_cache": [
        *(
            (
                {"slot_mapping": np.array([1, slot, 3])},
                f"ValueError: slot_mapping[1] is {slot}, expected -1 to 17",
            )
            for slot in (-2, 18)
        ),
        (
            {"slot_mapping": np.array([1, 2, 1])},
            "ValueError: slot_mapping[2] is 1, but that is the slot of token 0",
        ),
        (
            {"slot_mapping": np.zeros(3, np.int32)},
            "TypeError: slot_mapping must be int64, got int32",
        ),
        ({"key": NEW[:2]}, "ValueError: key has shape (2, 1, 4), but must have (3, 1, 4), for the"),
        (
            {"value": NEW.astype(np.float32)},
            "TypeError: value has dtype float32, but must have",
        ),
        ({"kv_cache": READ_ONLY}, "ValueError: kv_cache is read-only, but is to be written"),
        ({"value": [1.0]}, "TypeError: value must be an array, got list"),
        ({"key": CACHE[0, :3, 0]}, "ValueError: key shares memory with kv_cache, but must not"),
    ],
    "kv_reads": [
        ({"block_size": 0}, "ValueError: block_size is 0, expected 1 to 2147483647"),
        (
            {"kernel_block_size": 3},
            "ValueError: kernel_block_size is 3, expected a divisor of",
        ),
        ({"cp_rank": 1}, "ValueError: cp_rank is 1, expected 0 to 0"),
        (
            {"cp_kv_cache_interleave_size": 4},
            "ValueError: cp_kv_cache_interleave_size is 4",
        ),
        (
            {"block_table_tensor": ROWS["2 columns"]},
            "ValueError: seq_lens[1] is 5 and needs 3 blocks of 2, but row 1 of block_table_tensor",
        ),
        (
            {"block_table_tensor": ROWS["1 columns"], "cp_world_size": 2},
            "ValueError: seq_lens[1] is 5 and needs 2 blocks of 2, but row 1 of block_table_tensor",
        ),
        (
            {"block_table_tensor": ROWS["4 columns"], "kernel_block_size": 1},
            "ValueError: seq_lens[1] is 5 and needs 5 blocks of 1, but row 1 of block_table_tensor",
        ),
        (
            {"block_table_tensor": [[5, -1, 0], [0, 0, 0]]},
            "ValueError: block_table_tensor[0, 1] is -1, expected at least 0",
        ),
        ({"num_reqs": 3}, "ValueError: query_start_loc has 3 entries, expected num_reqs + 1 = 4"),
    ],
    "kv_writes": [
        ({"slot_mapping": [7, -2]}, "ValueError: slot_mapping[1] is -2, expected at least -1"),
        (
            {"num_actual_tokens": 3},
            "ValueError: slot_mapping has 2 entries, expected at least",
        ),
    ],
}


@pytest.mark.parametrize(
    ("function", "changes", "message"),
    [(function, *row) for function, rows in REFUSALS.items() for row in rows],
)
def test_refusals(function: str, changes: dict[str, Any], message: str) -> None:
    arguments = VALID[function] | changes
    if function in {"paged_attention", "kv_reads", "kv_writes"}:
        fields = {n: arguments.pop(n) for n in FIELDS & arguments.keys()}
        arguments["metadata"] = Twin(reference).batch([2, 0], [1, 5], **fields)
    with pytest.raises((TypeError, ValueError)) as caught:
        getattr(reference, function)(**arguments)
    assert f"{caught.type.__name__}: {caught.value.args[0]}".startswith(message)
    assert not CACHE.any()
