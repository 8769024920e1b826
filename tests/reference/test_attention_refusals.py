"""Errors of the attention functions, with their exact messages."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pytest

from reference import (
    CommonAttentionMetadata,
    dense_attention,
    merge_attention_states,
    paged_attention,
    write_kv_cache,
)
from tests.refusals import refuses

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
BatchMaker: TypeAlias = Callable[..., CommonAttentionMetadata]

Q, K = np.zeros((3, 2, 4)), np.zeros((5, 1, 4))
MASK = np.ones((3, 5), np.bool_)


@pytest.mark.parametrize(
    ("message", "changes"),
    {
        "TypeError: q must be an array, got list": {"q": [[[0.0]]]},
        (
            "TypeError: k must be float16 or bfloat16 or float32 or "
            "float64 or float8_e4m3fn or float8_e5m2, got int64"
        ): {"k": K.astype(np.int64)},
        "ValueError: q must have 3 dimensions, got shape (2, 4)": {"q": Q[0]},
        "ValueError: k has shape (5, 1, 3), but must have (*, *, 4), the head size of q": {
            "k": K[..., :3]
        },
        "ValueError: v has shape (4, 1, 4), but must have (5, 1, *), as k has": {"v": K[:4]},
        **{
            f"ValueError: q has 2 heads, but must have a multiple of {n}": {"k": heads, "v": heads}
            for n, heads in ((0, K[:, :0]), (3, K.repeat(3, 1)))
        },
        "TypeError: mask must be bool, got int8": {"mask": MASK.astype(np.int8)},
        (
            "ValueError: mask has shape (5, 3), but must have (3, 5), a row for each of q, a "
            "column for each of k"
        ): {"mask": MASK.T},
        "TypeError: scale must be a number, got True of bool": {"scale": True},
        "ValueError: scale is nan, but must be finite": {"scale": math.nan},
        "ValueError: q has heads of size 0, but they must have at least 1 without a scale": {
            "q": Q[..., :0],
            "k": K[..., :0],
        },
    }.items(),
)
def test_refusals_of_dense_attention(changes: dict[str, Any], message: str) -> None:
    with refuses(message):
        dense_attention(**({"q": Q, "k": K, "v": K, "mask": MASK} | changes))


CACHE = np.zeros((2, 9, 2, 1, 4))


@pytest.mark.parametrize(
    ("message", "case"),
    {
        "ValueError: kv_cache must have 5 dimensions, got shape (9, 2, 1, 4)": (
            {"kv_cache": CACHE[0]},
            {},
        ),
        **{
            f"ValueError: kv_cache has shape {cache.shape}, but {must}": ({"kv_cache": cache}, {})
            for cache, must in (
                (CACHE[:1], "must have 2, keys and values, first"),
                (CACHE[:, :, :0], "must have blocks of 1 or more"),
                (CACHE[..., :3], "must have (*, *, *, *, 4), the head size of q"),
            )
        },
        "ValueError: q has 2 heads, but must have a multiple of 3": (
            {"kv_cache": CACHE.repeat(3, 3)},
            {},
        ),
        "ValueError: q has 1 rows, but the batch 2": ({"q": Q[:1]}, {}),
        "TypeError: scale must be a number, got '1' of str": ({"scale": "1"}, {}),
        "ValueError: sliding_window is 0, expected 1 to 2147483647": ({"sliding_window": 0}, {}),
        "ValueError: sliding_window is 2, but must be None of a non-causal batch": (
            {"sliding_window": 2},
            {"causal": False},
        ),
        "ValueError: cp_world_size is 0, expected 1 to 2147483647": ({"cp_world_size": 0}, {}),
        "ValueError: cp_rank is 1, expected 0 to 0": ({"cp_rank": 1}, {}),
        "TypeError: cp_kv_cache_interleave_size must be an int, got True of bool": (
            {"cp_kv_cache_interleave_size": True},
            {},
        ),
        "ValueError: query_start_loc has 3 entries, expected num_reqs + 1 = 4": (
            {},
            {"num_reqs": 3},
        ),
        (
            "ValueError: seq_lens[0] is 3 and needs 1 blocks of 2, but row 0 of "
            "block_table_tensor has 0"
        ): ({"cp_world_size": 2, "cp_rank": 1}, {"block_table_tensor": np.zeros((2, 0), np.int32)}),
        **{
            f"ValueError: block_table_tensor[0, 1] is {block}, expected 0 to 8": (
                {},
                {"block_table_tensor": np.array([[0, block, 0], [0, 0, 0]], np.int32)},
            )
            for block in (-1, 9)
        },
    }.items(),
)
def test_refusals_of_paged_attention(
    make_batch: BatchMaker, message: str, case: tuple[Any, ...]
) -> None:
    arguments, changes = case
    batch = make_batch([2, 0], [1, 5], **changes)
    with refuses(message):
        paged_attention(**({"q": Q[:2], "kv_cache": CACHE, "metadata": batch} | arguments))


@pytest.mark.parametrize(
    ("outputs", "lses", "message"),
    [
        (Q, Q[..., 0], "ValueError: outputs must have 4 dimensions, got shape (3, 2, 4)"),
        (
            Q[None],
            Q[..., :2],
            "ValueError: lses has shape (3, 2, 2), but must have (1, 3, 2), as outputs has",
        ),
        (Q[None], 1.0, "TypeError: lses must be an array, got float"),
    ],
)
def test_refusals_of_merging(outputs: Array, lses: object, message: str) -> None:
    with refuses(message):
        merge_attention_states(outputs, lses)


NEW, READ_ONLY, SHARED = np.ones((3, 1, 4)), CACHE.copy(), CACHE.copy()
READ_ONLY.flags.writeable = False


@pytest.mark.parametrize(
    ("message", "changes"),
    {
        **{
            f"ValueError: slot_mapping[1] is {slot}, expected -1 to 17": {
                "slot_mapping": np.array([1, slot, 3])
            }
            for slot in (-2, 18)
        },
        "ValueError: slot_mapping[2] is 1, but that is the slot of token 0": {
            "slot_mapping": np.array([1, 2, 1])
        },
        "TypeError: slot_mapping must be int64, got int32": {
            "slot_mapping": np.array([1, 2, 3], np.int32)
        },
        (
            "ValueError: key has shape (2, 1, 4), but must have (3, 1, 4), for the slots and "
            "kv_cache"
        ): {"key": NEW[:2]},
        "TypeError: value has dtype float32, but must have float64": {
            "value": NEW.astype(np.float32)
        },
        "ValueError: kv_cache is read-only, but is to be written": {"kv_cache": READ_ONLY},
        "TypeError: value must be an array, got list": {"value": [1.0]},
        "ValueError: key shares memory with kv_cache, but must not": {
            "kv_cache": SHARED,
            "key": SHARED[0, :3, 0],
        },
    }.items(),
)
def test_refusals_of_writes(changes: dict[str, Any], message: str) -> None:
    cache = CACHE.copy()
    arguments = {"key": NEW, "value": NEW, "kv_cache": cache, "slot_mapping": np.array([1, 2, -1])}
    with refuses(message):
        write_kv_cache(**(arguments | changes))
    assert not cache.any()
