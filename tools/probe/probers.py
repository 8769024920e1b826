"""Which prober runs the cases of a name."""

from __future__ import annotations

from types import ModuleType
from typing import Protocol

from tools.probe.cases import Prober
from tools.probe.sessions import SessionProber
from tools.probe.subjects import make_subject
from tools.probe.violation import Violation


class RunsCases(Protocol):
    """What runs the cases of one function."""

    @property
    def counts(self) -> dict[str, int]:
        """How many cases of each kind were run."""
        ...

    def run(self, number: int) -> list[Violation]:
        """Run a case and return what it found."""
        ...


class Both:
    """Runs sessions of an object, and each tenth case its constructor."""

    def __init__(self, made: Prober, lived: SessionProber) -> None:
        self._made, self._lived = made, lived

    @property
    def counts(self) -> dict[str, int]:
        """How many cases of each kind were run."""
        return {**self._made.counts, **self._lived.counts}

    def run(self, number: int) -> list[Violation]:
        """Run a case and return what it found."""
        return (self._made if number % 10 == 0 else self._lived).run(number)


def make_prober(name: str, implementation: ModuleType, seed: int) -> RunsCases:
    """Return what runs the cases of a function."""
    if name == "BlockTables":
        return Both(
            Prober(make_subject(name), implementation, seed), SessionProber(implementation, seed)
        )
    return Prober(make_subject(name), implementation, seed)
