"""Runs tests in a forked child, so that a function that crashes does not end the run.

This process collects tests, sends their numbers to the child, and logs the reports that come back.
It forks a new child when one has died, or makes no call for a while. `crashes` describes how the
new one runs the same test again. Under pytest-xdist, each worker has a child.
"""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import os
import resource
import signal
import sys
from collections.abc import Iterable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import pytest
from _pytest.runner import runtestprotocol  # pytest has no public name for it

from conformance.cases.failures import replay_command
from conformance.cases.replay import CaseCheck
from conformance.coverage.goals import Coverage
from conformance.execution.crashes import AGAIN_SECONDS, RERUN, STACK, ProcessEnd, properties_of_end
from conformance.execution.forked_calls import (
    HANG,
    POLL_SECONDS,
    Watch,
    fork,
    how_it_ended,
    kill_hanging,
)
from conformance.generation.shrinking import ShrinkBudgets
from conformance.harness.plugin import FunctionItem
from conformance.messages.formatting import printable
from conformance.results.run import CHECKED, Run
from conformance.targets.progress import PROGRESS

RERUN_SECONDS: Final = 60.0
"""How long a rerun may make no progress: it waits for children with a shorter limit."""

OOM_SCORE: Final = "500"
"""The `oom_score_adj` of a child: it is killed before its parent when memory runs out."""

MAX_OUTPUT: Final = 2000
"""How many characters of the output before a crash are shown."""


@dataclasses.dataclass(frozen=True)
class _Result:
    """A child's message about a test: its reports, its coverage, and whether the run ends."""

    reports: list[dict[str, Any]]
    coverage: dict[str, Any]
    budgets_left: dict[str, float]
    shouldfail: bool | str
    shouldstop: bool | str


class Supervisor:
    """Runs the tests of a session in forked children.

    Args:
        config: Pytest's.
        coverage: The coverage of the run.
        budgets: The budgets for shrinking.
    """

    def __init__(self, config: pytest.Config, coverage: Coverage, budgets: ShrinkBudgets) -> None:
        self.config, self.coverage, self.budgets = config, coverage, budgets
        self.hang_seconds: float = config.getoption("--hang-seconds")
        self.child: _Child | None = None
        self._places: dict[pytest.Item, int] = {}
        self._hung: set[str] = set()
        self._reports: list[pytest.TestReport] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> bool | None:
        """Run a test in the child, and log its reports."""
        if isinstance(item, FunctionItem):
            return None
        if self.child is not None and self.child.is_this_process:
            self._reports = runtestprotocol(item, log=False, nextitem=nextitem)
            return True
        where = {"nodeid": item.nodeid, "location": item.location}
        item.ihook.pytest_runtest_logstart(**where)
        for report in self._run(item, nextitem):
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(**where)
        return True

    def pytest_enter_pdb(self) -> None:
        """Suspend the time limit in a debugger."""
        PROGRESS.is_paused = True

    def pytest_leave_pdb(self) -> None:
        """Resume the time limit."""
        PROGRESS.is_paused = False

    def pytest_sessionfinish(self) -> None:
        """End the child."""
        self._end()

    def pytest_unconfigure(self) -> None:
        """End the child of a run that was interrupted."""
        self._end()

    def _end(self) -> None:
        if self.child is not None and not self.child.is_this_process:
            self.child.end()
            self.child = None

    def _run(self, item: pytest.Item, nextitem: pytest.Item | None) -> Iterable[pytest.TestReport]:
        """Return the reports of a test; if it ends its process, those of a rerun."""
        found = self._try(item, nextitem, None, 0)
        printed, ends = "", []
        while isinstance(found, ProcessEnd):
            printed = printed or self._printed()
            ends.append(found)
            if found.is_hang:
                self._hung.add(_function_of(item))
            if not found.example or len(ends) > 2:
                return [self._report_of_end(item, ends[0], printed)]
            # Examples run in their own children, from the one that crashed on; next time, all do.
            found = self._try(item, nextitem, found, found.example if len(ends) == 1 else 1)
        hook = self.config.hook
        reports = [
            hook.pytest_report_from_serializable(config=self.config, data=report)
            for report in found.reports
        ]
        if printed:
            for report in reports:
                if report.failed:
                    report.sections.append(("Captured output before the crash", printed))
        self.coverage.add(found.coverage)
        self.budgets.left = found.budgets_left
        session = item.session
        session.shouldfail = session.shouldfail or found.shouldfail
        session.shouldstop = session.shouldstop or found.shouldstop
        return reports

    def _try(
        self,
        item: pytest.Item,
        nextitem: pytest.Item | None,
        process_end: ProcessEnd | None,
        first: int,
    ) -> _Result | ProcessEnd:
        """Run a test in the child; return its message, or how it died."""
        if not self._places:
            self._places = {each: place for place, each in enumerate(item.session.items)}
        if self.child is None:
            self.child = _Child(self)
        is_known = _function_of(item) in self._hung
        seconds = min(self.hang_seconds, 2 * AGAIN_SECONDS) if is_known else self.hang_seconds
        PROGRESS.examples = PROGRESS.call_id = 0
        PROGRESS.function = b""
        STACK.clear()
        try:
            next_place = None if nextitem is None else self._places[nextitem]
            self.child.connection.send((self._places[item], next_place, process_end, first))
            found = self.child.receive(seconds if process_end is None else RERUN_SECONDS)
        except BaseException:  # Ctrl-C among them
            self._end()
            raise
        if isinstance(found, _Result):
            return found
        self.child = None
        if isinstance(found, BaseException):
            raise found
        return ProcessEnd(found, PROGRESS.examples, seconds, is_known=is_known)

    def serve(self, connection: Connection) -> None:
        """Run the tests whose numbers are received: the body of a child."""
        self.coverage.take()
        items = list(self._places)
        while True:
            try:
                place, next_place, *rerun = connection.recv()
            except EOFError:
                return
            RERUN.begin(*rerun)
            item = items[place]
            nextitem = None if next_place is None else items[next_place]
            self.config.hook.pytest_runtest_protocol(item=item, nextitem=nextitem)
            to_data = self.config.hook.pytest_report_to_serializable
            reports = [to_data(config=self.config, report=report) for report in self._reports]
            session = item.session
            counts = self.coverage.take(), self.budgets.left
            connection.send(_Result(reports, *counts, session.shouldfail, session.shouldstop))

    def _printed(self) -> str:
        """Return the output of a child that died, if it has not been read yet."""
        capture = self.config.pluginmanager.get_plugin("capturemanager")
        if capture is None or not capture.is_globally_capturing():
            return ""
        return str(printable("".join(capture.read_global_capture())[-MAX_OUTPUT:].strip()))

    def _report_of_end(
        self, item: pytest.Item, process_end: ProcessEnd, printed: str
    ) -> pytest.TestReport:
        """Return the report of a test that ended its process outside of any example."""
        function = PROGRESS.function.decode() or _function_of(item)
        line = f"the call of {function} {process_end.words}, but should return a result"
        properties = list(item.user_properties)
        if CHECKED in item.stash:
            check, target = item.stash[CHECKED]
            uses = ",".join(filter(None, {check.function, PROGRESS.function.decode()}))
            properties += [("uses", uses), ("difference", line), *properties_of_end(process_end)]
            if isinstance(check, CaseCheck) and check.path is not None:
                properties.append(("replay", replay_command(check.path, target)))
        report = pytest.TestReport(
            nodeid=item.nodeid,
            location=item.location,
            keywords={},
            outcome="failed",
            longrepr=line,
            when="call",
            user_properties=properties,
        )
        if printed:
            report.sections.append(("Captured output before the crash", printed))
        return report


