"""The pytest plugin of the conformance run.

A module-level `Check` named `test_...` becomes one test for each chosen target. At the end the
controller adds up the counts of the workers, prints functions by targets, and fails the run if no
example reached a coverage goal. `options` has the options, `failure_hooks` the hooks around
tests, `results` and `reports` the output.
"""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch

from conformance.cases.replay import CaseCheck
from conformance.checks.contract_checks import checks_in
from conformance.checks.registry import is_about
from conformance.coverage.goals import COVERAGE
from conformance.harness import plugin as harness_plugin
from conformance.messages.formatting import printable
from conformance.plugin.case_items import case_items, deviation_checks
from conformance.plugin.explain import explain, list_names
from conformance.plugin.failure_hooks import WHERE, FailureHooks
from conformance.plugin.options import add_options, header_lines, run_of_options
from conformance.plugin.supervision import Supervisor, why_unsupervised
from conformance.reports.plugin import Reporting
from conformance.results.failure_summary import FailureSummary
from conformance.results.outcomes import properties_of
from conformance.results.run import CHECKED, RUN, Run

FUNCTIONS = Path(__file__).parent / "functions"


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Add the options of the conformance run, and the plugin of `conformance.functions`."""
    add_options(parser)
    pluginmanager.register(harness_plugin, "harness")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Check the options before anything runs, and prepare this process."""
    run = config.stash[RUN] = run_of_options(config)
    manager = config.pluginmanager
    manager.register(_Outcomes(run), "conformance-outcomes")
    hooks = FailureHooks(config, run)
    manager.register(hooks, "conformance-failure-hooks")
    manager.register(FailureSummary(run), "conformance-failure-summary")
    run.unsupervised = why_unsupervised(config, run)
    if not run.unsupervised:
        supervisor = Supervisor(config, COVERAGE, hooks.shrink_budgets)
        manager.register(supervisor, "conformance-supervisor")
    folder = config.getoption("--report")
    if folder is not None and not hasattr(config, "workerinput"):
        try:
            manager.register(Reporting(config, run, COVERAGE, folder), "conformance-reports")
        except OSError as error:
            raise pytest.UsageError(f"--report cannot be written: {error}") from error
    torch.set_num_threads(1)


def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """Explain a function, or list all of them, instead of running tests."""
    name = config.getoption("--explain")
    if name is None and not config.getoption("--list"):
        return None
    config._do_configure()  # noqa: SLF001  # as pytest's own --markers does
    try:
        run = config.stash[RUN]
        lines = list_names(run.implementations) if name is None else explain(name)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error
    writer = config.get_terminal_writer()
    for line in lines:
        writer.line(line)
    return pytest.ExitCode.OK


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Return the lines of the report header."""
    return header_lines(config, config.stash[RUN])


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip modules without a check of the chosen functions; for a replay, skip all of them.

    The tests of `conformance/functions`, which the newer harness makes, run if they are named.
    """
    if collection_path == FUNCTIONS and not config.getoption("--replay"):
        return None if _names_functions(config) else True
    run = config.stash[RUN]
    functions = () if run.is_replay else run.functions
    if functions is None or collection_path.parent != Path(__file__).parent:
        return None
    is_module = collection_path.match("test_*.py")
    return True if is_module and not is_about(collection_path, functions) else None


def _names_functions(config: pytest.Config) -> bool:
    named = (Path(argument.partition("::")[0]).resolve() for argument in config.args)
    return any(path.is_relative_to(FUNCTIONS) for path in named)


