"""Size axes: which sizes are drawn, and what a run reports about sizes that were not."""

from __future__ import annotations

import dataclasses
import gc

import pytest
from hypothesis import strategies as st
from hypothesis.strategies._internal.strategies import SampledFromStrategy

from conformance.checks.contract_checks import along_axes
from conformance.contracts.check import Check, property_check
from conformance.coverage.goals import COVERAGE
from conformance.coverage.presets import Preset
from conformance.coverage.size_axes import BANDS, NO_AXES, Axis, band_of, presets_of_axes
from conformance.generation.drawing import drawn as examples_of
from conformance.generation.profiles import PROFILES
from conformance.targets.target import TARGETS, Target
from tests.bugs.catalogue import all_checks

AXIS = Axis(lambda number: number)


def toy(drawn: list[int], *, ignores_axis: bool = False) -> Check:
    """Return a check along the axis "number" that notes what it draws."""

    def numbers(preset: Preset) -> st.SearchStrategy[int]:
        usual = st.just(3)
        return usual if ignores_axis else preset.sizes("number", usual)

    @property_check("a toy of sizes", numbers)
    def note(_: Target, number: int) -> None:
        """Each number is noted."""
        drawn.append(number)

    return along_axes(note, {"number": AXIS}, lambda number: number)


def test_a_run_draws_every_size_once() -> None:
    """The default run draws exactly the sizes of the axis, and reaches all bands."""
    drawn: list[int] = []
    check = toy(drawn)
    check.bind(TARGETS["host"], PROFILES["default"], "real")()
    sizes = {
        size for preset in presets_of_axes(check.axes, check.function) for size in preset.axis_sizes
    }
    assert sizes == set(drawn)
    assert all(COVERAGE.reached[check.function, goal] for goal in check.goals)
    assert {f"number: {band}" for band in BANDS.values()} == set(check.goals)


def test_a_strategy_that_ignores_an_axis_does_not_reach_its_bands() -> None:
    """Coverage counts the measured sizes of calls, not the sizes that a preset requested."""
    check = dataclasses.replace(toy([], ignores_axis=True), function="a toy that ignores sizes")
    check.bind(TARGETS["host"], PROFILES["default"], "real")()
    reached = {goal for goal in check.goals if COVERAGE.reached[check.function, goal]}
    assert {"number: 2 to 16"} == reached


def test_a_random_run_draws_from_the_whole_range() -> None:
    """A random run draws many sizes in each of the large bands, not only those of the default."""
    drawn: list[int] = []
    profile = dataclasses.replace(PROFILES["nightly"], large_examples=100, seed=0)
    toy(drawn).bind(TARGETS["host"], profile, "real")()
    bands = [band_of(size) for size in set(drawn)]
    assert bands.count("17 to 255") > 5 < bands.count("256 to 65,535")
    assert {0, 65_536, 65_537} <= set(drawn)
    assert max(drawn) == 65_537


@pytest.mark.parametrize("function", ["create_ubatch_slices", "split_attn_metadata"])
def test_large_examples_leave_no_large_strategy(function: str) -> None:
    """No strategy that Hypothesis stores samples from all requests of a large batch.

    A nightly run reported their contents as growing memory.
    """
    num_drawn = 0
    for named in all_checks():
        check = named.check
        if check.function != function or not check.axes:
            continue
        for preset in presets_of_axes(check.axes, function):
            if preset.axis_sizes[1] > 10_000:
                num_drawn += len(examples_of(check.examples(preset), 3, function))
    assert num_drawn
    gc.collect()
    stored = (s for s in gc.get_objects() if type(s) is SampledFromStrategy)  # not a proxy of one
    assert [] == [repr(s)[:80] for s in stored if len(s.elements) > 10_000]


def test_every_function_has_axes_or_a_reason() -> None:
    """A function without a size axis is listed with the reason, and no other is."""
    with_axes: dict[str, bool] = {}
    for named in all_checks():
        function = named.check.function
        with_axes[function] = with_axes.get(function, False) or bool(named.check.axes)
    assert sorted(NO_AXES) == sorted(function for function, has in with_axes.items() if not has)
