"""Loads the plugin of the conformance run, unless the installed package's entry point has."""

import pytest

from conformance.harness import plugin


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Register the plugin, whose options are added now."""
    del parser
    if not pluginmanager.is_registered(plugin):
        pluginmanager.register(plugin, "conformance")
