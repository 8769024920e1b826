"""The exact comparator: each verdict, and the exact text of its message."""

from __future__ import annotations

import dataclasses
import struct
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import fast
import reference
from conformance.values.aliases import Alias, Relation, shared_memory
from conformance.values.comparison import first_difference
from conformance.values.differences import Finding, Verdict


@dataclasses.dataclass
class Answer:
    """A result with fields."""

    seq_lens: Any
    seq_lens_cpu: Any = None


def ints(*values: int, dtype: type[np.generic] = np.int32) -> np.ndarray[Any, Any]:
    """Return values as an array."""
    return np.array(values, dtype)


def tensor(*values: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    """Return values as a tensor."""
    return torch.tensor(values, dtype=dtype)


def nan(payload: int) -> float:
    """Return a NaN with a payload."""
    return float(struct.unpack("<d", struct.pack("<Q", 0x7FF8000000000000 | payload))[0])


@pytest.mark.parametrize(
    ("expected", "actual", "verdict", "line"),
    [
        (5, torch.tensor(5), Verdict.TYPE, "type(result) = Tensor, but should be int"),
        (5, np.int64(5), Verdict.TYPE, "type(result) = int64, but should be int"),
        (True, 1, Verdict.TYPE, "type(result) = int, but should be bool"),
        (
            True,
            np.True_,
            Verdict.TYPE,
            "type(result) = numpy.bool, but should be builtins.bool",
        ),
        (None, tensor(1), Verdict.VALUE, "type(result) = Tensor, but should be NoneType"),
        ((1,), [1], Verdict.TYPE, "type(result) = list, but should be tuple"),
        (ints(1), ints(1), Verdict.TYPE, "type(result) = ndarray, but should be Tensor"),
        (ints(1), [1], Verdict.TYPE, "type(result) = list, but should be Tensor"),
        (
            {"encoder_seq_lens": ints(1)},
            {"encoder_seq_lens": tensor(1)},
            Verdict.TYPE,
            "type(result['encoder_seq_lens']) = Tensor, but should be ndarray",
        ),
        (
            reference.UBatchSlice(slice(0, 1), slice(0, 2)),
            fast.UBatchSlice(slice(0, 1), slice(0, np.int64(2))),
            Verdict.TYPE,
            "type(result.token_slice.stop) = int64, but should be int",
        ),
        (
            Answer(ints(1), ints(1)),
            type("Answer", (), {"seq_lens": tensor(1)})(),
            Verdict.SHAPE,
            "result.seq_lens_cpu = absent, but should be a field",
        ),
        ((1, 2), (1,), Verdict.SHAPE, "len(result) = 1, but should be 2"),
        ({"a": 1}, {"b": 1}, Verdict.SHAPE, "list(result) = ['b'], but should be ['a']"),
        (ints(1), tensor(1, 2), Verdict.SHAPE, "result.shape = (2,), but should be (1,)"),
        (ints(1), torch.tensor(1), Verdict.SHAPE, "result.shape = (), but should be (1,)"),
        (
            [ints(1), ints(1, dtype=np.int64)],
            [tensor(1), tensor(1)],
            Verdict.DTYPE,
            "result[1].dtype = torch.int32, but should be torch.int64",
        ),
        (
            ints(1),
            torch.zeros(1, dtype=torch.int32, device="meta"),
            Verdict.VALUE,  # a tensor without values
            "result.device = meta, but should be cpu",
        ),
        ([7, 1], [7, True], Verdict.TYPE, "type(result[1]) = bool, but should be int"),
        ([0, 1.0], [0, 1], Verdict.TYPE, "type(result[1]) = int, but should be float"),
        ([1, 2, 3], [1, 5, 3], Verdict.VALUE, "result[1] = 5, but should be 2"),
        ([1], [tensor(1, 2)], Verdict.VALUE, "type(result[0]) = Tensor, but should be int"),
        (5, 6, Verdict.VALUE, "result = 6, but should be 5"),
        (slice(0, 2), slice(1, 2), Verdict.VALUE, "result.start = 1, but should be 0"),
        (
            (0, Answer(ints(1, 2, 3))),
            (0, Answer(tensor(1, 2, 9))),
            Verdict.VALUE,
            "result[1].seq_lens[2] = 9, but should be 3",
        ),
        (
            np.arange(4).reshape(2, 2),
            torch.tensor([[0, 1], [7, 8]]),
            Verdict.VALUE,
            "result[1, 0] = 7, but should be 2",
        ),
        (
            np.array([0.0]),
            torch.tensor([-0.0], dtype=torch.float64),
            Verdict.VALUE,
            "result[0] = -0.0, but should be 0.0",
        ),
        (
            np.array([1.0, nan(1)]),
            torch.from_numpy(np.array([1.0, nan(2)])),
            Verdict.VALUE,
            "result[1] = nan (0x7ff8000000000002), but should be nan (0x7ff8000000000001)",
        ),
    ],
)
def test_differences(expected: object, actual: object, verdict: Verdict, line: str) -> None:
    """Each kind of difference is reported by its verdict and its line."""
    difference = first_difference(expected, actual)
    assert difference is not None
    assert (verdict, line) == (difference.verdict, difference.line)


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        (None, None),
        ([1, "a", None], [1, "a", None]),
        (([], ()), ([], ())),
        ([float("nan"), 1], [float("nan"), 1]),
        (float("nan"), float("nan")),
        (np.array([nan(3)]), torch.from_numpy(np.array([nan(3)]))),
        (np.array([1.5], ml_dtypes.bfloat16), torch.tensor([1.5], dtype=torch.bfloat16)),
        (np.zeros((0, 3), np.int32), torch.zeros(0, 3, dtype=torch.int32)),
        (np.arange(6)[::2], torch.tensor([0, 9, 2, 9, 4])[::2]),
        (np.array([True]), torch.tensor([True])),
        ({"num_scheduled_tokens": ints(1)}, {"num_scheduled_tokens": ints(1)}),
        (reference.UBatchSlice(slice(0, 1), slice(2)), fast.UBatchSlice(slice(0, 1), slice(2))),
    ],
)
def test_equals(expected: object, actual: object) -> None:
    """Bitwise equal values have no difference, whatever their strides or their package."""
    assert first_difference(expected, actual) is None


