"""Examples are those that Hypothesis draws, and Hypothesis reports what fails."""

from __future__ import annotations

from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st
from hypothesis.control import current_build_context
from hypothesis.internal.cache import LRUCache
from hypothesis.internal.conjecture import providers

from conformance.checks.registry import contracts
from conformance.coverage.presets import MINIMAL
from conformance.generation.examples import MAX_REJECTED, run_examples
from conformance.generation.profiles import PROFILES, Kind

OPTIONS = PROFILES["dev"].settings(Kind.LAW, simulated=False)
DIGITS = st.integers(0, 9)


@pytest.mark.parametrize("contract", list(contracts().values())[::6], ids=list(contracts())[::6])
def test_examples_are_those_of_hypothesis(contract: Any) -> None:  # noqa: ANN401  # contracts are generic
    """The same choices are made in the same order, those of the simplest example first."""
    choices: list[tuple[object, ...]] = []

    def test(example: object) -> None:
        del example
        choices.append(tuple(current_build_context().data.choices))

    strategy = contract.calls(MINIMAL)
    hypothesis.seed(5)(OPTIONS(hypothesis.given(example=strategy)(test)))()
    expected = [*choices]
    choices.clear()
    run_examples(test, strategy, OPTIONS, 5)
    assert OPTIONS.max_examples == len(choices)
    assert expected == choices


@pytest.mark.parametrize("profile", ["default", "nightly"])
def test_constants_in_the_source_of_loaded_modules(
    profile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hypothesis' constants from local modules are drawn in random runs only."""
    options = PROFILES[profile].settings(Kind.LAW, simulated=False)
    options = hypothesis.settings(options, max_examples=50, print_blob=False)
    draws: list[list[int]] = []

    def test(example: int) -> None:
        draws[-1].append(example)

    for numbers in ([], range(100_000, 200_000, 100)):
        constants = providers.Constants()
        constants.integers.update(numbers)
        monkeypatch.setattr(providers, "_get_local_constants", lambda c=constants: c)
        monkeypatch.setattr(providers, "CONSTANTS_CACHE", LRUCache(100))
        draws.append([])
        hypothesis.seed(0)(options(hypothesis.given(example=st.integers(0, 10**9))(test)))()
    without, drawn = draws
    if profile == "default":
        assert without == drawn
    else:
        assert {*drawn}.intersection(range(100_000, 200_000, 100))


def test_a_failure_is_shrunk() -> None:
    """The exception that is raised belongs to the smallest failing example."""

    def test(example: int) -> None:
        assert example < 3, f"{example} is too large"

    with pytest.raises(AssertionError, match="3 is too large"):
        run_examples(test, DIGITS, OPTIONS, 0)


def test_a_failure_that_occurs_once_is_a_failure() -> None:
    """A failure that does not recur is raised with a note, since Hypothesis did not see it."""
    failing = iter([None] * 7 + [ValueError("the eighth call")])

    def test(example: int) -> None:
        del example
        error = next(failing, None)
        if error is not None:
            raise error

    with pytest.raises(ValueError, match="the eighth call") as caught:
        run_examples(test, DIGITS, OPTIONS, 0)
    assert ["The same examples passed when they were run again."] == caught.value.__notes__


@pytest.mark.parametrize("modulus", [2, 10])
def test_rejected_examples(modulus: int) -> None:
    """Rejected examples do not count; if most are rejected, Hypothesis reports it."""
    valid = []

    def test(example: int) -> None:
        hypothesis.assume(example % modulus == 0)
        valid.append(example)

    strategy = st.integers(0, 999)
    if modulus == 2:
        run_examples(test, strategy, OPTIONS, 0)
        assert OPTIONS.max_examples <= len(valid) <= OPTIONS.max_examples + MAX_REJECTED
    else:
        with pytest.raises(hypothesis.errors.FailedHealthCheck):
            run_examples(test, strategy, OPTIONS, 0)
