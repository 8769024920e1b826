"""What a known-bad implementation is: a small wrong thing put in the place of a right one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import pytest

import fast

Install: TypeAlias = Callable[[pytest.MonkeyPatch], None]


@dataclasses.dataclass(frozen=True)
class KnownBad:
    """One wrong implementation, which the conformance run must tell from the right one.

    Attributes:
        function: The function that is wrong, as its checks name it.
        bug: What is wrong, in a few words; None for an honest one, which must pass every check.
        why: What happens, and why nobody would notice.
        module: The conformance module that looks at the function, without `test_`.
        install: Puts it in the place of the right one, until the end of a test.
        target: The target on which it is run.
        is_refusal: Whether it answers right and refuses wrong, so that these checks come first.
    """

    function: str
    bug: str | None
    why: str
    module: str
    install: Install
    target: str = "host"
    is_refusal: bool = False

    @property
    def name(self) -> str:
        """What the test of it is called."""
        return f"{self.function}: {self.bug or 'honest'}"


def rewritten(
    function: str, module: str, make: Callable[[str | None], Any], bugs: Mapping[str, str]
) -> list[KnownBad]:
    """Return a function written anew, honestly and with each bug planted in it.

    Args:
        function: The name in `fast` that it takes; a method is written `Class.method`.
        module: The conformance module that looks at the function.
        make: Returns the function with one bug, or honest for None.
        bugs: For each bug, why nobody would notice.
    """
    *owners, name = function.split(".")
    owner: Any = fast
    for part in owners:
        owner = getattr(owner, part)

    def entry(bug: str | None, why: str) -> KnownBad:
        return KnownBad(
            function, bug, why, module, lambda patch: patch.setattr(owner, name, make(bug))
        )

    return [entry(None, "The definition, written anew."), *(entry(*bug) for bug in bugs.items())]
