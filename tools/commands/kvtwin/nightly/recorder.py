"""The pytest plugin of a round: it orders the tests, and records what happens in `record.json`.

Tests that failed before come first, the others in random order, so that a round that the end of the
night cuts off is a sample of all tests.
"""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import time
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, TypeAlias

import pytest

from conformance.cases.failures import rerun_command
from conformance.coverage.goals import COVERAGE
from conformance.reports.files import replace_file
from conformance.results.outcomes import finding_in, properties_of
from conformance.results.run import RUN, Run
from kvtwin.nightly.history import place_of

FOLDER: Final = "KVTWIN_ROUND"
"""The environment variable that names the folder of the round."""

Report: TypeAlias = pytest.TestReport | pytest.CollectReport

WRITE_SECONDS: Final = (10.0, 1.0)  # how old the record may be; if a test has failed since
KILLED: Final = re.compile(r"crashed with SIG(KILL|TERM)\b")
LOST_WORKER: Final = re.compile(r"worker '(\w+)' crashed while running '(.*)'")


class _Recorder:
    """Counts the examples of each test in a worker; records all of them in the controller."""

    def __init__(self, config: pytest.Config, folder: Path) -> None:
        self.config, self.folder = config, folder
        self.run: Run = config.stash[RUN]
        self.parent = os.getppid()
        self.counts = Counter[str]()
        self.first: list[str] = json.loads((folder / "first.json").read_text(encoding="utf-8"))
        self.outcomes: dict[str, str] = {}
        self.others: dict[str, Report] = {}
        self.attention: list[str] = []
        self.written = 0.0

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        seed = self.config.getoption("--hypothesis-seed")
        random.Random(seed).shuffle(items)  # noqa: S311  # the same in all workers
        items.sort(key=lambda item: item.nodeid not in self.first)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        before = self._totals()
        try:
            return (yield)
        finally:
            counted = {name: total - before[name] for name, total in self._totals().items()}
            item.user_properties.append(("counted", counted))

    def _totals(self) -> dict[str, int]:
        database = self.run.profile.database
        return {
            "examples": sum(COVERAGE.examples.values()),
            "unsupported": sum(COVERAGE.unsupported.values()),
            "replayed": database.num_fetched if database else 0,
        }

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if os.getppid() != self.parent:
            pytest.exit("the night that started this round is gone")
        said = self._said_of_kill(report) if report.failed else ""
        if said:  # it says nothing about the function
            self.attention.append(said)
            report.outcome, report.longrepr = "skipped", (report.nodeid, 0, said)
        counted = properties_of(report).get("counted", {})
        if report.when == "call" or report.failed:
            self.counts.update({**counted, "tests": 1})
            if report.nodeid in self.first and not report.skipped:
                stored = " stored" if counted.get("replayed") else ""
                self.outcomes[report.nodeid] = report.outcome + stored
        if report.failed and "function" not in properties_of(report):
            self.others[report.nodeid] = report

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:  # once for each worker
            self.others[report.nodeid] = report

    @pytest.hookimpl(trylast=True, specname="pytest_runtest_logreport")
    def pytest_write_sometimes(self, report: pytest.TestReport) -> None:
        if time.monotonic() - self.written > WRITE_SECONDS[report.failed]:
            self.pytest_sessionfinish()

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        self.written = time.monotonic()
        implementations = self.run.implementations
        lines = [(one.describe(), *one.lacking_lines()) for one in implementations]
        record = {
            **self.counts,
            "under_test": [line for each in lines for line in each],
            "outcomes": self.outcomes,
            "attention": self.attention,
            "failures": [*self._failures()],
        }
        replace_file(self.folder / "record.json", json.dumps(record))

    def _said_of_kill(self, report: pytest.TestReport) -> str:
        """Return a line about a process that was killed from outside, if one was."""
        properties = properties_of(report)
        lost = LOST_WORKER.search(report.longreprtext)
        if lost and not self.run.unsupervised:  # functions run in a child of the worker
            return f"worker {lost[1]} was killed while it ran {lost[2]}"
        difference = str(properties.get("difference", ""))
        is_again = "source" in properties and "not in the rerun" not in difference
        if "crash" in properties and KILLED.search(difference) and not is_again:
            return f"the process of {report.nodeid} was killed from outside or for want of memory"
        return ""

    def _failures(self) -> Iterator[dict[str, Any]]:
        """Yield the first failed test of each finding of each function that fails by itself."""
        for function, on in [*self.run.outcomes]:
            failed = self.run.failed_tests(function, on)
            if not self.run.failing_with(function, on):
                for finding in set(map(finding_in, failed)):
                    report = next(one for one in failed if finding_in(one) is finding)
                    difference = str(properties_of(report).get("difference", "an error"))
                    yield self._failure(report, report.nodeid, function, on, difference)
        for other in self.others.values():  # of a test without a function, such as those of the zoo
            lost = LOST_WORKER.search(other.longreprtext)
            test = lost[2] if lost else other.nodeid
            on = next((one.name for one in self.run.targets if f"[{one.name}" in test), "host")
            function = test.rpartition("::")[2].partition("[")[0]
            yield self._failure(other, test, function, on, "the process ended" if lost else "")

    def _failure(
        self, report: Report, test: str, function: str, on: str, difference: str
    ) -> dict[str, Any]:
        """Describe a failure; `<case>` stands for the file of the stored case in its command."""
        found = dict(getattr(report, "user_properties", ()))
        target = next((one for one in self.run.targets if one.name == on), self.run.targets[0])
        text, _, again = report.longreprtext.partition("\nTo reproduce:\n")
        item: Any = SimpleNamespace(nodeid=test, config=self.config)
        command = again.strip().partition("\n")[0] or found.get("replay")
        command = str(command or rerun_command(item, target))
        words = shlex.split(command)
        path = Path(words[words.index("--replay") + 1]) if "--replay" in words else None
        has_case = path is not None and path.is_file() and "corpus" not in test
        difference = " ".join((difference or text.rpartition("\n")[2]).split())
        is_fatal = True
        if isinstance(report, pytest.TestReport) and "function" in found:
            is_fatal = self.run.tolerated(report) is None
        return {
            "key": f"{target.implementation.name}: {function}: {place_of(difference)}",
            "function": function,
            "targets": [on.rpartition(":")[2]],
            "finding": found.get("finding", "wrong answer"),
            "fails": is_fatal,
            "difference": difference,
            "text": "\n".join(text.splitlines()[-60:]),
            "tests": [test],
            "replay": command.replace(str(path), "<case>") if has_case else command,
            "case": path.read_text(encoding="utf-8") if path is not None and has_case else "",
        }


def pytest_configure(config: pytest.Config) -> None:
    """Start recording, after the plugin of the conformance run was configured."""
    config.pluginmanager.register(_Recorder(config, Path(os.environ[FOLDER])))
