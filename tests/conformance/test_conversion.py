"""Conversion of arguments to a target, and their comparison after a call."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import fast
import reference
from conformance.arrays.guard_bands import guarded, guarded_table, poisoned_out
from conformance.strategies.batch import Batch, Layout
from conformance.strategies.batch_order import InputBatch
from conformance.targets.conversion import Converter
from conformance.targets.factories import Factory
from conformance.targets.implementations import FAST
from conformance.targets.target import REFERENCE
from conformance.values.call import Call


def past_the_end(x: torch.Tensor) -> None:
    """Write one element after a vector."""
    x.as_strided((1,), (1,), x.storage_offset() + 2 * len(x)).fill_(9)


def between(x: torch.Tensor) -> None:
    """Fill a strided vector as if it were dense."""
    x.as_strided((len(x),), (1,), x.storage_offset()).fill_(1)


@pytest.mark.parametrize(
    ("change", "may_change", "line"),
    [
        (lambda _: None, False, None),
        (lambda x: x[1].fill_(9), False, "x[1] = 9, but should be 2"),
        (lambda x: x[1].fill_(9), True, None),
        (past_the_end, False, "memory around x[8] = changed, but should be as it was"),
        (past_the_end, True, "memory around x[8] = changed, but should be as it was"),
        (between, True, "memory around x[3] = changed, but should be as it was"),
    ],
)
def test_writes_to_an_argument(
    change: Callable[[Any], object], may_change: bool, line: str | None
) -> None:
    """A changed element is reported unless it may change; writes around the elements always are."""
    converter = Converter(FAST, "cpu")
    change(converter.convert(guarded([1, 2, 3], np.int64, stride=2), "x"))
    difference = converter.tracker.changed(frozenset({"x"} if may_change else ()))
    assert line == (difference.line if difference else None)


def test_a_strided_argument_stays_strided() -> None:
    """A view is converted together with its underlying memory, for either twin."""
    drawn = guarded_table([[5, 9], [7]], 2, 3, 0)
    ours, theirs = Converter(REFERENCE.implementation, None), Converter(FAST, "cpu")
    table, tensor = ours.convert(drawn, "block_table"), theirs.convert(drawn, "block_table")
    assert drawn.tolist() == table.tolist() == tensor.tolist()
    assert drawn.strides == table.strides == tuple(4 * step for step in tensor.stride())
    assert not np.shares_memory(drawn, table)
    assert tensor.dtype is torch.int32


def test_what_is_one_memory_stays_so() -> None:
    """Arguments that share memory share it after conversion; a repeated array stays one object."""
    drawn = np.arange(6)
    converter = Converter(FAST, "cpu")
    first, second = converter.convert(drawn[:4], "a"), converter.convert(drawn[2:], "b")
    first[2] = 9
    assert second[0].item() == 9
    converted = Converter(FAST, "cpu").convert({"a": drawn, "b": drawn, "c": drawn.copy()}, "raw")
    assert converted["a"] is converted["b"]
    assert converted["a"] is not converted["c"]


def test_an_output_is_poisoned() -> None:
    """An output buffer is filled with poison, so that missing writes show."""
    out = Converter(FAST, "cpu").convert(poisoned_out(3, np.int64), "out")
    assert out.tolist() == [-0x5555555555555556] * 3


def test_classes_become_the_targets() -> None:
    """Objects of `reference` become the target's; what is NumPy in both twins stays NumPy."""
    metadata = Batch((2, 1), (0, 3), Layout(2), ((1,), (2, 3))).metadata()
    metadata.encoder_seq_lens = np.array([4, 4])
    converted = Converter(FAST, "cpu").convert(metadata, "metadata")
    assert type(converted) is fast.CommonAttentionMetadata
    assert isinstance(converted.seq_lens, torch.Tensor)
    assert isinstance(converted.encoder_seq_lens, np.ndarray)
    assert converted.num_reqs == 2


def test_a_callers_own_objects_are_copies() -> None:
    """A target gets a copy of an engine's own batch, so its changes do not reach the other."""
    batch = InputBatch(["a", "b"], np.array([1, 2]), np.array([3, 4]))
    converted = Converter(FAST, "cpu").convert(batch, "input_batch")
    converted.swap_states(0, 1)
    assert converted.req_ids == ["b", "a"]
    assert batch.req_ids == ["a", "b"]
    assert batch.num_computed_tokens_cpu.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("seq_lens", "metadata.seq_lens = another object, but should be as it was"),
        ("_cached", None),
    ],
)
def test_changed_objects_are_reported(name: str, line: str | None) -> None:
    """A field that is replaced by a copy, and a new attribute, are reported."""
    metadata = Batch((2, 1), (0, 3), Layout(2), ((1,), (2, 3))).metadata()
    converter = Converter(FAST, "cpu")
    converted = converter.convert(metadata, "metadata")
    setattr(converted, name, converted.seq_lens.clone())
    difference = converter.tracker.changed(frozenset())
    assert difference is not None
    assert (line or difference.line) == difference.line
    assert difference.path == (f"metadata.{name}" if line else "list(metadata)")


