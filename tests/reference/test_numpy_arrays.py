"""Behaviour of `reference` with NumPy arrays that have no equivalent in torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import reference
from reference import (
    AttentionSpec,
    CpuGpuBuffer,
    compute_slot_mapping,
    gather_mm_placeholders,
    make_kv_sharing_fast_prefill_common_attn_metadata,
    reshape_attn_output_for_spec_decode,
    scatter_mm_placeholders,
)
from tests.examples.twins import Twin


def make_buffer(dtype: Any) -> CpuGpuBuffer:
    """Make a buffer of a device that does not matter."""
    return CpuGpuBuffer(3, 2, dtype=dtype, device="cuda:7", pin_memory=True)


def test_both_halves_of_a_buffer_are_one_array() -> None:
    buffer = make_buffer(np.int32)
    assert buffer.cpu is buffer.gpu is buffer.np


def test_starts_for_the_device_and_the_host_are_two_arrays() -> None:
    batch = Twin(reference).batch([3, 2], [0, 0], logits_indices_padded=[2], num_logits_indices=1)
    made = make_kv_sharing_fast_prefill_common_attn_metadata(batch)
    assert made.query_start_loc is not made.query_start_loc_cpu


@pytest.mark.parametrize("make", [make_buffer, lambda dtype: AttentionSpec(16, 3, 5, dtype)])
@pytest.mark.parametrize(
    "dtype", [int, "int32", np.integer, np.object_, np.dtype(">i4"), np.str_, None, 5]
)
def test_dtypes_that_torch_lacks(make: Callable[[Any], object], dtype: object) -> None:
    with pytest.raises(TypeError, match=r"^dtype must be a supported dtype, got "):
        make(dtype)


@pytest.mark.parametrize("dtype", [">f4", ml_dtypes.float8_e3m4, ml_dtypes.float8_e5m2fnuz])
def test_dtypes_of_embeddings_that_torch_lacks(dtype: Any) -> None:
    with pytest.raises(TypeError) as caught:
        scatter_mm_placeholders(np.zeros((2, 3), dtype), np.ones(2, np.bool_))
    assert f"embeds must be of a dtype that has NaN, got {np.dtype(dtype)}" == str(caught.value)


@pytest.mark.parametrize("dtype", [">i8", "U3"])
def test_gather_takes_any_dtype(dtype: str) -> None:
    rows = np.array([[0, 1], [1, 0], [1, 1]]).astype(dtype)
    gathered = gather_mm_placeholders(rows, np.array([True, False, True]))
    assert (rows.dtype, rows[[0, 2]].tolist()) == (gathered.dtype, gathered.tolist())


def test_placeholders_of_read_only_views_that_run_backwards() -> None:
    store = np.arange(24, dtype=np.float64).reshape(4, 6)
    mask = np.array([True, False, False, False, False, True])
    store.flags.writeable = mask.flags.writeable = False
    placed = scatter_mm_placeholders(store[::-2, 1::2], mask[::-1])
    assert [[19.0, 21.0, 23.0], [7.0, 9.0, 11.0]] == placed[[0, 5]].tolist()


def test_tokens_that_lie_backwards_are_a_view() -> None:
    attn_output = np.arange(24).reshape(2, 3, 2, 2)[::-1, ::-1]
    flat = reshape_attn_output_for_spec_decode(attn_output)
    assert np.shares_memory(attn_output, flat)
    assert [5, 4, 3, 2, 1, 0] == (flat[:, 0, 0] // 4).tolist()


def slots_into(out: np.ndarray[Any, Any], num_tokens: int) -> None:
    """Write the slots of the first tokens of block 5, of 2 positions."""
    starts = np.array([0, num_tokens], np.int32)
    table, positions = np.array([[5]], np.int32), np.arange(num_tokens)
    compute_slot_mapping(table, starts, positions, 2, out=out)


def test_slots_are_written_backwards() -> None:
    out = np.full(3, 77, np.int64)
    slots_into(out[::-1], 2)
    assert [-1, 11, 10] == out.tolist()


@pytest.mark.parametrize("stride", [-7, 0, 7])
def test_entries_of_out_that_overlap(stride: int) -> None:
    memory = np.zeros(4, np.int64)
    with pytest.raises(ValueError, match=r"^out is one element repeated"):
        slots_into(np.lib.stride_tricks.as_strided(memory[1:], (2,), (stride,)), 2)
    assert not memory.any()
    slots_into(np.lib.stride_tricks.as_strided(memory[1:], (1,), (stride,)), 1)
    assert [0, 10, 0, 0] == memory.tolist()


def test_an_out_that_is_read_only() -> None:
    out = np.zeros(2, np.int64)
    out.flags.writeable = False
    with pytest.raises(ValueError, match=r"^out is read-only"):
        slots_into(out, 2)
