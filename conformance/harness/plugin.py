"""The plugin for pytest: one test for each function, target and kind, and the table at the end.

All tests of a function run in one process, in order: stored cases, answers, refusals and laws on
the first target, then on the next. Wrong answers end the function, so that one bug is shown once.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import dataclasses
import functools
import gc
import importlib
import os
import secrets
import shlex
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import torch

from conformance import FOLDER
from conformance.adapters import Unsupported
from conformance.adapters.implementations import load_implementations
from conformance.engine.trace import use_trace
from conformance.entry_point import how_to_install
from conformance.harness import cases, checks, show
from conformance.harness.contract import Contract
from conformance.harness.database import open_database
from conformance.harness.explain import explain, list_names
from conformance.harness.limits import ITEM, Limits, failure_of, read_journal
from conformance.harness.picture import picture_of
from conformance.harness.report import Report
from conformance.harness.results import Results
from conformance.harness.severity import cause_of, gravity_of, severity_of
from conformance.harness.story import Failure, Story, Verdict
from conformance.harness.targets import Target, choose
from conformance.name_lists import names_in, near


@dataclasses.dataclass
class Run:
    """What the options describe."""

    targets: list[Target]  # the targets under test
    # The file and the contract of each function to test.
    contracts: dict[str, tuple[Path, Contract]]
    profile: checks.Profile  # how many examples are drawn
    stored: list[cases.Case]  # the cases to replay before the tests of a function
    is_replay: bool  # whether nothing else is run
    limits: Limits  # of this process; in the controller, they only have the folder of the workers
    # What is not tested any more: an implementation, a function, and a kind or "" for all.
    ended: set[tuple[str, str, str]] = dataclasses.field(default_factory=set)

    def end(self, function: str, kind: str, target: str, *, is_wrong: bool) -> None:
        """Note that a test failed: wrong answers end the function, others only this kind."""
        is_all = is_wrong and kind in {"answers", "stored"}
        self.ended.add((target.rpartition(":")[0], function, "" if is_all else kind))

    def has_ended(self, function: str, kind: str, target: str) -> bool:
        """Return whether a test is not run, because one before has failed."""
        for file in self.limits.folder.glob("*.journal") if self.limits.folder else ():
            found = read_journal(file)  # of a worker that died, since it still names a test
            match = ITEM.search(found[0]) if found and file.stem != self.limits.worker else None
            if match:
                self.end(*match.group("function", "kind", "target"), is_wrong=True)
        owner = target.rpartition(":")[0]
        return not self.ended.isdisjoint({(owner, function, ""), (owner, function, kind)})


RUN: Final = pytest.StashKey[Run]()

KILLED: Final = "its process ended"
"""Of a worker that left no message: somebody killed it, or it called `os._exit`."""


# Options.


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("conformance", "conformance of an implementation with `reference`")
    # pytest's own `--strict` can be set in its configuration.
    group._arggroup.conflict_handler = "resolve"  # noqa: SLF001  # there is no public way

    def add(name: str, text: str, **options: Any) -> None:
        group.addoption(name, help=text, **options)

    names = {"metavar": "A,B"}
    files = {"action": "append", "default": [], "metavar": "MODULE_OR_FILE"}
    add("--impl", "the implementation under test, a module or a .py file (default: fast)", **files)
    add("--adapter", "the adapter for its objects: one for all, or one for each", **files)
    add("--target", "targets to run: host, native, cuda", **names)
    add("--functions", "check only these functions (default: all)", **names)
    add("--profile", "brief, dev, default or nightly", default="default", metavar="NAME")
    # With `--hypothesis-seed` Hypothesis keeps no examples in its database.
    add("--seed", "for --profile nightly: repeat the run with this seed", type=int, metavar="N")
    add("--replay", "replay a stored case, or a folder, and run nothing else", type=Path)
    add("--report", "write report.json, .md and .html into a folder", type=Path, metavar="DIR")
    trace = {"dest": "trace_file", "type": Path, "metavar": "FILE"}
    add("--trace", "draw batches of real traffic from this CSV file too", **trace)
    # pytest has a `--trace` of its own, which breaks at the start of each test.
    add("--break", "pytest's own --trace", dest="trace", action="store_true")
    add("--explain", "print what a function is and how it is tested, and run nothing", metavar="F")
    flag = {"dest": "is_list", "action": "store_true"}
    add("--list", "print each function in a line, and run nothing", **flag)
    many = {"dest": "databases", "action": "append", "default": [], "metavar": "DIR_OR_URL"}
    add("--database", "for --profile nightly: Hypothesis' database, or redis://...", **many)
    add("--corpus-add", "store failing cases in the corpus", action="store_true")
    add("--failures", "folder for the cases of failures", type=Path, metavar="DIR")
    add(
        "--strict",
        "missing refusals and other differences fail the run too, as they always do for fast",
        dest="is_strict",
        action="store_true",
    )
    limit = {"type": _positive, "metavar": "NUMBER"}
    add("--hang-seconds", "the time limit of a call (default: 30)", default=30.0, **limit)
    add("--memory-limit", "GiB that a test may allocate (default: 4)", default=4.0, **limit)


def _positive(text: str) -> float:
    with contextlib.suppress(ValueError):
        if float(text) > 0:
            return float(text)
    raise argparse.ArgumentTypeError(f"must be a number above 0, got {text!r}")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("python_files", "functions/*.py")
    torch.set_num_threads(1)
    for option in ("impl", "adapter"):  # workers may start elsewhere
        named = getattr(config.option, option)
        named[:] = [str(Path(one).resolve()) if one.endswith(".py") else one for one in named]
    if config.option.impl:
        atexit.register(_be_quiet)  # before the import, so that it runs after what that registers
    try:
        run = config.stash[RUN] = _run(config)
        if hasattr(config, "workerinput"):
            return
        contracts = [run.contracts[function][1] for function in sorted(run.contracts)]
        is_complete = _is_whole(config) and run.profile.name == "default"
        results = Results(run.targets, contracts, is_complete=is_complete)
        config.pluginmanager.register(results, "conformance-results")
        if config.option.report is not None:
            report = Report(config.option.report, results, pytest_report_header(config))
            config.pluginmanager.register(report, "conformance-report")
    except (ValueError, OSError) as error:
        raise pytest.UsageError(str(error)) from error


def _be_quiet() -> None:
    """Discard what libraries print when this process ends, such as nanobind about its leaks."""
    sys.stderr.flush()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """Explain a function, or list all of them, instead of running tests."""
    if config.option.explain is None and not config.option.is_list:
        return None
    config._do_configure()  # noqa: SLF001  # as pytest's own --markers does
    run = config.stash[RUN]
    found = {function: contract for function, (_, contract) in run.contracts.items()}
    implementations = [target.implementation for target in run.targets]
    try:
        name = config.option.explain
        lines = explain(name, found) if name else list_names([*dict.fromkeys(implementations)])
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error
    for line in lines:
        config.get_terminal_writer().line(line)
    return pytest.ExitCode.OK


def _run(config: pytest.Config) -> Run:
    option = config.option
    use_trace(option.trace_file)
    implementations = load_implementations(option.impl, option.adapter)
    for implementation in implementations:
        implementation.is_strict |= option.is_strict
    targets = choose(option.target, implementations)
    # The driver of a GPU maps all its memory.
    has_limit = sys.platform == "linux" and all(target.device == "cpu" for target in targets)
    worker: dict[str, Any] = getattr(config, "workerinput", {})
    contracts = _contracts(config)
    return Run(
        targets,
        contracts,
        _profile(option),
        _stored(option.replay, {file.parent for file, _ in contracts.values()}),
        option.replay is not None,
        Limits(
            option.hang_seconds,
            option.memory_limit if has_limit else None,
            Path(worker["journals"]) if worker else None,
            worker.get("workerid", ""),
        ),
    )


def _contracts(config: pytest.Config) -> dict[str, tuple[Path, Contract]]:
    """Return the contracts of this package, or of the folders `functions` among the arguments."""
    paths = [Path(config.invocation_params.dir, each.split("::")[0]) for each in config.args]
    near_by = [folder for path in paths for folder in (path, path.parent)]
    folders = [path for path in near_by if path.name == "functions" and path.is_dir()]
    files = [file for folder in folders or [FOLDER / "functions"] for file in folder.glob("*.py")]
    found = {
        contract.function: (file.resolve(), contract)
        for file in sorted(files)
        for contract in getattr(_module(file.resolve()), "CONTRACTS", ())
    }
    if config.option.functions is None:
        return found
    chosen: dict[str, tuple[Path, Contract]] = {}
    for name in names_in(config.option.functions):
        members = {key: found[key] for key in found if name in {key, key.partition(".")[0]}}
        if not members:
            raise ValueError(f"function {name!r} is unknown; did you mean {near(name, found)}?")
        chosen |= members
    return chosen


def _module(file: Path) -> Any:
    if file.parent == FOLDER / "functions":
        return importlib.import_module(f"conformance.functions.{file.stem}")
    sys.path.insert(0, str(file.parents[1]))
    return importlib.import_module(f"functions.{file.stem}")


def _profile(option: argparse.Namespace) -> checks.Profile:
    if option.profile not in checks.PROFILES:
        known = ", ".join(checks.PROFILES)
        raise ValueError(f"--profile {option.profile!r} is unknown; there are {known}")
    profile = checks.PROFILES[option.profile]
    if profile.name != "nightly":
        if option.databases:
            raise ValueError("--database needs --profile nightly: others repeat their examples")
        return profile
    if option.seed is None:
        option.seed = secrets.randbits(32)  # workers inherit it
    database = open_database(option.databases)
    return dataclasses.replace(profile, seed=option.seed, database=database)


def _stored(replayed: Path | None, folders: set[Path]) -> list[cases.Case]:
    corpus, own = _folder("corpus"), (FOLDER / "functions").resolve()
    if replayed is None and not (corpus.is_dir() and own in folders):
        return []  # the corpus has objects that are known where our contracts are
    return cases.load(replayed or corpus)


def _folder(name: str) -> Path:
    """Return a folder of this package, or one in the working directory if it is installed."""
    is_ours = os.access(FOLDER, os.W_OK) and "site-packages" not in FOLDER.parts
    return FOLDER / name if is_ours else Path(f"conformance-{name}")


def _is_whole(config: pytest.Config) -> bool:
    """Return whether no option or argument leaves out functions, targets or tests."""
    names = "impl adapter target functions replay keyword markexpr lf deselect"
    left_out = any(config.getoption(name, None) for name in names.split())
    return not left_out and all(Path(argument).is_dir() for argument in config.args)


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say what is under test, so that a typo is noticed."""
    run = config.stash[RUN]
    seed = "derandomized" if run.profile.seed is None else f"seed {run.profile.seed}"
    names = ", ".join(target.name for target in run.targets)
    implementations = dict.fromkeys(target.implementation for target in run.targets)
    trace = config.option.trace_file or "the project's own"
    lines = [f"conformance: on {names}; profile {run.profile.name}, {seed}; trace {trace}"]
    for one in implementations:
        lines.append(f"under test: {one.describe()}")
        if one.output and config.option.verbose > 0:
            lines += [f"  its import printed: {line}" for line in one.output]
        elif one.output:
            lines.append(f"  lines that its import printed: {len(one.output)}, shown with -v")
        if one.adapter.validates and not one.has_checked_mode:
            lines.append("  has no checks(enabled): it must always refuse bad values")
        declared = [f"{deviation.function}: {deviation.reason}" for deviation in one.deviations]
        lines += [f"  deviates (declared): {line}" for line in declared]
    kinds = {target.kind for target in run.targets if target.is_fast}
    if config.option.target is None and kinds == {"host"}:
        lines.append(f"kernels are not run, without numba-cuda: {how_to_install('cuda')}")
    if config.option.functions is not None:
        lines.append(f"functions: {', '.join(run.contracts)}")
    if run.is_replay:
        lines.append(f"replay: {config.option.replay}, {len(run.stored)} cases")
    return lines


