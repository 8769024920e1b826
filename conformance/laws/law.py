"""What a law is, and how one is declared."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from conformance.goals import Goals
from conformance.laws.access import Half
from conformance.laws.law_case import LawCase
from conformance.strategies import cached as st
from conformance.strategies.presets import FEW_PAIRS, MINIMAL, Preset


@dataclasses.dataclass(frozen=True)
class Law:
    """A property of the access relation, stated for several functions.

    Attributes:
        name: The name by which contracts refer to it.
        statement: The law in one sentence.
        body: Raises if a law case contradicts it.
        half: The half of the relation that it is about.
        presets: The sizes of its examples. None for the target's own sizes, or for small ones if
            the law is about reads: large examples have millions of pairs of a token and a key.
        choices: What it draws in addition to the call.
        goals: The coverage goals of each function, as predicates on a law case.
        in_simulator: Whether it is also tested with kernels in the simulator.
    """

    name: str
    statement: str
    body: Callable[[LawCase], None]
    half: Half
    presets: Sequence[Preset] | None
    choices: st.SearchStrategy[Any]
    goals: Goals
    in_simulator: bool = True


LAWS: dict[str, Law] = {}
"""All laws, by name."""

PAIRS = (MINIMAL, FEW_PAIRS)
"""Sizes at which all pairs of a token and a key can be listed."""

NOTHING: st.SearchStrategy[None] = st.none()


def law(
    *,
    half: Half = Half.BOTH,
    presets: Sequence[Preset] | None = None,
    choices: st.SearchStrategy[Any] = NOTHING,
    goals: Mapping[str, Callable[[LawCase], bool]] | None = None,
    in_simulator: bool = True,
) -> Callable[[Callable[[LawCase], None]], Callable[[LawCase], None]]:
    """Declare a law, with the name and the docstring of the decorated function.

    Args:
        half: The half of the relation that it is about.
        presets: The sizes of its examples; None for the target's.
        choices: What it draws in addition to the call.
        goals: The coverage goals, which are counted under the law's name and their own.
        in_simulator: Whether it is also tested with kernels in the simulator.

    Returns:
        A decorator of the law's body: a function of a law case that raises if the case contradicts
        the law.
    """

    def declare(body: Callable[[LawCase], None]) -> Callable[[LawCase], None]:
        statement = " ".join((body.__doc__ or "").split())
        named = {f"{body.__name__}: {name}": holds for name, holds in (goals or {}).items()}
        LAWS[body.__name__] = Law(
            name=body.__name__,
            statement=statement,
            body=body,
            half=half,
            presets=presets,
            choices=choices,
            goals=named,
            in_simulator=in_simulator,
        )
        return body

    return declare
