"""Open an issue for each new failure of a night, and close it when the failure is fixed.

    python -m kvtwin.fuzz.issue_tracker [--dry-run] night/report.json ...

runs `gh`, GitHub's command line, which needs a token that may write issues (`GH_TOKEN`). Several
reports belong to one night on several machines: a failure is open if any report lists it as open,
else fixed. The text of an issue has a comment with the id of its finding:

| finding | no issue yet | open issue | closed issue |
|---|---|---|---|
| new, known | is opened | stays | is reopened, unless it was closed as not planned |
| fixed | | is closed | stays |

The exit status is 0; 1 if `gh` fails; 2 if a report cannot be read.
"""

from __future__ import annotations

if __name__ == "__main__":
    from conformance.entry_point import run

    run("kvtwin.fuzz.issue_tracker")

import dataclasses
import json
import re
import shlex
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

from kvtwin.parser import Parser

LABEL: Final = "fuzzing"
MARKER: Final = "<!-- kvtwin-finding: {} -->"
IN_TEXT: Final = re.compile(MARKER.format(r"(\S+)"))

MAX_OPENED: Final = 20
"""The most issues that one night opens; the next night opens the others."""

LONGEST_TITLE: Final = 200
LONGEST_SCRIPT: Final = 50_000
"""The limit in characters; the limit of GitHub is 65,536 for a text."""


Finding: TypeAlias = Mapping[str, Any]
"""A finding of `report.json`, whose schema describes it."""

Issue: TypeAlias = Mapping[str, Any]
"""An issue, as `gh issue list` gives it."""


@dataclasses.dataclass(frozen=True)
class Command:
    """A call of `gh`.

    Attributes:
        arguments: The arguments of `gh`.
        text: Its stdin.
    """

    arguments: tuple[str, ...]
    text: str = ""

    def __str__(self) -> str:
        return shlex.join(("gh", *self.arguments))