# Tests.


class FunctionItem(pytest.Item):
    """A test; `what` is the function, the kind and the name of the target."""

    def __init__(self, *, what: tuple[str, str, str], test: Callable[[], None], **kw: Any) -> None:
        super().__init__(**kw)
        self.what, self.test = what, test
        self.text = ""

    def runtest(self) -> None:
        run, (function, kind, target) = self.config.stash[RUN], self.what
        found: dict[str, Any] = {"function": function, "check": kind, "target": target}
        drawn, left_out = checks.COUNTS[function, target], checks.UNSUPPORTED.copy()
        if self.config.option.trace:
            pytest.set_trace()
        try:
            if run.has_ended(*self.what):
                pytest.skip("not run, since a test before has failed")
            with run.limits.running(self.nodeid):
                self.test()
        except Unsupported as missing:
            pytest.skip(str(missing))
        except Failure as failure:
            is_wrong = failure.difference.verdict is Verdict.WRONG_ANSWER
            run.end(*self.what, is_wrong=is_wrong)
            stem = self.name.partition("[")[0]
            path = next((case.path for case in run.stored if _stem(case) == stem), None)
            self.text = _describe(self.config, failure, found, path)
            found["others"] = others = [dict[str, Any]() for _ in failure.others]
            for other, about in zip(failure.others, others, strict=True):
                self.text += f"\n\n{_describe(self.config, other, about)}"
            raise
        finally:
            found["examples"] = checks.COUNTS[function, target] - drawn + (kind == "stored")
            more = (checks.UNSUPPORTED - left_out).items()
            found["unsupported"] = [(reason, number) for (_, _, reason), number in more]
            found["hard_cases"] = sorted(name for owner, name in checks.MET if owner == function)
            self.user_properties += found.items()

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        return self.text or super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, None, str]:
        return self.path, None, self.name


