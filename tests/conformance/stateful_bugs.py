"""How bugs that both twins share are planted for the stateful test, and how it reports them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from conformance.profiles import PROFILES
from conformance.stateful.check import stateful_check
from conformance.stateful.machine import StatefulMismatchError
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
    """Plant a bug. The default run must find it by an invariant, since the twins agree.

    Args:
        places: Whose attributes take it.
        make_bug: Makes it of the right function.
        message: What the invariant says, a pattern.
        monkeypatch: Undoes it.
    """
    for owner, name in places:
        monkeypatch.setattr(owner, name, make_bug(getattr(owner, name)))
    test = stateful_check().bind(TARGETS["host"], PROFILES["default"], "minimal", shrink=False)
    with pytest.raises(StatefulMismatchError) as caught:
        test()
    report = str(caught.value)
    assert re.search(rf"^    both twins: step \d+: .*({message})", report, re.MULTILINE), report
