"""Large launches as machine code: sizes at which 32 bits, or a float, are too few."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

import fast
from conformance.native import launch_natively
from fast import launch
from fast.kernels import block_table, multimodal
from fast.kernels.cuda import Kernel

pytest.importorskip("numba_cuda")

Array = npt.NDArray[Any]


def run(
    kernel: Kernel, grid: tuple[int, int], *args: torch.Tensor | int, threads: int = 128
) -> None:
    """Launch a kernel, without the memory that finds races."""
    launch_natively(kernel, grid, threads, args, seed=1, has_shadow=False)


def simulate(kernel: Any, grid: tuple[int, int], threads: int, args: Any) -> None:
    """Run a launch of `fast`."""
    run(kernel, grid, *args, threads=threads)


def tensor(values: Any, dtype: Any = np.int32) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, dtype))


def sparse(count: int, dtype: Any = np.int32) -> torch.Tensor:
    """Return zeros whose memory is only there once it is written."""
    size = count * np.dtype(dtype).itemsize
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
    return torch.from_numpy(np.frombuffer(mmap.mmap(-1, size, flags=flags), dtype))


def test_a_batch_of_8_million_tokens() -> None:
    chance = np.random.default_rng(1)
    num_reqs, num_tokens, block_size = 1024, 8192, 16
    table = tensor(chance.integers(0, 2**31, (num_reqs, num_tokens // block_size)))
    starts = tensor(np.arange(num_reqs + 1) * num_tokens)
    positions = torch.arange(num_tokens).repeat(num_reqs)
    expected = fast.compute_slot_mapping(table, starts, positions, block_size)
    with launch.simulated_by(simulate, 128):
        found = fast.compute_slot_mapping(table, starts, positions, block_size)
    assert torch.equal(expected, found)


def test_slots_past_2_to_the_53() -> None:
    chance = np.random.default_rng(2)
    row_stride, block_size, num_reqs, num_tokens = 2**31 + 7, 2**23, 4, 1000
    table = sparse(num_reqs * row_stride)
    columns = chance.integers(0, 2**31, num_tokens)
    rows = np.repeat(np.arange(num_reqs), num_tokens // num_reqs)
    block_ids = chance.integers(2**30, 2**31, num_tokens)
    table.numpy()[rows * row_stride + columns] = block_ids
    offsets = chance.integers(0, block_size, num_tokens)
    starts = tensor(np.arange(num_reqs + 1) * (num_tokens // num_reqs))
    positions = tensor(columns * block_size + offsets, np.int64)
    slots = torch.empty(num_tokens, dtype=torch.int64)
    run(
        block_table.compute_slot_mapping,
        (8, 1),
        *(table, row_stride, 1, 2**31, starts, 1, num_reqs, positions, 1, num_tokens),
        *(slots, 1, num_tokens, block_size, block_size, 1, 0, 1),
    )
    expected = block_ids * block_size + offsets
    assert expected.min() >= 2**53
    assert expected.tolist() == slots.tolist()


def test_tables_of_2_to_the_32_entries() -> None:
    width, num_reqs, small = 2**22, 1024, 64
    # Offset, width and block size; ranks, rank and interleave; whether there are slots; the window.
    constants = [[0, width, 512, 1, 0, 1, 1, 512 * 3], [width * num_reqs, small, 16, 1, 0, 1, 1, 0]]
    groups, total = tensor(constants, np.int64), (width + small) * num_reqs
    tables, gathered = sparse(total), sparse(total)
    num_blocks, num_gathered = torch.zeros(2, 2, num_reqs, dtype=torch.int32)
    num_blocks[0, 1023], num_blocks[1, 1023], num_blocks[0, 700] = width - 5, 3, 9
    ids = [2**31 - 1 - k for k in range(9)]
    # For each row: group, request slot, first new entry, blocks, and where the new IDs begin.
    changed = [(0, 1023, width - 5, width, 20), (0, 700, 0, 1, 25)]
    changed += [(1, 1023, 3, 5, 26), (1, 700, 0, 1, 28)]
    tables.numpy()[width * 700 : width * 700 + 9] = 77
    state, staged = (groups, tables, num_blocks), tensor([*sum(changed, ()), *ids])
    run(block_table.apply_staged_writes, (4, 1), *state, staged)
    memory = tables.numpy()
    end, second = width * 1024, width * num_reqs
    assert ids[:5] == memory[end - 5 : end].tolist()
    assert [ids[5], *[0] * 8] == memory[width * 700 : width * 700 + 9].tolist()
    assert ids[6:8] == memory[second + 1023 * 64 + 3 : second + 1023 * 64 + 5].tolist()
    assert ids[8] == memory[second + 700 * 64]
    assert [[width, 5], [1, 1]] == [num_blocks[:, row].tolist() for row in (1023, 700)]

    mapping = torch.full((num_reqs,), -1, dtype=torch.int32)
    mapping[1022], mapping[5] = 1023, 700
    computed = torch.zeros(num_reqs, dtype=torch.int32)
    computed[1023] = (width - 1) * 512  # all but four blocks are before the window
    gathering = (gathered, num_gathered, mapping, 1, num_reqs, computed, 1)
    run(block_table.gather_block_tables, (num_reqs, 2), *state, *gathering)
    end = width * 1023
    assert [0, *ids[1:5]] == gathered.numpy()[end - 5 : end].tolist()
    assert ids[5] == gathered[5 * width]
    assert [width, 1] == num_gathered[0, [1022, 5]].tolist()

    starts = torch.zeros(num_reqs + 1, dtype=torch.int32)
    starts[1023:] = 6
    positions = tensor([(width - 5 + k) * 512 + 511 for k in range(5)] + [width * 512], np.int64)
    slots = torch.empty(2, 200, dtype=torch.int64)
    rows = (mapping, 1, num_reqs)
    batch = (groups, tables, num_reqs, *rows, starts, 1, positions, 1, 6, slots)
    run(block_table.compute_slot_mappings, (1, 2), *batch)
    assert [*(block_id * 512 + 511 for block_id in ids[:5]), -1] == slots[0, :6].tolist()
    assert {-1} == {*slots[0, 6:].tolist(), *slots[1].tolist()}


def test_16_million_entries_of_a_mask() -> None:
    count = 2**24 + 5
    mask = tensor(np.random.default_rng(3).integers(0, 2, count), np.uint8)
    num_tiles = -(-count // (128 * multimodal.PER_THREAD))
    counts, ranks = (torch.empty(size, dtype=torch.int32) for size in (num_tiles, count + 1))
    run(multimodal.count_embeds, (num_tiles, 1), mask, 1, count, counts)
    run(multimodal.rank_embeds, (num_tiles, 1), mask, 1, count, counts, ranks)
    is_embed = mask.numpy().astype(bool)
    expected = np.where(is_embed, np.cumsum(is_embed) - 1, multimodal.NO_RANK)
    assert np.array_equal(expected, ranks.numpy()[:-1])
    assert is_embed.sum() == ranks[-1]


def test_rows_of_4_gigabytes() -> None:
    chance = np.random.default_rng(4)
    count, width = 300_000, 16384
    source = sparse(count * width, np.uint8)
    mask = torch.zeros(count, dtype=torch.bool)
    mask[torch.from_numpy(chance.integers(0, count, 200))] = True
    mask[-1] = True
    chosen = np.flatnonzero(mask.numpy())
    rows = chance.integers(0, 256, (len(chosen), width), np.uint8)
    source.numpy().reshape(count, width)[chosen] = rows
    with launch.simulated_by(simulate, 128):
        found = fast.gather_mm_placeholders(source.view(torch.bfloat16).view(count, -1), mask)
    assert np.array_equal(rows, found.view(torch.uint8).numpy())