def _describe(
    config: pytest.Config, failure: Failure, found: dict[str, Any], path: Path | None = None
) -> str:
    """Store the story of a failure unless it has a file; add to `found`, and return the text."""
    run, option, line = config.stash[RUN], config.option, show.one_line(failure)
    target = next(target for target in run.targets if target.name == failure.target)
    verdict = failure.difference.verdict
    is_fatal = verdict is Verdict.WRONG_ANSWER or target.is_strict
    found |= {"verdict": verdict.value, "line": line, "is_fatal": is_fatal}
    found |= {"cause": cause_of(failure), "gravity": gravity_of(failure)}
    found["severity"] = "" if target.is_strict else severity_of(failure)
    folder = _folder("corpus") if option.corpus_add else option.failures or _folder("failures")
    try:
        path = path or cases.store(failure.story, folder, failure.target, line)
    except (OSError, TypeError, ValueError) as error:
        command = f"the case cannot be stored: {error}"
    else:
        path, here = path.resolve(), Path.cwd()
        path = path.relative_to(here) if path.is_relative_to(here) else path
        words = ["python", "-m", "conformance", "--replay", str(path)]
        for name in ("impl", "adapter"):
            words += [word for text in getattr(option, name) for word in (f"--{name}", text)]
        command = shlex.join([*words, "--target", target.kind])
    found["replay"] = command
    found["picture"] = picture_of(failure)
    contract = run.contracts[failure.story.function][1]
    found["text"] = text = show.failure_text(failure, command, contract.host)
    return text


