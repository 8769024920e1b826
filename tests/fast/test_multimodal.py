from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from fast import gather_mm_placeholders as gather
from fast import scatter_mm_placeholders as scatter
from fast.launch import simulated_by

INTS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits(tensor: torch.Tensor) -> Any:
    return tensor.contiguous().view(INTS[tensor.element_size()]).tolist()


def make_rows(num_rows: int, num_columns: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Make a matrix of any bits at all: NaN of every payload, infinities, -0.0."""
    torch.manual_seed(seed)
    num_bytes = num_rows * num_columns * dtype.itemsize
    return torch.randint(0, 256, (num_bytes,)).byte().view(dtype).view(num_rows, num_columns)


def make_mask(text: str) -> torch.Tensor:
    """Make a mask of a text in which x is True."""
    return torch.tensor([letter == "x" for letter in text], dtype=torch.bool)


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.uint8, torch.int64, torch.complex64, torch.float8_e4m3fnuz]
)
def test_gather_takes_any_dtype(dtype: torch.dtype) -> None:
    placeholders = torch.arange(12).view(4, 3).to(torch.float32).to(dtype)
    if dtype.is_complex:
        placeholders = (placeholders * 1j).conj()
    taken = gather(placeholders, make_mask(".x.x"))
    assert dtype == taken.dtype
    assert not taken.is_conj()
    readable = dtype if dtype.is_complex else torch.float32
    assert placeholders[1::2].to(readable).tolist() == taken.to(readable).tolist()


def test_misaligned_elements(simulate: Callable[..., None]) -> None:
    raw = torch.arange(1, 1 + 5 * 3 * 8 + 1).byte().numpy()
    embeds = torch.frombuffer(raw.data, dtype=torch.float64, offset=1).view(5, 3)
    assert embeds.data_ptr() % 8
    mask = make_mask("x.xx.xx")
    expected = scatter(embeds, mask)
    seen = []

    def launch(kernel: Any, grid: Any, threads: int, args: Any) -> None:
        seen.append(kernel.name)
        simulate(kernel, grid, threads, args)

    with simulated_by(launch, threads=4):
        assert bits(expected) == bits(scatter(embeds, mask))
        assert bits(embeds) == bits(gather(expected, mask, num_embeds=5))
    assert ["count_embeds", "rank_embeds", "scatter_rows"] == seen[:3]


@pytest.mark.usefixtures("path")
def test_rows_at_any_address() -> None:
    memory = bytearray(1) + np.arange(6, dtype=np.float32).tobytes()
    rows = torch.from_numpy(np.frombuffer(memory, np.float32, 6, offset=1).reshape(2, 3))
    found = scatter(rows, make_mask("x.x"))
    assert [[0, 1, 2], [3, 4, 5]] == found[::2].tolist()
    assert [0x7FC00000] * 3 == found[1].view(torch.int32).tolist()


def test_gradients_stay_outside() -> None:
    embeds = torch.ones(2, 3, requires_grad=True)
    placeholders = scatter(embeds, make_mask("x.x"))
    assert not placeholders.requires_grad
    assert not gather(embeds, make_mask("x.")).requires_grad


def test_wrong_numbers_unchecked(path: str) -> None:
    mask = make_mask("x.xx")
    rows = torch.tensor([[1.0], [2.0], [3.0], [4.0]])
    if path == "host":
        with pytest.raises(
            ValueError, match=r"^embeds has 1 rows, but is_embed has 3 True entries"
        ):
            scatter(rows[:1], mask)
        with pytest.raises(ValueError, match="num_embeds is 2, but is_embed has 3 True"):
            gather(rows, mask, num_embeds=2)
        return
    assert [1.0, 2.0, 3.0] == scatter(rows, mask)[mask].view(-1).tolist()
    assert scatter(rows[:1], mask)[1:].isnan().all()
    assert [[1.0], [3.0]] == gather(rows, mask, num_embeds=2).tolist()
    assert [[1.0], [3.0], [4.0], [0.0]] == gather(rows, mask, num_embeds=4).tolist()
    assert (0, 1) == gather(rows, mask, num_embeds=0).shape


def test_long_rows_are_cut(simulate: Callable[..., None]) -> None:
    grids = []

    def launch(kernel: Any, grid: Any, size: int, args: Any) -> None:
        grids.append(grid)
        simulate(kernel, grid, size, args)

    embeds, mask = make_rows(1, 4097, torch.float8_e5m2), make_mask(".x")
    with simulated_by(launch, threads=512):
        placeholders = scatter(embeds, mask)
        assert bits(embeds) == bits(gather(placeholders, mask, num_embeds=1))
    assert grids[2][1] == grids[-1][1] == 3
    assert bits(embeds)[0] == bits(placeholders)[1]
    assert {0x7E} == set(bits(placeholders)[0])
