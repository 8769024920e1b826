"""The failures that nights found, without duplicates, in a folder.

    findings/findings.json       an entry for each, open or fixed
    findings/cases/ID.json       its stored case
    findings/scripts/ID.py       a script that reproduces it, if there is a short one

A failure is written as soon as it is reported, so that it is not lost if the night is killed, and
again after it was minimized. Without its stored case, a finding is forgotten.
"""

from __future__ import annotations

import base64
import dataclasses
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from conformance.encoding import SCHEMA_VERSION
from conformance.reports.files import replace_file
from kvtwin.fuzz.findings.failures import Failure, Key, id_of
from kvtwin.fuzz.report.record import Status

FORMAT: Final = "kvtwin findings 1"

KINDS: Final = (
    "crash",
    "hang",
    "memory growth",
    "same answer",
    "large",
    "memory",
    "same refusal",
    "other tensors",
    "law",
    "conditions",
    "threads",
    "stateful",
)
"""The kinds of failures, the most informative first."""

OUT_OF_MEMORY: Final = "out of memory"
"""The error of a worker that was killed because it took too much memory."""

EXPLAINED_KINDS: Final = frozenset({"large", "memory", "law", "conditions", "threads", "stateful"})
"""The kinds of failures that a failure of another kind explains."""


@dataclasses.dataclass
class Finding:
    """A failure, and its status.

    Attributes:
        failure: The failure, minimized if that was possible.
        first_seen: When it was first found, in ISO 8601.
        status: `new` (found tonight), `known` (found before, and still there), `fixed`.
        seen: How many cases failed in this way tonight.
        obstacle: Why it was not tried again tonight; empty if it was, or is new.
    """

    failure: Failure
    first_seen: str
    status: Status = "new"
    seen: int = 0
    obstacle: str = ""

    @property
    def is_open(self) -> bool:
        """Whether it still fails."""
        return self.status != "fixed"


class Findings:
    """The findings of a folder.

    Args:
        folder: The folder, which is created when something is found.

    Attributes:
        by_id: The findings by their ids.

    Raises:
        ValueError: `findings.json` cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.by_id: dict[str, Finding] = {}
        path = folder / "findings.json"
        if path.exists():
            self._read(path)

    def _read(self, path: Path) -> None:
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            if data["format"] != FORMAT:
                raise ValueError(f"its format is {data['format']!r}, expected {FORMAT!r}")  # noqa: TRY301
            for entry in data["findings"]:
                failure = _failure_from(entry["failure"], self.folder)
                if failure.input and not self.case_path(failure.id).exists():
                    continue
                status: Status = "known" if entry["status"] == "new" else entry["status"]
                self.by_id[failure.id] = Finding(failure, entry["first_seen"], status)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path} cannot be read as findings ({type(error).__name__}: {error});"
                " move it away to start again"
            ) from error

    def add(self, failure: Failure) -> Finding | None:
        """Add a failure; return the finding if it is new, or was fixed before, else None."""
        found = self.by_id.get(failure.id)
        if found is None:
            found = Finding(failure, datetime.now(UTC).isoformat(timespec="seconds"), seen=1)
            self.by_id[failure.id] = found
            self.write(failure.id)
            return found
        was_fixed = not found.is_open
        found.seen += 1
        if was_fixed:
            found.failure, found.status = failure, "new"
        elif failure.is_minimal and not found.failure.is_minimal:
            found.failure = failure
        else:
            return None
        self.write(failure.id)
        return found if was_fixed else None

    def replace(self, known: str, failure: Failure) -> None:
        """Replace the finding `known` by its minimized failure.

        The key may change: in a smaller input, another field may be the first that differs.
        """
        found = self.by_id.pop(known)
        if known != failure.id:
            self.case_path(known).unlink(missing_ok=True)
            self.script_path(known).unlink(missing_ok=True)
        other = self.by_id.get(failure.id)
        if other is not None and other.is_open:
            other.seen += found.seen
            if failure.is_minimal and not other.failure.is_minimal:
                other.failure = failure
        else:
            found.failure = failure
            self.by_id[failure.id] = found
        self.write(failure.id)

    def note_failing(self, known: str, fails: int, tries: int) -> None:
        """Record how often a finding of an earlier night failed when tried again."""
        found = self.by_id[known]
        if found.status == "fixed":  # unless a slice has found it again before
            found.status = "new"
        found.seen += fails > 0
        found.failure = dataclasses.replace(found.failure, fails=fails, tries=tries)
        self.write(known)

    def note_fixed(self, known: str) -> None:
        """Record that a finding of an earlier night no longer fails."""
        self.by_id[known].status = "fixed"
        self.write(known)

    def count(self, failures: Mapping[Key, int]) -> None:
        """Count cases that failed in known ways, by the keys of their failures."""
        for key, number in failures.items():
            found = self.by_id.get(id_of(key))
            if found is not None:  # minimizing may have changed its key
                found.seen += number

    def case_path(self, known: str) -> Path:
        """Return the path of a finding's stored case, which need not exist."""
        return self.folder / "cases" / f"{known}.json"

    def script_path(self, known: str) -> Path:
        """Return the path of a finding's script, which need not exist."""
        return self.folder / "scripts" / f"{known}.py"

    def write(self, known: str | None = None) -> None:
        """Write the index, and the files of one finding if its id is given."""
        if known is not None:
            failure = self.by_id[known].failure
            case = failure.case or _case_of_input(failure)
            if case is not None:
                text = json.dumps({"schema_version": SCHEMA_VERSION, **case}, indent=1)
                replace_file(self.case_path(known), text + "\n")
            if failure.script is not None:
                replace_file(self.script_path(known), failure.script)
            else:  # there may be one from before it was fixed
                self.script_path(known).unlink(missing_ok=True)
        entries = [
            {
                "id": found.failure.id,
                "status": found.status,
                "first_seen": found.first_seen,
                "failure": _plain(found.failure),
            }
            for found in self.by_id.values()
        ]
        text = json.dumps({"format": FORMAT, "findings": entries}, indent=1, ensure_ascii=False)
        replace_file(self.folder / "findings.json", text + "\n")

    def primary(self) -> dict[str, list[Finding]]:
        """Return the findings to report by id, each with the findings that it explains.

        Any other failure of a function explains a failed law, such as a wrong answer under a
        condition, or else another of its laws: one bug breaks several, with different errors.
        Memory growth explains a worker that ran out of memory. A failure of a function that uses no
        others explains failures of the functions that use it.
        """
        explained: defaultdict[str, list[Finding]] = defaultdict(list)
        ordered = sorted(self.by_id.values(), key=_rank)
        for found in ordered:
            explained.setdefault(found.failure.id, [])
            cause = next((c for c in ordered if _explains(c, found)), None)
            if cause is not None:
                explained[cause.failure.id].append(found)
        others = {one.failure.id for group in explained.values() for one in group}
        return {known: group for known, group in explained.items() if known not in others}


