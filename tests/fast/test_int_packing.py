"""Lists of ints as arrays: fast for ints, and None for anything that has to be looked at."""

import enum
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from fast._native import int_packing
from fast._native.int_packing import MARSHAL_FROM, pack_ints, pack_with_marshal

RECURSIVE: list[object] = []
RECURSIVE += [RECURSIVE, RECURSIVE]
"""It contains itself: walking through it never ends."""


def nested(depth: int) -> frozenset[object]:
    """Return sets in a set, through which marshal, too, walks for good."""
    sets: frozenset[object] = frozenset()
    for _ in range(depth):
        sets = frozenset([sets])
    return sets


class Foreign:
    """An object that raises an exception of another class when it is added to a number."""

    def __radd__(self, other: object) -> int:
        raise KeyError(other)


class Disguised:
    """An object that gives an int when it is added to one."""

    def __radd__(self, other: object) -> int:
        return 1


NO_INTS = (
    *(True, False, None, 1.0, 1j, "i", "", b"iiii", b"i" * 5, (), (1,), [1], {}, ...),
    *(np.int64(1), np.int32(1), np.bool_(True), np.array(1), np.array([1, 2]), np.zeros(0)),
    *(torch.tensor(1), enum.IntEnum("Number", ["one"]).one, 2**63, 2**200),
    *(RECURSIVE, nested(20_000), np.ones(2**20, dtype=np.uint8), object(), Foreign(), Disguised()),
)
PACKERS = [pack_ints, pack_with_marshal]


@pytest.mark.parametrize("pack", PACKERS)
@pytest.mark.parametrize(
    "values",
    [[0], [1, 0, -1], [2**31 - 1, -(2**31)], [105, 0x69696969], [7] * 127, [*range(5000)]],
)
def test_packs_ints(pack: Callable[..., Any], values: list[int]) -> None:
    for kind in (list, tuple):
        packed = pack(kind(values))
        assert (np.int64, values) == (packed.dtype, packed.tolist())
        assert packed.flags.writeable
        assert packed.flags.c_contiguous
    assert (np.int64, 0) == (pack_ints([]).dtype, len(pack_ints([])))


@pytest.mark.parametrize("length", [2, MARSHAL_FROM])
def test_large_ints(length: int) -> None:
    for value in (2**31, -(2**31) - 1, 2**63 - 1, -(2**63)):
        packed = pack_ints([value, *[1] * (length - 1)])
        assert (packed is not None) is (length < MARSHAL_FROM)
        assert packed is None or packed[0] == value
    assert pack_ints([2**63, *[1] * (length - 1)]) is None


@pytest.mark.parametrize("value", NO_INTS, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("length", [1, 3, MARSHAL_FROM])
def test_anything_else_has_to_be_looked_at(value: object, length: int) -> None:
    for place in range(min(length, 3)):
        values: list[object] = [105] * length
        values[place] = value
        for kind in (list, tuple):
            assert [None, None] == [pack(kind(values)) for pack in PACKERS]


def test_what_looks_like_ints_is_none() -> None:
    # Written: "s", a length of 4 bytes, and as many bytes: as long as ints.
    for count in range(1, 9):
        for values in ([b"i" * 5 * count], [b"i" * (5 * count - 5), 105], [105, b"i" * 5 * count]):
            assert pack_with_marshal(values) is None
    # Three bytes, and twice eleven: as long as five ints.
    assert pack_with_marshal([True] * 3 + [2**31] * 2) is None


def test_exceptions_of_signal_handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise TimeoutError

    monkeypatch.setattr(int_packing.marshal, "dumps", interrupt)
    with pytest.raises(TimeoutError):
        pack_ints([7] * MARSHAL_FROM)


def test_another_format_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert int_packing.MARSHAL_WORKS
    assert int_packing._marshal_works()
    monkeypatch.setattr(int_packing.marshal, "dumps", lambda *_: b"")
    assert not int_packing._marshal_works()
    monkeypatch.setattr(int_packing, "MARSHAL_WORKS", False)
    assert [7] * 200 == pack_ints([7] * 200).tolist()


def test_the_sum_of_numpy_ints_overflows_in_silence() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert pack_ints([np.int32(2**31 - 1)] * MARSHAL_FROM) is None
    assert not caught
