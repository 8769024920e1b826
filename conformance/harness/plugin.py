"""The plugin for pytest: one test for each function, target and kind, and the table at the end.

All tests of a function run in one process, in order: stored cases, answers, refusals and laws on
the first target, then on the next. Wrong answers end the function, so that one bug is shown once.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import importlib
import os
import re
import secrets
import shlex
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from conformance import FOLDER
from conformance.adapters import Unsupported
from conformance.adapters.implementations import load_implementations
from conformance.harness import cases, checks, show
from conformance.harness.contract import Contract
from conformance.harness.limits import Limits, failure_of, read_journal
from conformance.harness.results import Results
from conformance.harness.story import Failure, Story, Verdict
from conformance.harness.targets import Target, choose
from conformance.name_lists import names_in, near

ITEM: Final = re.compile(r"::(?P<function>[\w.]+)(-\w+)?\[(?P<kind>[a-z]+)-(?P<target>[\w:]+)\]$")
"""The end of a node id: `::compute_slot_mapping[answers-host]`, `::...-1cd2fdf6[stored-host]`."""


@dataclasses.dataclass
class Run:
    """What the options describe.

    Attributes:
        targets: The targets under test.
        contracts: The file and the contract of each function to test.
        profile: How many examples are drawn.
        stored: The cases to replay before the tests of a function.
        is_replay: Whether nothing else is run.
        limits: Of this process; in the controller, they only have the folder of the workers.
        ended: What is not tested any more: an implementation, a function, and a kind or "" for all.
    """

    targets: list[Target]
    contracts: dict[str, tuple[Path, Contract]]
    profile: checks.Profile
    stored: list[cases.Case]
    is_replay: bool
    limits: Limits
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


# Options.


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options that are not there yet."""
    group = parser.getgroup("conformance", "conformance of an implementation with `reference`")
    # pytest's own `--strict` can be set in its configuration.
    group._arggroup.conflict_handler = "resolve"  # noqa: SLF001  # there is no public way

    def add(name: str, text: str, **options: Any) -> None:
        with contextlib.suppress(ValueError):  # the other plugin of this package has it
            group.addoption(name, help=text, **options)

    names = {"metavar": "A,B"}
    files = {"action": "append", "default": [], "metavar": "MODULE_OR_FILE"}
    add("--impl", "the implementation under test, a module or a .py file (default: fast)", **files)
    add("--adapter", "the adapter for its objects: one for all, or one for each", **files)
    add("--target", "targets to run: host, native, cuda", **names)
    add("--functions", "check only these functions (default: all)", **names)
    add("--profile", "dev, brief, default or nightly", default="default", metavar="NAME")
    add("--replay", "replay a stored case, or a folder, and run nothing else", type=Path)
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
    """Check the options before anything runs."""
    config.addinivalue_line("python_files", "functions/*.py")
    try:
        run = config.stash[RUN] = _run(config)
    except (ValueError, OSError) as error:
        raise pytest.UsageError(str(error)) from error
    if not hasattr(config, "workerinput"):
        contracts = [run.contracts[function][1] for function in sorted(run.contracts)]
        is_complete = _is_whole(config) and run.profile.name == "default"
        results = Results(run.targets, contracts, is_complete=is_complete)
        config.pluginmanager.register(results, "harness-results")


