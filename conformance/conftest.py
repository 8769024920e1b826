"""The pytest plugin of the conformance run: its options, its tests, its closing table.

A module-level `Check` named `test_...` becomes one test for each chosen target. At the end the
controller adds up what the workers counted, prints functions by targets, and fails the run where a
situation was met by no example.
"""

from __future__ import annotations

import dataclasses
import secrets
from pathlib import Path
from typing import Any

import pytest
import torch

from conformance.checks import Check, checks_in
from conformance.profiles import PROFILES
from conformance.situations import LEDGER
from conformance.strategies.traffic import use_trace
from conformance.summary import Run
from conformance.targets import choose_targets
from conformance.traffic.trace import read_trace

RUN = pytest.StashKey[Run]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the conformance run."""
    group = parser.getgroup("conformance", "conformance of an implementation with `reference`")
    group.addoption("--target", metavar="A,B", help="targets to run: host, sim, cuda")
    group.addoption(
        "--profile", default="default", metavar="NAME", help="dev, default (the default), nightly"
    )
    # pytest has a `--trace` of its own, which breaks at the start of each test. Here the word means
    # a trace of requests; pytest's goes by another name.
    group._arggroup.conflict_handler = "resolve"  # noqa: SLF001  # there is no public way
    group.addoption(
        "--trace",
        dest="trace_file",
        type=Path,
        metavar="FILE",
        help="cut real-traffic batches from this CSV file",
    )
    group.addoption("--break", dest="trace", action="store_true", help="pytest's own --trace")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Check the options before anything runs, and prepare this process."""
    name = config.getoption("--profile")
    if name not in PROFILES:
        raise pytest.UsageError(f"--profile {name!r} is unknown; there are {', '.join(PROFILES)}")
    trace = config.getoption("trace_file")
    try:
        targets = choose_targets(config.getoption("--target"))
        if trace is not None:
            read_trace(trace)
    except (ValueError, KeyError, OSError) as error:
        raise pytest.UsageError(str(error)) from error
    profile = PROFILES[name]
    if profile.is_random and config.getoption("--hypothesis-seed") is None:
        # Workers inherit the controller's options, so all draw from the one seed that is printed.
        config.option.hypothesis_seed = str(secrets.randbits(64))
    if profile.is_random:
        profile = dataclasses.replace(profile, seed=int(config.getoption("--hypothesis-seed")))
    run = config.stash[RUN] = Run(targets, profile)
    config.pluginmanager.register(_Outcomes(run), "conformance-outcomes")
    use_trace(trace)
    torch.set_num_threads(1)


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say what is under test, so that a typo cannot pass for a green run."""
    run = config.stash[RUN]
    seed = config.getoption("--hypothesis-seed") if run.profile.is_random else "derandomized"
    names = ", ".join(target.name for target in run.targets)
    module = run.targets[0].implementation.__name__
    trace = config.getoption("trace_file") or "the project's own"
    return [
        f"conformance: {module} on {names}; profile {run.profile.name}; seed {seed}; trace {trace}"
    ]


def pytest_pycollect_makeitem(
    collector: pytest.Module | pytest.Class, name: str, obj: object
) -> list[pytest.Function] | None:
    """Make the tests of a module's `Check`, or of the laws that a function obeys.

    There is one for each target and size, and each law: `test_x[host-minimal]`, and
    `test_x_laws[host-minimal-split_partitions]`.
    """
    checks = [check for _, check in checks_in({name: obj})]
    if not checks:
        return None
    run = collector.config.stash[RUN]
    items = []
    for check in checks:
        for target in filter(check.runs_on, run.targets):
            for size in check.sizes(target):
                test = check.bind(target, run.profile, size)
                label = "-".join(filter(None, (target.name, size, check.law)))
                item = pytest.Function.from_parent(collector, name=f"{name}[{label}]", callobj=test)
                item.stash[CHECKED] = (check, target.name)
                items.append(item)
    return items


CHECKED = pytest.StashKey[tuple[Check, str]]()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Note what the run would look at, before anything is deselected."""
    if CHECKED in item.stash:
        check, target = item.stash[CHECKED]
        LEDGER.expect(check.function, check.expects)
        item.user_properties += [("function", check.function), ("target", target)]


def pytest_deselected(items: list[pytest.Item]) -> None:
    """Do not judge the situations of a function some of whose checks were deselected."""
    for item in items:
        if CHECKED in item.stash:
            item.config.stash[RUN].partial.add(item.stash[CHECKED][0].function)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Note which checks are to be run."""
    run = session.config.stash[RUN]
    for item in session.items:
        if CHECKED in item.stash:
            check, _ = item.stash[CHECKED]
            run.collected[check.function].add(item.nodeid)
            if check.has_kernel:
                run.with_kernel.add(check.function)
    if any("::" in argument for argument in session.config.args):
        run.partial.update(run.collected)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hand a worker's counts to the controller; judge them where there is no controller above."""
    run = session.config.stash[RUN]
    output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["conformance"] = {"ledger": LEDGER.to_record(), "run": run.to_record()}
        return
    if run.judge(LEDGER) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Add up what a worker counted."""
    del error
    record = getattr(node, "workeroutput", {}).get("conformance")
    if record is not None:
        LEDGER.add(record["ledger"])
        node.config.stash[RUN].add(record["run"])


class _Outcomes:
    """Keeps each check's outcome; under pytest-xdist it is told in the controller too."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note how a test ended."""
        properties = dict(report.user_properties)
        if "function" in properties and (report.when == "call" or report.failed):
            self.run.note(report, str(properties["function"]), str(properties["target"]))


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Print functions by targets, and the situations that no example met."""
    run = config.stash[RUN]
    if not run.outcomes:
        return
    terminalreporter.section("conformance")
    for line in run.table(LEDGER):
        terminalreporter.write_line(line)
    for line in run.unmet_lines(LEDGER):
        terminalreporter.write_line(line, red=True)
    if run.profile.is_random:
        terminalreporter.write_line(f"seed {config.getoption('--hypothesis-seed')}")
