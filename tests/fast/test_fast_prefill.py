import dataclasses
import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import fast
from fast import make_kv_sharing_fast_prefill_common_attn_metadata as make_wanted
from fast.launch import simulated_by

Make = Callable[..., fast.CommonAttentionMetadata]


def int32(values: list[int]) -> torch.Tensor:
    """Return an int32 tensor."""
    return torch.tensor(values, dtype=torch.int32)


def armed(make_batch: Make, indices: list[int], query_lens: tuple[int, ...] = (15, 5, 8)) -> Any:  # noqa: ANN401  # a batch
    """Make a batch of which some tokens are wanted, with padding behind the indices."""
    batch = make_batch(list(query_lens), [0, 4, 22, 1][: len(query_lens)])
    batch.logits_indices_padded = torch.tensor([*indices, 0, 0])
    batch.num_logits_indices = len(indices)
    return batch


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
@pytest.mark.parametrize("with_copy", [False, True])
def test_the_worked_example(make_batch: Make, dtype: torch.dtype, *, with_copy: bool) -> None:
    """On both paths tokens are counted by request; the rest is as it was."""
    batch = armed(make_batch, [14, 18, 19, 27])
    batch.logits_indices_padded = batch.logits_indices_padded.to(dtype)
    batch.causal, batch.encoder_seq_lens = False, np.array([1, 2, 3])
    batch.dcp_local_seq_lens = batch.seq_lens
    copy = int32([14, 18, 19, 27]) if with_copy else None
    with fast.checks(enabled=True):
        wanted = make_wanted(batch, logits_indices_cpu=copy)
    assert [0, 1, 3, 4] == wanted.query_start_loc.tolist() == wanted.query_start_loc_cpu.tolist()
    assert (2, 4) == (wanted.max_query_len, wanted.num_actual_tokens)
    assert {int} == {type(wanted.max_query_len), type(wanted.num_actual_tokens)}
    assert torch.int32 == wanted.query_start_loc.dtype == wanted.query_start_loc_cpu.dtype
    for name in (
        "seq_lens",
        "seq_lens_cpu",
        "num_computed_tokens_cpu",
        "num_reqs",
        "max_seq_len",
        "block_table_tensor",
        "slot_mapping",
    ):
        assert getattr(wanted, name) is getattr(batch, name), name
    assert wanted.causal is True
    for name in ("logits_indices_padded", "num_logits_indices", "encoder_seq_lens"):
        assert getattr(wanted, name) is None
    assert wanted.dcp_local_seq_lens is None
    assert [0, 15, 20, 28] == batch.query_start_loc.tolist()
    wanted.validate(block_size=2)


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize(
    ("query_lens", "indices", "expected"),
    [
        ((15, 5, 8), [], [0, 0, 0, 0]),
        ((3, 0, 2, 0), [0, 1, 2, 3, 4], [0, 3, 3, 5, 5]),
        ((0, 3), [2], [0, 0, 1]),
        ((3, 3), [0], [0, 1, 1]),
        ((3, 3), [3, 5], [0, 0, 2]),
        ((), [], [0]),
    ],
)
def test_counts(
    make_batch: Make, query_lens: tuple[int, ...], indices: list[int], expected: list[int]
) -> None:
    """A request may have no wanted token, all its tokens, or no token at all."""
    batch = armed(make_batch, indices, query_lens)
    batch.logits_indices_padded = batch.logits_indices_padded.repeat_interleave(2)[::2]
    with fast.checks(enabled=True):
        wanted = make_wanted(batch)
    assert expected == wanted.query_start_loc.tolist() == wanted.query_start_loc_cpu.tolist()
    most = max((b - a for a, b in itertools.pairwise(expected)), default=0)
    assert (most, len(indices)) == (wanted.max_query_len, wanted.num_actual_tokens)


def test_the_batch_itself(make_batch: Make) -> None:
    """Decodes, and batches for which fast prefill is not armed, come back unlooked at."""
    batch = make_batch([3], [0])
    assert batch is make_wanted(batch)
    batch = armed(make_batch, [0], (3,))
    batch.max_query_len, batch.num_logits_indices = 1, "unread"
    with fast.checks(enabled=True):
        assert batch is make_wanted(batch)


def test_classes(make_batch: Make) -> None:
    """A subclass stays what it is; an engine's own becomes ours."""

    @dataclasses.dataclass(eq=False)
    class Own(fast.CommonAttentionMetadata):
        step: int = 0

    batch = armed(make_batch, [1], (3,))
    own = Own(**vars(batch), step=7)
    assert (Own, 7) == (type(make_wanted(own)), make_wanted(own).step)
    for other in (batch, SimpleNamespace(**vars(batch))):
        wanted = make_wanted(other)
        assert fast.CommonAttentionMetadata is type(wanted)
        assert [0, 1] == wanted.query_start_loc.tolist()


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("indices", [[9, 2, 27], [-5, 10**6, 3], [2**40, -(2**40), 2**31]])
def test_bad_indices_unchecked(make_batch: Make, indices: list[int]) -> None:
    """Whatever they are, nothing is read or written outside."""
    wanted = make_wanted(armed(make_batch, indices))
    assert 0 == wanted.query_start_loc[0]
    assert all(0 <= start <= 3 for start in wanted.query_start_loc.tolist())