def _run(config: pytest.Config) -> Run:
    option, is_alone = config.option, not _has_other_plugin(config)
    implementations = load_implementations(option.impl, option.adapter)
    for implementation in implementations:
        implementation.is_strict |= option.is_strict
    kinds = option.target
    if kinds is not None and not is_alone:  # the other plugin has `sim`
        kinds = ",".join(kind for kind in kinds.split(",") if kind.strip() != "sim")
    targets = choose(kinds, implementations) if kinds != "" or is_alone else []
    # The driver of a GPU maps all its memory.
    has_limit = sys.platform == "linux" and all(target.device == "cpu" for target in targets)
    worker: dict[str, Any] = getattr(config, "workerinput", {})
    return Run(
        targets,
        _contracts(config),
        _profile(option),
        _stored(option.replay, is_alone=is_alone),
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
        if not members and not _has_other_plugin(config):
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
        return profile
    if option.hypothesis_seed is None:
        option.hypothesis_seed = str(secrets.randbits(32))  # workers inherit it
    return dataclasses.replace(profile, seed=int(option.hypothesis_seed))


def _stored(replayed: Path | None, *, is_alone: bool) -> list[cases.Case]:
    """Return the stored cases that the run begins with, or consists of."""
    path = _folder("corpus") if replayed is None else replayed
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    if replayed is None or not is_alone:
        files = [file for file in files if is_story(file)]
    return [case for file in files for case in cases.load(file)]


def is_story(file: Path) -> bool:
    """Return whether a file has a stored story, not a case of the other plugin."""
    return file.is_file() and '"story"' in file.read_text(encoding="utf-8", errors="replace")


def _folder(name: str) -> Path:
    """Return a folder of this package, or one in the working directory if it is installed."""
    is_ours = os.access(FOLDER, os.W_OK) and "site-packages" not in FOLDER.parts
    return FOLDER / name if is_ours else Path(f"conformance-{name}")


def _has_other_plugin(config: pytest.Config) -> bool:
    return config.pluginmanager.has_plugin("conformance-outcomes")


def _is_whole(config: pytest.Config) -> bool:
    """Return whether no option or argument leaves out functions, targets or tests."""
    names = "impl adapter target functions replay keyword markexpr lf deselect"
    left_out = any(config.getoption(name, None) for name in names.split())
    return not left_out and all(Path(argument).is_dir() for argument in config.args)


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say what is under test, so that a typo is noticed."""
    run = config.stash[RUN]
    if _has_other_plugin(config):
        return []
    seed = "derandomized" if run.profile.seed is None else f"seed {run.profile.seed}"
    names = ", ".join(target.name for target in run.targets)
    implementations = dict.fromkeys(target.implementation for target in run.targets)
    return [
        f"conformance: on {names}; profile {run.profile.name}, {seed}",
        *(f"under test: {implementation.describe()}" for implementation in implementations),
    ]


# Tests.


class FunctionItem(pytest.Item):
    """A test; `what` is the function, the kind and the name of the target."""

    def __init__(self, *, what: tuple[str, str, str], test: Callable[[], None], **kw: Any) -> None:
        super().__init__(**kw)
        self.what, self.test = what, test
        self.text = ""

    def runtest(self) -> None:
        """Run the test within the limits, and note what it found."""
        run, (function, kind, target) = self.config.stash[RUN], self.what
        found: dict[str, Any] = {"function": function, "check": kind, "target": target}
        drawn, left_out = checks.COUNTS[function, target], checks.UNSUPPORTED.copy()
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
            path = next((c.path for c in run.stored if c.path.stem == stem), None)
            self.text = _describe(self.config, failure, found, path)
            raise
        finally:
            found["examples"] = checks.COUNTS[function, target] - drawn + (kind == "stored")
            more = (checks.UNSUPPORTED - left_out).items()
            found["unsupported"] = [(reason, number) for (_, _, reason), number in more]
            found["hard_cases"] = sorted(name for owner, name in checks.MET if owner == function)
            self.user_properties += found.items()

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Return the text of a failure, without the traceback of the harness."""
        return self.text or super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, None, str]:
        """Return the heading of the report."""
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
    return show.failure_text(failure, command, run.contracts[failure.story.function][1].host)


class FunctionFile(pytest.File):
    """A file with `CONTRACTS`."""

    def collect(self) -> Iterator[pytest.Item]:
        """Yield the tests of its functions."""
        run = self.config.stash[RUN]
        for file, contract in run.contracts.values():
            for target in run.targets if file == self.path.resolve() else ():
                for stem, kind, test in _tests(run, contract, target):
                    what = contract.function, kind, target.name
                    name = f"{stem}[{kind}-{target.name}]"
                    yield FunctionItem.from_parent(self, name=name, what=what, test=test)


def _tests(
    run: Run, contract: Contract, target: Target
) -> Iterator[tuple[str, str, Callable[[], None]]]:
    """Yield the name, the kind and the body of each test of a function on a target."""
    function = contract.function
    if not target.offers(*contract.names) or (target.kind == "native" and not contract.has_kernel):
        return
    for case in run.stored:
        if case.story.function == function:
            test = functools.partial(checks.tell, contract, target, case.story)
            yield case.path.stem, "stored", test
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


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In a replay, run nothing else."""
    if config.stash[RUN].is_replay and config.stash[RUN].stored:
        items[:] = [item for item in items if isinstance(item, FunctionItem)]


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
    """Tell a worker where its journal is."""
    limits = node.config.stash[RUN].limits
    if limits.folder is None:
        folder = tempfile.TemporaryDirectory(prefix="conformance-")
        node.config.add_cleanup(folder.cleanup)
        limits.folder = Path(folder.name)
    node.workerinput["journals"] = str(limits.folder)


@pytest.hookimpl(optionalhook=True)
def pytest_handlecrashitem(crashitem: str, report: Any) -> None:
    """Report the story during which a worker ended."""
    match = ITEM.search(crashitem)
    if match is None:
        return
    config, worker = report.node.config, report.node.gateway.id
    limits = config.stash[RUN].limits
    found: dict[str, Any] = {**match.groupdict(), "check": match["kind"]}
    first = (limits.folder / f"{worker}.stack").read_text(errors="replace").partition("\n")[0]
    is_hang = first.startswith("Timeout")
    words = f"crashes ({first.rpartition(': ')[2] or 'its process ended'})"
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
