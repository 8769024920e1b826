"""The workflows and docs/nightly.md run only what exists; `.ci/run` checks their syntax."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from kvtwin.fuzz import issue_tracker
from kvtwin.fuzz.command_line import _make_parser

ROOT = Path(__file__).parents[3]
CI = ROOT / ".github" / "workflows" / "ci.yml"
NIGHTLY = ROOT / ".github" / "workflows" / "nightly.yml"
DOCS = ROOT / "docs" / "nightly.md"


@pytest.mark.parametrize("path", [NIGHTLY, DOCS], ids=["workflow", "docs"])
def test_nights_have_a_command_line_that_is_understood(path: Path) -> None:
    """The fuzzer's parser accepts the command lines of the workflow and of the docs."""
    found = re.findall(r"kvtwin fuzz (--minutes .*)", path.read_text(encoding="utf-8"))
    assert found
    for line in found:
        options = _make_parser().parse_args(shlex.split(line.replace('"$MINUTES"', "300")))
        assert Path("night") == options.out
        assert Path("history") == options.history


def test_each_supported_python_has_a_job() -> None:
    """The Python versions of both workflows are those of pyproject.toml."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    versions = re.findall(r"Python :: (3\.\d+)", text)
    assert len(versions) >= 3
    for path in (CI, NIGHTLY):
        found = set(re.findall(r"python: \[(.*)\]", path.read_text(encoding="utf-8")))
        assert {", ".join(f'"{version}"' for version in versions)} == found


def test_what_workflows_run_is_there() -> None:
    """The scripts, extras, variables and tools that workflows name exist."""
    text = CI.read_text(encoding="utf-8") + NIGHTLY.read_text(encoding="utf-8")
    for script in re.findall(r"run: (?:bash )?(\S*\.ci/\S+|tools/\S+)", text):
        assert (ROOT / script).is_file()
    extras = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for extra in {name for names in re.findall(r"'\.\[(.*)\]'", text) for name in names.split(",")}:
        assert f"\n{extra} = [" in extras
    for variable in ("OTHER_PYTHONS", "CONFORMANCE_REPORT"):
        assert variable in text
        assert f"${{{variable}:" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert f"python -m {issue_tracker.__name__} --run-url " in text
    assert '"--run-url"' in Path(issue_tracker.__file__).read_text(encoding="utf-8")


def test_a_report_of_the_last_night_is_not_filed_again() -> None:
    """The cached folder of a night has its report, which each night removes first."""
    text = NIGHTLY.read_text(encoding="utf-8")
    runs = re.findall(r"run: \|\n +(.*)\n +kvtwin fuzz ", text)
    assert 2 == len(runs)
    assert all(run.startswith("rm -f night/report.*") for run in runs)
