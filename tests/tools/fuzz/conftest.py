"""Makes the modules that stand beside the tests importable: tests are no package."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import engine

for folder in (Path(__file__).parent, Path(__file__).parents[2] / "conformance"):
    sys.path.insert(0, str(folder))


@pytest.fixture
def fuzz_profile() -> Iterator[None]:
    """Let Hypothesis run in this process as in a worker, for one test."""
    from tools.fuzz import profile  # noqa: PLC0415  # imported by those tests alone

    before, size = settings.get_current_profile_name(), engine.BUFFER_SIZE
    profile.load()
    yield
    settings.load_profile(before)
    engine.BUFFER_SIZE = size
