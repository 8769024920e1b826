"""A scope: every input of some functions below stated bounds, as a numbered list."""

from __future__ import annotations

import dataclasses
from typing import Any

from conformance.calls import Call
from conformance.strategies.block_table import Session
from tools.fuzz.exhaustive.comparing import Case
from tools.fuzz.exhaustive.spaces import Space


@dataclasses.dataclass(frozen=True)
class Scope:
    """Every input of a kind below stated bounds.

    Attributes:
        name: What it is called: `slots of batches`.
        functions: The functions or classes that its cases call.
        bounds: What the cases are, to stand after "every": `batch with at most 3 requests, ...`.
        cases: The cases, by index.
        case_us: About how long a case takes, in microseconds, to cut jobs of even length.
    """

    name: str
    functions: tuple[str, ...]
    bounds: str
    cases: Space[Any]
    case_us: float = 100.0

    def count(self) -> int:
        """Return the exact number of cases."""
        return self.cases.count

    def case(self, index: int) -> Case:
        """Return the case of an index in `0 .. count() - 1`."""
        found: Call | Session = self.cases.item(index)
        return found
