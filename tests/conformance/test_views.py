"""The exact bytes of memory that a result covers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from conformance.values.views import first_view_difference

RAW = np.arange(24, dtype=np.int8)


def difference_line(make: Callable[[Any], Any], wrong: Callable[[Any], Any]) -> str | None:
    """Return the reported difference of a target that answers `wrong` instead of `make`."""
    tensor = torch.from_numpy(RAW.copy())
    arguments = {"raw": RAW}, {"raw": tensor}
    difference = first_view_difference(make(RAW), wrong(tensor), *arguments)
    return difference.line if difference else None


@pytest.mark.parametrize(
    "make",
    [
        lambda raw: raw,
        lambda raw: raw.reshape(2, 12),
        lambda raw: raw[4:20].reshape(2, 2, 4).swapaxes(0, 1),
        lambda raw: {"a": raw[8:], "b": [raw[:8], raw[:4]]},
        lambda raw: raw.reshape(1, 24)[:, 3:4],
        lambda raw: raw[:0],
    ],
)
def test_the_same_view_is_right(make: Callable[[Any], Any]) -> None:
    """Equal views of both implementations' memory are equal."""
    assert difference_line(make, make) is None


@pytest.mark.parametrize(
    ("make", "wrong", "line"),
    [
        (
            lambda raw: raw.reshape(2, 12),
            lambda raw: raw.as_strided((2, 12), (1, 2)),
            "result.strides = (1, 2) bytes, but should be (12, 1) bytes",
        ),
        (
            lambda raw: raw[8:],
            lambda raw: raw[4:20],
            "result.offset = 4 bytes, but should be 8 bytes",
        ),
        (
            lambda raw: raw[:],
            lambda raw: raw.clone(),
            "result = in the memory of result, but should be in that of arguments['raw']",
        ),
        (
            lambda raw: {"a": raw[:], "b": [raw[:]]},
            lambda raw: {"a": raw[:], "b": [raw]},
            "result['b'][0] = the same object as arguments['raw'], but should be a separate object",
        ),
    ],
)
def test_another_view_is_reported(
    make: Callable[[Any], Any], wrong: Callable[[Any], Any], line: str
) -> None:
    """Other strides, another place, a copy, and the argument itself for a view are reported."""
    assert line == difference_line(make, wrong)


def test_shared_results_are_reported() -> None:
    """Two results that should be one object, and are two views of one memory, are reported."""
    ours, theirs = np.zeros(4), torch.zeros(4, dtype=torch.float64)
    shared = {"a": ours, "b": ours}
    apart = {"a": theirs, "b": theirs[:]}
    difference = first_view_difference(shared, apart, {}, {})
    assert difference is not None
    assert "result['b'] = a separate object" in difference.line
    lists = [[ours]] * 2, [[theirs], [theirs]]
    difference = first_view_difference(*lists, {}, {})
    assert difference is not None
    assert difference.path == "result[1]"


@dataclasses.dataclass
class _Entry:
    """Any object of a result."""

    value: object


def test_shared_objects_are_reported() -> None:
    """An object that is at two places must be at both on the target."""
    one = _Entry(3)
    difference = first_view_difference([one, one], [one, _Entry(3)], {}, {})
    assert difference is not None
    assert "but should be the same object as result[0]" in difference.line


def test_one_array_is_two_tensors_on_a_device() -> None:
    """What is on a device and on the host is one array for `reference`, two for a target."""
    starts, on_host = np.arange(3), torch.arange(3)
    on_device = torch.empty(3, dtype=torch.int64, device="meta")
    ours = {"query_start_loc": starts, "query_start_loc_cpu": starts}
    theirs = {"query_start_loc": on_device, "query_start_loc_cpu": on_host}
    assert first_view_difference(ours, theirs, ours, theirs) is None
    assert first_view_difference([starts[1:]], [on_host[1:]], ours, theirs) is None
    difference = first_view_difference([starts], [on_host.clone()], ours, theirs)
    assert difference is not None
    assert difference.path == "result[0]"


def test_what_is_in_a_shared_list_has_one_place() -> None:
    """A part of a list that is at two places is reported at the first; the second is the list."""
    ours, theirs = np.zeros(4), torch.zeros(4, dtype=torch.float64)
    inner, other = [ours[1:]], [theirs[2:]]
    difference = first_view_difference([inner, inner], [other, other], {}, {})
    assert difference is not None
    assert difference.path == "result[0][0].offset"
    arguments = {"a": inner}, {"a": [theirs[1:]]}
    difference = first_view_difference(inner, arguments[1]["a"][:], *arguments)
    assert difference is not None
    assert "result = a separate object, but should be the same" in difference.line


def test_what_is_shared_many_times_is_looked_at_once() -> None:
    """Shared lists are compared once: nested ones have too many paths to walk."""
    ours: Any = [1, [2]]
    theirs: Any = [1, [2]]
    for _ in range(40):
        ours, theirs = [ours, ours], [theirs, theirs]
    assert first_view_difference(ours, theirs, {}, {}) is None
