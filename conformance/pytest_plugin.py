"""The entry point for pytest, for `pytest --pyargs conformance`; other runs it leaves alone."""

from __future__ import annotations

import sys

import pytest


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Register the plugin of the run if this package is named on the command line."""
    del parser
    names = [argument.partition("::")[0].partition(".")[0] for argument in sys.argv[1:]]
    if "--pyargs" in names and "conformance" in names:
        from conformance.harness import plugin  # noqa: PLC0415  # it imports torch

        if not pluginmanager.is_registered(plugin):
            pluginmanager.register(plugin, "conformance")
