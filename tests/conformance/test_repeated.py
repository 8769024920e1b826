"""Lists that are large along an axis have the size that the preset says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.coverage.presets import MINIMAL, large_along
from conformance.strategies.repeated import MAX_DRAWN, lists, repeated


@pytest.mark.parametrize("size", [0, 1, 4097])
@given(data=st.data())
def test_large_lists_have_the_size_and_few_elements(size: int, data: st.DataObject) -> None:
    """A list of any size has copies of the few elements that were drawn."""
    preset = large_along("layers", size, size)
    found = lists(data.draw, preset, "layers", st.integers(), max_size=3)
    assert size == len(found)
    assert len(set(found)) <= MAX_DRAWN


@given(data=st.data())
def test_other_lists_are_as_they_are_drawn(data: st.DataObject) -> None:
    """A preset that is large along no axis, or along another one, leaves a list as it is."""
    for preset in (MINIMAL, large_along("groups", 9, 9)):
        assert [1, 2] == repeated(data.draw, preset, "layers", [1, 2])
        assert len(lists(data.draw, preset, "layers", st.integers(), max_size=3)) <= 3