def _rank(found: Finding) -> tuple[int, int, str]:
    """Return the sort key of a finding in the report: open ones first, then by kind."""
    return (not found.is_open, place_of(found.failure.kind), found.failure.id)


def place_of(kind: str) -> int:
    """Return the rank of a kind of failure: the most informative first, an unknown one last."""
    return KINDS.index(kind) if kind in KINDS else len(KINDS)


def _explains(cause: Finding, found: Finding) -> bool:
    """Return whether one finding probably causes another."""
    if cause is found or cause.is_open != found.is_open:
        return False
    ours, theirs = cause.failure, found.failure
    if ours.fails < ours.tries:  # such as a worker that was killed from outside
        return False
    if ours.function == theirs.function:
        if theirs.error == OUT_OF_MEMORY:
            return ours.kind == "memory growth"
        if theirs.kind == "law":
            return ours.kind != "law" or ours.id < theirs.id
        return theirs.kind in EXPLAINED_KINDS and ours.kind not in EXPLAINED_KINDS
    root = ours.function.partition(".")[0]
    used = {name.partition(".")[0] for name in theirs.uses}
    is_alone = not {name.partition(".")[0] for name in ours.uses} - {root}
    is_user = root in used and root != theirs.function.partition(".")[0]
    return (
        is_alone
        and is_user
        and (theirs.kind == ours.kind or theirs.kind in {"law", "stateful", "same answer"})
    )


def _case_of_input(failure: Failure) -> dict[str, Any] | None:
    """Return the input of a failure as a stored case; None if it was not drawn."""
    if not failure.input:
        return None
    return {
        "kind": "input",
        "contract": failure.function,
        "reason": failure.line,
        "failure": failure.kind,
        "input": failure.input.decode(),
    }


def _plain(failure: Failure) -> dict[str, Any]:
    """Return a failure as JSON, without its case and script, which have their own files."""
    values = {field.name: getattr(failure, field.name) for field in dataclasses.fields(failure)}
    del values["case"], values["script"]
    return {**values, "input": base64.b64encode(failure.input).decode()}


def _failure_from(entry: Mapping[str, Any], folder: Path) -> Failure:
    values = dict(entry)
    values["input"] = base64.b64decode(values["input"])
    values["uses"] = tuple(values["uses"])
    failure = Failure(**values)
    case, script = None, None
    path = folder / "cases" / f"{failure.id}.json"
    if path.exists():
        read = json.loads(path.read_text(encoding="utf-8"))
        case = None if read["kind"] == "input" else read
    path = folder / "scripts" / f"{failure.id}.py"
    if path.exists():
        script = path.read_text(encoding="utf-8")
    return dataclasses.replace(failure, case=case, script=script)


def open_findings(findings: Findings) -> Sequence[Finding]:
    """Return the findings that still fail."""
    return [found for found in findings.by_id.values() if found.is_open]
