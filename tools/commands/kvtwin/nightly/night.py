"""A night: starts rounds, adds up what they record, and writes the report."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import shlex
import signal
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Final

import jinja2

from conformance.harness.report import CONTROLS, write_whole
from kvtwin.nightly.history import LISTS, Json, failures_in, read_history
from kvtwin.nightly.rounds import ENDS_WELL, USAGE_ERROR, Round, run_round

SHOWN_NIGHTS: Final = 30
PASSED: Final = {"passed"}
MAX_LISTED: Final = 50  # failures, and lines under "attention", in the report


class Night:
    """The rounds of a night, and what they found; `arguments` are those of the conformance run."""

    def __init__(
        self,
        seconds: float,
        out: Path,
        workers: int,
        databases: Sequence[str],
        arguments: Sequence[str],
    ) -> None:
        self.out, self.workers, self.databases, self.arguments = out, workers, databases, arguments
        self.started = datetime.now(UTC).isoformat(timespec="seconds")
        self.clock = time.monotonic()
        self.until = self.clock + seconds
        self.ended = ""  # why it ended before its time
        self.seeds: list[int] = []
        self._records: dict[int, Json] = {}
        self._seen: dict[str, Json] = {}
        self._history, self._nights, warnings = read_history(out / "history.jsonl")
        self._known, self._since = failures_in(self._nights)
        self.attention = [*warnings, *self._damaged()]

    def _damaged(self) -> Iterator[str]:
        """Yield a line about each stored case that cannot be read."""
        for path in {self.out / one["case"] for one in self._known.values() if one["case"]}:
            try:
                json.loads(path.read_bytes())
            except (OSError, ValueError, RecursionError):
                yield f"{path} cannot be replayed: it is damaged or missing"

    @property
    def is_over(self) -> bool:
        """Whether no other round begins."""
        return bool(self.ended) or time.monotonic() >= self.until

    def next_round(self) -> Round:
        """Return a round with a new seed."""
        self.seeds.append(secrets.randbits(32))
        failures = (*self._seen.values(), *self._known.values())
        first = list(dict.fromkeys(test for one in failures for test in one["tests"]))
        number, seed = len(self.seeds), self.seeds[-1]
        return Round(number, seed, self.workers, self.arguments, self.databases, first)

    def note(self, one: Round, record: Json) -> None:
        """Take over what a round has recorded so far."""
        self._records[one.number] = record
        before, self._seen = self._seen, {}
        for found in [each for it in self._records.values() for each in it.get("failures", ())]:
            self._note_failure(found)
        for failure in [self._seen[key] for key in self._seen if key not in before]:
            word = "FAILS" if failure["fails"] else failure["finding"]
            print(f"{word}: {failure['function']}: {failure['difference'][:300]}", flush=True)
        if "status" in record:
            self._note_end(one, record)
        self.write()

    def _note_failure(self, found: Json) -> None:
        key = found["key"]
        if key not in self._seen:
            case = self._store(found)
            folders = [place for place in self.databases if not case and "://" not in place]
            replay = found["replay"].replace("<case>", shlex.quote(str(self.out / case)))
            replay += "".join(f" --database {shlex.quote(folder)}" for folder in folders)
            since = self._since.get(key, self.started)
            self._seen[key] = {**found, "replay": replay, "case": case, "since": since}
        seen = self._seen[key]
        for name in LISTS:
            seen[name] = list(dict.fromkeys((*seen[name], *found[name])))

    def _store(self, found: Json) -> str:
        """Write the case of a failure, and return its name in the folder; empty if it has none."""
        digest = hashlib.sha256(found["case"].encode()).hexdigest()[:8]
        name = f"cases/{re.sub(r'[^A-Za-z0-9_.]+', '-', found['function'])}-{digest}.json"
        try:
            if found["case"]:
                write_whole(self.out / name, found["case"])
        except OSError as error:
            self.attention.append(f"{name} cannot be written: {error.strerror}")
        return name if found["case"] else ""

    def _note_end(self, one: Round, record: Json) -> None:
        status, said, tests = record["status"], record["said"], record.get("tests", 0)
        if status == USAGE_ERROR and not any(each.get("tests") for each in self._records.values()):
            raise ValueError(said)
        if said:
            how = f"ended with status {status}: {said}"
            how = how if status >= 0 else f"was killed by {signal.Signals(-status).name}"
            self.attention.append(f"round {one.number} (seed {one.seed}) {how}")
        if not tests and status >= 0 and (said or status in ENDS_WELL):
            self.ended = f"round {one.number} ran no test"
        examples = f"{record.get('examples', 0):,} examples"
        print(f"round {one.number}, seed {one.seed}: {tests:,} tests, {examples}", flush=True)

    def status(self) -> int:
        """Return the exit status."""
        if self.ended.startswith("SIG"):
            return 130
        failing = any(one["fails"] for one in (*self._seen.values(), *self._earlier()[1]))
        ran = sum(record.get("examples", 0) for record in self._records.values())
        return int(failing or bool(self.ended) or not ran)

    def _outcomes(self, failure: Json) -> list[set[str]]:
        """Return the outcomes of each test of a failure: `failed`, `passed`."""
        found = [record.get("outcomes", {}) for record in self._records.values()]
        return [{one[test] for one in found if test in one} for test in failure["tests"]]

    def _earlier(self) -> tuple[list[Json], list[Json]]:
        """Return the failures of earlier nights that are fixed, and those that were not tried."""
        known = [failure for key, failure in self._known.items() if key not in self._seen]
        fixed = [one for one in known if all(it and it <= PASSED for it in self._outcomes(one))]
        return fixed, [one for one in known if one not in fixed]

    def write(self) -> None:
        """Write the report, and the line of this night after those of earlier ones."""
        records = list(self._records.values())
        seen = sorted(self._seen.values(), key=lambda one: (not one["fails"], one["key"]))
        fixed, left = self._earlier()
        counts = {
            name: sum(record.get(name, 0) for record in records)
            for name in ("tests", "examples", "unsupported")
        }
        lists = {
            name: list(dict.fromkeys(line for each in records for line in each.get(name, ())))
            for name in ("attention", "under_test")
        }
        line = {
            "night": self.started,
            "seconds": int(time.monotonic() - self.clock),
            "ended": self.ended,
            "rounds": len(records),
            "seeds": self.seeds,
            **counts,
            "under_test": "; ".join(lists["under_test"]),
            "failures": [{k: v for k, v in one.items() if k != "text"} for one in seen],
            "fixed": fixed,
            "attention": [*lists["attention"], *dict.fromkeys(self.attention)],
        }
        values = {
            **line,
            "nights": [*self._nights, line][-SHOWN_NIGHTS:][::-1],
            "failures": seen,
            "left": left,
            "most": MAX_LISTED,
        }
        texts = {name: _render(name, values) for name in ("report.md", "report.html")}
        try:
            for name, page in texts.items():
                write_whole(self.out / name, page.translate(CONTROLS))
            if self._history is not None:
                text = f"{self._history.rstrip()}\n{json.dumps(line)}\n".lstrip()
                write_whole(self.out / "history.jsonl", text)
        except OSError as error:
            self.attention.append(f"{error.filename} cannot be written: {error.strerror}")


def _render(name: str, values: Json) -> str:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=jinja2.select_autoescape(["html.j2"]),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    return environment.get_template(f"{name}.j2").render(values)


def run_here(night: Night) -> None:
    """Run rounds on this machine, one after the other."""
    while not night.is_over:
        one = night.next_round()
        for record in run_round(one, night.until - time.monotonic(), lambda: night.is_over):
            night.note(one, record)


def end_at_signals(night: Night) -> None:
    """Let SIGINT and SIGTERM end a night with its report; a second one ends the process at once."""

    def end(number: int, _: FrameType | None) -> None:
        night.ended = signal.Signals(number).name
        signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as SIGINT is under nohup
            signal.signal(number, end)
