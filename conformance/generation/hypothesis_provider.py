"""Hypothesis backends that draw each example from scratch.

By default, Hypothesis follows each new example by up to five mutations, which copy a part of it to
another place. That finds two values that must be equal. Our calls consist of dozens of small draws,
hardly any two of which must be equal: with Hypothesis' mutations, 71 of 200 examples of
`compute_slot_mapping` were duplicates. Without them none was, and the 61 bugs that had taken 40 to
159 examples took 2 to 50 (2026-11-21).
"""

from __future__ import annotations

from typing import Any, Final

from hypothesis.internal.conjecture.choice import (
    ChoiceConstraintsT,
    ChoiceTypeT,
    choice_constraints_key,
    choice_permitted,
)
from hypothesis.internal.conjecture.providers import (
    AVAILABLE_PROVIDERS,
    GLOBAL_CONSTANTS,
    HypothesisProvider,
)
from hypothesis.internal.constants_ast import ConstantT

FRESH: Final = "kvtwin-fresh"
"""The name of `FreshProvider`, for `hypothesis.settings`."""

REPEATABLE: Final = "kvtwin-repeatable"
"""The name of `RepeatableProvider`."""

CONSTANT_SHARE: Final = 0.05
"""How many of the draws are one of Hypothesis' constants, as with its own provider."""


class FreshProvider(HypothesisProvider):
    """Draws like the default provider, but as another backend, so Hypothesis makes no mutations.

    In return, Hypothesis does not remember which examples were tried, so it does not notice when
    all examples of a small space have been drawn.
    """


class RepeatableProvider(FreshProvider):
    """Draws that depend on nothing but the seed.

    Hypothesis also draws the constants in the source of the modules that are loaded from the
    current folder. So other examples are drawn if other tests ran before, or if the implementation
    is installed elsewhere.
    """

    def _maybe_draw_constant(
        self,
        choice_type: ChoiceTypeT,
        constraints: ChoiceConstraintsT,
        *,
        p: float = CONSTANT_SHARE,
    ) -> ConstantT | None:
        """Draw one of Hypothesis' own constants with a probability, or return None."""
        assert self._random is not None
        if self._random.random() > p:
            return None
        key = (choice_type, choice_constraints_key(choice_type, constraints))
        if key not in _PERMITTED:
            constants = GLOBAL_CONSTANTS.set_for_type(choice_type)
            _PERMITTED[key] = [one for one in constants if choice_permitted(one, constraints)]
        permitted = _PERMITTED[key]
        return self._random.choice(permitted) if permitted else None


_PERMITTED: Final[dict[Any, list[ConstantT]]] = {}
"""The constants that a draw may return, by type and constraints."""

AVAILABLE_PROVIDERS[FRESH] = FreshProvider
AVAILABLE_PROVIDERS[REPEATABLE] = RepeatableProvider
