"""Batches: what they compute of a step themselves is what `reference` computes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import reference
from conformance.coverage.presets import MINIMAL, REAL, Preset, large_along
from conformance.strategies.batch import Batch, Layout
from conformance.strategies.batches import batches
from conformance.strategies.large_batches import REQUESTS, TOKENS
from conformance.strategies.slots import layouts

PRESETS = {
    preset.name: preset
    for preset in (MINIMAL, REAL, large_along(REQUESTS, 0, 300), large_along(TOKENS, 1, 3000))
}


@pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS)
@settings(max_examples=50, deadline=None, derandomize=True, database=None)
@given(st.data())
def test_slots_are_those_of_reference(preset: Preset, data: st.DataObject) -> None:
    """Slots are what `compute_slot_mapping` returns, with ranks and kernel blocks too."""
    layout = data.draw(layouts(preset))
    batch = data.draw(batches(preset, layout=layout))
    expected = reference.compute_slot_mapping(
        batch.block_table(),
        batch.query_start_loc(),
        batch.positions(),
        layout.block_size,
        **layout.keywords(),
    )
    actual = batch.slot_mapping()
    assert batch.num_actual_tokens + batch.extra_slots == len(actual)
    assert [*expected, *[7] * batch.extra_slots] == actual.tolist()
    assert np.int64 == actual.dtype


def test_each_token_has_the_position_after_the_one_before() -> None:
    """New tokens come after the computed ones; padding has the filler, and no request."""
    layout = Layout(2)
    batch = Batch((2, 0, 3, 0, 0), (1, 4, 0, 0, 5), layout, ((1, 2), (3, 4), (5, 6), (), ()), 2)
    assert [1, 2, 0, 1, 2, batch.filler, batch.filler] == batch.positions().tolist()
    assert [3, 4, 10, 11, 12, -1, -1] == batch.slot_mapping().tolist()
    assert [[1, 2], [3, 4], [5, 6], [0, 0], [0, 0]] == batch.block_table().tolist()
    assert 2 == batch.num_padded_reqs
