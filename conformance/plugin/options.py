"""The options of the conformance run: their definitions, the run that they describe, the header."""

from __future__ import annotations

import argparse
import dataclasses
import secrets
import tempfile
import threading
from pathlib import Path

import pytest

from conformance.cases.replay import CaseCheck, corpus_checks, replayed_checks
from conformance.checks.registry import choose_functions
from conformance.generation.database import open_database
from conformance.generation.profiles import PROFILES
from conformance.messages.formatting import printable
from conformance.reports.plugin import add_report_options
from conformance.results.failure_summary import add_failure_options
from conformance.results.run import Run
from conformance.strategies.traffic import use_trace
from conformance.targets.implementations import load_implementations
from conformance.targets.target import choose_targets


def add_options(parser: pytest.Parser) -> None:
    """Add the options of the conformance run."""
    group = parser.getgroup("conformance", "conformance of an implementation with `reference`")
    # pytest has a `--trace` of its own, which breaks at the start of each test. Here a trace is one
    # of requests, and pytest's is `--break`. pytest's `--strict` can be set in its configuration.
    group._arggroup.conflict_handler = "resolve"  # noqa: SLF001  # there is no public way
    group.addoption(
        "--impl",
        action="append",
        default=[],
        metavar="MODULE_OR_FILE",
        help="the implementation under test, a module or a .py file; may be repeated "
        "(default: fast)",
    )
    group.addoption(
        "--adapter",
        action="append",
        default=[],
        metavar="MODULE_OR_FILE",
        help="the adapter for its objects: one for all implementations, or one for each",
    )
    group.addoption("--target", metavar="A,B", help="targets to run: host, sim, native, cuda")
    group.addoption("--functions", metavar="A,B", help="check only these functions (default: all)")
    group.addoption(
        "--replay",
        type=Path,
        metavar="FILE",
        help="replay a stored case, or all in a folder, and run nothing else",
    )
    group.addoption(
        "--corpus-add",
        action="store_true",
        help="store failing cases in the corpus: conformance/corpus, or ./conformance-corpus if "
        "the package is installed",
    )
    group.addoption(
        "--failures",
        type=Path,
        metavar="DIR",
        help="folder for the cases of failures (default: conformance/failures, or "
        "./conformance-failures if the package is installed)",
    )
    group.addoption(
        "--profile",
        default="default",
        metavar="NAME",
        help="how many examples are drawn: brief, dev, default or nightly (default: default)",
    )
    group.addoption(
        "--database",
        action="append",
        default=[],
        metavar="DIR_OR_URL",
        help="with --profile nightly: the folder or redis:// URL of Hypothesis' database, which "
        "stores failing examples and tries them first in the next run; may be repeated",
    )
    group.addoption(
        "--strict",
        dest="is_strict",
        action="store_true",
        help="missing refusals and other differences fail the run too, as they always do for fast",
    )
    group.addoption(
        "--hang-seconds",
        default=30.0,
        metavar="SECONDS",
        type=_seconds,
        help="a call that takes longer counts as hung, and its test fails (default: 30)",
    )
    group.addoption(
        "--in-process",
        action="store_true",
        help="run tests in the pytest process, for a profiler; a crash ends the run",
    )
    add_report_options(group)
    add_failure_options(group)
    group.addoption(
        "--explain",
        metavar="FUNCTION",
        help="print a function's definition, laws, invalid inputs and goals, and run nothing",
    )
    group.addoption(
        "--list",
        dest="is_list",
        action="store_true",
        help="print each function's definition in a line, and whether the implementation offers "
        "it, and run nothing",
    )
    group.addoption(
        "--trace",
        dest="trace_file",
        type=Path,
        metavar="FILE",
        help="take the batches of real traffic from this CSV file",
    )
    group.addoption(
        "--break",
        dest="trace",
        action="store_true",
        help="pytest's own --trace: start the debugger at the start of each test",
    )