class _Child:
    """A forked child that runs tests; the object exists in both processes."""

    def __init__(self, supervisor: Supervisor) -> None:
        self.connection, theirs = multiprocessing.Pipe()
        self.is_this_process = False
        STACK.clear()
        self.pid = fork()
        if self.pid == 0:
            self.is_this_process = True
            supervisor.child = self
            self.connection.close()
            self._serve(supervisor, theirs)
        theirs.close()

    @staticmethod
    def _serve(supervisor: Supervisor, connection: Connection) -> None:
        """Run tests until the connection closes; the process ends here."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends Ctrl-C to all processes
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        STACK.enable()
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text(OOM_SCORE, encoding="ascii")
        try:
            supervisor.serve(connection)
        except BaseException as error:  # noqa: BLE001  # `pytest.exit` among them
            with contextlib.suppress(Exception):
                connection.send(error)
        os._exit(0)

    def receive(self, seconds: float) -> _Result | BaseException | str:
        """Return what the child sends, or how it died.

        Args:
            seconds: The child hangs if it makes no progress for so long.
        """
        watch = Watch(self.pid, seconds, lambda: PROGRESS.total)
        while not watch.hangs() or PROGRESS.is_paused:
            try:
                if self.connection.poll(POLL_SECONDS):
                    received: _Result | BaseException = self.connection.recv()
                    return received
            except (EOFError, OSError):
                return how_it_ended(os.waitpid(self.pid, 0)[1])
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:  # even if a process that it forked still has the connection
                return how_it_ended(status)
        kill_hanging(self.pid)
        return HANG

    def end(self) -> None:
        """Kill the child, whose reports have been received."""
        self.connection.close()
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)


def _function_of(item: pytest.Item) -> str:
    """Return the function that a test is about, or the test's name."""
    return str(item.stash[CHECKED][0].function) if CHECKED in item.stash else item.nodeid


def why_unsupervised(config: pytest.Config, run: Run) -> str:
    """Return why the tests of a run cannot run in forked children; empty if they can."""
    debugged = config.getoption("usepdb") or config.getoption("trace") or sys.gettrace() is not None
    reasons = {
        "--in-process": config.getoption("--in-process"),
        "there is a debugger": debugged,
        "this system cannot fork": not hasattr(os, "fork"),
        "a process that has used a GPU cannot be forked": any(
            target.device == "cuda" for target in run.targets
        ),
        "importing the implementation started threads, which a fork would stop": run.has_threads,
    }
    return next((reason for reason, holds in reasons.items() if holds), "")
