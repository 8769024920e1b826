"""The configuration: plain data with the field's names and defaults."""

from __future__ import annotations

import dataclasses

import pytest

import reference.config


@pytest.mark.parametrize("name", [n for n in vars(reference.config) if n.endswith("Config")])
def test_fields_are_documented(name: str) -> None:
    """Every field is documented."""
    config = getattr(reference.config, name)
    for field in dataclasses.fields(config):
        assert f"\n    {field.name}: " in (config.__doc__ or "").replace("        ", "    ")