LABEL_COMMAND: Final = Command(
    ("label", "create", LABEL, "--force", "--description", "Found by the nightly fuzzing")
)
FIELDS: Final = "number,body,state,stateReason"
LIST: Final = Command(
    ("issue", "list", "--label", LABEL, "--state=all", "--limit=10000", f"--json={FIELDS}")
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: The command line; None: the process' own.

    Returns:
        The exit status.
    """
    parser = Parser(
        prog="python -m kvtwin.fuzz.issue_tracker",
        description="Open and close issues for the findings of a night.",
        examples=("--dry-run night/report.json",),
        statuses={0: "success", 1: "gh failed"},
    )
    parser.add_argument("reports", type=Path, nargs="+", metavar="REPORT", help="a report.json")
    parser.add_argument(
        "--run-url", default="", metavar="URL", help="URL of the reports, for the issues"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print the commands, and change nothing"
    )
    options = parser.parse_args(arguments)
    try:
        findings = merged([read_findings(path) for path in options.reports])
    except ValueError as error:
        parser.error(str(error))
    try:
        issues = json.loads(_run(LIST))
        commands = commands_for(findings, issues, options.run_url)
        for command in commands:
            print(command)
            if not options.dry_run:
                _run(command)
    except (OSError, subprocess.CalledProcessError, ValueError) as error:
        said = getattr(error, "stderr", "") or str(error)
        print(f"gh failed: {said.strip()}", file=sys.stderr)
        return 1
    print(f"{len(findings)} findings, {len(issues)} issues, {len(commands)} changes")
    return 0


def read_findings(path: Path) -> list[Finding]:
    """Return the findings of a report.

    Raises:
        ValueError: It cannot be read, or has another schema.
    """
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
        version, findings = report["schema_version"], list(report["findings"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path} is not a report: {type(error).__name__}: {error}") from error
    if not str(version).startswith("1."):
        raise ValueError(f"{path} is not a report: its schema is {version}, expected 1")
    return findings


def merged(reports: Iterable[Sequence[Finding]]) -> list[Finding]:
    """Return one finding for each id; the open one, if it is open in any report."""
    found: dict[str, Finding] = {}
    for finding in (one for report in reports for one in report):
        known = found.setdefault(finding["id"], finding)
        if known["status"] == "fixed":
            found[finding["id"]] = finding
    return list(found.values())


def commands_for(
    findings: Iterable[Finding], issues: Iterable[Issue], run_url: str = ""
) -> list[Command]:
    """Return the calls of `gh` that bring the issues up to date.

    Args:
        findings: The findings of the night.
        issues: All issues with the label; issues without the id of a finding are ignored.
        run_url: Where the reports are.
    """
    by_finding: defaultdict[str, list[Issue]] = defaultdict(list)
    for issue in issues:
        if marker := IN_TEXT.search(issue["body"]):
            by_finding[marker[1]].append(issue)
    changes: list[Command] = []
    created: list[Command] = []
    for finding in findings:
        own = by_finding[finding["id"]]
        opened = [issue for issue in own if issue["state"] == "OPEN"]
        if finding["status"] == "fixed":
            comment = f"This is fixed: its input passes. {run_url}".strip()
            options = ("--reason", "completed", "--comment", comment)
            changes += [Command(("issue", "close", str(one["number"]), *options)) for one in opened]
        elif not own:
            created.append(_opening(finding, run_url))
        elif not opened and all(issue.get("stateReason") != "NOT_PLANNED" for issue in own):
            last = max(issue["number"] for issue in own)
            comment = f"This fails again: `{_inline(finding['line'])}` {run_url}".strip()
            changes.append(Command(("issue", "reopen", str(last), "--comment", comment)))
    if created:
        changes += [LABEL_COMMAND, *created[:MAX_OPENED]]
    return changes


def _opening(finding: Finding, run_url: str) -> Command:
    """Return the command that opens an issue."""
    title = " ".join(f"Fuzzing: {finding['function']}: {finding['line']}".split())
    if len(title) > LONGEST_TITLE:
        title = title[: LONGEST_TITLE - 1] + "…"
    options = ("--title", title, "--label", LABEL, "--body-file", "-")
    return Command(("issue", "create", *options), text_of(finding, run_url))


def text_of(finding: Finding, run_url: str = "") -> str:
    """Return the text of a finding's issue.

    Args:
        finding: The finding.
        run_url: Where the reports are.
    """
    rows = {name: finding[name] for name in ("function", "target", "kind")}
    rows["finding"] = finding["id"]
    if finding["fails"] < finding["attempts"]:
        rows["flaky"] = f"it fails {finding['fails']} of {finding['attempts']} times"
    lines = ["Found by the nightly fuzzing.", "", "| | |", "|---|---|"]
    lines += [f"| {name} | `{_inline(value)}` |" for name, value in rows.items()]
    lines += ["", *_block(finding["line"], "text")]
    if len(finding["script_text"]) > LONGEST_SCRIPT:
        lines += ["", "The script that shows it is too long for here; it is next to the report."]
    elif finding["script_text"]:
        lines += ["", "This script shows it:", "", *_block(finding["script_text"], "python")]
    if finding["command"]:
        command = _block(finding["command"], "")
        lines += ["", "This replays the case next to the report:", "", *command]
    if run_url:
        lines += ["", f"Reports: {run_url}"]
    return "\n".join([*lines, "", MARKER.format(finding["id"]), ""])


def _inline(text: str) -> str:
    """Return a text escaped for inline code in a table."""
    return " ".join(text.split()).replace("`", "'").replace("|", "\\|")


def _block(text: str, language: str) -> list[str]:
    """Return a fenced code block, whose fence is longer than any in the text."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return [fence + language, text.rstrip("\n"), fence]


def _run(command: Command) -> str:
    """Run `gh`, and return what it prints."""
    done = subprocess.run(  # noqa: S603  # one of the commands above
        ["gh", *command.arguments],  # noqa: S607  # wherever it is installed
        input=command.text,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout
