"""Settings of an implementation that has none of our private names are checked completely."""

from __future__ import annotations

import os
import threading
from types import ModuleType

import pytest

from conformance import test_kv_layout
from conformance.messages.mismatch import Mismatch
from conformance.strategies.kv_layout import LAYOUTS
from conformance.targets.implementations import Implementation
from conformance.targets.target import Target


def settings(place: object) -> Target:
    """Return an implementation of the settings that stores the layout as an attribute."""

    def get_kv_cache_layout() -> str:
        found = getattr(place, "layout", None)
        found = os.environ.get(test_kv_layout.VARIABLE, "NHD") if found is None else found
        if found not in LAYOUTS:
            raise ValueError(f"the layout is {found!r}, expected NHD or HND")
        return str(found)

    def set_kv_cache_layout(cache_layout: str | None) -> None:
        if cache_layout not in {None, *LAYOUTS}:
            raise ValueError(f"cache_layout is {cache_layout!r}, expected NHD or HND")
        place.layout = cache_layout  # type: ignore[attr-defined]

    module = ModuleType("settings")
    for function in (get_kv_cache_layout, set_kv_cache_layout):
        function.__module__ = "settings"
        setattr(module, function.__name__, function)
    return Target("host", Implementation("settings", module))


def test_a_right_implementation_passes() -> None:
    """Where the layout is stored does not matter."""
    test_kv_layout.test_every_short_history.body(settings(ModuleType("place")), None)


def test_a_setting_of_one_thread_fails() -> None:
    """A setting that only one thread sees is reported: it must hold for the process."""
    with pytest.raises(Mismatch, match="in another thread"):
        test_kv_layout.test_every_short_history.body(settings(threading.local()), None)
