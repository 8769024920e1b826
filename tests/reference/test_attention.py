"""Attention: by the textbook formula, and over a cache by the access relation."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import reference
from reference import (
    compute_slot_mapping,
    dense_attention,
    kv_reads,
    kv_writes,
    map_to_kernel_blocks,
    merge_attention_states,
    paged_attention,
    write_kv_cache,
)
from tests.examples.twins import Twin

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
make_batch = Twin(reference).batch

EXAMPLES = settings(max_examples=40, deadline=None, derandomize=True, database=None)

REQUESTS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 7)), max_size=4)
WORLDS = st.sampled_from([(1, 1), (2, 1), (2, 2), (3, 1), (3, 2)])
HEADS = st.sampled_from([(2, 1, 2), (2, 2, 3), (4, 2, 1)])

FLOATS = (
    *(np.float16, np.float32, np.float64),
    *(ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2),
)


def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def formula(q: Array, k: Array, v: Array, mask: Array, scale: float) -> tuple[Array, Array]:
    """Return attention as textbooks have it: softmax over scores of -inf where masked."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat(group, axis=1), v.repeat(group, axis=1)
    scores = np.where(mask[:, None, :], np.einsum("thd,khd->thk", q, k) * scale, -np.inf)
    weights = np.exp(scores)
    total = weights.sum(axis=-1)
    return np.einsum("thk,khd->thd", weights / total[..., None], v), np.log(total)


@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(1, 1), (4, 4), (4, 2), (6, 1)])
@pytest.mark.parametrize("scale", [None, 0.3, -2, np.float32(1.5)])
def test_dense_attention_is_the_formula(
    num_heads: int, num_kv_heads: int, scale: float | None
) -> None:
    draw = rng()
    q = draw.standard_normal((5, num_heads, 3))
    k, v = draw.standard_normal((7, num_kv_heads, 3)), draw.standard_normal((7, num_kv_heads, 2))
    mask = draw.random((5, 7)) < 0.6
    mask[:, 0] = True
    expected = formula(q, k, v, mask, 1 / math.sqrt(3) if scale is None else float(scale))
    output, lse = dense_attention(q, k, v, mask, scale=scale)
    assert (np.float64, np.float64) == (output.dtype, lse.dtype)
    np.testing.assert_allclose(output, expected[0], rtol=0, atol=1e-12)
    np.testing.assert_allclose(lse, expected[1], rtol=0, atol=1e-12)


def test_what_is_not_finite_comes_out_as_nan() -> None:
    for bad in (np.nan, np.inf):
        k = np.array([[[1.0, 0.0]], [[bad, 1.0]]])
        q = np.array([[[1.0, 1.0]], [[0.0, 1.0]]])
        output, _ = dense_attention(q, k, k, np.ones((2, 2), np.bool_))
        assert np.isnan(output).any(axis=-1).all()


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: np.dtype(dtype).name)
def test_every_float_is_computed_in_float64(dtype: type[np.generic]) -> None:
    draw = rng()
    batch = make_batch([2, 1], [3, 0])
    q = draw.standard_normal((3, 2, 4)).astype(dtype)
    cache = draw.standard_normal((2, 12, 2, 1, 4)).astype(dtype)
    k, v, mask = cache[0, 0], cache[1, 0], np.ones((3, 2), np.bool_)
    wide = [array.astype(np.float64) for array in (q, k, v)]
    for found, expected in (
        (dense_attention(q, k, v, mask), dense_attention(wide[0], *wide[1:], mask)),
        (
            paged_attention(q, cache, batch),
            paged_attention(wide[0], cache.astype(np.float64), batch),
        ),
    ):
        assert [a.tolist() for a in expected] == [a.tolist() for a in found]
    outputs, lses = q[None], q[None, :, :, 0]
    expected = merge_attention_states(outputs.astype(np.float64), lses.astype(np.float64))
    assert [a.tolist() for a in expected] == [
        a.tolist() for a in merge_attention_states(outputs, lses)
    ]
    empty = np.zeros_like(cache)
    write_kv_cache(k, v, empty, np.array([5, 2]))
    assert k.tolist() == empty[0].reshape(-1, 1, 4)[[5, 2]].tolist()


def test_slots_are_not_read() -> None:
    batch = make_batch([2], [1])
    other = dataclasses.replace(batch, slot_mapping=np.array([-1, 2**40]))
    cache, q = rng().standard_normal((2, 9, 2, 1, 2)), np.ones((2, 2, 2))
    assert (
        paged_attention(q, cache, batch)[0].tolist() == paged_attention(q, cache, other)[0].tolist()
    )


