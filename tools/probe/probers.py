"""Which prober runs the cases of a name."""

from __future__ import annotations

from types import ModuleType
from typing import Protocol

from tools.probe.cases import Prober
from tools.probe.subjects import make_subject
from tools.probe.violation import Violation


class RunsCases(Protocol):
    """What runs the cases of one function."""

    counts: dict[str, int]

    def run(self, number: int) -> list[Violation]:
        """Run a case and return what it found."""
        ...


def make_prober(name: str, implementation: ModuleType, seed: int) -> RunsCases:
    """Return what runs the cases of a function."""
    return Prober(make_subject(name), implementation, seed)
