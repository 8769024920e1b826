"""Issues of a night's failures: opened, closed, reopened, one for each finding."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvtwin.fuzz.issue_tracker import (
    LABEL_COMMAND,
    LONGEST_SCRIPT,
    LONGEST_TITLE,
    MARKER,
    MAX_OPENED,
    commands_for,
    main,
    read_findings,
    text_of,
)

ROOT = Path(__file__).parents[3]

GH = """#!{python}
import json, pathlib, sys
path = pathlib.Path({store!r})
issues = json.loads(path.read_text()) if path.exists() else []
_, what, number = sys.argv[1:4]
def option(name):
    return sys.argv[sys.argv.index(name) + 1]
if sys.argv[1:3] == ["issue", "list"]:
    assert "--label" in sys.argv and "--state=all" in sys.argv
    print(json.dumps(issues))
elif sys.argv[1:3] == ["issue", "create"]:
    assert option("--body-file") == "-"
    new = dict(number=len(issues) + 1, title=option("--title"), body=sys.stdin.read(), state="OPEN")
    issues.append(dict(new, stateReason="", comments=[], labels=[option("--label")]))
elif sys.argv[1] == "label":
    assert "--force" in sys.argv
else:
    [issue] = [issue for issue in issues if str(issue["number"]) == number]
    issue["state"] = dict(close="CLOSED", reopen="OPEN")[what]
    issue["stateReason"] = "COMPLETED" if what == "close" else "REOPENED"
    issue["comments"].append(option("--comment"))
path.write_text(json.dumps(issues))
"""


def entry(
    known: str = "lengths-1f3a9c2e", status: str = "new", **more: str | int
) -> dict[str, Any]:
    """Return a finding as `report.json` has it, with fields that issues do not use."""
    return {
        "id": known,
        "function": "get_dcp_local_seq_lens",
        "target": "host",
        "kind": "same answer",
        "field": "result[]",
        "error": "Mismatch",
        "line": "result[0] = 3, but should be 2",
        "status": status,
        "script_text": "print(3)\n",
        "command": "",
        "fails": 5,
        "attempts": 5,
        **more,
    }


def issue(number: int, known: str = "f", state: str = "OPEN", reason: str = "") -> dict[str, Any]:
    """Return an issue of a finding as `gh` lists it."""
    body = text_of(entry(known))
    return {"number": number, "body": body, "state": state, "stateReason": reason}


def write_report(path: Path, *findings: dict[str, Any], version: str = "1.0") -> str:
    """Write a report, and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"schema_version": version, "findings": findings}))
    return str(path)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a fake `gh` on `PATH` that stores issues in a file; return the file."""
    gh, path = tmp_path / "bin" / "gh", tmp_path / "issues.json"
    gh.parent.mkdir()
    gh.write_text(GH.format(python=sys.executable, store=str(path)))
    gh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{gh.parent}{os.pathsep}{os.environ['PATH']}")
    return path


def test_an_issue_lives_as_long_as_its_failure(store: Path, tmp_path: Path) -> None:
    """An issue is opened once, stays open while the failure is known, is closed, and reopened."""
    states = []
    for night, status in enumerate(("new", "known", "fixed", "fixed", "new", "known", "fixed")):
        report = write_report(tmp_path / f"{night}.json", entry(status=status))
        assert 0 == main([report, "--run-url", "https://example.org/runs/1"])
        [issue] = json.loads(store.read_text())
        states.append(issue["state"])
    assert ["OPEN", "OPEN", "CLOSED", "CLOSED", "OPEN", "OPEN", "CLOSED"] == states
    assert [
        "This is fixed: its input passes. https://example.org/runs/1",
        "This fails again: `result[0] = 3, but should be 2` https://example.org/runs/1",
        "This is fixed: its input passes. https://example.org/runs/1",
    ] == issue["comments"]
    assert "Fuzzing: get_dcp_local_seq_lens: result[0] = 3, but should be 2" == issue["title"]
    assert ["fuzzing"] == issue["labels"]
    assert "```python\nprint(3)\n```\n" in issue["body"]
    assert MARKER.format("lengths-1f3a9c2e") in issue["body"]


def test_several_machines_have_one_issue(store: Path, tmp_path: Path) -> None:
    """A failure in several reports has one issue, which stays open while any report has it."""
    three = [write_report(tmp_path / f"{name}/report.json", entry()) for name in "abc"]
    assert 0 == main(three)
    assert 1 == len(json.loads(store.read_text()))
    write_report(tmp_path / "a/report.json", entry(status="fixed"))
    write_report(tmp_path / "c/report.json")
    assert 0 == main(three)
    assert ["OPEN"] == [issue["state"] for issue in json.loads(store.read_text())]
    write_report(tmp_path / "b/report.json", entry(status="fixed"))
    assert 0 == main(three)
    assert ["CLOSED"] == [issue["state"] for issue in json.loads(store.read_text())]


@pytest.mark.parametrize(
    ("issues", "status", "words"),
    [
        ([], "new", ["label create", "issue create"]),
        ([], "known", ["label create", "issue create"]),
        ([], "fixed", []),
        ([issue(4)], "new", []),
        ([issue(4)], "fixed", ["issue close 4"]),
        ([issue(4, state="CLOSED")], "fixed", []),
        ([issue(4, state="CLOSED")], "known", ["issue reopen 4"]),
        ([issue(4, state="CLOSED"), issue(9, state="CLOSED")], "new", ["issue reopen 9"]),
        ([issue(4, state="CLOSED"), issue(9)], "new", []),
        ([issue(4, state="CLOSED", reason="NOT_PLANNED")], "known", []),
        ([issue(4, "another")], "fixed", []),
    ],
)
def test_what_is_done(issues: list[dict[str, Any]], status: str, words: list[str]) -> None:
    """The commands are those of the table in the module's docstring, also with duplicate issues."""
    found = commands_for([entry("f", status)], issues)
    assert len(words) == len(found)
    for word, command in zip(words, found, strict=True):
        assert " ".join(command.arguments).startswith(word)


