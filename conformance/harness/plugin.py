"""The plugin for pytest: one test for each function, target and kind, and the table at the end.

All tests of a function run in one process, in order: stored cases, answers, refusals and laws on
the first target, then on the next. Wrong answers end the function, so that one bug is shown once.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
import importlib.util
import os
import re
import secrets
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from conformance import FOLDER
from conformance.adapters import Unsupported
from conformance.harness import cases, checks, show
from conformance.harness.contract import Contract
from conformance.harness.limits import Limits, failure_of, read_journal
from conformance.harness.results import Results
from conformance.harness.story import Failure, Story, Verdict
from conformance.harness.targets import Target, choose
from conformance.name_lists import names_in, near
from conformance.targets.implementations import Absent, Implementation, load_implementations

ITEM: Final = re.compile(r"::(?P<function>[\w.]+)(-\w+)?\[(?P<kind>[a-z]+)-(?P<target>[\w:]+)\]$")
"""The end of a node id: `::compute_slot_mapping[answers-host]`, `::...-1cd2fdf6[stored-host]`."""

NUM_FRAMES: Final = 3
"""How many frames of a process that ended are shown."""


@dataclasses.dataclass
class Run:
    """What the options describe, and what this process has learned about the functions.

    Attributes:
        targets: The targets under test.
        contracts: The file and the contract of each function.
        functions: The functions to test; None for all.
        profile: How many examples are drawn.
        stored: The cases to replay before the tests of a function.
        options: The options that name each implementation.
        is_replay: Whether nothing else is run.
        folder: Where failing stories are stored.
        limits: Of this process.
        journals: The folder of the workers' journals; in the controller, None before the first.
        reasons: Why a function, or a kind of its tests, does not run any more.
    """

    targets: list[Target]
    contracts: dict[str, tuple[Path, Contract]]
    functions: list[str] | None
    profile: checks.Profile
    stored: list[cases.Case]
    options: dict[str, list[str]]
    is_replay: bool
    folder: Path
    limits: Limits
    journals: Path | None
    reasons: dict[tuple[str, ...], str] = dataclasses.field(default_factory=dict)

    def note(self, function: str, kind: str, target: str, *, is_wrong: bool) -> None:
        """Note that a test failed: wrong answers end the function, others only this kind."""
        owner = target.rpartition(":")[0]
        is_end = is_wrong and kind in {"answers", "stored", "replay"}
        key = (owner, function) if is_end else (owner, function, kind)
        self.reasons[key] = f"not run: {kind} on {target} {'are wrong' if is_wrong else 'fail'}"

    def why_not(self, item: FunctionItem) -> str:
        """Return why a test does not run; empty if it does."""
        for journal in self.journals.glob("*.journal") if self.journals else ():
            found = read_journal(journal)  # of a worker that died, since it still names a test
            if found and journal.stem != self.limits.worker:
                function, kind, target = _parts(found[0])
                self.note(function, kind, target, is_wrong=True)
        owner, function = item.target.name.rpartition(":")[0], item.contract.function
        found_reasons = (self.reasons.get((owner, function, *kind)) for kind in ((), (item.kind,)))
        return next(filter(None, found_reasons), "") if item.kind != "replay" else ""

    def items(self, contract: Contract) -> Iterator[tuple[str, str, Target, Callable[[], None]]]:
        """Yield the name, the kind, the target and the body of each test of a function."""
        for target in self.targets:
            if not target.offers(contract.function):
                continue
            if target.kind == "native" and not contract.has_kernel:
                continue
            for case in self.stored:
                if case.story.function == contract.function:
                    kind = "replay" if self.is_replay else "stored"
                    yield case.path.stem, kind, target, _replay(contract, target, case.story)
            if self.is_replay:
                continue
            yield (
                contract.function,
                "answers",
                target,
                checks.answers(contract, target, self.profile),
            )
            if target.implementation.adapter.validates:
                test = checks.refusals(contract, target, self.profile)
                yield contract.function, "refusals", target, test
            if contract.laws:
                yield contract.function, "laws", target, checks.laws(contract, target, self.profile)


def _replay(contract: Contract, target: Target, story: Story) -> Callable[[], None]:
    return lambda: checks.replay(contract, target, story)


def _parts(nodeid: str) -> tuple[str, str, str]:
    """Return the function, the kind and the target of a test."""
    found = ITEM.search(nodeid)
    assert found is not None, nodeid
    return found["function"], found["kind"], found["target"]


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
    try:
        run = config.stash[RUN] = _run(config)
    except (ValueError, OSError) as error:
        raise pytest.UsageError(str(error)) from error
    if not hasattr(config, "workerinput"):
        contracts = [contract for _, contract in run.contracts.values()]
        is_complete = _is_whole(config) and run.profile.name == "default"
        results = Results(run.targets, contracts, run.functions, is_complete=is_complete)
        config.pluginmanager.register(results, "harness-results")


def _run(config: pytest.Config) -> Run:
    """Return what the options describe; files get absolute names, which workers inherit."""
    option = config.option
    for name in ("impl", "adapter"):
        found = [str(Path(t).resolve()) if t.endswith(".py") else t for t in getattr(option, name)]
        setattr(option, name, found)
    implementations = load_implementations(option.impl, option.adapter)
    for implementation in implementations:
        implementation.is_strict |= option.is_strict
    contracts = _contracts(config)
    adapters = option.adapter if len(option.adapter) > 1 else option.adapter * len(option.impl)
    options: dict[str, list[str]] = {implementation.name: [] for implementation in implementations}
    for name, texts in (("--impl", option.impl), ("--adapter", adapters)):
        for implementation, text in zip(implementations, texts, strict=False):
            options[implementation.name] += [name, text]
    workerinput: dict[str, Any] = getattr(config, "workerinput", {})
    journals = Path(workerinput["journals"]) if "journals" in workerinput else None
    targets = _targets(config, implementations)
    has_gpu = any(target.device == "cuda" for target in targets)  # it maps all its memory
    gib = None if has_gpu else option.memory_limit
    return Run(
        targets=targets,
        contracts=contracts,
        functions=_functions(config, contracts),
        profile=_profile(config),
        stored=_stored(config, contracts),
        options=options,
        is_replay=option.replay is not None,
        folder=_folder("failures") if option.failures is None else option.failures.resolve(),
        limits=Limits(option.hang_seconds, gib, journals, workerinput.get("workerid", "")),
        journals=journals,
    )


def _targets(config: pytest.Config, implementations: list[Implementation]) -> list[Target]:
    names: str | None = config.option.target
    if names is None or not _has_other_plugin(config):
        return choose(names, implementations)
    kept = [name for name in names.split(",") if name.strip() != "sim"]  # the other plugin has it
    return choose(",".join(kept), implementations) if kept else []


def _contracts(config: pytest.Config) -> dict[str, tuple[Path, Contract]]:
    """Return the contracts of this package, or of the folders `functions` among the arguments."""
    paths = [Path(config.invocation_params.dir, each.split("::")[0]) for each in config.args]
    near_by = [folder for path in paths for folder in (path, path.parent, path / "functions")]
    folders = [path for path in near_by if path.name == "functions" and path.is_dir()]
    files = [file for folder in folders or [FOLDER / "functions"] for file in folder.glob("*.py")]
    return {
        contract.function: (file.resolve(), contract)
        for file in sorted(files)
        for contract in getattr(_module(file.resolve()), "CONTRACTS", ())
    }


def _module(file: Path) -> Any:
    if file.parent == FOLDER / "functions":
        return importlib.import_module(f"conformance.functions.{file.stem}")
    name = f"functions_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _functions(config: pytest.Config, contracts: Iterable[str]) -> list[str] | None:
    if config.option.functions is None:
        return None
    found = []
    for name in names_in(config.option.functions):
        members = [known for known in contracts if name in {known, known.partition(".")[0]}]
        if not members and not _has_other_plugin(config):
            meant = near(name, [*contracts])
            raise ValueError(f"function {name!r} is unknown; did you mean {meant}?")
        found += members
    return list(dict.fromkeys(found))


def _profile(config: pytest.Config) -> checks.Profile:
    option = config.option
    if option.profile not in checks.PROFILES:
        known = ", ".join(checks.PROFILES)
        raise ValueError(f"--profile {option.profile!r} is unknown; there are {known}")
    profile = checks.PROFILES[option.profile]
    if profile.name != "nightly":
        return profile
    if option.hypothesis_seed is None:
        option.hypothesis_seed = str(secrets.randbits(32))  # workers inherit it
    if not str(option.hypothesis_seed).isdecimal():
        raise ValueError(f"--hypothesis-seed must be an integer, got {option.hypothesis_seed!r}")
    return dataclasses.replace(profile, seed=int(option.hypothesis_seed))


def _stored(config: pytest.Config, contracts: Iterable[str]) -> list[cases.Case]:
    """Return the stored cases that the run begins with, or consists of."""
    replayed = config.option.replay
    if replayed is not None:
        config.option.replay = replayed = replayed.resolve()
    folder = _folder("corpus") if replayed is None else replayed
    files = sorted(folder.rglob("*.json")) if folder.is_dir() else [folder]
    if _has_other_plugin(config) or replayed is None:
        files = [file for file in files if is_story(file)]
    found = [case for file in files for case in cases.load(file)]
    for case in found if replayed is not None else ():
        if case.story.function not in contracts:
            function = case.story.function
            raise ValueError(f"{case.path}: {function!r} has no contract")
    if replayed is not None and not found and not _has_other_plugin(config):
        raise ValueError(f"{replayed} has no cases")
    return found


def is_story(file: Path) -> bool:
    """Return whether a file has a stored story, not a case of the other plugin."""
    return file.is_file() and '"story"' in file.read_text(encoding="utf-8", errors="replace")


def _folder(name: str) -> Path:
    """Return a folder of this package, or one in the working directory if it is installed."""
    is_ours = os.access(FOLDER, os.W_OK) and "site-packages" not in FOLDER.parts
    return FOLDER / name if is_ours else Path(f"conformance-{name}").resolve()


def _has_other_plugin(config: pytest.Config) -> bool:
    return config.pluginmanager.has_plugin("conformance-outcomes")


def _is_whole(config: pytest.Config) -> bool:
    """Return whether no option or argument leaves out functions, targets or tests."""
    chosen = ("impl", "adapter", "target", "functions", "replay", "keyword", "markexpr", "lf")
    left_out = any(config.getoption(name, None) for name in (*chosen, "deselect", "ff"))
    return not left_out and all(Path(argument).is_dir() for argument in config.args)


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say what is under test, so that a typo is noticed."""
    run = config.stash[RUN]
    if _has_other_plugin(config):
        return []
    seed = "derandomized" if run.profile.seed is None else f"seed {run.profile.seed}"
    names = ", ".join(target.name for target in run.targets)
    implementations = {id(one.implementation): one.implementation for one in run.targets}.values()
    lines = [f"conformance: on {names}; profile {run.profile.name}, {seed}"]
    return lines + [
        f"under test: {implementation.describe()}" for implementation in implementations
    ]


# Tests.


class FunctionItem(pytest.Item):
    """One kind of test of a function on a target."""

    def __init__(
        self, *, contract: Contract, kind: str, target: Target, test: Callable[[], None], **kw: Any
    ) -> None:
        super().__init__(**kw)
        self.contract, self.kind, self.target, self.test = contract, kind, target, test
        self.text = ""

    def runtest(self) -> None:
        """Run the test within the limits, and note what it found."""
        run, function, target = self.config.stash[RUN], self.contract.function, self.target
        found: dict[str, Any] = {"check": self.kind, "function": function, "target": target.name}
        why = run.why_not(self)
        drawn = checks.COUNTS[function, target.name]
        try:
            if why:
                pytest.skip(why)
            with run.limits.running(self.nodeid):
                self.test()
        except (Absent, Unsupported) as missing:
            pytest.skip(str(missing))
        except Failure as failure:
            is_wrong = failure.difference.verdict is Verdict.WRONG_ANSWER
            run.note(function, self.kind, target.name, is_wrong=is_wrong)
            properties, self.text = described(self.config, failure, self.kind, self._case())
            found |= properties
            raise
        except Exception as error:
            said = f"{type(error).__name__}: {error}".partition("\n")[0]
            found["line"] = f"{function} on {target.name}: an error in the run: {said}"
            raise
        finally:
            found["examples"] = checks.COUNTS[function, target.name] - drawn
            met = sorted(name for owner, name in checks.MET if owner == function)
            found["hard_cases"] = ",".join(met)
            self.user_properties += found.items()

    def _case(self) -> Path | None:
        stored = self.config.stash[RUN].stored
        is_stored = self.kind in {"stored", "replay"}
        return next(
            (c.path for c in stored if is_stored and self.name.startswith(c.path.stem)), None
        )

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Return the text of a failure, without the traceback of the harness."""
        if self.text and not self.config.option.fulltrace:
            return self.text
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, None, str]:
        """Return the heading of the report."""
        return self.path, None, self.name


def described(
    config: pytest.Config, failure: Failure, kind: str, path: Path | None = None
) -> tuple[dict[str, Any], str]:
    """Store the story of a failure; return the properties of the report, and its text.

    Args:
        config: pytest's.
        failure: The failure.
        kind: The kind of the test.
        path: The file of the story, if it is stored already.
    """
    run, line = config.stash[RUN], show.one_line(failure)
    target = next(target for target in run.targets if target.name == failure.target)
    verdict = failure.difference.verdict
    fails = verdict is Verdict.WRONG_ANSWER or target.is_strict
    found = {"verdict": verdict.value, "line": line, "fails": fails}
    command = ""
    try:
        if path is None:
            path = cases.store(failure.story, run.folder, failure.target, line)
            if config.option.corpus_add:
                corpus = cases.store(failure.story, _folder("corpus"), failure.target, line)
                found["stored"] = str(corpus)
        command = found["replay"] = replay_command(config, path, target)
    except (OSError, TypeError, ValueError) as error:
        found["replay"] = f"the case cannot be stored: {error}"
    host = run.contracts[failure.story.function][1].host if kind != "laws" else frozenset()
    return found, show.failure_text(failure, command, host)


def replay_command(config: pytest.Config, path: Path, target: Target) -> str:
    """Return the command line that replays a stored case on a target."""
    with contextlib.suppress(ValueError):
        path = path.relative_to(Path.cwd())
    words = ["python", "-m", "conformance", "--replay", str(path)]
    words += config.stash[RUN].options.get(target.implementation.name, [])
    return shlex.join([*words, "--target", target.kind])


class FunctionFile(pytest.File):
    """A file with `CONTRACTS`."""

    def collect(self) -> Iterator[pytest.Item]:
        """Yield the tests of its functions; a replay has its own."""
        run = self.config.stash[RUN]
        for file, contract in run.contracts.values():
            is_chosen = run.functions is None or contract.function in run.functions
            if file == self.path.resolve() and is_chosen and not run.is_replay:
                yield from _items(self, contract)


def _items(parent: pytest.Collector, contract: Contract) -> Iterator[pytest.Item]:
    for name, kind, target, test in parent.config.stash[RUN].items(contract):
        yield FunctionItem.from_parent(
            parent,
            name=f"{name}[{kind}-{target.name}]",
            contract=contract,
            kind=kind,
            target=target,
            test=test,
        )


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collect the files of functions; `pytest_pycollect_makemodule` those that are arguments."""
    if parent.session.isinitpath(file_path):
        return None
    return pytest_pycollect_makemodule(file_path, parent)


def pytest_pycollect_makemodule(
    module_path: Path, parent: pytest.Collector
) -> pytest.Collector | None:
    """Collect a file of functions in place of a module with tests."""
    contracts = parent.config.stash[RUN].contracts.values()
    if module_path.resolve() not in {file for file, _ in contracts}:
        return None
    return FunctionFile.from_parent(parent, path=module_path)


class _Replayed(pytest.Collector):
    """The parent of the tests of a replay."""

    def collect(self) -> Iterable[pytest.Item]:
        return ()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session: pytest.Session, items: list[pytest.Item]) -> None:
    """In a replay, run its cases alone."""
    run = session.config.stash[RUN]
    if run.is_replay and (run.stored or not _has_other_plugin(session.config)):
        # The path determines which `conftest.py` applies.
        parent = _Replayed.from_parent(session, name="replay", nodeid="replay", path=FOLDER)
        session.config.hook.pytest_deselected(items=items[:])
        items[:] = [
            item for _, contract in run.contracts.values() for item in _items(parent, contract)
        ]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """Turn a failure that does not fail the run into an expected one."""
    report = yield
    found = dict(report.user_properties)
    if isinstance(item, FunctionItem) and report.failed and found.get("fails") is False:
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
    run = node.config.stash[RUN]
    run.journals = run.journals or Path(tempfile.mkdtemp(prefix="conformance-"))
    node.workerinput["journals"] = str(run.journals)


