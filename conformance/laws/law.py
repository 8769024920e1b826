"""What a law is, and how one is declared."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

from conformance.laws.access import About
from conformance.laws.law_case import LawCase
from conformance.situations import Situations
from conformance.strategies.presets import FEW_PAIRS, MINIMAL, Preset


@dataclasses.dataclass(frozen=True)
class Law:
    """A statement that is true of every function that obeys it.

    Attributes:
        name: What a contract calls it.
        statement: It, in a sentence.
        body: Raises where a trial contradicts it.
        about: The half of the relation that it looks at.
        presets: The sizes of its examples; None for the target's, but small ones where it looks at
            what is read: pairs of tokens and keys, of which large examples have millions.
        choices: What it chooses at random besides the call.
        situations: The hard cases of each function that obeys it, as predicates on a law case.
        in_simulator: Whether kernels are run in the simulator for it too.
    """

    name: str
    statement: str
    body: Callable[[LawCase], None]
    about: About
    presets: Sequence[Preset] | None
    choices: st.SearchStrategy[Any]
    situations: Situations
    in_simulator: bool = True


LAWS: dict[str, Law] = {}
"""All laws, by name."""

PAIRS = (MINIMAL, FEW_PAIRS)
"""Sizes of which all pairs of a token and a key can be listed."""

NOTHING: st.SearchStrategy[None] = st.none()


def law(
    *,
    about: About = About.BOTH,
    presets: Sequence[Preset] | None = None,
    choices: st.SearchStrategy[Any] = NOTHING,
    situations: Mapping[str, Callable[[LawCase], bool]] | None = None,
    in_simulator: bool = True,
) -> Callable[[Callable[[LawCase], None]], Callable[[LawCase], None]]:
    """Declare a law: its name is the function's, its statement the docstring.

    Args:
        about: The half of the relation that it looks at.
        presets: The sizes of its examples; None for the target's.
        choices: What it chooses at random besides the call.
        situations: The hard cases, which are counted under the law's name and theirs.
        in_simulator: Whether kernels are run in the simulator for it too.

    Returns:
        A decorator of the law's body, a function of a trial that raises where the trial contradicts
        it.
    """

    def declare(body: Callable[[LawCase], None]) -> Callable[[LawCase], None]:
        statement = " ".join((body.__doc__ or "").split())
        named = {f"{body.__name__}: {name}": holds for name, holds in (situations or {}).items()}
        LAWS[body.__name__] = Law(
            name=body.__name__,
            statement=statement,
            body=body,
            about=about,
            presets=presets,
            choices=choices,
            situations=named,
            in_simulator=in_simulator,
        )
        return body

    return declare