def _seconds(text: str) -> float:
    """Read a time limit, as the `type` of an option."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise argparse.ArgumentTypeError(f"must be a number above 0, got {text!r}")
    return seconds


def run_of_options(config: pytest.Config) -> Run:
    """Return the run that the options describe, and set its trace.

    Names of files become absolute, and a random run gets its seed: the workers of pytest-xdist
    inherit the options, wherever they start.

    Raises:
        pytest.UsageError: An option has an unknown or invalid value.
    """
    name = config.getoption("--profile")
    if name not in PROFILES:
        raise pytest.UsageError(f"--profile {name!r} is unknown; there are {', '.join(PROFILES)}")
    trace, failures = config.getoption("trace_file"), config.getoption("--failures")
    if failures is not None:
        _check_writable(failures)
    try:
        for option in ("impl", "adapter"):
            found = [_absolute(text) for text in config.getoption(f"--{option}")]
            setattr(config.option, option, found)
        num_threads = _num_threads()
        implementations = load_implementations(config.option.impl, config.option.adapter)
        num_threads = _num_threads() - num_threads
        for implementation in implementations:
            implementation.is_strict |= config.getoption("is_strict")
        targets = choose_targets(config.getoption("--target"), implementations)
        functions = choose_functions(config.getoption("--functions"))
        stored_cases = _stored_cases(config)
        database = open_database(config.getoption("--database"))
    except (ValueError, OSError) as error:
        raise pytest.UsageError(printable(str(error))) from error
    _use_trace(trace)
    profile = PROFILES[name]
    if profile.is_random and config.getoption("--hypothesis-seed") is None:
        config.option.hypothesis_seed = str(secrets.randbits(64))
    if profile.is_random:
        seed = str(config.getoption("--hypothesis-seed"))
        if not seed.removeprefix("-").isdecimal():
            raise pytest.UsageError(f"--hypothesis-seed must be an integer, got {seed!r}")
        profile = dataclasses.replace(profile, seed=int(seed), database=database)
    elif database is not None:
        raise pytest.UsageError("--database needs --profile nightly: others repeat their examples")
    run = Run(targets, profile, functions)
    run.has_threads = num_threads > 0
    run.is_whole = _is_whole(config)
    run.stored_cases, run.is_replay = stored_cases, config.getoption("--replay") is not None
    return run


def _is_whole(config: pytest.Config) -> bool:
    """Return whether no option or argument leaves out functions, targets or tests."""
    chosen = ("impl", "adapter", "target", "functions", "keyword", "markexpr", "deselect", "lf")
    left_out = any(config.getoption(name, None) for name in chosen)
    return not left_out and all(Path(argument).is_dir() for argument in config.args)


def _check_writable(failures: Path) -> None:
    """Create the folder of failures; raise `pytest.UsageError` if nothing can be written there."""
    if failures.exists() and not failures.is_dir():
        raise pytest.UsageError(f"--failures {failures} is not a folder")
    try:
        failures.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=failures).close()
    except OSError as error:
        raise pytest.UsageError(f"--failures {failures}: {error.strerror}") from error


def _use_trace(trace: Path | None) -> None:
    try:
        use_trace(trace)
    except OSError as error:
        raise pytest.UsageError(f"--trace {trace}: {error.strerror}") from error
    except ValueError as error:  # which begins with the name of the file
        raise pytest.UsageError(f"--trace {error}") from error


def _stored_cases(config: pytest.Config) -> list[CaseCheck]:
    """Return the checks of the stored cases that the run begins with, or consists of."""
    replayed = config.getoption("--replay")
    return corpus_checks() if replayed is None else replayed_checks(replayed.resolve())


def _num_threads() -> int:
    """Return the number of threads of this process, including those of compiled code."""
    tasks = Path("/proc/self/task")
    return len(list(tasks.iterdir())) if tasks.exists() else threading.active_count()


def _absolute(text: str) -> str:
    return str(Path(text).resolve()) if text.endswith(".py") else text


def header_lines(config: pytest.Config, run: Run) -> list[str]:
    """Return the header, which shows what is under test so that a typo is noticed."""
    seed = config.getoption("--hypothesis-seed") if run.profile.is_random else "derandomized"
    names = ", ".join(target.name for target in run.targets)
    implementations = run.implementations
    tested = ", ".join(implementation.name for implementation in implementations)
    trace = config.getoption("trace_file") or "the project's own"
    lines = [
        f"conformance: {tested} on {names}; profile {run.profile.name}; seed {seed}; trace {trace}"
    ]
    for implementation in implementations:
        lines.append(f"under test: {implementation.describe()}")
        if not implementation.has_checked_mode:
            lines.append("  has no checks(enabled): it must always refuse bad values")
        lines += [
            f"  deviates (declared): {deviation.function}: {deviation.reason}"
            for deviation in implementation.deviations
        ]
    if run.unsupervised:
        lines.append(f"a function that crashes ends this run: {run.unsupervised}")
    if run.functions is not None:
        lines.append(f"functions: {', '.join(run.functions)}")
    if config.getoption("--replay") is not None:
        num = len(run.stored_cases)
        cases = f", {num} cases" if num > 1 else ""
        lines.append(f"replay: {config.getoption('--replay')}{cases}")
    return [printable(line) for line in lines]
