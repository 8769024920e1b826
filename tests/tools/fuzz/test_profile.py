"""Hypothesis' settings in the fuzzer's processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import engine

from kvtwin.fuzz.cases import profile

ROOT = Path(profile.__file__).parents[2]


@pytest.mark.usefixtures("fuzz_profile")
def test_the_profile_is_random() -> None:
    """The profile draws new examples each time, without a deadline, and has a database."""
    profile.verify()
    current = settings()
    assert (False, None) == (current.derandomize, current.deadline)
    assert current.database is not None
    assert profile.BUFFER_SIZE == engine.BUFFER_SIZE


@pytest.mark.usefixtures("fuzz_profile")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"derandomize": True, "database": None},
            "derandomize is True, but should be False; .*; there is no example database",
        ),
        ({"deadline": 200}, "deadline is .*200.*, but should be None"),
        ({"database": None}, "there is no example database"),
    ],
    ids=["derandomized", "deadline", "no database"],
)
def test_another_profile_is_refused(changes: dict[str, object], message: str) -> None:
    """The error has the actual and the expected value of each setting."""
    settings.register_profile("other", settings(**changes))  # type: ignore[arg-type]
    settings.load_profile("other")
    with pytest.raises(RuntimeError, match=message) as raised:
        profile.verify()
    assert "the profile is 'other', but should be 'kvtwin-fuzz'" in str(raised.value)


@pytest.mark.usefixtures("fuzz_profile")
def test_a_small_buffer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A buffer that is too small for a batch of 1,024 requests is refused."""
    monkeypatch.setattr(engine, "BUFFER_SIZE", 8 * 1024)
    with pytest.raises(RuntimeError, match="BUFFER_SIZE is 8192, but should be 262144"):
        profile.verify()


def test_ci_makes_no_difference() -> None:
    """With `CI` set, Hypothesis' default is derandomized, but a worker's settings are not."""
    code = (
        "from hypothesis import settings; print(settings().derandomize);"
        " from kvtwin.fuzz.cases import profile; profile.load();"
        " print(settings().derandomize, settings.get_current_profile_name())"
    )
    run = subprocess.run(  # noqa: S603  # our own
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=os.environ | {"CI": "true"},
        check=True,
        capture_output=True,
        text=True,
    )
    assert "True\nFalse kvtwin-fuzz\n" == run.stdout
