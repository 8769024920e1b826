"""The pytest plugin of a round: it orders the tests, and records what happens in `record.json`.

Functions that failed before come first, the others in random order, so that a round that the end of
the night cuts off is a sample of all functions.
"""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, TypeAlias

import pytest

from conformance.harness.plugin import KILLED, RUN, FunctionItem
from conformance.harness.report import write_whole
from conformance.harness.results import WORDS, properties_of
from kvtwin.nightly.history import place_of

FOLDER: Final = "KVTWIN_ROUND"
"""The environment variable that names the folder of the round."""

Report: TypeAlias = pytest.TestReport | pytest.CollectReport

WRITE_SECONDS: Final = (10.0, 1.0)  # how old the record may be; if a test has failed since
CASE: Final = re.compile(r"--replay (\S+)")


class _Recorder:
    """Orders the tests in each process; records all of them in the controller."""

    def __init__(self, config: pytest.Config, folder: Path) -> None:
        self.config, self.folder = config, folder
        self.parent = os.getppid()
        self.counts = Counter[str]()
        self.first: list[str] = json.loads((folder / "first.json").read_text(encoding="utf-8"))
        self.outcomes: dict[str, str] = {}
        self.others: dict[str, Report] = {}
        self.attention: list[str] = []
        self.written = 0.0

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        names = sorted({_function(item) for item in items})
        seed = self.config.getoption("--seed")
        random.Random(seed).shuffle(names)  # noqa: S311  # the same in all workers
        again = {_function(item) for item in items if item.nodeid in self.first}
        places = {name: place - len(names) * (name in again) for place, name in enumerate(names)}
        items.sort(key=lambda item: places[_function(item)])

    @pytest.hookimpl(optionalhook=True, trylast=True)
    def pytest_handlecrashitem(self, crashitem: str, report: Any) -> None:
        """Turn the end of a worker that left no message into a pass, if the case passes now."""
        found = properties_of(report)
        if KILLED not in found.get("line", "") or "--replay" not in found.get("replay", ""):
            return
        words = [sys.executable, *shlex.split(found["replay"])[1:], "-p", "no:cacheprovider"]
        if subprocess.run(words, capture_output=True, check=False).returncode == 0:  # noqa: S603
            line = f"worker {report.node.gateway.id} was killed while it ran {crashitem}"
            self.attention.append(line)
            report.outcome, report.user_properties = "passed", []

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if os.getppid() != self.parent:
            pytest.exit("the night that started this round is gone")
        found = properties_of(report)
        if report.failed and not found:
            self.others[report.nodeid] = report
        if report.when == "call" or report.failed:
            unsupported = sum(number for _, number in found.get("unsupported", ()))
            self.counts.update(tests=1, examples=found.get("examples", 0), unsupported=unsupported)
            if report.nodeid in self.first and not report.skipped:
                self.outcomes[report.nodeid] = report.outcome
        if time.monotonic() - self.written > WRITE_SECONDS[report.failed]:
            self.pytest_sessionfinish()

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:  # once for each worker
            self.others[report.nodeid] = report

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        if hasattr(self.config, "workerinput"):
            return
        self.written = time.monotonic()
        targets = self.config.stash[RUN].targets
        under_test = dict.fromkeys(target.implementation for target in targets)
        record = {
            **self.counts,
            "under_test": [one.describe() for one in under_test],
            "outcomes": self.outcomes,
            "attention": self.attention,
            "failures": [*self._failures()],
        }
        write_whole(self.folder / "record.json", json.dumps(record))

    def _failures(self) -> Iterator[dict[str, Any]]:
        results: Any = self.config.pluginmanager.get_plugin("conformance-results")
        for found in results.causes():
            yield _failure(found)
        for node, report in self.others.items():  # of a test without a function
            text = report.longreprtext
            words = {"function": node.rpartition("::")[2], "target": "host", "text": text}
            yield _failure({**words, "node": node, "line": text.rpartition("\n")[2]})


def _function(item: pytest.Item) -> str:
    return item.what[0] if isinstance(item, FunctionItem) else item.nodeid


def _failure(found: dict[str, Any]) -> dict[str, Any]:
    """Describe a failure; `<case>` stands for the file of the stored case in its command."""
    function, command = found["function"], found.get("replay", "")
    match = CASE.search(command)
    path = Path(match[1]) if match else None
    has_case = path is not None and path.is_file() and "corpus" not in path.parts
    difference = " ".join(found.get("line", "an error").partition(": ")[2].split())
    owner, _, on = found["target"].rpartition(":")
    return {
        "key": f"{owner}{function}: {place_of(difference)}",
        "function": function,
        "targets": [on],
        "finding": WORDS.get(found.get("verdict", ""), "error"),
        "fails": found.get("is_fatal", True),
        "difference": difference,
        "text": found.get("text", "").partition("\nTo reproduce:")[0],
        "tests": [found["node"]],
        "replay": command.replace(str(path), "<case>") if has_case else command,
        "case": path.read_text(encoding="utf-8") if path is not None and has_case else "",
    }


def pytest_configure(config: pytest.Config) -> None:
    """Start recording, after the plugin of the conformance run was configured."""
    config.pluginmanager.register(_Recorder(config, Path(os.environ[FOLDER])))
