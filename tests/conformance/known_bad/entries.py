"""What a known-bad implementation is: a small wrong thing put in the place of a right one."""

from __future__ import annotations

import dataclasses
import re
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
        seen_by: The kind of check that is to see it, or the law's name; it is run first.
    """

    function: str
    bug: str | None
    why: str
    install: Install
    target: str = "host"
    seen_by: Kind | str = Kind.SAME_ANSWER

    @property
    def name(self) -> str:
        """What its test is called."""
        honest = "honest" if self.target == "host" else f"honest on {self.target}"
        return f"{self.function}: {self.bug or honest}"


def counted_from_1(message: str) -> str:
    """Return a message in which indices are counted from 1, as in `seq_lens[4]` for the fourth.

    >>> counted_from_1("seq_lens[3] is 5")
    'seq_lens[4] is 5'
    """
    return re.sub(r"\[(\d+)\]", lambda found: f"[{int(found[1]) + 1}]", message)


def rewritten(
    function: str,
    make: Callable[[str | None], Any],
    *,
    answers: Bugs | None = None,
    refusals: Bugs | None = None,
    laws: Mapping[str, Bugs] | None = None,
    place: str | None = None,
    target: str = "host",
) -> list[KnownBad]:
    """Return a function written anew, honestly and with each bug planted in it.

    Args:
        function: Its name in `fast`; a method is written `Class.method`.
        make: Returns the function with one bug, or honest for None.
        answers: Bugs that comparison with `reference` is to see.
        refusals: Bugs that the checks of bad calls are to see.
        laws: Bugs that only a law sees, by the law's name.
        place: What is replaced, where it is a part of the function: `module.part`.
        target: The target on which it is run.
    """
    *owners, name = (place or function).split(".")
    owner: Any = fast
    for part in owners:
        owner = getattr(owner, part)

    def entry(bug: str | None, why: str, seen_by: Kind | str) -> KnownBad:
        def install(patch: pytest.MonkeyPatch) -> None:
            patch.setattr(owner, name, make(bug))

        return KnownBad(function, bug, why, install, target, seen_by)

    by_check: dict[Kind | str, Bugs] = {
        Kind.SAME_ANSWER: answers or {},
        Kind.SAME_REFUSAL: refusals or {},
        **(laws or {}),
    }
    return [
        entry(None, "The definition, written anew.", Kind.SAME_ANSWER),
        *(entry(*bug, seen_by) for seen_by, bugs in by_check.items() for bug in bugs.items()),
    ]
