"""Each public name has an example."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import reference

WITHOUT = {"KVCacheLayoutType"}  # a type for annotations
TEXT = "".join(
    path.read_text(encoding="utf-8")
    for path in sorted(Path(__file__).parent.glob("test_*.py"))
    if path.name != Path(__file__).name
)


@pytest.mark.parametrize("name", sorted({*reference.__all__} - WITHOUT))
def test_it_has_an_example(name) -> None:
    uses = re.sub(r"(?m)^(from|import) .*$|^    \w+,$", "", TEXT)
    assert re.search(rf"\b{name}\b", uses)