def pytest_pycollect_makeitem(
    collector: pytest.Module | pytest.Class, name: str, obj: object
) -> list[pytest.Function] | None:
    """Make the tests of a module's `Check` or `Contract`.

    There is one for each target and size, and each law: `test_x[host-minimal]`, and
    `test_x_laws[host-minimal-split_partitions]`. There are none for functions that an
    implementation lacks.
    """
    checks = list(checks_in({name: obj}))
    if not checks:
        return None
    run = collector.config.stash[RUN]
    items = []
    for own_name, check in checks:
        for target in run.targets_of(check):
            for size in check.sizes(target):
                test = check.bind(target, run.profile, size)
                label = "-".join(filter(None, (target.name, size, check.law)))
                item = pytest.Function.from_parent(
                    collector, name=f"{own_name}[{label}]", callobj=test
                )
                item.stash[CHECKED] = (check, target)
                where = f"{collector.obj.__name__}:{own_name}"
                item.stash[WHERE] = f"{where}[{check.law}]" if check.law else where
                items.append(item)
    return items


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Put stored cases first, and deselect what was not requested."""
    run = config.stash[RUN]
    if run.is_replay or run.functions is not None:
        checked = [item for item in items if CHECKED in item.stash and not run.is_replay]
        selected = [item for item in checked if run.is_selected(item.stash[CHECKED][0].function)]
        selected += [item for item in items if isinstance(item, harness_plugin.FunctionItem)]
        left_out = [item for item in items if item not in selected]
        config.hook.pytest_deselected(items=left_out)
        items[:] = selected
    if any("::" in argument for argument in config.args):
        return
    seen = {item.stash[CHECKED][0].function for item in items if CHECKED in item.stash}
    stored_cases: list[CaseCheck] = [
        case
        for case in run.stored_cases
        if (run.is_replay and run.is_selected(case.function)) or case.function in seen | run.lacking
    ]
    declared = [] if run.is_replay else deviation_checks(run, seen)
    name = "corpus"
    if run.is_replay:
        name = "replay"
    items[:0] = [
        *case_items(session, "deviations", declared),
        *case_items(
            session, name, [(case, t) for case in stored_cases for t in run.targets_of(case)]
        ),
    ]


def pytest_itemcollected(item: pytest.Item) -> None:
    """Note the coverage goals of a test, before tests are deselected."""
    if CHECKED in item.stash:
        check, target = item.stash[CHECKED]
        COVERAGE.expect(check.function, check.goals)
        item.user_properties += [
            ("function", check.function),
            ("target", target.name),
            ("kind", check.kind.value),
        ]


def pytest_deselected(items: list[pytest.Item]) -> None:
    """Note functions with deselected checks: their coverage is not required."""
    for item in items:
        if CHECKED in item.stash:
            item.config.stash[RUN].partial.add(item.stash[CHECKED][0].function)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Note which checks will run."""
    run = session.config.stash[RUN]
    for item in session.items:
        if CHECKED in item.stash:
            check, target = item.stash[CHECKED]
            run.collected[check.function].add(item.nodeid)
            if check.has_kernel and target.launches(check.function):
                run.with_kernel.add(check.function)
    if any("::" in argument for argument in session.config.args):
        run.partial.update(run.collected)
    gc.freeze()  # so that garbage collections skip everything imported


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Send a worker's counts to the controller; the controller checks the coverage."""
    run = session.config.stash[RUN]
    output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["conformance"] = {"coverage": COVERAGE.to_record(), "run": run.to_record()}
        return
    # A run that stopped early may have missed wrong answers.
    is_whole = not (session.shouldfail or session.shouldstop)
    if session.testsfailed and session.testsfailed == run.num_tolerated and is_whole:
        session.exitstatus = pytest.ExitCode.OK
    if run.lacks_coverage(COVERAGE) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Schedule tests by work stealing, since some take a hundred times longer than others.

    `--dist` overrides this.
    """
    if config.getvalue("dist") != "load" or _names_functions(config):
        return None
    from xdist.scheduler import WorkStealingScheduling  # noqa: PLC0415  # xdist is optional

    return WorkStealingScheduling(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Add the counts of a worker."""
    del error
    record = getattr(node, "workeroutput", {}).get("conformance")
    if record is not None:
        COVERAGE.add(record["coverage"])
        node.config.stash[RUN].add(record["run"])


def pytest_report_teststatus(
    report: pytest.CollectReport | pytest.TestReport, config: pytest.Config
) -> tuple[str, str, tuple[str, dict[str, bool]]] | None:
    """Show the finding of a failed test in place of FAILED, if it does not fail the run."""
    if not isinstance(report, pytest.TestReport) or "target" not in properties_of(report):
        return None
    finding = config.stash[RUN].tolerated(report)
    if finding is None:
        return None
    return finding.plural, "f", (finding.value.upper(), {"yellow": True})


class _Outcomes:
    """Collects the outcome of each check; under pytest-xdist, also in the controller."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note the outcome of a test."""
        properties = properties_of(report)
        if "function" in properties and (report.when == "call" or report.failed):
            self.run.note(report, str(properties["function"]), str(properties["target"]))


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Print functions by targets, and the coverage goals that were not reached."""
    run = config.stash[RUN]
    if not run.outcomes and not run.absent:
        return
    terminalreporter.section("conformance")
    for line in run.table(COVERAGE):
        terminalreporter.write_line(line)
    for line in run.notes(COVERAGE):
        terminalreporter.write_line(printable(line))
    for line in run.failure_lines():
        terminalreporter.write_line(line, red=True)
    if run.findings_line():
        terminalreporter.write_line(run.findings_line())
    for line in run.unreached_lines(COVERAGE):
        terminalreporter.write_line(line, red=True)
    if run.profile.is_random:
        terminalreporter.write_line(f"seed {config.getoption('--hypothesis-seed')}")
