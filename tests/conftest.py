"""Shared by all tests: processes that Ctrl-C ends."""

from __future__ import annotations

import gc
import signal


def pytest_configure() -> None:
    """Let SIGINT end the processes of tests, which a background job of a shell ignores."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Exclude tests and modules from later garbage collections, which saves 0.3 s."""
    gc.collect()
    gc.freeze()
