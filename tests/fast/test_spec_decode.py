import pytest
import torch

from fast import reshape_attn_output_for_spec_decode as to_tokens
from fast import reshape_query_for_spec_decode as to_requests


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e5m2, torch.int64])
def test_there_and_back(dtype: torch.dtype) -> None:
    """Tokens are grouped by request and ungrouped again, in the same memory."""
    query = torch.arange(6 * 2 * 3).view(6, 2, 3).to(dtype)
    rows = to_requests(query, 2)
    assert (2, 3, 2, 3) == rows.shape
    assert torch.equal(query[3:].view(torch.uint8), rows[1].view(torch.uint8))
    back = to_tokens(rows)
    assert query.shape == back.shape
    assert query.data_ptr() == rows.data_ptr() == back.data_ptr()


def test_strided_views() -> None:
    """A query that is a view of a wider tensor is viewed, not copied."""
    wide = torch.zeros(6, 2, 9)
    rows = to_requests(wide[:, :, 3:6], 3)
    rows[1, 0] = 1.0
    assert 6.0 == wide[2].sum()
    assert rows.data_ptr() == to_tokens(rows).data_ptr()


def test_three_dimensions_stay() -> None:
    """An output that is tokens already is handed back."""
    output = torch.zeros(4, 2, 3)
    assert output is to_tokens(output)


def test_nothing_to_do() -> None:
    """No tokens make empty rows, whatever their strides are."""
    assert (3, 0, 2, 4) == to_requests(torch.zeros(0, 2, 4), 3).shape
    assert (0, 2, 4) == to_tokens(torch.zeros(3, 5, 2, 4)[:, :0]).shape
    assert (6, 0, 4) == to_tokens(torch.zeros(3, 5, 2, 4)[:, :2, :0]).shape


def test_strides_without_a_view() -> None:
    """Requests that do not lie one behind another have no view as tokens."""
    output = torch.zeros(3, 5, 2, 4)
    with pytest.raises(ValueError, match=r"^attn_output of shape \(3, 2, 2, 4\) cannot be viewed"):
        to_tokens(output[:, :2])
    assert (2, 2, 4) == to_tokens(output[:1, :2]).shape
    assert (3, 2, 4) == to_tokens(output[:, :1]).shape


@pytest.mark.parametrize(
    ("query", "batch_size", "error", "message"),
    [
        ([[[1.0]]], 1, TypeError, "^query must be an array, got list"),
        (torch.zeros(4, 2), 2, ValueError, r"query must have 3 dimensions, got shape \(4, 2\)"),
        (torch.zeros(4, 2, 1), 0, ValueError, "batch_size is 0, expected 1 to 2147483647"),
        (torch.zeros(0, 2, 1), 2**63, ValueError, "batch_size is 9223372036854775808, expected 1"),
        (torch.zeros(4, 2, 1), True, TypeError, "batch_size must be an int"),
        (torch.zeros(4, 2, 1), 3, ValueError, "^batch_size is 3, expected a divisor of the 4 to"),
    ],
)
def test_queries_refused(
    query: torch.Tensor, batch_size: int, error: type[Exception], message: str
) -> None:
    """A query has three dimensions, and all requests have as many tokens."""
    with pytest.raises(error, match=message):
        to_requests(query, batch_size)


def test_outputs_refused() -> None:
    """An output has three or four dimensions."""
    with pytest.raises(TypeError, match=r"^attn_output must be an array, got NoneType"):
        to_tokens(None)  # type: ignore[arg-type]  # that is the test
    with pytest.raises(ValueError, match=r"3 or 4 dimensions, got shape \(4, 2\)"):
        to_tokens(torch.zeros(4, 2))