def test_one_night_opens_a_few_issues() -> None:
    """A night opens a limited number of issues, and the next one opens the others."""
    findings = [entry(f"f-{number}") for number in range(MAX_OPENED + 7)]
    first = commands_for(findings, [])
    assert LABEL_COMMAND == first[0]
    assert 1 + MAX_OPENED == len(first)
    opened = [issue(n, f"f-{n}") for n in range(MAX_OPENED)]
    assert 1 + 7 == len(commands_for(findings, opened))


def test_issues_of_others_are_left_alone() -> None:
    """An issue without the marker comment is not closed, and belongs to no finding."""
    theirs = {"number": 2, "body": "kvtwin-finding: f", "state": "OPEN", "stateReason": ""}
    assert [] == commands_for([entry("f", "fixed")], [theirs])
    assert 2 == len(commands_for([entry("f")], [theirs]))


def test_texts_hold_anything() -> None:
    """Backticks, bars and line breaks do not break the Markdown; long texts are shortened."""
    odd = entry(function="a|b`c", line="x\n```\ny", script_text='"""````"""\n', fails=1)
    text = text_of(odd, "https://example.org")
    assert "| function | `a\\|b'c` |\n" in text
    assert "````text\nx\n```\ny\n````\n" in text
    assert '`````python\n"""````"""\n`````\n' in text
    assert "it fails 1 of 5 times" in text
    assert "Reports: https://example.org\n" in text
    assert "too long" in text_of(entry(script_text="x" * (LONGEST_SCRIPT + 1)))
    opening = commands_for([entry(line="long\n" * 100)], [])[-1]
    title = opening.arguments[opening.arguments.index("--title") + 1]
    assert (LONGEST_TITLE, "…", False) == (len(title), title[-1], "\n" in title)


def test_a_dry_run_changes_nothing(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A dry run prints the commands, and does not run them."""
    report = write_report(tmp_path / "report.json", entry())
    assert 0 == main([report, "--dry-run"])
    assert [] == json.loads(store.read_text())
    assert "\ngh issue create --title " in capsys.readouterr().out


def test_a_failing_gh_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a token, or without `gh`, the error is one line and the status is 1."""
    report = write_report(tmp_path / "report.json", entry())
    monkeypatch.setenv("PATH", str(tmp_path))
    assert 1 == main([report])
    assert capsys.readouterr().err.startswith("gh failed: [Errno 2] No such file")
    (tmp_path / "gh").write_text("#!/bin/sh\necho 'no token' >&2\nexit 4\n")
    (tmp_path / "gh").chmod(0o755)
    assert 1 == main([report])
    assert "gh failed: no token\n" == capsys.readouterr().err


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"schema_version": "2.0", "findings": []}'],
    ids=["empty", "list", "no version", "another version"],
)
def test_what_is_no_report_is_refused(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that is not a report is an error in one line, with status 2, before `gh` is run."""
    path = tmp_path / "report.json"
    path.write_text(text)
    with pytest.raises(SystemExit, match="2"):
        main([str(path)])
    assert 1 == capsys.readouterr().err.count("\n")
    with pytest.raises(ValueError, match=r"report.json is not a report: "):
        read_findings(path)


def test_it_is_a_command(store: Path, tmp_path: Path) -> None:
    """The command runs without third-party packages: the job that files issues installs none."""
    report = write_report(tmp_path / "report.json", entry())
    code = "import runpy; runpy.run_module('kvtwin.fuzz.issue_tracker', run_name='__main__')"
    done = subprocess.run(  # noqa: S603  # our own
        [sys.executable, "-S", "-c", code, report],
        env=os.environ | {"PYTHONPATH": str(ROOT / "tools" / "commands")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (0, "") == (done.returncode, done.stderr)
    assert done.stdout.endswith("\n1 findings, 0 issues, 2 changes\n")
    assert 1 == len(json.loads(store.read_text()))
