"""`ChoiceData` draws the same choices as Hypothesis' `ConjectureData`."""

from __future__ import annotations

import dataclasses
import random

import pytest
from hypothesis.internal.conjecture.data import ConjectureData

from conformance.generation.choice_data import ChoiceData
from conformance.generation.hypothesis_provider import FreshProvider
from kvtwin.fuzz.cases.case import run_data
from kvtwin.fuzz.cases.properties import Subject, properties_of


@pytest.mark.usefixtures("fuzz_profile")
@pytest.mark.parametrize("seed", [0, 1, 9])
def test_the_same_choices_in_the_same_order(seed: int) -> None:
    """Properties of all kinds draw the same choices, also after a given prefix."""
    properties = properties_of(Subject(target="host")).values()
    for each in list(properties)[seed::12]:
        # Only the body of a stateful test draws; the others are skipped.
        quiet = dataclasses.replace(each.check, body=lambda *_: None)
        prop = each if each.is_stateful else dataclasses.replace(each, check=quiet)
        choices: tuple[object, ...] = ()
        for prefix in (0, 7):
            expected, actual = (
                record(
                    random=random.Random(seed),  # noqa: S311  # no secret
                    provider=FreshProvider,
                    prefix=choices[:prefix],
                )
                for record in (ConjectureData, ChoiceData)
            )
            cases = [run_data(prop, data) for data in (expected, actual)]
            assert cases[0].status == cases[1].status, prop.name
            assert cases[0].choices == cases[1].choices, prop.name
            assert cases[0].goals == cases[1].goals, prop.name
            choices = cases[0].choices