@given(requests=REQUESTS, world=WORLDS, kernel_blocks=st.sampled_from([1, 2, 4]), heads=HEADS)
@EXAMPLES
def test_paged_attention_reads_what_the_relation_says(
    requests: list[tuple[int, int]],
    world: tuple[int, int],
    kernel_blocks: int,
    heads: tuple[int, int, int],
) -> None:
    num_heads, num_kv_heads, size = heads
    batch = make_batch([q for q, _ in requests], [c for _, c in requests])
    batch.block_table_tensor = map_to_kernel_blocks(batch.block_table_tensor, kernel_blocks)
    kernel_size = 4 // kernel_blocks
    interleave = {"cp_kv_cache_interleave_size": world[1]}
    num_blocks = int(batch.block_table_tensor.max(initial=0)) + 1
    draw = rng()
    num_tokens = batch.num_actual_tokens
    q = draw.standard_normal((num_tokens, num_heads, size))
    parts, keys, values = [], [], []
    pairs: list[tuple[int, int]] = []
    for rank in range(world[0]):
        cache = draw.standard_normal((2, num_blocks, kernel_size, num_kv_heads, size))
        on_rank = {"cp_world_size": world[0], "cp_rank": rank, **interleave}
        reads = kv_reads(batch, 4, kernel_block_size=kernel_size, **on_rank)
        flat = cache.reshape(2, -1, num_kv_heads, size)
        mask = np.zeros((num_tokens, flat.shape[1]), np.bool_)
        for token, _, slot in reads:
            mask[token, slot] = True
            pairs.append((token, len(keys) * flat.shape[1] + slot))
        found = paged_attention(q, cache, batch, **on_rank)
        expected = dense_attention(q, *flat, mask)
        np.testing.assert_allclose(found[0], expected[0], rtol=0, atol=1e-12)
        np.testing.assert_allclose(found[1], expected[1], rtol=0, atol=1e-12)
        parts.append(found)
        keys.append(flat[0])
        values.append(flat[1])
    mask = np.zeros((num_tokens, sum(map(len, keys))), np.bool_)
    for token, column in pairs:
        mask[token, column] = True
    whole = dense_attention(q, np.concatenate(keys), np.concatenate(values), mask)
    merged = merge_attention_states(*(np.stack(arrays) for arrays in zip(*parts, strict=True)))
    np.testing.assert_allclose(merged[0], whole[0], rtol=0, atol=1e-12)
    np.testing.assert_allclose(merged[1], whole[1], rtol=0, atol=1e-12)


@given(requests=REQUESTS)
@EXAMPLES
def test_a_cache_written_in_two_steps_is_attended(requests: list[tuple[int, int]]) -> None:
    query_lens, computed = [q for q, _ in requests], [c for _, c in requests]
    batch = make_batch(query_lens, computed)
    table = batch.block_table_tensor
    cache = np.full((2, int(table.max(initial=0)) + 1, 2, 1, 2), np.nan)
    draw = rng()
    content = [draw.standard_normal((2, s, 1, 2)) for s in batch.seq_lens.tolist()]
    for firsts, lens in (([0] * len(computed), computed), (computed, query_lens)):
        starts = np.array([0, *np.cumsum(lens, dtype=np.int32)], np.int32)
        positions = [f + j for f, n in zip(firsts, lens, strict=True) for j in range(n)]
        slots = compute_slot_mapping(table, starts, np.array(positions, np.int64), 2)
        rows = [c[:, f : f + n] for c, f, n in zip(content, firsts, lens, strict=True)]
        new = np.concatenate([*rows, np.zeros((2, 0, 1, 2))], axis=1)
        write_kv_cache(*new, cache, slots)
    q = draw.standard_normal((sum(query_lens), 2, 2))
    output, lse = paged_attention(q, cache, batch)
    for i, (k, v) in enumerate(content):
        tokens = slice(batch.query_start_loc[i], batch.query_start_loc[i + 1])
        mask = np.tri(query_lens[i], len(k), len(k) - query_lens[i], dtype=np.bool_)
        expected = dense_attention(q[tokens], k, v, mask)
        np.testing.assert_allclose(output[tokens], expected[0], rtol=0, atol=1e-12)
        np.testing.assert_allclose(lse[tokens], expected[1], rtol=0, atol=1e-12)


def test_merging_any_parts_gives_the_whole() -> None:
    draw = rng()
    q, k = draw.standard_normal((4, 2, 3)), draw.standard_normal((9, 1, 3)) * 20
    mask = draw.random((4, 9)) < 0.5
    mask[2] = False
    part = draw.integers(0, 3, 9)
    states = [dense_attention(q, k, k, mask & (part == p)) for p in range(4)]
    assert np.isneginf(states[3][1]).all()
    states[3][0][...] = np.nan
    output, lse = merge_attention_states(
        *(np.stack(arrays) for arrays in zip(*states, strict=True))
    )
    expected = dense_attention(q, k, k, mask)
    np.testing.assert_allclose(output, expected[0], rtol=0, atol=1e-12)
    np.testing.assert_allclose(lse, expected[1], rtol=0, atol=1e-12)


def test_writes_are_those_of_the_relation() -> None:
    batch = make_batch([2, 1], [1, 4], padding_tokens=2)
    batch.slot_mapping[2] = 0  # a slot like any other, though engines keep the null block there
    memory = np.full((11, 2, 2, 2, 1), -1.0, np.float32)
    cache = memory.transpose(1, 0, 2, 3, 4)
    key = np.arange(10, dtype=np.float32).reshape(5, 2, 1)
    slots = batch.slot_mapping
    assert write_kv_cache(key, key + 100, cache, slots) is None
    flat = cache.reshape(2, -1, 2)
    for token, slot in kv_writes(batch):
        assert key[token, :, 0].tolist() == flat[0, slot].tolist()
        assert (key[token, :, 0] + 100).tolist() == flat[1, slot].tolist()
    assert 2 * 2 * 3 == (memory != -1).sum()
