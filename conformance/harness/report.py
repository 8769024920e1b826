"""`--report DIR`: what the table at the end says, and the failures, as JSON, Markdown and HTML."""

from __future__ import annotations

import json
import os
import platform
import re
import tempfile
import time
from collections.abc import Generator, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

from conformance.harness.results import WORDS, Results, properties_of

SCHEMA_VERSION: Final = "3.1"
"""The first number changes if old readers would misread it, the second if something is added."""

PACKAGES: Final = "kvtwin torch numpy ml_dtypes numba numba-cuda hypothesis pytest pytest-xdist"
"""Packages whose versions a report lists, if they are installed."""

CONTROLS: Final = dict.fromkeys({*range(32)} - set(map(ord, "\t\n\r")), "\ufffd")
"""Replacements of control characters, which pages and Markdown must not contain."""


class Report:
    """Observes a run, and writes its report at the end."""

    def __init__(self, folder: Path, results: Results, header: Sequence[str]) -> None:
        self.folder, self.results, self.header = folder.resolve(), results, list(header)
        self.folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=self.folder).close()
        self.begin, self.started = time.perf_counter(), datetime.now(UTC)
        self.tests = dict.fromkeys(("passed", "failed", "skipped"), 0)
        self.errors: dict[str, str] = {}
        self.error = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            self.tests[report.outcome] += 1
        if report.failed and not properties_of(report).get("verdict"):
            self.errors[report.nodeid] = report.longreprtext

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.errors[report.nodeid or "the run"] = report.longreprtext

    @pytest.hookimpl(wrapper=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, Any, Any]:
        result = yield
        if not session.config.option.collectonly:
            try:
                self._write(_record(self, session))
            except OSError as error:
                self.error = str(error)
                if session.exitstatus == pytest.ExitCode.OK:
                    session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
        return result

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        line = f"no report: {self.error}" if self.error else f"report: {self.folder}/report.html"
        terminalreporter.write_line(line, red=bool(self.error))

    def _write(self, record: dict[str, Any]) -> None:
        environment = Environment(
            loader=FileSystemLoader(Path(__file__).parent),
            autoescape=select_autoescape(["html.j2"]),
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        environment.filters |= {"md": escaped, "fenced": fenced}
        texts = {"report.json": json.dumps(record, indent=1, ensure_ascii=False)}
        for name in ("report.md", "report.html"):
            texts[name] = environment.get_template(f"{name}.j2").render(record).rstrip()
        for name, text in texts.items():
            write_whole(self.folder / name, text.translate(CONTROLS) + "\n")


def _record(report: Report, session: pytest.Session) -> dict[str, Any]:
    names = {code.value: code.name.lower().replace("_", " ") for code in pytest.ExitCode}
    status = names.get(int(session.exitstatus), f"status {int(session.exitstatus)}")
    results = report.results
    failures = results.causes()
    conforming = sum(
        "conforms" in cell or "deviates" in cell for row in results.rows() for cell in row[1:-1]
    )
    count = f"{conforming} {'function conforms' if conforming == 1 else 'functions conform'}"
    what = f"{len(failures)} failures" if failures else count if status == "ok" else status
    return {
        "schema_version": SCHEMA_VERSION,
        "headline": f"{', '.join(target.name for target in results.targets)}: {what}",
        "exit_status": status,
        "header": report.header,
        "command": [str(argument) for argument in session.config.invocation_params.args],
        "started": report.started.isoformat(timespec="seconds"),
        "seconds": round(time.perf_counter() - report.begin, 3),
        "tests": report.tests,
        "versions": versions(),
        "targets": [target.name for target in results.targets],
        "functions": [
            {"name": name, "cells": cells, "time": seconds}
            for name, *cells, seconds in results.rows()
        ],
        "notes": list(results.notes()),
        "failures": [
            {
                "function": found["function"],
                "target": found["target"],
                "finding": WORDS.get(found.get("verdict", ""), "error"),
                "severity": found.get("severity", ""),
                "also": found.get("also", []),
                "difference": found.get("line", "an error"),
                "text": found.get("text", ""),
                "replay": found.get("replay", ""),
                "picture": found.get("picture", ""),
            }
            for found in failures
        ],
        "errors": report.errors,
    }


def write_whole(path: Path, text: str) -> None:
    """Write a file, whole or not at all; lone surrogates become question marks."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        unfinished.write_text(text, encoding="utf-8", errors="replace")
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def versions() -> dict[str, str]:
    """Return the versions of Python, of packages, and of the machine, by name.

    >>> list(versions())[:2]
    ['python', 'kvtwin']
    """
    found = {"python": f"{platform.python_version()} ({platform.python_implementation()})"}
    for name in PACKAGES.split():
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found |= {name: "not installed"} if name == "kvtwin" else {}
    found["machine"] = f"{platform.platform()}, {os.cpu_count()} cores"
    if torch.cuda.is_available():
        found["GPU"] = f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}"
    return found


def escaped(text: str) -> str:
    r"""Escape a text for one line of Markdown.

    >>> print(escaped("a|b <c> *d*"))
    a\|b &lt;c> \*d\*
    """
    text = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"([\\`*_\[\]|#])", r"\\\1", text)


def fenced(text: str) -> str:
    """Return a block of code of Markdown, fenced by more backticks than it has.

    >>> print(fenced("x = 1"))
    ```text
    x = 1
    ```
    """
    ticks = "`" * max(3, max(map(len, re.findall("`+", text)), default=0) + 1)
    return "\n".join([f"{ticks}text", text.rstrip("\n"), ticks])