@pytest.hookimpl(optionalhook=True)
def pytest_handlecrashitem(crashitem: str, report: Any) -> None:
    """Report the story during which a worker ended as a wrong answer of its function."""
    if ITEM.search(crashitem) is None:
        return
    function, kind, name = _parts(crashitem)
    config, worker = report.node.config, report.node.gateway.id
    run = config.stash[RUN]
    assert run.journals is not None
    stack = run.journals / f"{worker}.stack"
    first, frames = _stack(stack.read_text(errors="replace") if stack.exists() else "")
    words = f"crashes ({first.rpartition(': ')[2] or 'its process ended'})"
    if first.startswith("Timeout"):
        words = f"hangs for more than {run.limits.seconds:g} s, and cannot be stopped"
    _, _, story = read_journal(run.journals / f"{worker}.journal") or ("", "", None)
    if isinstance(story, Story):
        found, text = described(config, failure_of(name, story, words), kind)
    else:
        line = f"{function} on {name}: {story or 'outside of a call'} {words}"
        found, text = {"verdict": Verdict.WRONG_ANSWER.value, "line": line, "fails": True}, line
    report.longrepr = "\n".join([text, *frames])
    report.location = (*report.location[:2], crashitem.rpartition("::")[2])
    found |= {"check": kind, "function": function, "target": name, "end": words.split()[0]}
    report.user_properties = [*found.items()]


def _stack(text: str) -> tuple[str, list[str]]:
    """Return the first line of what faulthandler wrote, and the implementation's last frames."""
    threads = [part for part in text.split("\n\n") if 'File "' in part]
    current = [part for part in threads if part.startswith("Current")] or threads[-1:]
    ours = (str(FOLDER), "site-packages", '"<')
    frames = [line for part in current for line in part.splitlines() if 'File "' in line]
    return text.partition("\n")[0], [
        f"    {frame.strip()}" for frame in frames if not any(one in frame for one in ours)
    ][:NUM_FRAMES]


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the journals."""
    run = config.stash.get(RUN, None)
    if run is not None and run.journals is not None and not hasattr(config, "workerinput"):
        shutil.rmtree(run.journals, ignore_errors=True)