class FunctionFile(pytest.File):
    def collect(self) -> Iterator[pytest.Item]:
        run = self.config.stash[RUN]
        for file, contract in run.contracts.values():
            for target in run.targets if file == self.path.resolve() else ():
                for stem, kind, test in _tests(run, contract, target):
                    what = contract.function, kind, target.name
                    name = f"{stem}[{kind}-{target.name}]"
                    yield FunctionItem.from_parent(self, name=name, what=what, test=test)


def _stem(case: cases.Case) -> str:
    """Return the name of a stored case: that of its file, which vectors have in common."""
    name = case.path.stem
    return name if name.startswith(case.story.function) else f"{case.story.function}-{name}"


def _tests(
    run: Run, contract: Contract, target: Target
) -> Iterator[tuple[str, str, Callable[[], None]]]:
    function = contract.function
    if target.implementation.is_converted(function):
        return
    if not target.offers(*contract.names) or (target.kind == "native" and not contract.has_kernel):
        return
    for case in run.stored:
        if case.story.function == function:
            test = functools.partial(checks.tell, contract, target, case.story)
            yield _stem(case), "stored", test
    if run.is_replay:
        return
    if any(known.function == function for known in target.implementation.deviations):
        yield function, "deviations", checks.deviations(contract, target)
    yield function, "answers", checks.answers(contract, target, run.profile)
    if target.implementation.adapter.validates and not contract.is_long:
        yield function, "refusals", checks.refusals(contract, target, run.profile)
    if contract.laws:
        yield function, "laws", checks.laws(contract, target, run.profile)


