import pytest
import torch

import fast
from fast.out_checks import _share_memory

LENS = torch.tensor([5, 8], dtype=torch.int32)
EMBEDS = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
MASK = torch.tensor([True, False, True])


def test_sharing_is_detected_by_elements() -> None:
    x = torch.zeros(2, 4, dtype=torch.int64)
    assert _share_memory(x, x.view(torch.int32)[:, 7:])
    assert not _share_memory(x[:, ::2], x[:, 1::2])
    assert not _share_memory(x[:0], x)
    pair = torch.zeros(2, dtype=torch.complex128)
    assert _share_memory(pair, pair[1:])


@pytest.mark.usefixtures("path")
def test_torch_counts_writes() -> None:
    starts, positions = torch.tensor([0, 1], dtype=torch.int32), torch.zeros(1, dtype=torch.int64)
    lengths, slots = torch.zeros(2, dtype=torch.int32), torch.zeros(1, dtype=torch.int64)
    rows, embeds = torch.zeros(3, 2), torch.zeros(2, 2)
    fast.get_dcp_local_seq_lens(LENS, 2, 0, out=lengths)
    fast.compute_slot_mapping(torch.ones(1, 1, dtype=torch.int32), starts, positions, 1, out=slots)
    fast.scatter_mm_placeholders(EMBEDS, MASK, out=rows)
    fast.gather_mm_placeholders(rows, MASK, out=embeds)
    assert all(out._version for out in (lengths, slots, rows, embeds))


def test_an_input_is_refused_in_checked_mode() -> None:
    rows = torch.zeros(3, 2)
    with fast.checks(True), pytest.raises(ValueError, match="out shares memory with an input"):
        fast.gather_mm_placeholders(rows, torch.tensor([True, True, False]), out=rows[1:])


def test_numbers_that_disagree(path: str) -> None:
    rows = torch.zeros(3, 2)
    with pytest.raises(ValueError, match="num_embeds is 2, but out has 1 rows"):
        fast.gather_mm_placeholders(rows, MASK, num_embeds=2, out=torch.zeros(1, 2))
    with pytest.raises(ValueError, match=r"^out has 4 rows, but placeholders has 3"):
        fast.gather_mm_placeholders(rows, MASK, out=torch.zeros(4, 2))
    with pytest.raises(ValueError, match=r"out must have 2 dimensions, got shape \(\)"):
        fast.gather_mm_placeholders(rows, MASK, out=torch.tensor(0.0))
    if path == "host":  # the mask is read, so that too little room is an error, not rows left out
        with pytest.raises(ValueError, match=r"^out has 1 rows, but is_embed has 2 True entries"):
            fast.gather_mm_placeholders(rows, MASK, out=torch.zeros(1, 2))


@pytest.mark.usefixtures("path")
def test_one_column_in_one_piece() -> None:
    out = torch.empty(1, 3).t()
    column = torch.tensor([[1.0], [2.0]])
    fast.scatter_mm_placeholders(column, MASK, out=out)
    assert [1, 2] == out[MASK, 0].tolist()
    back = torch.empty(1, 2).t()
    fast.gather_mm_placeholders(out, MASK, out=back)
    assert torch.equal(column, back)