@pytest.mark.parametrize(("threads", "seed"), [(1, 0), (3, 1), (32, 2), (7, 3)])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_any_block_of_threads(
    make_batch: Make, threads: int, seed: int, dtype: torch.dtype, simulate: Callable[..., None]
) -> None:
    """The kernel's starts are the host's, for any threads in a block and any order of them."""
    batch = armed(make_batch, [0, 13, 14, 17, 19, 20, 27])
    batch.logits_indices_padded = batch.logits_indices_padded.to(dtype)
    expected = make_wanted(batch)

    def launch(kernel: Any, grid: Any, size: int, args: Any) -> None:  # noqa: ANN401  # passed on
        simulate(kernel, grid, size, args, seed=seed)

    with simulated_by(launch, threads=threads):
        found = make_wanted(batch)
    assert torch.equal(expected.query_start_loc, found.query_start_loc)
    assert expected.max_query_len == found.max_query_len


@pytest.mark.parametrize("checked", [False, True])
@pytest.mark.parametrize(
    ("changes", "copy", "error", "message"),
    [
        ({"logits_indices_padded": None}, None, ValueError, "logits_indices_padded is None, but"),
        ({"num_logits_indices": None}, None, ValueError, "num_logits_indices is None, but"),
        ({"num_logits_indices": -1}, None, ValueError, "num_logits_indices is -1"),
        ({"num_logits_indices": 1.0}, None, TypeError, "num_logits_indices must be an int"),
        ({"num_logits_indices": 5}, None, ValueError, "_padded has 4 entries, expected at least"),
        ({"logits_indices_padded": [0, 1]}, None, TypeError, "^logits_indices_padded must be an"),
        ({"logits_indices_padded": torch.zeros(4)}, None, TypeError, "_padded must be int32 or"),
        ({"logits_indices_padded": int32([[1]])}, None, ValueError, "_padded must have 1 dim"),  # type: ignore[list-item]  # that is the test
        ({"logits_indices_padded": int32([1, 2]).to("meta")}, None, ValueError, "is on meta"),
        ({}, int32([1]), ValueError, "logits_indices_cpu has 1 entries, expected at least"),
        ({}, [1, 2], TypeError, "^logits_indices_cpu must be an array, got list"),
        ({}, int32([1, 2]).to("meta"), ValueError, "logits_indices_cpu must be on the CPU"),
    ],
)
def test_refused(
    make_batch: Make,
    changes: dict[str, Any],
    copy: torch.Tensor | None,
    error: type[Exception],
    message: str,
    *,
    checked: bool,
) -> None:
    """Types, dtypes, lengths and devices are checked in both modes."""
    batch = dataclasses.replace(armed(make_batch, [1, 2], (3,)), **changes)
    with fast.checks(checked), pytest.raises(error, match=message):
        make_wanted(batch, logits_indices_cpu=copy)


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize(
    ("indices", "copy", "message"),
    [
        ([3, 3], None, r"logits_indices_padded\[1\] is 3, expected more than 3 before it"),
        ([1, 28], None, r"logits_indices_padded\[1\] is 28, expected 0 to 27"),
        ([-1, 3], None, r"logits_indices_padded\[0\] is -1, expected 0 to 27"),
        ([1, 3], [1, 4], r"logits_indices_cpu\[1\] is 4, but logits_indices_padded\[1\] is 3"),
    ],
)
def test_checked(
    make_batch: Make, indices: list[int], copy: list[int] | None, message: str
) -> None:
    """In checked mode indices increase and are tokens of requests, and their copy is equal."""
    with fast.checks(enabled=True), pytest.raises(ValueError, match=message):
        make_wanted(
            armed(make_batch, indices), logits_indices_cpu=None if copy is None else int32(copy)
        )


def test_the_batch_is_checked(make_batch: Make) -> None:
    """In checked mode a metadata that contradicts itself is refused."""
    batch = armed(make_batch, [1])
    batch.max_query_len = 3
    with fast.checks(enabled=True), pytest.raises(ValueError, match="max_query_len is 3, less"):
        make_wanted(batch)


def test_lengths_in_any_mode(make_batch: Make, simulate: Callable[..., None]) -> None:
    """Starts of another length than the batch are refused before a kernel reads past their end."""
    batch = armed(make_batch, [1])
    batch.query_start_loc_cpu = int32([0, 15])
    with pytest.raises(ValueError, match="query_start_loc_cpu has 2 entries, expected 4"):
        make_wanted(batch)
    batch = armed(make_batch, [1])
    batch.query_start_loc = int32([0, 15])
    with (
        simulated_by(simulate, threads=4),
        pytest.raises(ValueError, match="query_start_loc has 2 entries, expected 4"),
    ):
        make_wanted(batch)


def test_kernels_are_given_python_ints(make_batch: Make) -> None:
    """A NumPy int would be passed to a kernel in its own width, not as the int64 that it takes."""
    given: list[tuple[object, ...]] = []

    def launch(*launched: Any) -> None:  # noqa: ANN401  # a launch
        given.append(launched[3])
        launched[3][-1].zero_()

    batch = armed(make_batch, [1, 16])
    batch.num_reqs, batch.num_logits_indices = np.int32(3), np.int64(2)
    with simulated_by(launch, threads=4):
        make_wanted(batch)
    assert {int} == {type(arg) for args in given for arg in args if not torch.is_tensor(arg)}
    batch.num_reqs = 3.0
    with pytest.raises(TypeError, match=r"num_reqs must be an int, got 3\.0"):
        make_wanted(batch)


def test_fields_and_protocol() -> None:
    """The two fields have defaults, and what has them is a metadata of fast prefill."""
    fields = fast.KV_SHARING_FAST_PREFILL_METADATA_FIELDS
    assert [
        ("logits_indices_padded", torch.Tensor | None, None),
        ("num_logits_indices", int, 0),
    ] == fields
    made = fast.subclass_attention_metadata("Fast", fast.AttentionMetadata, fields)
    assert isinstance(made(), fast.KVSharingFastPrefillMetadata)
    assert not isinstance(SimpleNamespace(num_logits_indices=1), fast.KVSharingFastPrefillMetadata)