def pytest_pycollect_makemodule(
    module_path: Path, parent: pytest.Collector
) -> pytest.Collector | None:
    """Collect a file of functions in place of a module with tests."""
    files = {file for file, _ in parent.config.stash[RUN].contracts.values()}
    is_ours = module_path.resolve() in files
    return FunctionFile.from_parent(parent, path=module_path) if is_ours else None


def pytest_collection_finish() -> None:
    """Let garbage collections skip everything imported."""
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """Turn a failure that does not fail the run into an expected one."""
    report = yield
    found = dict(report.user_properties)
    if isinstance(item, FunctionItem) and report.failed and found.get("is_fatal") is False:
        report.outcome, report.wasxfail = "skipped", found["line"]
    return report


# pytest-xdist.


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep the tests of a function on one worker, and distribute all others one by one."""
    if config.getvalue("dist") != "load":
        return None
    from conformance.harness.scheduling import Scheduling  # noqa: PLC0415  # xdist is optional

    return Scheduling(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    limits = node.config.stash[RUN].limits
    if limits.folder is None:
        folder = tempfile.TemporaryDirectory(prefix="conformance-")
        node.config.add_cleanup(folder.cleanup)
        limits.folder = Path(folder.name)
    node.workerinput["journals"] = str(limits.folder)


@pytest.hookimpl(optionalhook=True)
def pytest_handlecrashitem(crashitem: str, report: Any) -> None:
    match = ITEM.search(crashitem)
    if match is None:
        return
    config, worker = report.node.config, report.node.gateway.id
    limits = config.stash[RUN].limits
    found: dict[str, Any] = {**match.groupdict(), "check": match["kind"]}
    first = (limits.folder / f"{worker}.stack").read_text(errors="replace").partition("\n")[0]
    is_hang = first.startswith("Timeout")
    words = f"crashes ({first.rpartition(': ')[2] or KILLED})"
    if is_hang:
        words = f"hangs for more than {limits.seconds:g} s, and cannot be stopped"
    story = (read_journal(limits.folder / f"{worker}.journal") or ("", ""))[1]
    if isinstance(story, Story):
        text = _describe(config, failure_of(found["target"], story, words), found)
    else:
        where = story or "outside of a call"
        text = found["line"] = f"{found['function']} on {found['target']}: {where} {words}"
    found["verdict"] = "hangs" if is_hang else "crashes"
    report.longrepr = text
    report.location = (*report.location[:2], crashitem.rpartition("::")[2])
    report.user_properties = [*found.items()]
