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

from conformance.absent import Absent
from conformance.checks import FAILURES, Check, checks_in
from conformance.corpus import add_failure, corpus_checks
from conformance.explain import explained
from conformance.functions import choose_functions
from conformance.implementations import load_implementations
from conformance.kept import deviation_checks, kept_items
from conformance.life.check import LifeCheck
from conformance.profiles import PROFILES
from conformance.report import Mismatch
from conformance.reports.failure import told_failure
from conformance.reports.last_run import recall
from conformance.reports.plugin import Reporting, add_report_options
from conformance.script import attach_script, forget_script
from conformance.shrinking import Purses, in_our_words
from conformance.situations import LEDGER
from conformance.strategies.traffic import use_trace
from conformance.summary import CHECKED, RUN, Run
from conformance.targets import LOOKED_UP, choose_targets
from conformance.traffic.trace import read_trace
from conformance.vectors import vector_checks
from conformance.vectors.kept import CaseCheck

collect_ignore = ["failures"]
"""Scripts of what failed, which are named after tests and are none."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the conformance run."""
    group = parser.getgroup("conformance", "conformance of an implementation with `reference`")
    group.addoption(
        "--impl",
        action="append",
        default=[],
        metavar="MODULE_OR_FILE",
        help="what is under test: a module, or a .py file; again for several (default: fast)",
    )
    group.addoption(
        "--adapter",
        action="append",
        default=[],
        metavar="MODULE_OR_FILE",
        help="what translates its objects, for all implementations or again for each",
    )
    group.addoption("--target", metavar="A,B", help="targets to run: host, sim, cuda")
    group.addoption("--functions", metavar="A,B", help="functions to check (default: all)")
    group.addoption(
        "--vectors", type=Path, metavar="DIR", help="replay test vectors, and run nothing else"
    )
    group.addoption(
        "--corpus-add", action="store_true", help="keep what fails in conformance/corpus/"
    )
    group.addoption(
        "--failures",
        type=Path,
        metavar="DIR",
        help="where scripts of failures go (default: conformance/failures, or, of an installed "
        "package, ./conformance-failures)",
    )
    group.addoption(
        "--profile", default="default", metavar="NAME", help="dev, default (the default), nightly"
    )
    add_report_options(group)
    group.addoption(
        "--explain",
        metavar="FUNCTION",
        help="print what a function is and what is stated about it, and run nothing",
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


def _absolute(text: str) -> str:
    return str(Path(text).resolve()) if text.endswith(".py") else text


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Check the options before anything runs, and prepare this process."""
    name = config.getoption("--profile")
    if name not in PROFILES:
        raise pytest.UsageError(f"--profile {name!r} is unknown; there are {', '.join(PROFILES)}")
    trace = config.getoption("trace_file")
    try:
        # The workers of pytest-xdist are told what was found here, wherever they start.
        for option in ("impl", "adapter"):
            found = [_absolute(text) for text in config.getoption(f"--{option}")]
            setattr(config.option, option, found)
        implementations = load_implementations(config.option.impl, config.option.adapter)
        targets = choose_targets(config.getoption("--target"), implementations)
        functions = choose_functions(config.getoption("--functions"))
        vectors = config.getoption("--vectors")
        kept = corpus_checks() if vectors is None else vector_checks(vectors.resolve())
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
    run = config.stash[RUN] = Run(targets, profile, functions)
    run.kept, run.is_replay = kept, vectors is not None
    config.pluginmanager.register(_Outcomes(run), "conformance-outcomes")
    try:
        config.pluginmanager.register(Reporting(config, run, LEDGER), "conformance-reports")
    except OSError as error:
        raise pytest.UsageError(f"--report cannot be written: {error}") from error
    config.stash[PURSES] = Purses(profile.shrink_seconds)
    use_trace(trace)
    torch.set_num_threads(1)


def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """Explain a function in place of running tests."""
    name = config.getoption("--explain")
    if name is None:
        return None
    config._do_configure()  # noqa: SLF001  # as pytest's own --markers does; for its cache
    try:
        lines = explained(name, recall(config))
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error
    writer = config.get_terminal_writer()
    for line in lines:
        writer.line(line)
    return pytest.ExitCode.OK


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say what is under test, so that a typo cannot pass for a green run."""
    run = config.stash[RUN]
    seed = config.getoption("--hypothesis-seed") if run.profile.is_random else "derandomized"
    names = ", ".join(target.name for target in run.targets)
    implementations = run.implementations
    tested = ", ".join(implementation.name for implementation in implementations)
    trace = config.getoption("trace_file") or "the project's own"
    lines = [
        f"conformance: {tested} on {names}; profile {run.profile.name}; seed {seed}; trace {trace}"
    ]
    for implementation in implementations:
        lines.append(f"under test: {implementation.told()}")
        lines += [
            f"  deviates (declared): {deviation.function}: {deviation.reason}"
            for deviation in implementation.deviations
        ]
    if run.functions is not None:
        lines.append(f"functions: {', '.join(run.functions)}")
    if run.is_replay:
        lines.append(f"vectors: {config.getoption('--vectors')}, {len(run.kept)} cases")
    return lines


def pytest_pycollect_makeitem(
    collector: pytest.Module | pytest.Class, name: str, obj: object
) -> list[pytest.Function] | None:
    """Make the tests of a module's `Check`, or of the laws that a function obeys.

    There is one for each target and size, and each law: `test_x[host-minimal]`, and
    `test_x_laws[host-minimal-split_partitions]`. There is none for a function that an
    implementation does not have.
    """
    checks = [check for _, check in checks_in({name: obj})]
    if not checks:
        return None
    run = collector.config.stash[RUN]
    items = []
    for check in checks:
        for target in run.targets_of(check):
            for size in check.sizes(target):
                test = check.bind(target, run.profile, size)
                label = "-".join(filter(None, (target.name, size, check.law)))
                item = pytest.Function.from_parent(collector, name=f"{name}[{label}]", callobj=test)
                item.stash[CHECKED] = (check, target)
                where = f"{collector.obj.__name__}:{name}"
                item.stash[WHERE] = f"{where}[{check.law}]" if check.law else where
                items.append(item)
    return items


PURSES = pytest.StashKey[Purses]()
"""What limits shrinking in this process."""
WHERE = pytest.StashKey[str]()
"""Where an item's check stands, as the corpus names it."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Put what is kept before everything else, and leave out what was not asked for."""
    run = config.stash[RUN]
    if run.is_replay or run.functions is not None:
        checked = [item for item in items if CHECKED in item.stash and not run.is_replay]
        wanted = [item for item in checked if run.is_wanted(item.stash[CHECKED][0].function)]
        left_out = [item for item in items if item not in wanted]
        config.hook.pytest_deselected(items=left_out)
        items[:] = wanted
    if any("::" in argument for argument in config.args):
        return
    seen = {item.stash[CHECKED][0].function for item in items if CHECKED in item.stash}
    kept: list[CaseCheck] = [
        case
        for case in run.kept
        if (run.is_replay and run.is_wanted(case.function)) or case.function in seen | run.lacking
    ]
    declared = [] if run.is_replay else deviation_checks(run, seen)
    name = "vectors" if run.is_replay else "corpus"
    items[:0] = [
        *kept_items(session, "deviations", declared),
        *kept_items(session, name, [(case, t) for case in kept for t in run.targets_of(case)]),
    ]


def pytest_itemcollected(item: pytest.Item) -> None:
    """Note what the run would look at, before anything is deselected."""
    if CHECKED in item.stash:
        check, target = item.stash[CHECKED]
        LEDGER.expect(check.function, check.expects)
        item.user_properties += [("function", check.function), ("target", target.name)]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Any:
    """Skip a check that needs what is absent; note of one that fails what it used, and keep it."""
    if CHECKED not in item.stash:
        return (yield)
    check, target = item.stash[CHECKED]
    LOOKED_UP.clear()
    FAILURES.clear()
    is_life, failures = isinstance(check, LifeCheck), item.config.getoption("--failures")
    forget_script(item, failures)
    try:
        with item.config.stash[PURSES].limiting(check.function, uses_all=is_life):
            return (yield)
    except Absent as absent:
        pytest.skip(str(absent))
    except Exception as error:
        uses = ["*"] if is_life else sorted(LOOKED_UP)
        found = error.difference.line if isinstance(error, Mismatch) else _first_line(error, check)
        item.user_properties += [("uses", ",".join(uses)), ("difference", found)]
        failure = told_failure(FAILURES[-1] if FAILURES else None, error)
        item.user_properties.append(("failure", failure))
        if FAILURES:
            attach_script(item, target, FAILURES[-1], item.stash.get(WHERE, ""), failures)
        if item.config.getoption("--corpus-add") and FAILURES and WHERE in item.stash:
            failed, example, why = FAILURES[-1]
            try:
                path = add_failure(failed, item.stash[WHERE], example, why)
            except (TypeError, ValueError, OSError) as trouble:
                item.user_properties.append(("kept", f"cannot be kept: {trouble}"))
            else:
                item.user_properties.append(("kept", str(path)))
        raise


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    """Say how long an example was made smaller, where Hypothesis says "five minutes"."""
    report: pytest.TestReport = yield
    if CHECKED in item.stash:
        report.sections = [
            (head, in_our_words(text) if head == "Hypothesis" else text)
            for head, text in report.sections
        ]
    return report


def _first_line(error: Exception, check: Check | CaseCheck) -> str:
    told = str(error).strip() or check.description  # a plain `assert` may say nothing
    return f"{type(error).__name__}: {told.partition(chr(10))[0]}"


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
            check, target = item.stash[CHECKED]
            run.collected[check.function].add(item.nodeid)
            if check.has_kernel and target.launches(check.function):
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
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Let a worker that has nothing left take tests from another: some take a hundred times longer.

    It is so where nobody chose another way with `--dist`.
    """
    if config.getvalue("dist") != "load":
        return None
    from xdist.scheduler import WorkStealingScheduling  # noqa: PLC0415  # there is no need of it

    return WorkStealingScheduling(config, log)


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
    if not run.outcomes and not run.absent:
        return
    terminalreporter.section("conformance")
    for line in run.table(LEDGER):
        terminalreporter.write_line(line)
    for line in run.notes():
        terminalreporter.write_line(line)
    for line in run.failure_lines():
        terminalreporter.write_line(line, red=True)
    for line in run.unmet_lines(LEDGER):
        terminalreporter.write_line(line, red=True)
    if run.profile.is_random:
        terminalreporter.write_line(f"seed {config.getoption('--hypothesis-seed')}")