def test_objects_can_be_a_callers_own() -> None:
    """A caller's own objects become stubs with the same attributes; `self` never does."""
    metadata = Batch((2,), (0,), Layout(2), ((1,),)).metadata()
    converter = Converter(FAST, "cpu", has_own_objects=True)
    own, bound = converter.convert(metadata, "metadata"), converter.convert(metadata, "self")
    assert type(own).__module__ == "conformance.values.stubs"
    assert type(own).__name__ == "CommonAttentionMetadata"
    assert type(bound) is fast.CommonAttentionMetadata
    assert vars(own).keys() == vars(bound).keys()


def test_an_idle_step_is_zeros_and_passes() -> None:
    """An idle step sets the same memory to zeros, except guard bands, and then restores it."""
    converter = Converter(FAST, "cpu")
    x = converter.convert(guarded([1, 2, 3], np.int64, stride=2), "x")
    with converter.tracker.idle_step():
        assert x.tolist() == [0, 0, 0]
        assert x.as_strided((1,), (1,), 0).item() != 0
    assert x.tolist() == [1, 2, 3]
    assert converter.tracker.changed(frozenset()) is None


def test_scribbling_leaves_nothing() -> None:
    """`poison_arguments` fills arrays with poison, and empties lists."""
    converter = Converter(FAST, "cpu")
    x, ids = converter.convert(guarded([1, 2], np.int32), "x"), converter.convert([[5], [6]], "ids")
    inner = ids[0]
    converter.tracker.poison_arguments()
    assert x.tolist() == [-0x55555556] * 2
    assert ids == inner == []


@dataclasses.dataclass(frozen=True)
class _Layer(Factory):
    """A layer without a cache."""

    def make(self, _: Converter) -> SimpleNamespace:
        """Return a layer."""
        return SimpleNamespace(kv_cache=None)


@pytest.mark.parametrize(
    ("drawn", "change", "path"),
    [
        ([3, 2**40], lambda x: x.append(9), "list(x)"),
        ([3, 2**40], lambda x: x.insert(1, x.pop() + 1), "x[1]"),
        ({"a": [1]}, lambda x: x.update(b=2), "list(x)"),
        ({"a": [1]}, lambda x: x.update(a=[1]), "x.a"),
        ({"a"}, lambda x: x.add("b"), "list(x)"),
        ({"a": _Layer()}, lambda x: setattr(x["a"], "kv_cache", []), "x['a'].kv_cache"),
    ],
)
def test_changed_containers_are_reported(
    drawn: object, change: Callable[[Any], object], path: str
) -> None:
    """Added or replaced entries and attributes are reported, unless the argument may change."""
    converter = Converter(FAST, "cpu")
    change(converter.convert(drawn, "x"))
    difference = converter.tracker.changed(frozenset())
    assert difference is not None
    assert path == difference.path
    assert converter.tracker.changed(frozenset({"x"})) is None


def test_lazy_negations_hold_the_drawn_values() -> None:
    """Tensors may be lazy negations, except outputs; writes to their memory are reported."""
    drawn = guarded([3, -5], np.int32)
    converter = Converter(FAST, "cpu", negates=True, written=frozenset({"out"}))
    lens, out = (
        converter.convert(drawn, "seq_lens"),
        converter.convert(np.zeros(2, np.int32), "out"),
    )
    assert (True, False) == (lens.is_neg(), out.is_neg())
    assert [3, -5] == lens.tolist()
    assert converter.tracker.changed(frozenset()) is None
    torch._neg_view(lens)[1] = 7  # in its memory
    difference = converter.tracker.changed(frozenset({"out"}))
    assert difference is not None
    assert "seq_lens[1] = -7, but should be -5" == difference.line


def test_nans_are_not_negated_on_a_device() -> None:
    """Negation on a GPU leaves the sign of a NaN; other numbers become lazy negations there."""
    there = Converter(FAST, "meta", negates=True)
    assert there.convert(np.array([1.0, -0.0]), "x").is_neg()
    assert not there.convert(np.array([1.0, np.nan]), "x").is_neg()
    assert Converter(FAST, "cpu", negates=True).convert(np.array([1.0, np.nan]), "x").is_neg()


def test_numpy_scalars_keep_what_is_shared() -> None:
    """An object that occurs several times is still one object with NumPy scalars.

    Otherwise 1,025 references to two specs with 276 layers become 283,000 objects.
    """
    ubatch = reference.UBatchSlice(slice(0, 1), slice(0, 2))
    call = Call("f", {"ubatches": [ubatch, [ubatch]], "one": ubatch}, hints={"hint": ubatch})
    changed = call.with_numpy_scalars()
    [first, [second]] = changed.arguments["ubatches"]
    others = [second, changed.arguments["one"], changed.hints["hint"]]
    assert type(first.token_slice.stop) is np.int32
    assert all(other is first for other in others)
