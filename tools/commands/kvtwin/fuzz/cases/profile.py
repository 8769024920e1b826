"""Hypothesis' settings in the fuzzer's processes, independent of the machine's profile and `CI`.

With `CI` set, Hypothesis' own profile draws the same examples each time and has no database, so a
night would explore nothing.
"""

from __future__ import annotations

from typing import Final

from hypothesis import HealthCheck, Phase, settings
from hypothesis.database import InMemoryExampleDatabase
from hypothesis.internal.conjecture import engine

NAME: Final = "kvtwin-fuzz"

BUFFER_SIZE: Final = 256 * 1024
"""The most that one case may draw: a batch of 1,024 requests takes 30 times the usual limit."""


def load() -> None:
    """Load the fuzzer's profile in this process, and verify it.

    Raises:
        RuntimeError: Hypothesis' settings differ from the profile.
    """
    profile = settings(
        derandomize=False,
        deadline=None,
        database=InMemoryExampleDatabase(),  # the night's own database is not used by Hypothesis
        phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
        report_multiple_bugs=True,
        suppress_health_check=list(HealthCheck),
    )
    settings.register_profile(NAME, profile)
    settings.load_profile(NAME)
    engine.BUFFER_SIZE = BUFFER_SIZE
    verify()


def verify() -> None:
    """Verify Hypothesis' settings.

    Raises:
        RuntimeError: A setting differs from the profile.
    """
    current = settings()
    wrong = [
        f"{name} is {got!r}, but should be {expected!r}"
        for name, got, expected in (
            ("derandomize", current.derandomize, False),
            ("deadline", current.deadline, None),
            ("the profile", settings.get_current_profile_name(), NAME),
            ("BUFFER_SIZE", engine.BUFFER_SIZE, BUFFER_SIZE),
        )
        if got != expected
    ]
    if current.database is None:
        wrong.append("there is no example database")
    if wrong:
        raise RuntimeError(f"Hypothesis' settings are not the fuzzer's: {'; '.join(wrong)}")
