"""Branch coverage of Python code."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from kvtwin.fuzz.cases import branches
from kvtwin.fuzz.cases.branches import Branches
from kvtwin.fuzz.cases.coverage import Source

CODE = """
def sign(number):
    if number < 0:
        return "negative"
    if number > 0:
        return "positive"
    return "zero"
"""


@pytest.fixture
def toys(load: Callable[[str, str], ModuleType]) -> ModuleType:
    """Return a module with branches, in a temporary folder."""
    return load("toys", CODE)


def check_branches(source: Source, toys: ModuleType) -> None:
    """Check that a source distinguishes branches."""
    found, news = [], []
    for numbers in ([3, 3, 4], [-3], [0], [-1, 0, 1], []):
        source.begin("a property")
        for number in numbers:
            toys.sign(number)
            Path("a").with_suffix(".b")  # code outside the observed folders
            news.append(source.see("sign", [], None))
        found.append(set(source.end()))
    assert [True, False, False, True, True, False, False, False] == news
    positive, negative, zero, each, none = found
    assert not none
    assert all(event[0] == "branch" and "toys.py" in event[1] for event in each)
    assert positive - negative
    assert negative - positive
    assert zero - positive - negative
    assert positive | negative | zero == each
    for expected in (True, False):
        source.begin("another property")
        toys.sign(3)
        assert expected is source.see("sign", [], None)


@pytest.mark.skipif(not hasattr(sys, "monitoring"), reason="needs Python 3.12")
def test_branches(toys: ModuleType) -> None:
    """A slice's branches are those that its cases took, in the given folders only."""
    source = Branches([Path(str(toys.__file__)).parent], is_sampled=True)
    try:
        check_branches(source, toys)
    finally:
        source.close()


@pytest.mark.skipif(not hasattr(sys, "monitoring"), reason="needs Python 3.12")
@pytest.mark.parametrize("is_sampled", [False, True])
def test_a_location_that_does_not_change(toys: ModuleType, *, is_sampled: bool) -> None:
    """With sampling, a location that always took one branch is ignored for the rest of a slice."""
    source = Branches([Path(str(toys.__file__)).parent], is_sampled=is_sampled)
    try:
        source.begin("a property")
        for _ in range(Branches.MAX_HITS):
            toys.sign(1)
        source.see("sign", [], None)
        toys.sign(0)
        assert is_sampled is not source.see("sign", [], None)
        source.end()
        source.begin("a property")
        toys.sign(0)
        assert is_sampled is source.see("sign", [], None)
    finally:
        source.close()


def test_the_report_says_what_observes_branches() -> None:
    """The report names `sys.monitoring` or instrumentation, whichever this Python uses."""
    observer = branches.observer_of_branches()
    source = branches.branch_source([], is_sampled=True)
    if isinstance(source, Branches):
        assert "sys.monitoring" == observer
        source.close()
    else:
        assert "instrumented statements" == observer


def test_the_folders_are_whole_names(tmp_path: Path) -> None:
    """A folder whose name only begins with that of an observed folder is not observed."""
    (tmp_path / "faster").mkdir()
    (tmp_path / "faster" / "toys.py").write_text(CODE, encoding="utf-8")
    code = (
        "import sys; from kvtwin.fuzz.cases import branches; from pathlib import Path;"
        f" sys.path.insert(0, {str(tmp_path / 'faster')!r}); import toys;"
        f" source = branches.branch_source("
        f"[Path({str(tmp_path / 'fast')!r})], is_sampled=True);"
        " source.begin('a property'); toys.sign(1); source.see('sign', [], None);"
        " print(len(source.end()))"
    )
    root = Path(branches.__file__).parents[2]
    run = subprocess.run(  # noqa: S603  # our own
        [sys.executable, "-c", code], cwd=root, check=True, capture_output=True, text=True
    )
    assert "0\n" == run.stdout
