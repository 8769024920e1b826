"""What a known-bad implementation is: a small wrong thing put in the place of a right one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import pytest

import fast
from conformance.profiles import Kind

Install: TypeAlias = Callable[[pytest.MonkeyPatch], None]
Bugs: TypeAlias = Mapping[str, str]
"""For each bug, what happens and why nobody would notice."""


@dataclasses.dataclass(frozen=True)
class KnownBad:
    """One wrong implementation, which the conformance run must tell from the right one.

    Attributes:
        function: The function that is wrong, as its checks name it.
        bug: What is wrong, in a few words; None for an honest one, which must pass every check.
        why: What happens, and why nobody would notice.
        install: Puts it in the place of the right one, until the end of a test.
        target: The target on which it is run.
        seen_by: The kind of check that is to see it, and is run first.
    """

    function: str
    bug: str | None
    why: str
    install: Install
    target: str = "host"
    seen_by: Kind = Kind.SAME_ANSWER

    @property
    def name(self) -> str:
        """What its test is called."""
        honest = "honest" if self.target == "host" else f"honest on {self.target}"
        return f"{self.function}: {self.bug or honest}"


def rewritten(
    function: str,
    make: Callable[[str | None], Any],
    *,
    answers: Bugs | None = None,
    refusals: Bugs | None = None,
    laws: Bugs | None = None,
) -> list[KnownBad]:
    """Return a function written anew, honestly and with each bug planted in it.

    Args:
        function: The name in `fast` that it takes; a method is written `Class.method`.
        make: Returns the function with one bug, or honest for None.
        answers: Bugs that comparison with `reference` is to see.
        refusals: Bugs that the checks of bad calls are to see.
        laws: Bugs that only a law sees.
    """
    *owners, name = function.split(".")
    owner: Any = fast
    for part in owners:
        owner = getattr(owner, part)

    def entry(bug: str | None, why: str, kind: Kind) -> KnownBad:
        def install(patch: pytest.MonkeyPatch) -> None:
            patch.setattr(owner, name, make(bug))

        return KnownBad(function, bug, why, install, seen_by=kind)

    by_kind = ((Kind.SAME_ANSWER, answers), (Kind.SAME_REFUSAL, refusals), (Kind.LAW, laws))
    return [
        entry(None, "The definition, written anew.", Kind.SAME_ANSWER),
        *(entry(*bug, kind) for kind, bugs in by_kind for bug in (bugs or {}).items()),
    ]
