"""How bugs that both twins share are planted in a life, and what tells them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from conformance.life.check import life_check
from conformance.life.machine import LifeMismatchError
from conformance.profiles import PROFILES
from conformance.targets import TARGETS

Bug = Callable[[Any], Any]
"""Makes a wrong function of the right one."""

OTHERS_KEY = r"reads slot \d+ for position \d+, which holds the key of position \d+ of request-\d+"
NO_KEY = r"reads slot \d+ for position \d+, (which was never written|whose block group \d+ has)"
TWO_OWNERS = r"block \d+ is block \d+ of request-\d+, but also block \d+ of request-\d+ in group"
"""What invariants say."""


def assert_found(
    places: list[tuple[Any, str]], make_bug: Bug, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plant a bug; the default run's lives must find it by an invariant, for the twins agree.

    Args:
        places: Whose attributes take it.
        make_bug: Makes it of the right function.
        message: What the invariant says, a pattern.
        monkeypatch: Undoes it.
    """
    for owner, name in places:
        monkeypatch.setattr(owner, name, make_bug(getattr(owner, name)))
    lives = life_check().bind(TARGETS["host"], PROFILES["default"], "minimal", shrink=False)
    with pytest.raises(LifeMismatchError) as caught:
        lives()
    told = str(caught.value)
    assert re.search(rf"^    both twins: step \d+: .*({message})", told, re.MULTILINE), told