@pytest.mark.parametrize(
    ("expected", "actual", "finding", "line"),
    [
        (
            (ints(1), ints(2)),
            (torch.tensor([1]), tensor(9)),
            Finding.WRONG_ANSWER,
            "result[1][0] = 9, but should be 2",
        ),
        (
            ints(1, 2),
            torch.tensor([1, 9]),
            Finding.WRONG_ANSWER,
            "result[1] = 9, but should be 2",
        ),
        (5, torch.tensor(6), Finding.WRONG_ANSWER, "result = 6, but should be 5"),
        ((1, 2), [1, 9], Finding.WRONG_ANSWER, "result[1] = 9, but should be 2"),
        ((1, 2), [1], Finding.WRONG_ANSWER, "type(result) = list, but should be tuple"),
        (
            ints(1),
            None,
            Finding.WRONG_ANSWER,
            "type(result) = NoneType, but should be Tensor",
        ),
        (
            np.dtype("int8"),
            torch.int16,
            Finding.WRONG_ANSWER,
            "result = torch.int16, but should be torch.int8",
        ),
        (
            Answer(ints(1)),
            SimpleNamespace(seq_lens=tensor(9), seq_lens_cpu=None),
            Finding.WRONG_ANSWER,
            "result.seq_lens[0] = 9, but should be 1",
        ),
        (
            np.array([nan(1), 1.0]),
            torch.tensor([nan(1), 1.0], dtype=torch.float32),
            Finding.OTHER_DIFFERENCE,
            "result.dtype = torch.float32, but should be torch.float64",
        ),
        (
            Answer(ints(1)),
            SimpleNamespace(seq_lens=tensor(1), seq_lens_cpu=None),
            Finding.OTHER_DIFFERENCE,
            "type(result) = SimpleNamespace, but should be Answer",
        ),
    ],
)
def test_a_wrong_value_is_reported_before_a_wrong_type(
    expected: object, actual: object, finding: Finding, line: str
) -> None:
    """Values are compared even if the type or dtype differs; equal values are no wrong answer."""
    difference = first_difference(expected, actual)
    assert difference is not None
    assert (finding, line) == (difference.finding, difference.line)


def test_copies_on_the_cpu_stay_there() -> None:
    """On a GPU target a field must be on the GPU, unless its name ends in `_cpu`."""
    difference = first_difference(
        Answer(ints(1), ints(1)), Answer(tensor(1), tensor(1)), "r", "xpu"
    )
    assert difference is not None
    assert difference.line == "r.seq_lens.device = cpu, but should be xpu"


@pytest.mark.parametrize(
    ("relation", "result", "line"),
    [
        (Relation.SAME, "other", "result = another object, but should be x itself"),
        (Relation.SAME, "view", "result = another object, but should be x itself"),
        (Relation.VIEW, "other", "result = another object, but should be a view of x"),
        (Relation.SAME, "x", None),
        (Relation.VIEW, "view", None),
    ],
)
def test_identity(relation: Relation, result: str, line: str | None) -> None:
    """Aliasing of a result and an argument is reported in the words of the definition."""
    for x, other in ((ints(1, 2), ints(1, 2)), (tensor(1, 2), tensor(1, 2))):
        results = {"x": x, "view": x[1:], "other": other}
        found = list(Alias("", relation, "x").differences(results[result], {"x": x}))
        assert [difference.line for difference in found] == ([line] if line else [])
        assert all(difference.verdict is Verdict.IDENTITY for difference in found)


def test_identity_of_each_of_several() -> None:
    """A relation declared for a result applies to each entry of a list of results."""
    x = tensor(1, 2)
    answers = [Answer(x[:1]), Answer(tensor(2))]
    [found] = Alias("seq_lens", Relation.VIEW, "x").differences(answers, {"x": x})
    assert found.path == "result[1].seq_lens"


def test_results_that_share_memory() -> None:
    """Two results that share memory are reported by the path of the second."""
    buffer = torch.zeros(8)
    difference = shared_memory(Answer(buffer[:4]), [torch.zeros(2), Answer(buffer[4:])])
    assert difference is not None
    assert difference.line == (
        "result[1].seq_lens = the memory of another call's result, but should be its own memory"
    )
    assert shared_memory(Answer(buffer), Answer(buffer.clone())) is None
