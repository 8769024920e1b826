"""The outcome of evaluating one planted bug."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Whether the checks caught a bug, and which one.

    Attributes:
        function: The function that has it, as its checks name it.
        bug: What is wrong.
        target: The target on which the checks ran.
        verdict: `caught`; `not caught`; `broken patch`, if the patch does not apply or the failure
            is not that of the bug.
        test: The test that failed, as pytest names it; empty if none did.
        example: The number of its example that failed, counted from 1; 0 if none did.
        error: The failure, in a line.
        seconds: How long the evaluation took.
    """

    function: str
    bug: str
    target: str
    verdict: str
    test: str = ""
    example: int = 0
    error: str = ""
    seconds: float = 0.0

    @property
    def is_caught(self) -> bool:
        """Whether the bug was caught."""
        return self.verdict == "caught"

    @property
    def line(self) -> str:
        """The line about a bug that was not caught."""
        name = f"{self.function} on {self.target}: {self.bug}"
        return ": ".join(filter(None, (self.verdict, name, self.test, self.error)))
