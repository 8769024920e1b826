import enum

import numpy as np
import pytest
import torch

from fast.packed_ints import pack_ints

RECURSIVE: list[object] = []
RECURSIVE += [RECURSIVE, RECURSIVE]
"""Whoever walks through it walks on for good."""


def nested(depth: int) -> frozenset[object]:
    """Return sets in a set, through which marshal, too, walks for good."""
    sets: frozenset[object] = frozenset()
    for _ in range(depth):
        sets = frozenset([sets])
    return sets


class Foreign:
    """What raises something of its own when it is added to a number."""

    def __radd__(self, other: object) -> int:
        raise KeyError(other)


class Disguised:
    """What is an int when it is added to one."""

    def __radd__(self, other: object) -> int:
        return 1


NO_INTS = (
    True,
    False,
    None,
    1.0,
    1j,
    "i",
    "",
    b"iiii",
    b"i" * 5,
    (),
    (1,),
    [1],
    {},
    ...,
    np.int64(1),
    np.int32(1),
    np.bool_(True),
    np.array(1),
    np.array([1, 2]),
    np.zeros(0),
    torch.tensor(1),
    enum.IntEnum("Number", ["one"]).one,  # type: ignore[attr-defined]
    2**31,
    -(2**31) - 1,
    2**63,
    2**200,
    RECURSIVE,
    nested(20_000),
    np.ones(2**20, dtype=np.uint8),
    object(),
    Foreign(),
    Disguised(),
)


@pytest.mark.parametrize(
    "values",
    [[], [0], [1, 0, -1], [2**31 - 1, -(2**31)], [105, 0x69696969], [7] * 300, [*range(5000)]],
)
@pytest.mark.parametrize("kind", [list, tuple])
def test_packs_ints(values: list[int], kind: type[list[int]]) -> None:
    """Ints within int32 are packed at once, of which None would say that this Python cannot."""
    packed = pack_ints(kind(values))
    assert packed is not None
    assert packed.dtype == np.int64
    assert packed.flags.writeable
    assert packed.flags.c_contiguous
    assert packed.tolist() == values


@pytest.mark.parametrize("value", NO_INTS, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("place", range(3))
def test_anything_else_has_to_be_looked_at(value: object, place: int) -> None:
    """What is no int, or beyond int32, is told from one, wherever it stands."""
    values: list[object] = [105, 105, 105]
    values[place] = value
    for kind in (list, tuple):
        assert pack_ints(kind(values)) is None  # type: ignore[arg-type]
    assert pack_ints([value]) is None  # type: ignore[list-item]


def test_what_looks_like_ints_is_none() -> None:
    """Bytes that would be kinds, at the places where kinds stand, belong to what is no int."""
    # Written: "s", a length of 4 bytes, and as many bytes: as long as ints.
    for count in range(1, 9):
        for values in ([b"i" * 5 * count], [b"i" * (5 * count - 5), 105], [105, b"i" * 5 * count]):
            assert pack_ints(values) is None  # type: ignore[arg-type]
